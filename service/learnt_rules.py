"""What is in use of the learnt rules, brought to the matcher processes of this replica whenever it changes on any."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from rules.matcher import Matcher
from rules.pack import PackError, Rule, RuleRole
from service.candidates import CandidateState, in_state, rule_of
from service.ingest.matching import Learnt, MatcherPool
from service.ingest.preparation import Filter
from service.likeness import jobs_alike
from service.periodic import repeat
from service.store import Store

__all__ = ["LearntRules"]

log = logging.getLogger("pitstop.learning")

LOOK_SECONDS = 1.0


@dataclass(slots=True)
class LearntRules:
    """Every replica has one: the database says which rules are in use."""

    store: Store
    pool: MatcherPool
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Until `close`."""
        await repeat(self.refresh, LOOK_SECONDS, self._stopping, "learnt rules cannot be read")

    def close(self) -> None:
        self._stopping.set()

    def refresh(self) -> tuple[Rule, ...]:
        """The rules in use, as the pool has them from its next task on."""
        with self.store.reading() as session:
            rows = in_state(session, CandidateState.ACTIVE)
            rules = tuple(rule_of(row) for row in rows if row.role != RuleRole.ROUTINE)
            filters = tuple(
                Filter(rule_of(row), jobs_alike(session, row.scope) if row.scope else None)
                for row in rows
                if row.role == RuleRole.ROUTINE
            )
        learnt = Learnt(rules, filters)
        if learnt != self.pool.learnt:
            try:
                Matcher((*rules, *(item.rule for item in filters)))
            except PackError as error:
                # The gate let it through, so another version of the engine did: without it is better than not at all.
                log.error("learnt rules cannot be compiled and are not used: %s", error)
                learnt = Learnt()
            self.pool.learn(learnt)
        return learnt.rules
