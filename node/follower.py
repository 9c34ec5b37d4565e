"""The agent of a node whose job is led from another one: starts, watches and ends its ranks as the leader says.

It decides nothing while the leader answers. When the leader is gone its ranks are left alone; a failure among them is reported
from here, and a command of the service that wants the job to go on without the old leader makes the first node that it names the
new one. Without a command nobody takes the lead: two halves of a job must never both go on.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from detectors.supervisor import RankExit
from node.agent import TICK_SECONDS
from node.answering import answer_at_once
from node.care_states import Care, Command, CommandArrived, Event, Exited, Interrupted, Noticed, Phase, Raised
from node.crew import Gone
from node.formation import formation_of
from node.job_state import JobFolder, JobState
from node.keeper_client import KeeperError
from node.leader_line import LeaderLine, Lost, Said, beat_message, join_message
from node.leaderless import LeaderlessReports, Promotion, promoted
from node.link import ServiceLink
from node.local_ranks import LocalRanks
from node.log_shipping import LogShipping
from node.membership import hindrance_of
from node.monitors import RankReading
from node.rank_group import Launch
from node.ranks import StoreAddress
from node.reforming import Marks
from node.reports import UNREACHABLE, heartbeat_document, noticed
from node.waiting import Wait, followed

__all__ = ["FollowingAgent"]

# A leader that is gone for this long while nothing runs here any more is not coming back.
LEADERLESS_SECONDS = 600.0
KILL_SECONDS = 5.0


class FollowingAgent:
    """One thread, one queue of events; another thread looks for the leader while there is none."""

    def __init__(
        self,
        launch: Launch,
        folder: JobFolder,
        state: JobState,
        shipping: LogShipping,
        say: Callable[[str], None],
        port: int,
        addresses: Callable[[JobState], Iterable[tuple[str, int]]],
    ) -> None:
        """`port`: where our own listener is; `addresses`: where a leader may be found, as the job is known."""
        self._launch = launch
        self._folder = folder
        self._state = state
        self._say = say
        self.events: queue.SimpleQueue[Event | Said | Lost] = queue.SimpleQueue()
        self._local = LocalRanks(
            launch,
            folder,
            state.placement,
            shipping,
            say,
            lambda item: self.put(Exited(item)),
            lambda item: self.put(Raised(item)),
        )
        self._line = LeaderLine(
            lambda: addresses(self._state),
            lambda: join_message(launch, self._state, port, self._marks),
            self._beat,
            self.events.put,
        )
        self._reports = LeaderlessReports(launch, self._local, self._beat, say)
        self._command: CommandArrived | None = None
        self._addresses, self._wait = addresses, Wait()
        self._interrupted_at: float | None = None
        self._marks = Marks()
        self.link: ServiceLink | None = None
        self._seen: tuple[Care, Mapping[int, RankReading]] | None = None

    def put(self, event: Event) -> None:
        """Tell the agent of something; from any thread, and from a signal handler."""
        self.events.put(event)

    def heartbeat(self) -> Mapping[str, Any] | None:
        seen = self._seen
        if seen is None or not (seen[1] or self._wait.said):
            return None
        gone = () if self._line.gone is None else (self._line.gone,)
        return heartbeat_document(self._launch.node, *seen, time.monotonic(), gone, self._wait.said)

    def run(self, taken_over: bool) -> int | Promotion:
        """Until the job ends (the exit status of `pitstop run`), or this node is to lead it."""
        if taken_over:
            alive = self._local.group.find(self._state.care.running)
            self._local.attend()
            self._say(f"took over {alive} ranks of this node, generation {self._state.care.generation}")
        self._line.start()
        next_tick = time.monotonic()
        ended: int | Promotion | None = None
        while ended is None:
            try:
                event = self.events.get(timeout=max(0.0, next_tick - time.monotonic()))
            except queue.Empty:
                next_tick = time.monotonic() + TICK_SECONDS
                ended = self._look(time.monotonic())
                continue
            ended = self._handle(event)
        if isinstance(ended, Promotion):
            self._line.close()
            return ended
        return self._finish(ended)

    def _handle(self, event: Event | Said | Lost) -> int | Promotion | None:
        match event:
            case Said(message=message):
                return self._obey(message)
            case Lost(why=why):
                self._lose(why)
                return self._lead_if_told()
            case Exited(exit=item):
                self._ended(item)
            case Raised(exit=item):
                self._tell_failure("raised", item)
            case CommandArrived():
                return self._command_arrived(event)
            case Interrupted(number=number):
                self._interrupted(number)
            case _:
                pass
        return None

    def _obey(self, message: Mapping[str, Any]) -> int | None:
        care = self._state.care
        match message.get("op"):
            case "welcome":
                if int(message["generation"]) > care.generation and care.running:
                    self._say(f"generation {care.generation} is over; its ranks here are ended")
                    self._local.group.signal(care.running, 9)
            case "start":
                self._start(message)
            case "reform":
                self._reform(message)
            case "rejoin":
                self._rejoin(message)
            case "signal":
                if int(message["generation"]) == care.generation:
                    self._local.group.signal(care.running & set(message["ranks"]), int(message["number"]))
            case "end":
                status, why = int(message["status"]), str(message["why"])
                self._say(why if status == 0 else f"given up: {why}")
                return status
            case "refused":
                self._say(f"the leader refused this node: {message.get('why')}")
                return 1
        return None

    def _start(self, message: Mapping[str, Any]) -> None:
        formation, store = formation_of(message["formation"]), message["store"]
        generation, care = formation.generation, self._state.care
        if care.formed and generation <= care.generation:
            # Its leader does not know of the group that this node was in: two groups would bear one number.
            why = f"generation {generation} is not above {care.generation}, which was formed here"
            self._line.send({"op": "start_failed", "generation": generation, "why": why})
            return
        place = formation.place(self._launch.node)
        self._say(f"starting ranks {place.first} to {place.first + place.ranks - 1} of generation {generation}")
        care = replace(care, phase=Phase.STARTING, generation=generation, ranks=formation.world, formed=True)
        care = replace(care, running=frozenset(formation.ranks_of(self._launch.node)), exits=(), raised=())
        self._state = replace(self._state, care=care).stands_in(formation)
        self._save()
        try:
            self._local.group.kill_all()
            self._local.start(generation, dict(message["resume"]), place, StoreAddress(**store))
        except KeeperError as problem:
            self._line.send({"op": "start_failed", "generation": generation, "why": str(problem)})
            self._state = replace(self._state, care=replace(care, running=frozenset()))
            return
        self._state = replace(self._state, care=replace(care, phase=Phase.RUNNING))
        self._save()
        self._tell_started(generation)
        self._carried_out(f"{place.ranks} ranks started")

    def _reform(self, message: Mapping[str, Any]) -> None:
        """Ranks of this node go on in their processes, with those of other nodes that are left."""
        formation, ranks = formation_of(message["formation"]), frozenset(message["ranks"])
        care = self._state.care
        care = replace(
            care,
            phase=Phase.RUNNING,
            generation=formation.generation,
            running=(care.running | self._local.group.rejoining) & ranks,
            exits=(),
            raised=(),
        )
        try:
            self._local.reform(formation.generation, ranks, StoreAddress(**message["store"]))
        except (KeeperError, OSError) as problem:
            self._say(f"the ranks cannot go on in their processes: {problem}")
            self._local.group.signal(care.running, 9)
        self._state = replace(self._state, care=care).stands_in(formation)
        self._save()
        self._line.send(self._beat())
        self._say(f"ranks {sorted(care.running)} of this node go on in generation {formation.generation}")
        self._carried_out(f"{len(care.running)} ranks go on in their processes")

    def _rejoin(self, message: Mapping[str, Any]) -> None:
        """Start lost ranks of this node beside those of other nodes that went on without them."""
        formation, store = formation_of(message["formation"]), StoreAddress(**message["store"])
        care, generation = self._state.care, formation.generation
        if care.generation != generation or not care.running:
            # What is left here of another generation is over.
            self._local.group.kill_all()
            care = Care(Phase.RUNNING, formation.world, generation, formed=True, max_restarts=care.max_restarts, done=care.done)
        self._state = replace(self._state, care=care).stands_in(formation)
        try:
            self._local.rejoin(generation, frozenset(message["ranks"]), formation.place(self._launch.node), store)
        except KeeperError as problem:
            self._say(f"lost ranks cannot be started anew: {problem}")
            return
        self._save()
        self._tell_started(generation)

    def _tell_started(self, generation: int) -> None:
        processes = [[rank, process.pid] for rank, process in self._local.group.processes.items()]
        self._line.send({"op": "started", "generation": generation, "processes": processes})

    def _carried_out(self, what: str) -> None:
        command, generation = self._command, self._state.care.generation
        if command is not None and command.command.kind == "restart_ranks":
            if command.command.generation <= generation:
                self._answer(command.command, "done", f"{what} under generation {generation}")
            self._command = None

    def _ended(self, item: RankExit) -> None:
        care = self._state.care
        if item.generation != care.generation or item.rank not in care.running:
            return
        command = self._command
        stops = command is not None and command.command.kind == "stop_ranks"
        item = replace(item, by_us=item.by_us or stops)
        self._state = replace(self._state, care=replace(care, running=care.running - {item.rank}, exits=(*care.exits, item)))
        self._save()
        self._tell_failure("exited", item)
        if command is not None and stops and not self._state.care.running:
            self._command = None
            self._answer(command.command, "done", "every process of the job on this node has ended")

    def _tell_failure(self, word: str, item: RankExit) -> None:
        if item.generation != self._state.care.generation:
            return
        if item.failed:
            self._say(f"rank {item.rank}: {item.description} (generation {item.generation})")
            # Its lines are to be there when the leader reports it.
            self._local.flush([item], item.generation)
        self._line.send({"op": word, "exit": asdict(item)})

    def _interrupted(self, number: int) -> None:
        if self._line.send({"op": "interrupted", "number": number}):
            return
        self._say("the leader does not answer: the signal is passed on to the ranks of this node")
        self._local.group.signal(self._state.care.running, number)
        self._interrupted_at = time.monotonic()

    def _command_arrived(self, event: CommandArrived) -> Promotion | None:
        command, care = event.command, self._state.care
        if command.id in care.done:
            return None
        answer = answer_at_once(event, self._state)
        if answer is not None:
            self._answer(command, *answer)
            return None
        self._command = event
        if command.kind != "stop_ranks":
            return self._lead_if_told()
        if not self._line.up or "going_on" in command.args:
            self._local.group.signal(care.running, 15)
        if not care.running:
            self._command = None
            self._answer(command, "done", "nothing of the job runs on this node")
        return None

    def _lead_if_told(self) -> Promotion | None:
        """Whether a command that waits makes this node the leader: it is named first, and the one that led is gone."""
        event = self._command
        nodes = event.command.args.get("nodes") or () if event is not None and event.command.kind == "restart_ranks" else ()
        if event is None or self._line.up or not nodes or nodes[0] != self._launch.node:
            return None
        hindrance = hindrance_of(event.command, self._state.formation)
        if hindrance is not None:
            self._command = None
            self._answer(event.command, "refused", hindrance)
            return None
        self._say("this node leads from now on: the service goes on without the one that did")
        state = replace(self._state, placement=self._local.group.placement)
        return Promotion(promoted(state, self._local.ranks, event.command), event)

    def _answer(self, command: Command, status: str, detail: str) -> None:
        care = self._state.care
        self._state = replace(self._state, care=replace(care, done={**care.done, command.id: status}))
        self._save()
        self._say(f"command {command.id}: {status}: {detail}")
        if self.link is not None:
            self.link.report_result(command.id, {"status": status, "generation": care.generation, "detail": detail})

    def _beat(self) -> Mapping[str, Any]:
        readings = (self._seen[1] if self._seen is not None else {}).values()
        return beat_message(self._state.care.generation, readings, self._marks)

    def _lose(self, why: str) -> None:
        formation = self._state.formation
        leader = formation.leader.node if formation is not None else "the leader"
        self._line.gone = Gone(leader, time.time(), why)
        self._say(f"node {leader} does not answer: {why}; the ranks here are left alone")

    def _look(self, now: float) -> int | None:
        care = self._state.care
        self._local.ship(care.exits, now)
        readings = self._local.readings()
        self._seen = care, readings
        self._state = replace(self._state, after=self.link.after if self.link else self._state.after)
        if care.running or self._local.group.rejoining:
            self._local.group.look(care.running, now)
            self._look_at_marks()
            if self._local.group.placement.helpers != self._state.placement.helpers:
                self._save()
            judged = self._local.judge(readings, care.running, care.generation, now)
            gone = () if self._line.gone is None else (self._line.gone,)
            for notice in noticed(judged, self._local.hang, gone, self._launch.node):
                self._tell_noticed(notice)
        self._tell_wait(now)
        if self._line.up:
            return None
        formation = self._state.formation
        if self._line.is_missed(now) and formation is not None and self._launch.node in formation.nodes[1:]:
            self._lose("nothing was heard since this agent began")
        if self._interrupted_at is not None:
            if not care.running:
                self._say("stopped by a signal")
                return 1
            if now - self._interrupted_at > KILL_SECONDS:
                self._local.group.signal(care.running, 9)
        if self._line.gone is not None and self.link is not None:
            self._reports.failure(self._state, self._marks, self._line.gone, self.link, now)
        if not care.running and now - self._line.lost_at > LEADERLESS_SECONDS:
            self._say(f"given up: no leader answered for {LEADERLESS_SECONDS:.0f} s")
            return 1
        return None

    def _tell_wait(self, now: float) -> None:
        """For whom, once; to the service with each heartbeat. Ranks that a command is to restart are told of as cut off."""
        command = self._command.command if self._command is not None else None
        what = self._wait.look(followed(self._state, self._line.leader, command, list(self._addresses(self._state))), now)
        if what is not None:
            self._say(f"waiting for {what}")
            if command is not None and self._line.gone is not None:
                self._tell_noticed(Noticed(UNREACHABLE, None, f"waiting for {what}: {self._line.gone.why}"))

    def _tell_noticed(self, notice: Noticed) -> None:
        """To the leader; to the service where it is gone."""
        gone = self._line.gone
        told = self._line.send({"op": "noticed", "generation": self._state.care.generation, "notice": asdict(notice)})
        if not told and gone is not None and self.link is not None:
            self._reports.notice(self._state, notice, gone, self.link)

    def _look_at_marks(self) -> None:
        marks = self._local.marks(self._state.care.running)
        if marks != self._marks:
            self._marks = marks
            # Whoever waits is not to wait for the next beat as well.
            self._line.send(self._beat())

    def _save(self) -> None:
        self._state = replace(self._state, placement=self._local.group.placement, leads=False)
        try:
            self._folder.save(self._state)
        except OSError as problem:
            self._say(f"the job's state cannot be written, and would be lost with this agent: {problem}")

    def _finish(self, status: int) -> int:
        self._local.finish(self._state.care.generation)
        command, self._command = self._command, None
        if command is not None and command.command.kind == "stop_ranks":
            self._answer(command.command, "done", "every process of the job on this node has ended")
        if self.link is not None:
            self.link.finish()
        self._local.group.close()
        self._line.close()
        self._state = replace(self._state, exit_status=status, care=replace(self._state.care, phase=Phase.ENDED))
        self._save()
        return status
