"""Who hears of an evaluation run while it goes on: a terminal's progress bars, and the service."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from evaluation.coordinator import RunState
from evaluation.events import Command, Finish, GiveUp, LeaveNode
from evaluation.runner import Failure
from evaluation.workload import Slot

if TYPE_CHECKING:
    from cli.trials_service import ServiceListener

__all__ = ["Listeners"]


class Listeners:
    """Progress on a terminal only; words that matter on stderr always; the service where there is one."""

    def __init__(self, slots: tuple[Slot, ...], service: ServiceListener | None, *, progress: bool) -> None:
        self.all_slots, self.service = slots, service
        console = Console(stderr=True)
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not progress,
        )
        self.generated = self.bars.add_task("generated", total=None)
        self.verified = self.bars.add_task("verified", total=None)
        self.stack = ExitStack()

    def __enter__(self) -> Self:
        self.stack.enter_context(self.bars)
        if self.service is not None:
            self.stack.enter_context(self.service)
        return self

    def __exit__(self, *problem: object) -> None:
        self.stack.close()

    def slots(self) -> tuple[Slot, ...]:
        """The slots of the nodes that nobody asked back."""
        wanted = self.service.wanted_back if self.service is not None else frozenset()
        return tuple(slot for slot in self.all_slots if slot.node not in wanted)

    def hear(self, state: RunState, commands: Sequence[Command]) -> None:
        whole = sum(entry.dataset.samples for entry in state.datasets.values() if entry.given_up is None)
        self.bars.update(self.generated, total=whole, completed=sum(len(entry.generated) for entry in state.datasets.values()))
        self.bars.update(self.verified, total=whole, completed=sum(len(entry.verified) for entry in state.datasets.values()))
        for command in commands:
            match command:
                case GiveUp(dataset, why):
                    self.say(f"{dataset} is given up: {why}")
                case LeaveNode(node, why):
                    self.say(f"{node} gets no more trials: {why}")
                case Finish(why):
                    self.say(why)
                case _:
                    continue
        if self.service is not None:
            self.service.hear(state, commands)

    def failed(self, failure: Failure) -> None:
        """One process of the run ended badly."""
        self.say(f"{failure.kind} of {failure.label} on {failure.node}: {failure.error}")
        if self.service is not None:
            self.service.failed(failure)

    def say(self, words: str) -> None:
        if self.bars.disable:
            print(f"pitstop: {words}", file=sys.stderr)
        else:
            self.bars.console.print(words, markup=False)
