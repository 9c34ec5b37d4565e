"""The agent that keeps a job's generation: cares for all its ranks, on this node and through the agents of the others.

Of a job on one node it is the only agent. It starts the ranks, takes them over from a dead agent, and obeys commands.
"""

from __future__ import annotations

import queue
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from detectors.supervisor import RankExit
from node.care import step
from node.care_states import (
    Action,
    Care,
    Command,
    CommandArrived,
    End,
    Event,
    Exited,
    Formed,
    KillRanks,
    KillStuck,
    NewerFormed,
    NotFormed,
    Overtaken,
    Phase,
    PostFailure,
    PostNotice,
    Raised,
    Reform,
    Rejoined,
    Report,
    Respawn,
    Returned,
    Spawned,
    Tick,
)
from node.crew import Crew
from node.formation import Formation, Member
from node.gathering import JOIN_SECONDS, Gathering, reach_of
from node.job_state import JobFolder, JobState, taken_over
from node.keeper_client import KeeperError
from node.leaderless import retired
from node.link import ServiceLink
from node.local_ranks import LocalRanks
from node.log_shipping import LogShipping
from node.membership import Membership, leads_after
from node.monitors import RankReading
from node.rank_group import Launch
from node.rejoining import RejoiningRanks
from node.reports import (
    attempt_document,
    end_document,
    failure_document,
    heartbeat_document,
    notice_document,
    noticed,
    result_document,
    unreachable_notice,
)

__all__ = ["TICK_SECONDS", "Agent"]

TICK_SECONDS = 0.1


class Agent:
    """Composes local ranks, crew and the link to the service around `care.step`. One thread, one queue of events."""

    def __init__(
        self,
        launch: Launch,
        folder: JobFolder,
        state: JobState,
        shipping: LogShipping,
        say: Callable[[str], None],
        crew: Crew | None = None,
        own: Member | None = None,
    ) -> None:
        """`crew` and `own` (this node as a member): of a job on several nodes."""
        self._launch = launch
        self._folder = folder
        self._state = state
        self._say = say
        self.events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._local = LocalRanks(
            launch,
            folder,
            state.placement,
            shipping,
            say,
            lambda item: self.put(Exited(item)),
            lambda item: self.put(Raised(item)),
        )
        self._crew = crew
        self._own = own or Member(launch.node, launch.ranks, launch.host)
        self._gathering = Gathering(crew, self._own, launch.bounds, say)
        self._membership = Membership(self._local, crew, launch.bounds)
        self._rejoining = RejoiningRanks(self._local, crew, self._own.node, say)
        self._starting: Formation | None = None
        self._held: CommandArrived | None = None
        self.link: ServiceLink | None = None
        self._seen: tuple[Care, Mapping[int, RankReading]] | None = None

    def put(self, event: Event) -> None:
        """Tell the agent of something; from any thread, and from a signal handler."""
        self.events.put(event)

    def wake(self) -> None:
        """Somebody of the crew came or went."""
        self.events.put(None)

    def heartbeat(self) -> Mapping[str, Any] | None:
        """What the last look saw; for the link's thread. None before the first one."""
        if (seen := self._seen) is None:
            return None
        gathering = self._gathering
        return heartbeat_document(self._launch.node, *seen, time.monotonic(), gathering.gone(), gathering.waits_for)

    def run(self, taken_over: bool) -> int | JobState:
        """Until the job ends: the exit status; where it goes on elsewhere, the state to follow it with. Raises KeeperError."""
        if taken_over:
            self._take_over()
        else:
            self._form(Respawn(self._state.care.generation, "start"))
        status: int | None = None
        next_tick = time.monotonic()
        while status is None:
            event: Event | None
            try:
                event = self.events.get(timeout=max(0.0, next_tick - time.monotonic()))
            except queue.Empty:
                event = Tick()
                next_tick = time.monotonic() + TICK_SECONDS
                self._look()
            if event is None:
                status = self._crew_changed()
            else:
                status = self._handle(event)
        return self._finish(status)

    def _handle(self, event: Event) -> int | None:
        before = replace(self._state.care, alone=self._membership.alone(self._state.formation))
        if before.phase in (Phase.RUNNING, Phase.FAILED) and before.running and not isinstance(event, Tick):
            marks = self._membership.marks(before)
            before = replace(before, elastic=marks.elastic, priced=bool(marks.priced))
        if isinstance(event, NewerFormed):
            return self._hear_of_newer(event.formation)
        if isinstance(event, CommandArrived):
            settled = self._membership.settle(event, before, self._state.formation, time.monotonic())
            self._held = event if settled is None else None
            if settled is None:
                return None
            event = settled
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

    def _hear_of_newer(self, formation: Formation) -> int | None:
        """A node is here that stood in a formation newer than any that was led from here."""
        care, held = self._state.care, self._held
        generation = leads_after(formation, self._own.node, care, held.command if held is not None else care.command)
        if generation is not None:
            self._state = replace(self._state, care=replace(care, generation=generation))
            self._gathering.raise_to(generation)
            return None
        self._held = None
        if held is not None:
            self._handle(replace(held, hindrance=f"there was a generation {formation.generation}, not known to this node"))
        return self._handle(Overtaken(formation.generation, self._local.ranks))

    def _act(self, action: Action) -> int | None:
        care = self._state.care
        match action:
            case KillRanks(number=number):
                self._kill(number)
            case KillStuck(ranks=stuck, why=why):
                self._say(f"{why}: it is ended")
                self._signal(stuck, signal.SIGKILL)
            case Reform():
                self._reform(action)
            case Respawn():
                self._say(f"starting generation {action.generation} ({action.cause})")
                return self._form(action)
            case PostFailure(exits=exits):
                self._post(self._failure(care, exits))
            case PostNotice():
                self._post(notice_document(self._launch.job, self._own.node, self._node_of, care, action, *self._told()))
            case Report(command_id=number, status=result, detail=detail):
                self._say(f"command {number}: {result}: {detail}")
                if self.link is not None:
                    processes = self._local.group.processes
                    self.link.report_result(number, result_document(result, care.generation, detail, processes))
            case End(status=exit_status, why=why):
                self._say(why if exit_status == 0 or care.leaves else f"given up: {why}")
                return exit_status
        return None

    def _reform(self, action: Reform) -> None:
        """First the ranks, who wait, then the word about it."""
        before = action.before
        try:
            self._local.reform(action.generation, action.members)
            if self._state.formation is not None:
                formation = self._state.formation.shrunk(action.generation, action.members, self._own.node)
                self._state = self._state.stands_in(formation)
                if self._crew is not None:
                    self._crew.reform(formation, self._own.node, self._local.group.placement.meeting, action.members)
        except (KeeperError, OSError) as problem:
            self._say(f"the ranks cannot go on in their processes: {problem}")
            self._signal(action.members, signal.SIGKILL)
        self._save()
        self._say(f"{self._state.care.why}; ranks {sorted(action.members)} go on in generation {action.generation}")
        if before.failures and not before.posted:
            self._local.flush(before.exits, before.generation)
            self._post(self._failure(before, before.failures))
        self._report_attempt(self._state.care.cause, action.command)

    def _signal(self, ranks: frozenset[int], number: int) -> frozenset[int]:
        """Those that nobody can reach come back."""
        self._local.group.signal(ranks & self._local.ranks, number)
        return frozenset() if self._crew is None else self._crew.signal(ranks - self._local.ranks, number)

    def _kill(self, number: int) -> None:
        care = self._state.care
        for rank in sorted(self._signal(care.running, number)):
            # Correctness does not depend on it: the next generation has a store that this one does not know.
            self.put(Exited(RankExit(rank, care.generation, None, number, time.time(), by_us=True)))

    def _node_of(self, rank: int | None) -> str:
        formation = self._state.formation
        return self._launch.node if formation is None or rank is None else formation.node_of(rank)

    def _told(self) -> tuple[int | None, int | None, list[dict[str, Any]]]:
        """What every report of a failure ends with: last step, newest checkpoint, nodes out of reach."""
        return *reach_of(self._local.readings(), self._crew), self._gathering.report(self._state.formation)

    def _failure(self, care: Care, exits: tuple[RankExit, ...]) -> dict[str, Any]:
        return failure_document(self._launch.job, self._own.node, self._node_of, care, exits, *self._told())

    def _post(self, document: Mapping[str, Any]) -> None:
        """Report a failure, the lines that the ranks had written before it."""
        self._local.flush(self._state.care.exits, self._state.care.generation)
        if self.link is not None:
            known = self._local.group.hosting.status().get("checkpoints")
            document = {**document, "checkpoints": known} if known else document
            self.link.report_failure(document, self._local.shipping.last_batch)

    def _save(self) -> None:
        self._state = replace(self._state, placement=self._local.group.placement)
        try:
            self._folder.save(self._state)
        except OSError as problem:
            self._say(f"the job's state cannot be written, and would be lost with this agent: {problem}")

    def _form(self, action: Respawn) -> int | None:
        """Begin to look for the nodes of the next generation."""
        self._gathering.begin(action)
        self._starting = None
        return self._crew_changed()

    def _crew_changed(self) -> int | None:
        action = self._gathering.action
        if action is None:
            return self._started()
        members = self._gathering.members(self._state.formation, self._state.care.barred)
        if members is not None:
            self._gathering.action = None
            return self._start(action, Formation(action.generation, members))
        if self._gathering.is_in_vain:
            self._gathering.action = None
            return self._handle(NotFormed(action.generation, f"too few nodes came within {JOIN_SECONDS:.0f} s"))
        return None

    def _start(self, action: Respawn, formation: Formation) -> int | None:
        self._state = self._state.stands_in(formation)
        status = self._handle(Formed(formation.generation, formation.world))
        self._local.group.connect_keeper()
        self._save()
        try:
            self._local.start(action.generation, action.resume, formation.place(self._own.node))
        except KeeperError as problem:
            if self._crew is not None:
                self._crew.end(1, str(problem))
            raise
        self._state = replace(self._state, placement=self._local.group.placement)
        if self._crew is not None:
            self._crew.start(formation, self._own.node, self._state.placement.meeting, action.resume)
        self._starting = formation
        self._report_attempt(action.cause, self._state.care.command)
        return status if status is not None else self._started()

    def _started(self) -> int | None:
        formation = self._starting
        if formation is None or (self._crew is not None and not self._crew.all_started(formation, self._own.node)):
            return None
        self._starting = None
        if self._crew is not None:
            # Once more, with the processes of the other nodes.
            self._report_attempt(self._state.care.cause, self._state.care.command)
        return self._handle(Spawned(formation.generation))

    def _report_attempt(self, cause: str, command: Command | None = None) -> None:
        if self.link is None:
            return
        running = self._state.care.running
        others = [item for item in self._crew.processes() if item["rank"] in running] if self._crew is not None else []
        self.link.report_attempt(attempt_document(self._launch.node, self._state, cause, command, others))

    def _take_over(self) -> None:
        """Find the ranks of the agent that died, and what happened to them since."""
        care, formation = self._state.care, self._state.formation
        if self._crew is not None:
            self._crew.expect(formation, self._own.node, care.generation)
        alive = self._local.group.find(care.running)
        self._state = taken_over(self._state, time.monotonic())
        if self._state.care.phase is Phase.STARTING:
            self._local.group.kill_all()
            self._form(Respawn(self._state.care.generation, care.cause, care.resume, care.nodes))
            return
        self._local.attend()
        self._say(f"took over {alive} of {care.ranks} ranks, generation {care.generation}")
        # One that another led is told of when those that go on have met: until then its nodes are those that they were.
        if formation is None or formation.leader.node == self._own.node:
            self._report_attempt("takeover")

    def _look(self) -> None:
        """What nobody tells us of: log lines, monitors, nodes that came back, and the end of a rank whose keeper died."""
        now = time.monotonic()
        care = self._state.care
        self._local.ship(care.exits, now)
        readings = self._local.readings()
        self._seen = self._state.told, readings
        if care.phase is not Phase.STARTING:
            self._local.group.look(care.running, now)
        if self._local.group.placement.helpers != self._state.placement.helpers:
            self._save()
        if care.phase is Phase.RUNNING:
            self._judge(readings, now)
            formation, (reached, saved) = self._state.formation, reach_of(readings, self._crew)
            if (peers := self._membership.look(care, formation, now)) is not None:
                self.put(replace(peers, step=reached))
            if back := self._rejoining.look(care, formation, self._membership):
                self.put(Rejoined(back))
            if returned := self._gathering.returned(formation, saved, care.barred | self._rejoining.nodes(formation)):
                self.put(Returned(returned))
        elif self._gathering.action is not None:
            self.wake()
        if self._held is not None:
            self.put(self._held)
        if care.phase in (Phase.STARTING, Phase.RESTARTING) or (care.phase is Phase.FAILED and care.posted):
            self._tell_gone()

    def _judge(self, readings: Mapping[int, RankReading], now: float) -> None:
        judged = self._local.judge(readings, self._state.care.running, self._state.care.generation, now)
        for found in noticed(judged, self._local.hang, self._gathering.gone(), self._launch.node):
            self.put(found)

    def _tell_gone(self) -> None:
        """Nodes that went out of reach while a failure is being dealt with: the decision about it may have to be another one."""
        formation = self._state.formation
        for item in self._gathering.untold(formation):
            if self.link is not None:
                notice = unreachable_notice(item, self._launch.node)
                told = notice_document(self._launch.job, self._own.node, self._node_of, self._state.told, notice, *self._told())
                self.link.report_notice(told, notice.why)

    def _finish(self, status: int) -> int | JobState:
        """Everything that belongs to the job goes; what it said is delivered as far as the service takes it."""
        care = self._state.care
        readings = self._local.readings()
        follows = self._crew is not None and care.leaves and not care.interrupted
        if self._crew is not None and not care.leaves:
            self._crew.end(status, care.why)
        self._local.finish(care.generation)
        if self.link is not None and not follows:
            self.link.report_end(end_document(self._launch.node, self._state.told, readings, status, time.monotonic()))
            self.link.finish()
        self._local.group.close()
        if self._crew is not None:
            self._crew.close()
        self._state = retired(self._state) if follows else replace(self._state, exit_status=status)
        self._save()
        return self._state if follows else status
