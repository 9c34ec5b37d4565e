"""Checkpoints on disk: what is published, kept, and refused."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from pitstop.checkpoint import durable
from pitstop.checkpoint.staged import Damaged


def shard(folder: Path, step: int, generation: int = 0, rank: int = 0, world: int = 1) -> durable.Checkpoint:
    durable.flush_shard(str(folder), step, generation, rank, world, {"shared.0": torch.full((4,), float(step))})
    name = durable.name_of(step, generation)
    return next(item for item in durable.checkpoints(str(folder)) if item.name == name)


def latest(folder: Path) -> tuple[int, int] | None:
    found = durable.read_latest(str(folder))
    return None if found is None else (found.generation, found.step)


def test_latest_waits_for_every_rank(tmp_path: Path) -> None:
    first = shard(tmp_path, 10, rank=0, world=2)
    published = durable.publish(str(tmp_path), first)
    assert not published.done and "ranks [1]" in published.why and latest(tmp_path) is None
    assert durable.publish(str(tmp_path), shard(tmp_path, 10, rank=1, world=2)).done
    assert latest(tmp_path) == (0, 10)


def test_an_older_generation_and_an_earlier_step_are_refused(tmp_path: Path) -> None:
    assert durable.publish(str(tmp_path), shard(tmp_path, 20, 1)).done
    late = durable.publish(str(tmp_path), shard(tmp_path, 30, 0))
    assert not late.done and "generation 0 is over" in late.why
    assert not durable.publish(str(tmp_path), shard(tmp_path, 10, 1)).done
    assert latest(tmp_path) == (1, 20)


def test_a_later_generation_may_go_back(tmp_path: Path) -> None:
    old = shard(tmp_path, 10)
    durable.publish(str(tmp_path), shard(tmp_path, 40))
    assert durable.publish(str(tmp_path), old, generation=1).done
    assert latest(tmp_path) == (1, 10)


def test_a_shard_whose_bytes_changed_is_never_read(tmp_path: Path) -> None:
    found = shard(tmp_path, 10)
    assert torch.equal(durable.read_shard(str(tmp_path), found.name, 0)["shared.0"], torch.full((4,), 10.0))
    data = next((tmp_path / found.name / "rank0").glob("*.distcp"))
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    with pytest.raises(Damaged, match="does not fit"):
        durable.read_shard(str(tmp_path), found.name, 0)


def test_a_half_written_latest_is_said_and_replaced(tmp_path: Path) -> None:
    durable.publish(str(tmp_path), shard(tmp_path, 10))
    (tmp_path / "latest").write_text('{"step": 10, "gen')
    with pytest.raises(Damaged, match="latest"):
        durable.read_latest(str(tmp_path))
    assert durable.publish(str(tmp_path), shard(tmp_path, 20)).done


def test_a_flush_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    durable.publish(str(tmp_path), shard(tmp_path, 10))

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        shard(tmp_path, 20)
    monkeypatch.undo()
    assert [item.step for item in durable.checkpoints(str(tmp_path))] == [10] and latest(tmp_path) == (0, 10)


def test_retention_keeps_the_newest_and_what_latest_names(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40, 50):
        shard(tmp_path, step)
    durable.publish(str(tmp_path), durable.checkpoints(str(tmp_path))[3], generation=1)
    shard(tmp_path, 45, rank=0, world=2)
    removed = durable.retire(str(tmp_path), keep=2, keep_every=30)
    assert sorted(durable.NAME.fullmatch(name)[1].lstrip("0") for name in removed) == ["10", "45"]  # type: ignore[index]
    assert [item.step for item in durable.checkpoints(str(tmp_path))] == [50, 40, 30, 20]
