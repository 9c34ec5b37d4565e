"""Where the members of a pipeline meet: told by whoever watches them through a store, or by the agent of `pitstop run`."""

import datetime
import json
import os
import time
from typing import Any, Dict, Optional, Protocol

import torch.distributed as dist

from pitstop import protocol
from pitstop.elastic.membership import Formation, await_formation, first_formation, follow_log, mark, read_formation
from pitstop.pipeline.membership import Membership, await_membership, newest_generation, publish
from pitstop.pipeline.plan import PipelinePlan, Worker
from pitstop.pipeline.plan_set import PlanSet
from pitstop.pipeline.regrouping import regrouped

__all__ = ["Formed", "Meeting", "Published"]

POLL_SECONDS = 0.005
# Ranks that left their group wait for a decision, which may be a person's; the agent ends them where it is another one.
DECISION_SECONDS = 1200.0


class Meeting(Protocol):
    """`store`: the present generation's. `first`: a number below that of the first generation."""

    store: Any
    member: str
    first: int

    def newest(self) -> int:
        """The newest generation that is told of."""
        ...

    def next(self, after: int, place: Optional[Worker], timeout: float) -> Membership:
        """The next membership above `after` that we are in. `place`: whose parameters we hold, None for none.

        Raises TimeoutError, or Left where this process is of no use any more.
        """
        ...

    def formed(self) -> None:
        """The generation holds; we work."""
        ...


class Published:
    """By `publish`, in one store that outlives the workers."""

    first = 0

    def __init__(self, store: Any, member: str) -> None:
        self.store, self.member = store, member

    def newest(self) -> int:
        return newest_generation(self.store)

    def next(self, after: int, place: Optional[Worker], timeout: float) -> Membership:
        return await_membership(self.store, after, self.member, timeout)

    def formed(self) -> None:
        return None


class Formed:
    """By the agent: it says who is left and gives a new store. Members are ranks; which worker each is, the first of them says to
    the others from what all tell of themselves and from the set of plans: whoever it is, it comes to the same.
    """

    first = -1

    def __init__(self, plans: str) -> None:
        """Raises KeyError where the environment says nothing of ranks, PlanError without plans."""
        self.rank = int(os.environ["RANK"])
        self.member = str(self.rank)
        self.store: Any = None
        self._plans = PlanSet(plans)
        self._path = os.environ.get(protocol.FORMATION)
        self._first: Optional[Formation] = first_formation(self.rank)
        self._joins = os.environ.get(protocol.JOINS) == "1"
        self._present = self._first.generation
        self.formed()

    def newest(self) -> int:
        told = None if self._path is None else read_formation(self._path, self.rank)
        return self._present if told is None else max(told.generation, self._present)

    def formed(self) -> None:
        if self._path is not None:
            mark(self._path, self.rank, priced=True)

    def next(self, after: int, place: Optional[Worker], timeout: float) -> Membership:
        while True:
            formation = self._await(after)
            found = self._meet(formation, place, timeout)
            if found is not None:
                return found
            after = formation.generation

    def _await(self, after: int) -> Formation:
        formation, self._first = self._first, None
        if formation is None or self._joins:
            above = after if formation is None else formation.generation
            if self._path is not None:
                mark(self._path, self.rank, above, priced=True)
            formation = await_formation(self._path, self.rank, above, DECISION_SECONDS, joins=self._joins)
            self._joins = False
            follow_log(formation)
        self._present = formation.generation
        return formation

    def _meet(self, formation: Formation, place: Optional[Worker], timeout: float) -> Optional[Membership]:
        """Agree on who is which worker; None where the generation broke up before. Raises PlanError, TimeoutError."""
        deadline = time.monotonic() + timeout
        try:
            server = dist.TCPStore(
                formation.host, formation.port, is_master=False, timeout=datetime.timedelta(seconds=max(1.0, timeout))
            )
            self.store = dist.PrefixStore("pitstop/%d" % formation.generation, server)
            self.store.set("place/%d" % self.rank, json.dumps(place))
            told = False
            while not self.store.check(["said"]):
                if self.newest() > formation.generation:
                    return None
                if time.monotonic() > deadline:
                    raise TimeoutError("not all members of generation %d came within %g s" % (formation.generation, timeout))
                if not told and self.rank == formation.members[0]:
                    told = self._say(formation)
                else:
                    time.sleep(POLL_SECONDS)
            return await_membership(self.store, formation.generation - 1, self.member, timeout)
        except dist.DistError:
            # The store is that of a generation that is over.
            return None

    def _say(self, formation: Formation) -> bool:
        """Publish who is which worker, once all members have told what they hold; False before."""
        keys = ["place/%d" % member for member in formation.members]
        if not self.store.check(keys):
            time.sleep(POLL_SECONDS)
            return False
        places: Dict[str, Optional[Worker]] = {}
        for member, key in zip(formation.members, keys):
            place = json.loads(self.store.get(key))
            places[str(member)] = None if place is None else (place[0], place[1])
        document = self._plans.document(max(0, self._plans.workers - len(places)))
        plan = PipelinePlan.from_document(document)
        holders = {member: place for member, place in places.items() if place is not None}
        if holders:
            before = Membership(formation.generation - 1, plan, holders, {})
            found = regrouped(before, document, joined=[member for member in places if member not in holders])
            publish(self.store, formation.generation, document, found.workers, found.sources)
        else:
            # Who is not needed stands idle beyond the last replica.
            idle = [(self._plans.replicas + number, 0) for number in range(max(0, len(places) - len(plan.orders)))]
            publish(self.store, formation.generation, document, dict(zip(places, [*sorted(plan.orders), *idle])))
        self.store.set("said", "yes")
        return True
