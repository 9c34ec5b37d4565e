"""Who takes which place when workers die or come back: as few as can be change their stage, each by one copy. Pure."""

from collections import defaultdict
from itertools import count, cycle
from typing import Any, Collection, Dict, List, Mapping, Sequence

from pitstop.pipeline.membership import Membership
from pitstop.pipeline.plan import PipelinePlan, PlanError, Worker

__all__ = ["regrouped"]


def regrouped(before: Membership, plan: Mapping[str, Any], lost: Collection[str] = (), joined: Sequence[str] = ()) -> Membership:
    """The next generation, for `plan` (the planner's document), without the members `lost` and with those who `joined`.

    Rows of a stage are alike, so that a member whose place the plan does not use takes another of its stage, without a copy.
    Who is then not needed at its stage goes where somebody is missing, those who joined first; who is needed nowhere stays idle
    where it is, or outside if it has nothing. Raises PlanError where too few are left, or nobody has a stage's parameters.
    """
    read = PipelinePlan.from_document(plan)
    rows: Dict[int, List[int]] = defaultdict(list)
    for row, stage in sorted(read.orders):
        rows[stage].append(row)
    living = {member: worker for member, worker in before.workers.items() if member not in lost}
    places: Dict[str, Worker] = {}
    stayed: Dict[int, List[str]] = defaultdict(list)
    spare: List[str] = []
    missing: List[Worker] = []
    for stage, needed in rows.items():
        own = [member for member, worker in living.items() if worker[1] == stage]
        # Who already has a place that is needed stands first.
        own.sort(key=lambda member: living[member][0] not in needed)
        free = sorted(set(needed) - {living[member][0] for member in own})
        for member in own[: len(needed)]:
            row = living[member][0]
            places[member] = (row if row in needed else free.pop(0), stage)
            stayed[stage].append(member)
        missing += [(row, stage) for row in free]
        spare += own[len(needed) :]
    newcomers = [*joined, *spare]
    if len(newcomers) < len(missing):
        raise PlanError(f"the plan needs {len(missing) - len(newcomers)} more workers than there are")
    sources: Dict[str, str] = {}
    having = {stage: cycle(members) for stage, members in stayed.items()}
    for member, place in zip(newcomers, missing):
        if place[1] not in having:
            raise PlanError(f"nobody has the parameters of stage {place[1]}: that needs a checkpoint")
        places[member], sources[member] = place, next(having[place[1]])
    for member in newcomers[len(missing) :]:
        if member in living:
            stage = living[member][1]
            taken = {row for row, at in [*places.values(), *read.orders] if at == stage}
            places[member] = (next(row for row in count() if row not in taken), stage)
    order = [*(member for member in living if member in places), *(member for member in joined if member in places)]
    found = Membership(before.generation + 1, read, {member: places[member] for member in order}, sources)
    found.check()
    return found
