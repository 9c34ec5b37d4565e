"""What a follower answers to a command at once, without its leader. Pure."""

from __future__ import annotations

from node.care_states import CommandArrived
from node.command_args import names_in
from node.job_state import JobState

__all__ = ["answer_at_once"]


def answer_at_once(event: CommandArrived, state: JobState) -> tuple[str, str] | None:
    """(status, detail); None where the command is to be carried out first."""
    command, care, formation = event.command, state.care, state.formation
    if command.deadline is not None and event.wall_time > command.deadline:
        return "expired", "the deadline passed before the command arrived"
    if command.kind == "stop_ranks":
        over = f"generation {command.generation} is over; here it is {care.generation}"
        return ("refused", over) if command.is_over(care.generation) else None
    if command.kind != "restart_ranks":
        return "refused", f"this agent does not do {command.kind}"
    if command.generation > care.generation:
        return None
    named = frozenset(names_in(command.args.get("nodes")))
    # Another half of the job may have taken the same number for a group of its own.
    is_ours = formation is None or named <= set(formation.nodes)
    if care.running and command.generation == care.generation and is_ours:
        return "done", f"the ranks run under generation {care.generation}"
    return "refused", f"generation {command.generation} is not above {care.generation}"
