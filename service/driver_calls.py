"""Makes the calls to a site's own commands and webhooks: each looked at first where that is possible, each bounded in time."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import httpx2
from pydantic import TypeAdapter
from sqlalchemy import select
from sqlalchemy.orm import Session

from recovery.drivers.command import Call, DriverError, Operation, Values, render
from recovery.node_return import CordonedByOthers, Uncordoned
from service.node_returns import NodeReturns
from service.situations import frozen
from service.store import Store
from service.store.fleet import DriverCall, active_returns

__all__ = ["DriverCalls", "ask_slurm", "make_call", "run_command"]

CALL = TypeAdapter(Call)
MAX_OUTPUT = 4096
MAX_ANSWER = 64 * 1024 * 1024
MAX_ATTEMPTS = 5
# A call in flight belongs to whoever makes it for its own time limit and this much more.
SPARE_SECONDS = 10.0
STATE_SECONDS = 30.0
# What changes a node's state for everybody; never done over the head of somebody who holds it.
MOVES = frozenset({Operation.CORDON, Operation.UNCORDON, Operation.RESET_GPU})


@dataclass(frozen=True, slots=True)
class Looked:
    """What the site's tool says of a node: who holds it out of service, and whether that is us; or why it could not be asked."""

    holder: str | None = None
    ours: bool = False
    problem: str | None = None


def make_call(call: Call) -> tuple[bool, str]:
    """Make it, once: (whether it succeeded, what it said)."""
    environment = os.environ | {
        "PITSTOP_KEY": call.key,
        "PITSTOP_GENERATION": str(call.generation),
        "PITSTOP_OPERATION": call.operation,
    }
    if call.url is not None:
        headers = {"Idempotency-Key": call.key, "Pitstop-Generation": str(call.generation)}
        try:
            answer = httpx2.post(call.url, json=dict(call.body or {}), headers=headers, timeout=call.timeout_seconds)
        except httpx2.HTTPError as error:
            return False, f"{call.url}: {error}"
        return answer.is_success, f"{answer.status_code} {answer.text[:MAX_OUTPUT]}"
    return run_command(call.argv, call.timeout_seconds, environment)


def run_command(
    argv: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None, limit: int = MAX_OUTPUT
) -> tuple[bool, str]:
    """Run it: (whether it succeeded, the end of what it said). Its whole process group ends with its time limit."""
    try:
        process = subprocess.Popen(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return False, f"{argv[0]} cannot be run: {error.strerror}"
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return False, f"no end within {seconds:g} s"
    return process.returncode == 0, output[-limit:].decode(errors="replace").strip()


def ask_slurm(argv: Sequence[str], seconds: float) -> tuple[bool, str]:
    """Run a tool of Slurm; of what it says nothing is left out: a queue may be long, and its columns are wide."""
    return run_command(argv, seconds, limit=MAX_ANSWER)


@dataclass(slots=True)
class DriverCalls:
    """Works off pending calls, whoever stored them."""

    store: Store
    clock: Callable[[], float]
    returns: NodeReturns
    looked_at: float = 0.0

    def work(self) -> bool:
        """Make what is pending, in order; False where nothing was."""
        if not self.returns.drivers.templates:
            return False
        done = False
        while (claimed := self._claim()) is not None:
            self._make(*claimed)
            done = True
        return self._look_around() or done

    def _claim(self) -> tuple[int, Call] | None:
        now = self.clock()
        waiting = select(DriverCall).where(DriverCall.state == "pending", DriverCall.claimed_until <= now).order_by(DriverCall.id)
        with self.store.reading() as session:
            if frozen(session) is not None or session.scalars(waiting.limit(1)).first() is None:
                return None
        with self.store.writing() as session:
            row = session.scalars(waiting.limit(1).with_for_update()).first()
            if row is None:
                return None
            call = CALL.validate_python(row.call)
            row.attempts += 1
            row.claimed_until = now + call.timeout_seconds + SPARE_SECONDS
            return row.id, call

    def _make(self, call_id: int, call: Call) -> None:
        node = self._node(call_id)
        looked = self._look(call.key, node)
        foreign = looked.holder if looked.holder is not None and not looked.ours else None
        if looked.problem is not None and call.operation in MOVES:
            succeeded, detail = False, f"not done while its state cannot be read: {looked.problem}"
        elif call.operation is Operation.CORDON and looked.ours:
            succeeded, detail = True, f"it was so already: {looked.holder}"
        elif call.operation in MOVES and foreign is not None:
            succeeded, detail = False, f"left to {foreign}"
        else:
            succeeded, detail = make_call(call)
            if succeeded and call.operation in (Operation.CORDON, Operation.UNCORDON):
                succeeded, detail = self._check(call, node, detail)
        with self.store.writing() as session:
            row = session.get_one(DriverCall, call_id, populate_existing=True)
            if row.state != "pending":
                return
            row.claimed_until = self.clock() + min(2.0**row.attempts, 60.0)
            if (
                succeeded
                or foreign is not None
                or row.attempts >= MAX_ATTEMPTS
                or call.operation in (Operation.PROBE, Operation.PROBE_PAIR)
            ):
                self.returns.called(session, row, succeeded, detail, foreign)
            else:
                row.detail = detail

    def _node(self, call_id: int) -> str:
        with self.store.reading() as session:
            return session.get_one(DriverCall, call_id).node

    def _look(self, key: str, node: str) -> Looked:
        """Who holds the node out of service, as the site's own tool says; nobody where there is no such tool."""
        template = self.returns.drivers.templates.get(Operation.STATE)
        if template is None:
            return Looked()
        try:
            succeeded, said = make_call(render(Operation.STATE, template, Values(node, f"{key}/state")))
            return Looked(*self.returns.drivers.holder(said)) if succeeded else Looked(problem=said or "no answer")
        except DriverError as error:
            return Looked(problem=str(error))

    def _check(self, call: Call, node: str, said: str) -> tuple[bool, str]:
        """Read back whether it is so now."""
        if Operation.STATE not in self.returns.drivers.templates:
            return True, said
        after = self._look(call.key, node)
        if after.problem is not None:
            return False, f"done, but its state cannot be read back: {after.problem}"
        is_so = after.ours if call.operation is Operation.CORDON else after.holder is None
        return is_so, said if is_so else f"done, but its state is now: {after.holder or 'in service'}"

    def _look_around(self) -> bool:
        """Has anybody put a node back by hand, or taken hold of one that we took out?"""
        now = self.clock()
        if Operation.STATE not in self.returns.drivers.templates or now - self.looked_at < STATE_SECONDS:
            return False
        self.looked_at = now
        with self.store.reading() as session:
            out = [(row.id, row.node) for row in active_returns(session) if self._is_cordoned(session, row.id)]
        for return_id, node in out:
            looked = self._look(f"{return_id}/look", node)
            if looked.problem is not None:
                continue
            by = None if looked.ours else looked.holder
            event = Uncordoned(now, "somebody", ours=False) if looked.holder is None else CordonedByOthers(now, by)
            with self.store.writing() as session:
                self.returns.tell(session, return_id, event)
        return bool(out)

    def _is_cordoned(self, session: Session, return_id: int) -> bool:
        """Whether the site's tool has confirmed our cordon, and no uncordon of ours is under way."""
        calls = session.scalars(select(DriverCall).where(DriverCall.return_id == return_id)).all()
        cordoned = any(call.operation == Operation.CORDON and call.state == "done" for call in calls)
        return cordoned and not any(call.operation == Operation.UNCORDON for call in calls)
