"""The local driver: an action becomes commands to the agents of the nodes that carry the job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recovery.decision import CLUSTER_ACTIONS, DirectiveKind, Mode
from recovery.states import Act

__all__ = ["AgentCommand", "agent_commands"]


@dataclass(frozen=True, slots=True)
class AgentCommand:
    """One command to one node's agent. `key` names the effect: the same key is never carried out twice.

    `deadline`: seconds since the epoch; an agent refuses the command after it, and where its own generation is not below
    `generation`.
    """

    key: str
    node: str
    job: str
    generation: int
    kind: str
    args: Mapping[str, Any]
    deadline: float


def agent_commands(act: Act, *, recovery: str, job: str, nodes: tuple[str, ...]) -> tuple[AgentCommand, ...]:
    """Commands for `act` to the nodes that run the job now: restart where it goes on, stop where it does not.

    A node that is left out is told to stop as well: fencing is by generation and does not need it, killing is tried too. One that
    cannot be told counts as off only where a person approved of going on without it.
    """
    decision = act.decision
    if decision.directive is DirectiveKind.STOP:
        staying: tuple[str, ...] = ()
        leaving = nodes
    else:
        staying = decision.use or tuple(node for node in nodes if node not in decision.exclude)
        leaving = tuple(node for node in nodes if node not in staying)
    why = {"recovery": recovery, "directive_id": recovery, "why": decision.sentence}
    restart = {
        **why,
        "directive": decision.directive.value,
        "nodes": list(staying),
        "exclude": list(decision.exclude),
        "off": [node for node in leaving if node not in decision.out_of_reach or decision.mode is Mode.APPROVE],
        "isolated": list(decision.exclude) if decision.action in CLUSTER_ACTIONS else [],
        "resume": {
            "step": decision.resume.step,
            "checkpoint": decision.resume.checkpoint,
            "skip_batches": [list(interval) for interval in decision.resume.skip_batches],
        },
        "delay_seconds": decision.delay_seconds,
    }

    def command(node: str, kind: str, args: Mapping[str, Any]) -> AgentCommand:
        return AgentCommand(f"{recovery}/{act.generation}/{kind}/{node}", node, job, act.generation, kind, args, act.deadline)

    return (
        *(command(node, "restart_ranks", restart) for node in staying),
        *(command(node, "stop_ranks", {**why, "going_on": list(staying)} if staying else why) for node in leaving),
    )
