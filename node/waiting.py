"""What an agent waits for where nothing else happens: said once, so that nobody has to guess for whom. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from node.care_states import Command
from node.command_args import names_in
from node.formation import Formation, NodeBounds
from node.job_state import JobState

__all__ = ["Wait", "followed", "missing"]

# Agents that begin together find one another sooner than this.
QUIET_SECONDS = 5.0


class Wait:
    """What is waited for at present, and whether it was said."""

    def __init__(self) -> None:
        self._what: str | None = None
        self._since = 0.0
        self.said: str | None = None

    def look(self, what: str | None, now: float) -> str | None:
        """`what`, where it is to be said now: once, when it was waited for longer than QUIET_SECONDS."""
        if what != self._what:
            self._what, self._since, self.said = what, now, None
        if what is None or self.said is not None or now - self._since < QUIET_SECONDS:
            return None
        self.said = what
        return what


def followed(state: JobState, leader: str | None, command: Command | None, addresses: Sequence[tuple[str, int]]) -> str | None:
    """What a follower waits for; None while its ranks run and nothing else is asked of it.

    `leader`: the address of the one that answers, if one does; `command`: the one that is to be carried out; `addresses`: where a
    leader is looked for.
    """
    named = names_in(command.args.get("nodes")) if command is not None and command.kind == "restart_ranks" else ()
    if command is not None and named and leader is None:
        return f"node {named[0]}, which is to lead generation {command.generation} by command {command.id}, and does not answer"
    if state.care.running:
        return None
    if leader is not None:
        return f"the agent at {leader}, which leads the job, to give ranks to this node: it looks for more nodes, or has enough"
    places = ", ".join(f"{host}:{port}" for host, port in addresses)
    return f"the agent that leads the job, which does not answer at {places}"


def missing(present: Collection[str], wanted: Sequence[str], last: Formation | None, bounds: NodeBounds) -> str:
    """What a leader waits for that looks for the nodes of a generation: those that a command names, those of the generation
    before, or as many as the job takes."""
    expected = wanted or (last.nodes if last is not None else ())
    if expected:
        return f"the agents of {', '.join(node for node in expected if node not in present)}"
    return f"the agents of more nodes: {len(present)} of {bounds.most} are here"
