"""The agent of `pitstop run`: starts the ranks of one job on this node, cares for them, takes them over from a dead agent."""

from __future__ import annotations

import contextlib
import queue
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from detectors.statistics.judgement import Finding, Judgement
from node.care import step
from node.care_states import (
    Action,
    Care,
    End,
    Event,
    Exited,
    Interrupted,
    KillRanks,
    Noticed,
    Phase,
    PostFailure,
    PostNotice,
    Raised,
    Report,
    Respawn,
    Spawned,
    Tick,
)
from node.job_state import JobFolder, JobState
from node.link import ServiceLink
from node.log_shipping import LogShipping, notice_log
from node.monitors import RankReading
from node.rank_group import Launch, RankGroup
from node.reports import attempt_document, end_document, failure_document, heartbeat_document, notice_document
from node.watch import Watch

__all__ = ["Agent", "pass_signals_to"]

TICK_SECONDS = 0.1
SHIP_SECONDS = 0.25
# A rank that writes a flood is caught up with, but not at the cost of looking at the others.
SHIP_BATCHES = 4
FINISH_SECONDS = 5.0
# What stops a job from getting anywhere is told as a failure; anything else is a line among the others.
TOLD = frozenset((Finding.HANG, Finding.NOT_FINITE))


class Agent:
    """Composes rank group, tails, watch and the link to the service around `care.step`. One thread, one queue of events."""

    def __init__(
        self, launch: Launch, folder: JobFolder, state: JobState, shipping: LogShipping, say: Callable[[str], None]
    ) -> None:
        self._launch = launch
        self._folder = folder
        self._state = state
        self._shipping = shipping
        self._say = say
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._group = RankGroup(
            launch, folder, state.placement, lambda item: self.put(Exited(item)), lambda item: self.put(Raised(item)), say
        )
        self._watch = Watch({})
        self._shipped_at = 0.0
        self.link: ServiceLink | None = None
        self._seen: tuple[Care, Mapping[int, RankReading]] | None = None

    def put(self, event: Event) -> None:
        """Tell the agent of something; from any thread, and from a signal handler."""
        self._events.put(event)

    def heartbeat(self) -> Mapping[str, Any] | None:
        """What the last look saw; for the link's thread. None before the first one."""
        seen = self._seen
        return None if seen is None else heartbeat_document(self._launch.node, *seen, time.monotonic())

    def run(self, taken_over: bool) -> int:
        """Care for the job until it ends; the exit status of `pitstop run`. Raises KeeperError where nothing can be started."""
        if taken_over:
            self._take_over()
        else:
            self._start(Respawn(self._state.care.generation, "start"))
        status: int | None = None
        next_tick = time.monotonic()
        while status is None:
            event: Event
            try:
                event = self._events.get(timeout=max(0.0, next_tick - time.monotonic()))
            except queue.Empty:
                event = Tick()
                next_tick = time.monotonic() + TICK_SECONDS
                self._look()
            status = self._handle(event)
        return self._finish(status)

    def _handle(self, event: Event) -> int | None:
        before = self._state.care
        after, actions = step(before, event, time.monotonic())
        lasting = bool(actions) or after.lasting != before.lasting
        self._state = replace(self._state, care=after, after=self.link.after if self.link else self._state.after)
        if lasting:
            # On disk before it is done: an agent that starts after us must not do it twice.
            self._save()
        if after.phase is Phase.FAILED and before.phase is not Phase.FAILED:
            who = "the service decides" if self.link else "there is no service"
            self._say(f"{after.why}; {who} (generation {after.generation})")
        status = None
        for action in actions:
            found = self._act(action)
            status = found if found is not None else status
        return status

    def _act(self, action: Action) -> int | None:
        care = self._state.care
        match action:
            case KillRanks(number=number):
                self._group.signal(care.running, number)
            case Respawn():
                self._say(f"starting generation {action.generation} ({action.cause})")
                self._start(action)
            case PostFailure(exits=exits):
                self._post(failure_document(self._launch.job, self._launch.node, care, exits, self._group.readings()))
            case PostNotice(rank=rank, why=why, key=key):
                self._post(notice_document(self._launch.job, self._launch.node, care, rank, why, key, self._group.readings()))
            case Report(command_id=number, status=result, detail=detail):
                self._say(f"command {number}: {result}: {detail}")
                if self.link is not None:
                    ranks = [{"rank": rank, "pid": process.pid} for rank, process in self._group.processes.items()]
                    document = {"status": result, "generation": care.generation, "detail": detail, "ranks": ranks}
                    self.link.report_result(number, document)
            case End(status=exit_status, why=why):
                self._say(why if exit_status == 0 else f"given up: {why}")
                return exit_status
        return None

    def _post(self, document: Mapping[str, Any]) -> None:
        """Report a failure, the lines that the ranks had written before it."""
        self._shipping.refresh()
        with contextlib.suppress(OSError):
            self._shipping.flush((item.generation, item.rank) for item in self._state.care.exits)
        if self.link is not None:
            self.link.report_failure(document, self._shipping.last_batch)

    def _save(self) -> None:
        self._state = replace(self._state, placement=self._group.placement)
        try:
            self._folder.save(self._state)
        except OSError as problem:
            self._say(f"the job's state cannot be written, and would be lost with this agent: {problem}")

    def _start(self, action: Respawn) -> None:
        self._group.connect_keeper()
        self._save()
        self._group.start(action.generation, action.resume)
        self._state = replace(self._state, placement=self._group.placement)
        self._watch = Watch(self._group.processes)
        self._shipping.refresh()
        command = self._state.care.command
        directive = command.args.get("directive_id") if command is not None and action.cause == "restart" else None
        if self.link is not None:
            document = attempt_document(
                self._launch.node, self._state, action.cause, directive if isinstance(directive, str) else None
            )
            self.link.report_attempt(document)
        self.put(Spawned(action.generation))

    def _take_over(self) -> None:
        """Find the ranks of the agent that died, and what happened to them since."""
        care = self._state.care
        alive = self._group.find(care.running)
        if care.phase in (Phase.STARTING, Phase.RESTARTING):
            # Nobody knows how far it had come: all of it again, under a generation that nobody used.
            self._group.kill_all()
            everyone = frozenset(range(care.ranks))
            care = replace(care, phase=Phase.STARTING, generation=care.generation + 1, running=everyone, exits=())
            self._state = replace(self._state, care=care)
            self._start(Respawn(care.generation, care.cause, care.resume))
            return
        now = time.monotonic()
        if care.phase is Phase.FAILED:
            # A patience of our own: the service may have heard the other agent's report, or not.
            self._state = replace(self._state, care=replace(care, failed_at=now, last_exit_at=now, posted=False))
        if care.phase is Phase.STOPPING:
            self._state = replace(self._state, care=replace(care, kill_at=now))
        self._watch = Watch(self._group.processes)
        self._say(f"took over {alive} of {care.ranks} ranks, generation {care.generation}")
        if self.link is not None:
            self.link.report_attempt(attempt_document(self._launch.node, self._state, "takeover", None))

    def _look(self) -> None:
        """What nobody tells us of: log lines, monitors, and the end of a rank whose keeper died."""
        now = time.monotonic()
        care = self._state.care
        if now - self._shipped_at >= SHIP_SECONDS:
            self._shipped_at = now
            with contextlib.suppress(OSError):
                ended = [(item.generation, item.rank) for item in care.exits]
                for _ in range(SHIP_BATCHES):
                    if not self._shipping.ship(ended):
                        break
        readings = self._group.readings()
        self._seen = care, readings
        if care.phase is not Phase.STARTING:
            self._group.look(care.running, now)
        if self._group.placement.host != self._state.placement.host:
            self._save()
        if care.phase is Phase.RUNNING:
            self._judge(readings, now)

    def _judge(self, readings: Mapping[int, RankReading], now: float) -> None:
        for judgement in self._watch.look(readings, self._state.care.running, now):
            self._note(judgement)
            if judgement.finding in TOLD and judgement.firm:
                self.put(Noticed(judgement.finding.value, judgement.rank, judgement.why))

    def _note(self, judgement: Judgement) -> None:
        """Say it, and write it where the ranks' lines are shipped from."""
        word = judgement.finding.value.replace("_", " ")
        text = f"pitstop monitor: {word}{'' if judgement.firm else ' (suspected)'}: {judgement.why}"
        self._say(text.removeprefix("pitstop monitor: "))
        path = Path(notice_log(self._folder.logs, self._state.care.generation))
        with contextlib.suppress(OSError), path.open("a", encoding="utf-8") as target:
            target.write(text + "\n")
        self._shipping.refresh()

    def _finish(self, status: int) -> int:
        """Everything that belongs to the job goes; what it said is delivered as far as the service takes it."""
        care = self._state.care
        readings = self._group.readings()
        self._group.finish()
        self._shipping.refresh()
        with contextlib.suppress(OSError):
            self._shipping.flush((generation, rank) for generation in range(care.generation + 1) for rank in range(care.ranks))
        if self.link is not None:
            self.link.report_end(end_document(self._launch.node, care, readings, status, time.monotonic()))
            if not self.link.finish(FINISH_SECONDS):
                self._say("not everything reached the service; the next run of this job sends the rest")
        self._group.close()
        self._state = replace(self._state, exit_status=status)
        self._save()
        return status


def pass_signals_to(agent: Agent) -> None:
    """SIGTERM and SIGINT reach the ranks through the agent; SIGHUP only means that our terminal is gone."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _frame: agent.put(Interrupted(received)))
    signal.signal(signal.SIGHUP, lambda *_: None)
