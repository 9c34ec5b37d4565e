"""Batches that come together are committed together, each answered by itself."""

from __future__ import annotations

import pytest
from sqlalchemy import event, func, select

from rules.signal import Trust
from service.chunks import ChunkEncoder
from service.ingest import writer as writer_module
from service.ingest.preparation import Door, Prepared, PreparedStream
from service.ingest.protocol import StreamKey
from service.ingest.writer import ChunkWriter
from service.store import Store
from service.store.logs import Chunk


def prepared(text: bytes, digest: bytes = b"") -> Prepared:
    data = ChunkEncoder().encode([(1, 0, text)])
    stream = PreparedStream("s", StreamKey("j", 1, None, 0, "-"), Trust.JOB, 1, len(text) + 1, 1.0, 1.0, data, {}, digest)
    return Prepared((stream,), 1, 1, 0, bytes=len(text) + 1)


def test_what_is_being_prepared_is_committed_with_the_first_and_a_batch_sent_twice_is_stored_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "GATHER_SECONDS", 60.0)
    commits: list[object] = []
    event.listen(store.engine, "commit", commits.append)
    writer = ChunkWriter(store, lambda: 1.0, 1 << 30)
    writer.coming = 3
    batches = [
        (prepared(b"a"), "1"),
        (prepared(b"a"), "1"),
        (prepared(b"b", b"8 bytes."), "2"),
        (prepared(b"b", b"8 bytes."), "3"),
    ]
    futures = [writer.submit(batch, Door.LOKI, "test", name, True) for batch, name in batches]
    writer.close()
    answers = [future.result(timeout=120) for future in futures]
    assert [(answer.kept, answer.duplicate) for answer in answers] == [(1, False), (1, True), (1, False), (0, False)]
    assert len(commits) == 1
    with store.reading() as session:
        assert session.execute(select(func.count(), func.sum(Chunk.lines))).one() == (1, 2)
