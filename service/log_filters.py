"""The log agent at work: now and then the frequent residual lines of the newest jobs are put to the model, alike jobs together.

It runs in the model's thread. What it proposes is a candidate as any other: the gate judges it, an operator puts it into use.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy import select

from agents.log_agent import FilterProposal, Template, frequent_templates, propose_filters
from agents.model import ModelClient
from agents.placeholders import Placeholders
from rules.pack import RuleRole
from service.candidates import Origin, propose
from service.chunks import decode_chunk
from service.ingest.matching import MatcherDied, MatcherPool, Overloaded, Tools
from service.learning import Learning
from service.likeness import traits_of
from service.store import Clock, Store
from service.store.jobs import Job, NodeAlias
from service.store.logs import Chunk, Stream

__all__ = ["LogFilters"]

EVERY_SECONDS = 600.0
# The newest jobs, and of each group of alike ones the newest lines.
JOBS, LINES = 50, 50_000


@dataclass(slots=True)
class LogFilters:
    """One round looks at one group of alike jobs, the one looked at longest ago first."""

    store: Store
    clock: Clock
    client: ModelClient
    pool: MatcherPool
    learning: Learning
    _looked: dict[tuple[tuple[str, str], ...], float] = field(default_factory=dict)
    _due_at: float = 0.0

    def work(self) -> int:
        """How many candidates were proposed; 0 where it is not time yet, or nothing comes often enough."""
        now = self.clock()
        if now < self._due_at or self.client.refusal() is not None:
            return 0
        self._due_at = now + EVERY_SECONDS
        groups = self._groups()
        if not groups:
            return 0
        traits = min(groups, key=lambda key: self._looked.get(key, 0.0))
        self._looked[traits] = now
        jobs, hide = groups[traits], self._placeholders()
        lines = self._lines(jobs)
        try:
            templates = self.pool.submit(sum(map(len, lines)), group_lines, lines).result()
        except (Overloaded, MatcherDied):
            return 0
        proposals, _ = propose_filters(self.client, templates, hide)
        return sum(self._propose(item, dict(traits), jobs) for item in proposals)

    def _propose(self, item: FilterProposal, scope: dict[str, str], jobs: Sequence[str]) -> bool:
        for pattern in item.patterns:
            with self.store.writing() as session:
                row = propose(
                    session,
                    pattern=pattern,
                    reason=None,
                    title=f"routine: {item.template.text}",
                    cited=item.template.examples,
                    origin=Origin.LOG_AGENT,
                    provenance={
                        "model": self.client.endpoint.model,
                        "votes": f"{item.votes} of {item.of}",
                        "lines": item.template.count,
                        "jobs": ", ".join(jobs[:5]),
                    },
                    by="log agent",
                    now=self.clock(),
                    role=RuleRole.ROUTINE,
                    scope=scope,
                )
            if row is not None and self.learning.judge(row.id):
                return True
        return False

    def _groups(self) -> dict[tuple[tuple[str, str], ...], list[str]]:
        groups: dict[tuple[tuple[str, str], ...], list[str]] = defaultdict(list)
        with self.store.reading() as session:
            for name, command in session.execute(select(Job.name, Job.command).order_by(Job.created_at.desc()).limit(JOBS)):
                if traits := traits_of(command):
                    groups[tuple(sorted(traits.items()))].append(name)
        return groups

    def _lines(self, jobs: Sequence[str]) -> list[str]:
        lines: list[str] = []
        with self.store.reading() as session:
            query = select(Chunk.data).join(Stream, Stream.id == Chunk.stream_id).where(Stream.job.in_(jobs))
            for data in session.scalars(query.order_by(Chunk.id.desc())):
                lines += [line.text.decode("utf-8", "replace") for line in decode_chunk(data)]
                if len(lines) >= LINES:
                    break
        return lines[:LINES]

    def _placeholders(self) -> Placeholders:
        with self.store.reading() as session:
            rows = session.execute(select(Job.nodes, Job.owner, Job.contact).order_by(Job.created_at.desc()).limit(JOBS)).all()
            aliases = set(session.scalars(select(NodeAlias.alias)))
        hosts = {node for row in rows for node in row.nodes} | aliases
        return Placeholders(hosts, {name for row in rows for name in (row.owner, row.contact) if name})


def group_lines(_tools: Tools, lines: Sequence[str]) -> list[Template]:
    """Runs in a matcher process."""
    return frequent_templates(lines)
