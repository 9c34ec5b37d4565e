"""The agent's side of the service: lease and heartbeats, reports in order, log batches, commands. Each may fail; none blocks.

Four threads, each with a client of its own, so that a slow answer to one holds no other up. What they learn goes into one queue.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from node.care_states import Command, CommandArrived, Event, Heard
from node.service_client import Refused, ServiceClient, ServiceUnavailable
from node.spool import Spool

__all__ = ["Identity", "Outgoing", "ServiceLink", "parse_command"]

BEAT_SECONDS = 1.0
POLL_SECONDS = 20.0
RETRY_SECONDS = 1.0
ASK_SECONDS = 2.0
IDLE_SECONDS = 0.2
# The lines of a failed rank go first; a service that takes them slowly must not delay the report itself for longer than this.
FLUSH_SECONDS = 2.0
UNHEARD_SECONDS = 2.0
FINISH_SECONDS = 5.0
NOTHING_LEFT = (0, False, None)
MAX_REPORTS = 1000
# Answers that will be the same however often a batch is sent.
HOPELESS = frozenset((400, 413, 415, 422))


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this agent is to the service."""

    node: str
    agent_id: str
    boot_id: str
    versions: Mapping[str, str]

    def lease_document(self) -> dict[str, Any]:
        aliases = sorted({socket.gethostname(), socket.getfqdn()} - {self.node})
        return {"boot_id": self.boot_id, "agent_id": self.agent_id, "aliases": aliases, "versions": dict(self.versions)}


@dataclass(slots=True)
class Outgoing:
    """One report, sent in order; `after_batch`: log batches up to this one go before it."""

    send: Callable[[ServiceClient], Any]
    what: str
    after_batch: int = 0
    answered: Callable[[Any], None] | None = None


def parse_command(row: Mapping[str, Any]) -> Command | None:
    """None for a row that makes no sense; nothing is done about it."""
    try:
        args = row.get("args") or {}
        deadline = row.get("deadline")
        return Command(
            id=int(row["id"]),
            kind=str(row["kind"]),
            generation=int(row.get("generation") or 0),
            args=dict(args) if isinstance(args, Mapping) else {},
            deadline=None if deadline is None else float(deadline),
        )
    except (KeyError, TypeError, ValueError):
        return None


class ServiceLink:
    """Talks to one service about one job. `beat` gives the present heartbeat; `registration` the job's document.

    `meant`: somebody named the service; else one is used where there is one, and not missed where there is none.
    """

    def __init__(
        self,
        new_client: Callable[[], ServiceClient],
        identity: Identity,
        job: str,
        registration: Mapping[str, Any],
        spool: Spool,
        put: Callable[[Event], None],
        say: Callable[[str], None],
        beat: Callable[[], Mapping[str, Any] | None],
        after: int,
        meant: bool = True,
    ) -> None:
        self._meant = meant
        self._was_heard = False
        self._new_client = new_client
        self._identity = identity
        self._job = job
        self._registration = registration
        self._spool = spool
        self._put = put
        self._say = say
        self._beat = beat
        self.after = after
        self.dropped_batches = 0
        self._registered = threading.Event()
        self._stopping = threading.Event()
        self._reachable: bool | None = None
        self._reports: deque[Outgoing] = deque(maxlen=MAX_REPORTS)
        self._wake = threading.Event()
        self._sending = threading.Event()
        self._threads: list[threading.Thread] = []
        self._undecided: tuple[Outgoing, float] | None = None
        self._decisions = 0
        self._one_heartbeat = threading.Lock()
        self._end_told = False

    def start(self) -> None:
        lease = self._identity.lease_document()
        loops = (self._beat_loop, self._poll_loop, self._report_loop, self._ship_loop)
        for loop in loops:
            client = self._new_client()
            arguments = (client, lease) if loop == self._beat_loop else (client,)
            thread = threading.Thread(target=loop, args=arguments, name=loop.__name__.strip("_"), daemon=True)
            thread.start()
            self._threads.append(thread)

    def report(self, outgoing: Outgoing) -> None:
        self._reports.append(outgoing)
        self._wake.set()

    def report_failure(self, document: Mapping[str, Any], after_batch: int) -> None:
        """Report it, and again under the same key while nothing is decided: a person may have to approve first."""
        decisions = self._decisions

        def answered(answer: Any) -> None:
            told = answer if isinstance(answer, dict) else {}
            # The command may have come before the answer that promises it.
            waits = told.get("directive") == "wait" and self._decisions == decisions
            self._undecided = (report, time.monotonic() + ASK_SECONDS) if waits else None
            self._put(Heard(accepted=True, approval=told.get("mode") == "approve"))

        report = Outgoing(lambda client: client.report_failure(self._job, document), "the failure", after_batch, answered)
        self.report(report)

    def report_notice(self, document: Mapping[str, Any], what: str) -> None:
        """Something more about a failure that was reported: nobody waits for the answer."""
        self.report(Outgoing(lambda client: client.report_failure(self._job, document), what))

    def report_attempt(self, document: Mapping[str, Any]) -> None:
        self._decided()
        self.report(Outgoing(lambda client: client.report_attempt(self._job, document), "the attempt"))

    def _decided(self) -> None:
        self._decisions += 1
        self._undecided = None

    def report_result(self, command: int, document: Mapping[str, Any]) -> None:
        node = self._identity.node
        self.report(Outgoing(lambda client: client.report_result(node, command, document), f"the result of command {command}"))

    def report_end(self, document: Mapping[str, Any]) -> None:
        """The last heartbeat: none that says "running" arrives after it."""

        def send(client: ServiceClient) -> Any:
            with self._one_heartbeat:
                self._end_told = True
                return client.heartbeat(self._job, document)

        self.report(Outgoing(send, "the end", self._spool.last_number))

    def finish(self, seconds: float = FINISH_SECONDS) -> bool:
        """Send what is left while something gets through at least every `seconds`; True when all is sent, said where not.

        A service that does not answer just now gets the shorter UNHEARD_SECONDS to change its mind.
        """
        missed = self._meant or self._was_heard
        left, moved_at = self._left(), time.monotonic()
        while left != NOTHING_LEFT and (missed or self._reachable is not False):
            if time.monotonic() - moved_at > (UNHEARD_SECONDS if self._reachable is False else seconds):
                break
            time.sleep(0.02)
            if (now_left := self._left()) != left:
                left, moved_at = now_left, time.monotonic()
        self._stopping.set()
        self._wake.set()
        self._spool.added.set()
        if left != NOTHING_LEFT and missed:
            self._say("not everything reached the service; the next run of this job sends the rest")
        return left == NOTHING_LEFT

    def _left(self) -> tuple[int, bool, int | None]:
        """What is still to be sent: reports, whether one is on its way, the number of the oldest batch."""
        return len(self._reports), self._sending.is_set(), self._spool.first_number

    def _heard(self) -> None:
        if self._reachable is False:
            self._say("the service answers again")
        self._reachable = self._was_heard = True
        self._put(Heard())

    def _unheard(self, problem: ServiceUnavailable) -> None:
        if self._reachable is not False:
            who, it = ("the service does not answer", "it") if self._meant or self._was_heard else ("no service answers", "one")
            self._say(f"{who} ({problem}); going on without {it}")
        self._reachable = False

    def _beat_loop(self, client: ServiceClient, lease: dict[str, Any]) -> None:
        refused = ""
        while not self._stopping.wait(BEAT_SECONDS):
            try:
                client.renew_lease(self._identity.node, {**lease, "clock": time.time()})
                document = self._beat()
                with self._one_heartbeat:
                    if document is not None and self._registered.is_set() and not self._end_told:
                        client.heartbeat(self._job, document)
                undecided = self._undecided
                if undecided is not None and time.monotonic() >= undecided[1]:
                    self._undecided = None
                    self.report(undecided[0])
                self._heard()
            except ServiceUnavailable as problem:
                self._unheard(problem)
            except Refused as problem:
                # A refusal is an answer too: somebody is there.
                self._heard()
                refused = self._refused_once(problem, refused, "lease or heartbeat")

    def _refused_once(self, problem: Refused, before: str, what: str) -> str:
        if problem.status == 404:
            self._registered.clear()
            self._wake.set()
        elif str(problem) != before:
            self._say(f"the service refused the {what}: {problem}")
        return str(problem)

    def _poll_loop(self, client: ServiceClient) -> None:
        refused = ""
        while not self._stopping.is_set():
            try:
                rows = client.commands(self._identity.node, self.after, POLL_SECONDS)
                self._heard()
            except ServiceUnavailable:
                self._stopping.wait(RETRY_SECONDS)
                continue
            except Refused as problem:
                refused = self._refused_once(problem, refused, "request for commands")
                self._stopping.wait(RETRY_SECONDS)
                continue
            for row in rows:
                command = parse_command(row)
                if command is None:
                    continue
                self.after = max(self.after, command.id)
                if row.get("job") == self._job:
                    self._decided()
                    self._put(CommandArrived(command, time.time()))
            if not rows:
                # A service that answers at once instead of waiting is not asked in a tight loop.
                self._stopping.wait(IDLE_SECONDS)

    def _report_loop(self, client: ServiceClient) -> None:
        while not self._stopping.is_set():
            self._wake.wait(RETRY_SECONDS)
            self._wake.clear()
            try:
                if not self._registered.is_set():
                    client.register_job(self._registration)
                    self._registered.set()
                    self._heard()
                while self._reports and not self._stopping.is_set():
                    self._send_first(client)
            except ServiceUnavailable as problem:
                self._unheard(problem)
                self._stopping.wait(RETRY_SECONDS)
                self._wake.set()
            except Refused as problem:
                self._say(f"the service refused this job: {problem}")
                self._stopping.wait(5 * RETRY_SECONDS)

    def _send_first(self, client: ServiceClient) -> None:
        outgoing = self._reports[0]
        self._sending.set()
        try:
            deadline = time.monotonic() + FLUSH_SECONDS
            while self._spool.pending_after(outgoing.after_batch) and time.monotonic() < deadline:
                if self._stopping.wait(0.02):
                    return
            try:
                answer = outgoing.send(client)
            except Refused as problem:
                if problem.status == 404:
                    self._registered.clear()
                    client.register_job(self._registration)
                    self._registered.set()
                    answer = outgoing.send(client)
                else:
                    self._say(f"the service refused {outgoing.what}: {problem}")
                    answer = None
            self._reports.popleft()
            self._heard()
            if outgoing.answered is not None and answer is not None:
                outgoing.answered(answer)
        finally:
            self._sending.clear()

    def _ship_loop(self, client: ServiceClient) -> None:
        refused = ""
        while not self._stopping.is_set():
            batch = self._spool.oldest() if self._registered.is_set() else None
            if batch is None:
                self._spool.added.wait(RETRY_SECONDS)
                self._spool.added.clear()
                continue
            try:
                client.send_logs(batch.id, batch.body)
                self._spool.acknowledge(batch)
            except ServiceUnavailable as problem:
                self._unheard(problem)
                self._stopping.wait(RETRY_SECONDS)
            except Refused as problem:
                refused = self._refused_once(problem, refused, "log batch")
                if problem.status in HOPELESS:
                    self.dropped_batches += 1
                    self._spool.acknowledge(batch)
                else:
                    self._stopping.wait(RETRY_SECONDS)
            except OSError as problem:
                self._say(f"the spool cannot be written: {problem}")
                self._stopping.wait(RETRY_SECONDS)
