"""What the policy must know of the failed job, and where it can go on. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from recovery.decision import DirectiveKind
from recovery.rollback import Checkpoint

__all__ = ["JobFacts", "Placement"]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a job goes on. `use`: the nodes, empty for those that it has; `doubt`: why only a person may say so."""

    directive: DirectiveKind
    use: tuple[str, ...]
    why: str
    doubt: str | None = None


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What the policy must know of the failed job. `spares`: nodes it may use; `lost`: its nodes that two witnesses hold lost;
    `parted`: those that live, and that its first node, which leads, does not reach, nor they it.

    `bad_since`: the step from which on its numbers were wrong, where that is what failed; `requeues`: a scheduler finds it
    other nodes.
    `planned`: the nodes that a plan for the whole cluster gives it without those at fault, with the plan's reason; empty where
    there is none. `adapts`: on them the ranks that are left go on in their processes, with the work of the lost ones.
    """

    name: str
    nodes: tuple[str, ...] = ()
    ranks: int = 1
    min_ranks: int | None = None
    lost: tuple[str, ...] = ()
    parted: tuple[str, ...] = ()
    spares: tuple[str, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    last_step: int | None = None
    bad_since: int | None = None
    requeues: bool = False
    planned: tuple[str, ...] = ()
    planned_why: str = ""
    adapts: bool = False

    @property
    def cut_off(self) -> tuple[str, ...]:
        """Of two sides of the job that do not reach one another the smaller one, and of equal ones that without its leader."""
        beside = tuple(node for node in self.nodes if node not in self.lost and node not in self.parted)
        return self.parted if len(self.parted) <= len(beside) else beside

    @property
    def missing(self) -> tuple[str, ...]:
        """The nodes that it has to go on without, lost or cut off."""
        return (*self.lost, *(node for node in self.cut_off if node not in self.lost))

    def ranks_without(self, excluded: tuple[str, ...]) -> int:
        """Ranks left when these nodes are gone, ranks being spread evenly."""
        left = [node for node in self.nodes if node not in excluded]
        return self.ranks * len(left) // len(self.nodes) if self.nodes else self.ranks

    def placement(self, exclude: tuple[str, ...]) -> Placement:
        """What the job can do without these nodes. A plan for the whole cluster goes first."""
        doubt = self._doubt(exclude)
        if self.planned and not set(self.planned) & set(exclude):
            shrinks = len(self.planned) < len(self.nodes)
            directive = DirectiveKind.SHRINK if shrinks else DirectiveKind.RESTART
            directive = DirectiveKind.ADAPT if self.adapts else directive
            return Placement(directive, self.planned, f"as planned: {self.planned_why}", doubt)
        left = tuple(node for node in self.nodes if node not in exclude)
        if self.requeues:
            why = f"requeued without {', '.join(exclude)}: the scheduler finds another place"
            return Placement(DirectiveKind.RESTART, (), why)
        missing = len(self.nodes) - len(left)
        spares = tuple(node for node in self.spares if node not in exclude and node not in self.nodes)[:missing]
        if len(spares) >= missing:
            why = f"spare {', '.join(spares)} takes the place of {', '.join(exclude)}"
            return Placement(DirectiveKind.RESTART, left + spares, why, doubt)
        ranks = self.ranks_without(exclude)
        minimum = self.min_ranks if self.min_ranks is not None else self.ranks
        if ranks >= max(minimum, 1):
            why = f"{ranks} of {self.ranks} ranks are left without {', '.join(exclude)}"
            return Placement(DirectiveKind.SHRINK, left + spares, why, doubt)
        why = f"{ranks} ranks would be left without {', '.join(exclude)}: below the minimum of {minimum}"
        return Placement(DirectiveKind.STOP, (), why)

    def _doubt(self, exclude: tuple[str, ...]) -> str | None:
        """Nodes out of reach that may go on by themselves: more than half, with the one that leads. Two halves of a job must
        never both go on, and no generation fences off a half that may have raised its own."""
        gone = tuple(node for node in self.nodes if node in self.missing and node in exclude)
        if not gone or gone[0] != self.nodes[0] or 2 * len(gone) <= len(self.nodes):
            return None
        return f"{', '.join(gone)} may go on by themselves, out of our reach: a person has to say that they are off"
