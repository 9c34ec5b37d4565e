"""What the arguments of a command row say: from outside, so of any form. Pure, part of `care.step`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from node.care_states import Care, Command

__all__ = ["barred_after", "delay_of", "known_values", "names_in", "resume_after"]

MAX_DELAY_SECONDS = 3600.0


def names_in(value: object) -> tuple[str, ...]:
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list | tuple) else ()


def known_values(resume: object) -> Mapping[str, Any]:
    """What a command says about where to resume, without what it leaves open."""
    if not isinstance(resume, Mapping):
        return {}
    return {key: value for key, value in resume.items() if value is not None and value != []}


def resume_after(before: Mapping[str, Any], now: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is said now; batches once skipped stay skipped, wherever training goes on from."""
    skipped = [list(interval) for interval in before.get("skip_batches", ())]
    skipped += [list(interval) for interval in now.get("skip_batches", ()) if list(interval) not in skipped]
    return {**now, "skip_batches": skipped} if skipped else now


def delay_of(value: object) -> float:
    return min(float(value), MAX_DELAY_SECONDS) if isinstance(value, int | float) else 0.0


def barred_after(care: Care, command: Command) -> frozenset[str]:
    isolated = names_in(command.args.get("isolated"))
    return (care.barred | set(isolated)) - set(names_in(command.args.get("nodes")))
