"""A pipeline that is started again goes on from its checkpoint, with as many workers as there are."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import TCPStore

from pitstop.pipeline import Executor, publish
from pitstop.pipeline.saved import SavedStages
from recovery.planning.pipeline.model import Problem
from recovery.planning.pipeline.planner import plan
from recovery.planning.pipeline.specification import Specification, answer
from tests.sdk.pipeline_job import Reference, make_task

TOTAL = 3


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def trained(folder: Path, iterations: int) -> Executor:
    """One worker, in this process."""
    found = plan(Problem(1, 1, TOTAL))
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    publish(store, 1, answer(Specification(found.schedule.problem), found, found), {"w": (0, 0)})
    executor = Executor(make_task(1, TOTAL), store, "w", checkpoints=str(folder), save_every=2)
    executor.run(iterations)
    return executor


def test_a_restart_goes_on_from_the_newest_checkpoint_of_all_stages(tmp_path: Path, one_thread: None) -> None:
    reference = Reference(1, TOTAL)
    reference.run(7)
    first = trained(tmp_path, 5)
    assert sorted(first.losses) == [0, 1, 2, 3, 4]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stage-0-2.pt", "stage-0-4.pt"]
    again = trained(tmp_path, 7)
    assert sorted(again.losses) == [4, 5, 6], "what was saved is not done again"
    for ours, theirs in zip(again.stage.parameters, reference.modules[0].parameters(), strict=True):
        assert (ours - theirs).abs().max() <= 1e-9


def test_a_checkpoint_counts_once_every_stage_has_it(tmp_path: Path) -> None:
    saved = SavedStages(str(tmp_path))
    content: Any = torch.arange(8, dtype=torch.uint8)
    for stage, done in ((0, 2), (1, 2), (0, 4)):
        saved.save(stage, done, content)
    (tmp_path / "stage-1-4.pt.new").write_bytes(b"torn")
    assert saved.newest(2) == 2 and saved.newest(3) is None
    assert (saved.load(1, 2) == content).all()
    saved.save(1, 4, content)
    assert saved.newest(2) == 4
