"""Run a pipeline plan on torch.distributed; `pitstop pipeline plan --json` writes one.

    from pitstop.pipeline import Executor, Membership, PipelinePlan

Names load when they are asked for: only `executor` and `stage` need torch.
"""

from importlib import import_module
from typing import Any

__all__ = ["Executor", "Membership", "PipelinePlan", "PlanError", "PlanSet", "Task", "await_membership", "publish", "regrouped"]

_HOMES = {
    "Executor": "executor",
    "Task": "executor",
    "Membership": "membership",
    "await_membership": "membership",
    "publish": "membership",
    "PipelinePlan": "plan",
    "PlanError": "plan",
    "PlanSet": "plan_set",
    "regrouped": "regrouping",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
