"""Checkpoints under faults, with real ranks and the real host process: the next good copy is used and said, never a wrong one."""

from __future__ import annotations

import fcntl
import json
import os
import random
import resource
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from pitstop import protocol
from tests.node.peer import wait_for
from tests.sdk.checkpoint import ranks
from tests.torch_ranks import start_rank

SMALL, LARGE = 1 << 10, 1 << 21
SCALE = float(os.environ.get("SCALE", "0.1"))


@dataclass
class Nodes:
    """Each rank on a node of its own: its memory is a folder, its host process serves that folder."""

    folder: Path
    world: int = 1
    meetings: int = 0
    started: list[BaseProcess] = field(default_factory=list)

    @property
    def disk(self) -> Path:
        return self.folder / "disk"

    def memory(self, rank: int = 0) -> Path:
        return self.folder / f"memory{rank}"

    def start(self, function: Any, *arguments: Any, rank: int = 0, generation: int = 0) -> BaseProcess:
        self.serve(rank)
        environment = {
            protocol.STAGING: str(self.memory(rank)),
            protocol.GENERATION: str(generation),
            "PITSTOP_NODE": f"node{rank}",
            "RANK": str(rank),
        }
        process = start_rank(function, *arguments, **environment)
        self.started.append(process)
        return process

    def serve(self, rank: int) -> None:
        """What the agent does: a host process for the node's memory, where none runs."""
        if not any(process.is_alive() for process in self.hosts(rank)):
            process = start_rank(serve_memory, str(self.memory(rank)))
            self.started.append(process)
            self._hosts.setdefault(rank, []).append(process)

    _hosts: dict[int, list[BaseProcess]] = field(default_factory=dict)

    def hosts(self, rank: int = 0) -> list[BaseProcess]:
        return self._hosts.get(rank, [])

    def kill_host(self, rank: int = 0) -> None:
        for process in self.hosts(rank):
            process.kill()
            process.join()

    def save(self, *steps: int, elements: int = SMALL, generation: int = 0) -> list[dict[str, Any]]:
        meeting = self.meet()
        started = [
            self.start(
                ranks.save_steps,
                str(self.disk),
                list(steps),
                elements,
                rank,
                self.world,
                meeting,
                rank=rank,
                generation=generation,
            )
            for rank in range(self.world)
        ]
        finish(started)
        return [json.loads(Path(f"{meeting}.saved{rank}").read_text()) for rank in range(self.world)]

    def restore(self, elements: int = SMALL, step: int | None = None, generation: int = 1) -> list[dict[str, Any]]:
        meeting = self.meet()
        results = [self.folder / f"result{self.meetings}-{rank}" for rank in range(self.world)]
        started = [
            self.start(
                ranks.restore,
                str(self.disk),
                elements,
                rank,
                self.world,
                meeting,
                str(results[rank]),
                step,
                rank=rank,
                generation=generation,
            )
            for rank in range(self.world)
        ]
        finish(started)
        return [json.loads(result.read_text()) for result in results]

    def meet(self) -> str:
        self.meetings += 1
        return str(self.folder / f"meeting{self.meetings}")

    def lose_memory(self, rank: int = 0) -> None:
        self.kill_host(rank)
        for file in self.memory(rank).iterdir():
            file.unlink()

    def end(self) -> None:
        for process in self.started:
            process.kill()
            process.join()


def serve_memory(folder: str) -> None:
    from pitstop.checkpoint.host import main

    main([folder])


def finish(processes: list[BaseProcess]) -> None:
    for process in processes:
        process.join(240)
        assert process.exitcode == 0


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path)
    yield made
    made.end()


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-len(content) // 3] ^= 0x10
    path.write_bytes(content)


def shard_of(nodes: Nodes, step: int, rank: int = 0) -> Path:
    return next(nodes.disk.glob(f"step-{step:012}-g*/rank{rank}/*.distcp"))


@pytest.mark.acceptance
def test_memory_comes_first_and_the_random_generators_go_on_where_they_were(nodes: Nodes) -> None:
    nodes.save(10, 20)
    random.seed(20)
    (found,) = nodes.restore()
    assert (found["step"], found["tiers"], found["skipped"]) == (20, ["local memory"], [])
    assert found["values"] == [[20.0], [20.0]] and found["random"] == random.random()


@pytest.mark.acceptance
def test_damaged_memory_is_said_and_the_disk_used(nodes: Nodes) -> None:
    nodes.save(10)
    for slot in nodes.memory().glob("rank0.[0-2]"):
        flip(slot)
    (found,) = nodes.restore()
    assert (found["step"], found["tiers"], found["values"]) == (10, ["disk"], [[10.0], [10.0]])
    (said,) = found["skipped"]
    assert "local memory" in said and "does not fit" in said


@pytest.mark.acceptance
def test_a_damaged_shard_is_said_and_the_checkpoint_before_it_used(nodes: Nodes) -> None:
    nodes.save(10, 20, 30)
    nodes.lose_memory()
    flip(shard_of(nodes, 30))
    (found,) = nodes.restore()
    assert (found["step"], found["values"]) == (20, [[20.0], [20.0]])
    assert "step 30 in disk" in found["skipped"][0]


@pytest.mark.soak
def test_where_nothing_holds_nothing_is_restored_and_that_is_an_error(nodes: Nodes) -> None:
    nodes.save(10)
    nodes.lose_memory()
    flip(shard_of(nodes, 10))
    (found,) = nodes.restore()
    assert "no checkpoint holds" in found["refused"] and "does not fit" in found["refused"]


@pytest.mark.soak
def test_a_half_written_latest_is_said_and_costs_nothing(nodes: Nodes) -> None:
    nodes.save(10, 20)
    nodes.lose_memory()
    (nodes.disk / "latest").write_text('{"step": 2')
    (found,) = nodes.restore()
    assert (found["step"], found["values"]) == (20, [[20.0], [20.0]])
    assert "latest" in found["skipped"][0] and "going by the checkpoints themselves" in found["skipped"][0]


@pytest.mark.acceptance
def test_a_full_disk_leaves_the_checkpoint_before_and_the_memory(nodes: Nodes) -> None:
    nodes.save(10, elements=LARGE)
    for process in nodes.hosts():
        assert process.pid is not None
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    meeting = nodes.meet()
    saving = nodes.start(ranks.save_steps, str(nodes.disk), [20], LARGE, 0, 1, meeting, False)
    finish([saving])
    log = wait_for(lambda: json.loads(Path(f"{meeting}.saved0").read_text()))
    assert log["ok"]
    socket = str(nodes.memory() / "host.sock")
    errors = wait_for(lambda: protocol.exchange(socket, {"op": "status"})["errors"], what="the error")
    assert "File too large" in errors[-1] and "not flushed" in errors[-1]
    assert json.loads((nodes.disk / "latest").read_text())["step"] == 10
    (found,) = nodes.restore(elements=LARGE)
    assert (found["step"], found["tiers"]) == (20, ["local memory"])
    nodes.lose_memory()
    assert nodes.restore(elements=LARGE)[0]["step"] == 10


@pytest.mark.acceptance
def test_a_host_that_is_killed_in_a_flush_leaves_no_half_checkpoint_and_its_successor_flushes(nodes: Nodes) -> None:
    nodes.save(10, elements=LARGE)
    meeting = nodes.meet()
    finish([nodes.start(ranks.save_steps, str(nodes.disk), [20], LARGE, 0, 1, meeting, False)])
    wait_for(lambda: list(nodes.disk.glob("step-000000000020-g0/rank0.new")))
    nodes.kill_host()
    assert json.loads((nodes.disk / "latest").read_text())["step"] == 10
    nodes.serve(0)
    wait_for(lambda: json.loads((nodes.disk / "latest").read_text())["step"] == 20, what="the flush")
    nodes.lose_memory()
    assert nodes.restore(elements=LARGE)[0]["values"] == [[20.0], [20.0]]


@pytest.mark.acceptance
def test_a_save_never_waits_for_a_disk_that_does_not_take_it(nodes: Nodes) -> None:
    nodes.save(10)
    with (nodes.memory() / "rank0.0").open("rb") as slot:
        # As a flush that never ends.
        fcntl.flock(slot, fcntl.LOCK_SH)
        finish([nodes.start(ranks.save_steps, str(nodes.disk), [20, 30, 40, 50], SMALL, 0, 1, nodes.meet(), False)])
    assert nodes.restore()[0]["step"] == 50


@pytest.mark.acceptance
def test_a_lost_node_takes_its_state_out_of_its_peers_memory(nodes: Nodes) -> None:
    nodes.world = 2
    saved = nodes.save(10)
    assert [dict(map(tuple, item["copied"])).keys() for item in saved] == [{0}, {1}]
    for shard in nodes.disk.glob("step-*/rank*/*.distcp"):
        flip(shard)
    nodes.lose_memory(1)
    found = nodes.restore()
    assert [item["step"] for item in found] == [10, 10]
    assert found[0]["tiers"] == ["local memory", "peer memory"]
    assert [item["values"] for item in found] == [[[10.0], [10.0]], [[10.0], [10.001]]]


@pytest.mark.soak
def test_both_copies_in_memory_gone_is_what_the_disk_is_for(nodes: Nodes) -> None:
    nodes.world = 2
    nodes.save(10)
    nodes.lose_memory(0)
    nodes.lose_memory(1)
    found = nodes.restore()
    assert found[0]["tiers"] == ["disk", "disk"] and found[1]["values"] == [[10.0], [10.001]]


@pytest.mark.acceptance
def test_going_back_abandons_what_came_after(nodes: Nodes) -> None:
    nodes.save(10, 20, 30)
    (found,) = nodes.restore(step=20, generation=1)
    assert found["step"] == 20
    assert nodes.restore(generation=2)[0]["step"] == 20
    nodes.lose_memory()
    assert nodes.restore(generation=3)[0]["step"] == 20


@pytest.mark.soak
@pytest.mark.whole
def test_whenever_a_rank_is_killed_the_last_save_that_returned_is_restored(nodes: Nodes) -> None:
    draw = random.Random(11)
    progress = nodes.folder / "progress"
    last = 0
    for _ in range(max(5, round(100 * SCALE))):
        rank = nodes.start(ranks.save_for_ever, str(nodes.disk), LARGE // 8, str(progress))
        wait_for(lambda before=last: progress.exists() and int(progress.read_text() or 0) > before)
        time.sleep(draw.uniform(0, 0.2))
        assert rank.pid is not None
        os.kill(rank.pid, signal.SIGKILL)
        rank.join()
        last = int(progress.read_text() or last)
        (found,) = nodes.restore(elements=LARGE // 8, generation=0)
        assert found["step"] >= last and found["values"] == [[float(found["step"])]] * 2
        last = found["step"]
