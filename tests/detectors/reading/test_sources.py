"""Reading files, archives and pipes as blocks of whole lines."""

from __future__ import annotations

import gzip
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from detectors.reading.sources import MAX_LINE_BYTES, LineReader, Source, UnreadableInput, find_sources, text_source

NOBODY = 65_534


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may read, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def lines_of(source: Source, block_bytes: int = 1 << 20) -> list[tuple[int, bytes]]:
    with LineReader(source, block_bytes) as reader:
        numbered = [(block.first + index, line) for block in reader for index, line in enumerate(block.data.split(b"\n")[:-1])]
        assert len(numbered) == reader.lines
    return numbered


@given(st.lists(st.binary(max_size=40).filter(lambda line: b"\n" not in line)), st.booleans(), st.integers(1, 64))
def test_blocks_hold_every_line_once_under_its_number(lines: list[bytes], final_newline: bool, block_bytes: int) -> None:
    content = b"\n".join(lines) + (b"\n" if final_newline else b"")
    expected = content.split(b"\n")
    if not expected[-1]:
        expected.pop()
    if content.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xff\xfe", b"\xfe\xff")):
        return
    assert lines_of(text_source(content), block_bytes) == list(enumerate(expected, 1))


def test_a_carriage_return_starts_no_line() -> None:
    assert lines_of(text_source(b"10%\r20%\rdone\nnext")) == [(1, b"10%\r20%\rdone"), (2, b"next")]


def test_a_very_long_line_keeps_its_beginning_its_end_and_its_number() -> None:
    content = b"first\nbegin" + b"x" * (10 * MAX_LINE_BYTES) + b"end\nlast\n"
    numbered = lines_of(text_source(content))
    assert [number for number, _ in numbered] == [1, 2, 3]
    long = numbered[1][1]
    assert long.startswith(b"beginx") and long.endswith(b"xend") and len(long) <= 4 * MAX_LINE_BYTES


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_compression_is_told_from_the_content_whatever_the_name(tmp_path: Path, pack: object) -> None:
    path = tmp_path / "stderr.txt"
    assert callable(pack)
    path.write_bytes(pack(b"one\ntwo\n") + pack(b"three\n"))
    assert lines_of(Source(str(path))) == [(1, b"one"), (2, b"two"), (3, b"three")]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_utf_16_is_told_from_its_mark(tmp_path: Path, encoding: str, pack: Callable[[bytes], bytes]) -> None:
    lines = [f"rank {number}: größer als {'日' * (number % 90)} 😀" for number in range(3_000)]
    path = tmp_path / "train.log"
    path.write_bytes(pack("\ufeff".encode(encoding) + "\r\n".join(lines).encode(encoding) + b"\n"))
    read = [line.decode().rstrip("\r") for _, line in lines_of(Source(str(path)), 1 << 14)]
    assert read[:-1] == lines[:-1] and read[-1].startswith(lines[-1])


@given(st.binary(max_size=300), st.integers(1, 64))
def test_malformed_utf_16_is_read_to_its_end(data: bytes, block_bytes: int) -> None:
    lines_of(text_source(b"\xff\xfe" + data), block_bytes)


def test_truncated_gzip_is_read_as_far_as_it_goes_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "log.gz"
    whole = gzip.compress(b"".join(b"line %d %s\n" % (n, os.urandom(8).hex().encode()) for n in range(20_000)))
    path.write_bytes(whole[: len(whole) // 2])
    with LineReader(Source(str(path))) as reader:
        assert sum(block.lines for block in reader) > 1000
        assert "ends early" in reader.note


def test_damaged_archives_end_with_a_note() -> None:
    for packed in (gzip.compress(b"x\n" * 9999), zstandard.ZstdCompressor().compress(b"x\n" * 9999)):
        with LineReader(text_source(packed[:12] + b"\xff" * 40)) as reader:
            assert len(list(reader)) <= 1
            assert "damaged" in reader.note


def test_directories_are_walked_in_order_and_each_file_is_read_once(tmp_path: Path) -> None:
    for name in ("b/1.log", "a/0.log"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x\n")
    (tmp_path / "again.log").symlink_to(tmp_path / "a/0.log")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "round").symlink_to("round")
    os.mkfifo(tmp_path / "pipe")
    sources = find_sources([str(tmp_path), str(tmp_path / "b/1.log")])
    found = [str(Path(source.path).relative_to(tmp_path)) for source in sources if not source.refused]
    assert found == ["again.log", "b/1.log"]


def test_what_cannot_be_looked_at_in_a_directory_is_among_the_sources_with_the_reason(open_folder: Path) -> None:
    (open_folder / "a.log").write_text("x\n")
    (open_folder / "gone.log").symlink_to(open_folder / "nowhere")
    (open_folder / "round").symlink_to("round")
    (open_folder / "shut").mkdir()
    with without_rights(open_folder / "shut"):
        sources = find_sources([str(open_folder)])
    refused = {Path(source.path).name: source.refused for source in sources}
    assert refused["a.log"] == "" and "check the path" in refused["gone.log"] and "leads back to itself" in refused["round"]
    assert "permission denied" in refused["shut"]


def test_a_directory_that_is_named_and_may_not_be_read_is_an_error(open_folder: Path) -> None:
    with without_rights(open_folder), pytest.raises(UnreadableInput, match="permission denied"):
        find_sources([str(open_folder)])


def test_of_a_file_that_grows_while_it_is_read_what_was_there_at_first_is_read(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(b"step 1\n" * 30_000)
    with LineReader(Source(str(path))) as reader, path.open("ab") as writer:
        lines = 0
        for view in reader.views():
            lines += bytes(view).count(b"\n")
            writer.write(b"step 2\n" * 30_000)
            writer.flush()
    assert (lines, reader.bytes, reader.note) == (30_000, 210_000, "")


def test_a_file_that_is_cut_short_while_it_is_read_says_so(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(b"step 1\n" * 300_000)
    with LineReader(Source(str(path))) as reader:
        for _ in reader.views():
            os.truncate(path, 7)
    assert "cut short" in reader.note and reader.bytes < 300_000 * 7


def test_a_pipe_without_a_writer_reads_as_empty_instead_of_blocking(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert lines_of(find_sources([str(tmp_path / "pipe")])[0]) == []


@pytest.mark.parametrize(
    ("path", "says"),
    [("/nowhere/at/all", "check the path"), ("/dev/zero", "a device, which has no end"), ("empty", "no regular file")],
)
def test_what_cannot_be_read_is_said_in_one_line(tmp_path: Path, path: str, says: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UnreadableInput, match=says) as caught:
        find_sources([str(tmp_path / path)])
    assert "\n" not in str(caught.value)


@contextmanager
def without_rights(path: Path) -> Iterator[None]:
    """`path` may not be read meanwhile, nor by root."""
    mode, user = path.stat().st_mode, os.geteuid()
    path.chmod(0)
    try:
        if user == 0:
            os.seteuid(NOBODY)
        yield
    finally:
        os.seteuid(user)
        path.chmod(mode)


@settings(max_examples=60, deadline=None)
@given(content=st.binary(max_size=400).map(lambda data: data.replace(b"\x01", b"\n")), block=st.integers(2, 64))
def test_views_are_the_lines_of_chunks(tmp_path_factory: pytest.TempPathFactory, content: bytes, block: int) -> None:
    path = tmp_path_factory.getbasetemp() / "viewed.log"
    path.write_bytes(b"x" + content)
    with LineReader(Source(str(path)), block) as reader, LineReader(Source(str(path)), block) as other:
        viewed = b"".join(map(bytes, reader.views()))
        assert viewed == b"".join(other.chunks())
        assert reader.bytes == other.bytes == len(content) + 1
