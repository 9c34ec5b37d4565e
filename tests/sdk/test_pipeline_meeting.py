"""How the ranks of `pitstop run` agree on who is which worker of a pipeline, whenever their agent says who is left."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import TCPStore

from pitstop import protocol
from pitstop.pipeline import Membership, PlanError
from pitstop.pipeline.meeting import Formed
from pitstop.pipeline.plan import Worker
from recovery.planning.pipeline.model import Problem
from recovery.planning.pipeline.plan_set import compute_plan_set, save_plan_set

WORKERS = {"0": (0, 0), "1": (0, 1), "2": (1, 0), "3": (1, 1)}


class Agent:
    """Writes formations, each with a store of its own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.formation, self.plans = folder / "formation", folder / "plans"
        self._monkeypatch = monkeypatch
        self.stores: list[Any] = []
        save_plan_set(compute_plan_set(Problem(2, 2, 3, activation_cap=3), 1), self.plans)

    def open_store(self) -> int:
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
        self.stores.append(store)
        return int(store.port)

    def rank(self, rank: int, port: int, generation: int = 0, joins: bool = False) -> Formed:
        environment = {"RANK": rank, "WORLD_SIZE": 4, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        told = {protocol.GENERATION: generation, protocol.FORMATION: self.formation, protocol.JOINS: int(joins)}
        for name, value in (environment | told).items():
            self._monkeypatch.setenv(name, str(value))
        return Formed(str(self.plans))

    def tell(self, generation: int, *members: int) -> None:
        store = {"host": "127.0.0.1", "port": self.open_store()}
        document = {"generation": generation, "members": members, "store": store}
        self.formation.with_name("new").write_text(json.dumps(document))
        self.formation.with_name("new").replace(self.formation)

    def mark(self, rank: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.formation.with_name(f"formation.{rank}").read_text())
        return found


def meet(ranks: Mapping[Formed, Worker | None], after: int) -> Membership:
    """What all of them come to, which is the same."""
    with ThreadPoolExecutor(len(ranks)) as pool:
        found = [pool.submit(rank.next, after, place, 60.0) for rank, place in ranks.items()]
        memberships = [future.result() for future in found]
    assert all(item == memberships[0] for item in memberships)
    return memberships[0]


def test_ranks_agree_at_the_start_when_one_is_lost_and_when_it_is_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent(tmp_path, monkeypatch)
    port = agent.open_store()
    ranks = [agent.rank(rank, port) for rank in range(4)]
    assert agent.mark(2)["priced"] and agent.mark(2)["waits_above"] is None
    first = meet(dict.fromkeys(ranks), -1)
    assert (first.generation, dict(first.workers), dict(first.sources)) == (0, WORKERS, {})

    # Rank 0 is lost: the plan does without a worker of the last stage, so that one of them moves to the first.
    agent.tell(1, 1, 2, 3)
    left = meet({rank: WORKERS[rank.member] for rank in ranks[1:]}, 0)
    assert left.generation == 1 and agent.mark(2)["waits_above"] == 0
    assert sorted(left.workers.values()) == sorted(left.plan.orders) and len(left.workers) == 3
    (moved,) = left.sources
    assert left.workers[moved][1] == WORKERS["0"][1] and left.sources[moved] == "2"

    back = agent.rank(0, 1, generation=1, joins=True)
    agent.tell(2, 0, 1, 2, 3)
    places: dict[Formed, Worker | None] = {rank: left.workers[rank.member] for rank in ranks[1:]}
    whole = meet({back: None, **places}, 1)
    assert sorted(whole.workers.values()) == sorted(WORKERS.values()) and set(whole.sources) == {"0"}


def test_more_losses_than_there_are_plans_for_end_it_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent(tmp_path, monkeypatch)
    agent.tell(1, 1, 3)
    speaker, other = agent.rank(1, 1), agent.rank(3, 1)
    speaker._first = other._first = None
    with ThreadPoolExecutor(2) as pool:
        said, waited = pool.submit(speaker.next, 0, (0, 1), 60.0), pool.submit(other.next, 0, (1, 1), 1.0)
        with pytest.raises(PlanError, match="2 workers are lost: plans are there for 0 to 1"):
            said.result()
        with pytest.raises(TimeoutError, match="not all members of generation 1"):
            waited.result()
