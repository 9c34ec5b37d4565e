"""A job on this node, from start to end: led from here or followed, and whoever of the two it is later on."""

from __future__ import annotations

import contextlib
import queue
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from node.agent import Agent
from node.care_states import CommandArrived, Event, Interrupted, Overtaken
from node.channel import Connection, Listener, is_own_address
from node.crew import Crew
from node.follower import FollowingAgent
from node.formation import Member
from node.job_state import JobFolder, JobState
from node.leader_line import led_generation
from node.leaderless import Promotion
from node.link import ServiceLink
from node.log_shipping import LogShipping
from node.rank_group import Launch

__all__ = ["JobOnNode", "RendezvousError", "pass_signals_to"]


# How often nodes that do not answer are asked whether they lead the job by now.
ASK_SECONDS = 1.0


class RendezvousError(Exception):
    """The agents of the job cannot meet; the message says what to do."""


class JobOnNode:
    """Holds what outlives a change of role: the link to the service, the log shipping, the listener for other agents."""

    def __init__(self, request: Launch, folder: JobFolder, shipping: LogShipping, say: Callable[[str], None]) -> None:
        self._request = request
        self._folder = folder
        self._shipping = shipping
        self._say = say
        self._agent: Agent | FollowingAgent | None = None
        self._crew: Crew | None = None
        self._early: list[Event] = []
        # A signal may come in the middle of it.
        self._handing_over = threading.RLock()
        self.link: ServiceLink | None = None

    def put(self, event: Event) -> None:
        """To whoever cares for the ranks at present; from any thread."""
        with self._handing_over:
            if self._agent is not None:
                self._agent.put(event)
            else:
                self._early.append(event)

    def heartbeat(self) -> Mapping[str, Any] | None:
        return None if self._agent is None else self._agent.heartbeat()

    def run(self, state: JobState, taken_over: bool, known_generation: object = None) -> int:
        """The exit status of `pitstop run`. `known_generation`: the last one that the service heard of, where it did.

        Raises KeeperError where nothing can be started, RendezvousError where the other nodes cannot be met.
        """
        if self._request.rendezvous is None:
            alone = self._lead(state, taken_over)
            assert isinstance(alone, int), "a job on one node goes on nowhere else"
            return alone
        host, port = self._request.rendezvous
        listener = None
        overtaken = isinstance(known_generation, int) and known_generation > state.care.generation
        if led_generation(self._others(state), self._request.job) is None and not overtaken:
            listener = self._listener_to_lead(state)
        result: int | JobState = state
        if listener is not None:
            own = host if self._leads_at_rendezvous(state) else own_address(host, port)
            result, taken_over = self._lead(state, taken_over, listener, own), False
        while isinstance(result, JobState):
            result, taken_over = self._follow(result, taken_over), False
        return result

    def _follow(self, state: JobState, taken_over: bool) -> int | JobState:
        """As `_lead`, which it may end in."""
        assert self._request.rendezvous is not None
        host, port = self._request.rendezvous
        own = own_address(host, port)
        # Where the others know this node from, else the same port on every node, where they are machines: it is easier to allow.
        known = [(member.host, member.port) for member in state.met if member.node == self._request.node]
        common = [] if is_own_address(host) else [(own, port)]
        listener = next(filter(None, (self._listen(*place) for place in (*known, *common, (own, 0)))), None)
        if listener is None:
            raise RendezvousError(f"no port of {own} can be listened on")
        follower = FollowingAgent(self._request, self._folder, state, self._shipping, self._say, listener.port, self._others)
        follower.link = self.link
        self._present(follower)
        result = follower.run(taken_over)
        if isinstance(result, Promotion):
            return self._lead(result.state, True, listener, own, result.command)
        listener.close()
        return result

    def _lead(
        self,
        state: JobState,
        taken_over: bool,
        listener: Listener | None = None,
        own: str = "",
        command: CommandArrived | None = None,
    ) -> int | JobState:
        """Until the job ends, or another node leads it: then the state to follow with."""
        request, crew, member = self._request, None, None
        if listener is not None:
            request = replace(request, host=own)
            crew = Crew(request.job, self.put, self._wake, self._say)
            crew.listen(listener)
            member = Member(request.node, request.ranks, own, listener.port, request.order)
        agent = Agent(request, self._folder, replace(state, leads=True), self._shipping, self._say, crew, member)
        agent.link = self.link
        if command is not None:
            agent.put(command)
        self._present(agent)
        self._crew = crew
        if crew is None:
            return agent.run(taken_over)
        over = threading.Event()
        threading.Thread(target=self._look_for_newer, args=(agent, crew, over), name="newer", daemon=True).start()
        try:
            return agent.run(taken_over)
        finally:
            over.set()
            self._crew = None

    def _look_for_newer(self, agent: Agent, crew: Crew, over: threading.Event) -> None:
        """A node that cannot be reached may have been told to lead meanwhile: only it can say so."""
        while not over.wait(ASK_SECONDS):
            found = led_generation(crew.out_of_reach(), self._request.job)
            if found is not None and found > crew.generation:
                agent.put(Overtaken(found, crew.ranks_of(self._request.node)))

    def _present(self, agent: Agent | FollowingAgent) -> None:
        """From now on `agent` cares for the ranks; what nobody has looked at yet is for it."""
        with self._handing_over:
            before, self._agent = self._agent, agent
            for event in (*self._early, *(unheard(before.events) if before is not None else ())):
                agent.put(event)
            self._early.clear()

    def _wake(self) -> None:
        if isinstance(self._agent, Agent):
            self._agent.wake()

    def _accept(self, connection: Connection) -> None:
        # Who follows is no leader to anybody: the caller looks elsewhere.
        if self._crew is not None:
            self._crew.accept(connection)
        else:
            connection.close()

    def _listen(self, host: str, port: int) -> Listener | None:
        with contextlib.suppress(OSError):
            return Listener(host, port, self._accept)
        return None

    def _leads_at_rendezvous(self, state: JobState) -> bool:
        """At the first start: node rank 0 does, and where nobody gave ranks to nodes, whose address it is."""
        assert self._request.rendezvous is not None
        order = self._request.order
        return state.formation is None and (order == 0 if order is not None else is_own_address(self._request.rendezvous[0]))

    def _listener_to_lead(self, state: JobState) -> Listener | None:
        """Where this node leads: at the rendezvous where that is ours and nobody led before, else where it led already."""
        assert self._request.rendezvous is not None
        host, port = self._request.rendezvous
        if state.formation is None:
            return self._listen(host, port) if self._leads_at_rendezvous(state) else None
        leader = state.formation.leader
        if leader.node != self._request.node or not state.leads:
            return None
        listener = self._listen(leader.host, leader.port)
        if listener is None:
            raise RendezvousError(f"{leader.host}:{leader.port}, where the other nodes look for this one, cannot be listened on")
        return listener

    def _others(self, state: JobState) -> Iterable[tuple[str, int]]:
        """Where a leader may be: at any node that this one ever carried ranks with, those of the last formation first, or at the
        rendezvous."""
        assert self._request.rendezvous is not None
        members = (*(state.formation.members if state.formation is not None else ()), *state.met)
        mine = {(member.host, member.port) for member in members if member.node == self._request.node}
        known = [(member.host, member.port) for member in members]
        return [address for address in dict.fromkeys([*known, self._request.rendezvous]) if address not in mine]


def unheard(events: queue.SimpleQueue[Any]) -> Iterable[Event]:
    """What came from outside for an agent that has ended meanwhile."""
    with contextlib.suppress(queue.Empty):
        while True:
            event = events.get_nowait()
            if isinstance(event, CommandArrived | Interrupted):
                yield event


def own_address(host: str, port: int) -> str:
    """Our address on the way to `host`. Raises RendezvousError where there is no way."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as problem:
        raise RendezvousError(f"--rendezvous {host}:{port}: {problem}") from None


def pass_signals_to(job: JobOnNode) -> None:
    """SIGTERM and SIGINT reach the ranks through the agent; SIGHUP only means that our terminal is gone."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _frame: job.put(Interrupted(received)))
    signal.signal(signal.SIGHUP, lambda *_: None)
