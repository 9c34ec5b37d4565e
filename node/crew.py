"""The other nodes of a job, as the agent that leads it sees them: who is there, what their ranks do, what they are told.

What comes from them goes into the leader's queue of events, as if their ranks were its own. Messages (node/channel.py):

    follower -> leader
    {"op": "ask", "job"}                                       is the leader here? it is welcomed, and no more
    {"op": "join", "job", "node", "ranks", "order", "port", "generation", "formation", "running": [rank],
     "exits": [exit]}                                          its last formation where it carried ranks of it, else null
    {"op": "beat", "generation", "step", "checkpointed", "elastic", "waiting", "stopped", "priced"}
    {"op": "exited" | "raised", "exit"}
    {"op": "started", "generation", "processes": [[rank, pid]]}      {"op": "start_failed", "generation", "why"}
    {"op": "noticed", "generation", "notice"}      {"op": "interrupted", "number"}
    leader -> follower
    {"op": "welcome", "generation"}                            ranks of an older generation are to be ended
    {"op": "start", "formation", "store", "resume"}            {"op": "signal", "generation", "ranks", "number"}
    {"op": "reform", "formation", "store", "ranks"}            these go on in their processes, on this node and others
    {"op": "rejoin", "formation", "store", "ranks"}            these, lost before, are started beside those of the formation
    {"op": "end", "status", "why"}                             {"op": "refused", "why"}
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from detectors.supervisor import RankExit
from node.care_states import Event, Exited, Interrupted, NewerFormed, Noticed, Raised
from node.channel import Connection, Listener
from node.formation import Formation, Member, formation_of
from node.ranks import StoreAddress
from node.reforming import Marks, marks_of

__all__ = ["Crew", "Gone"]


@dataclass(frozen=True, slots=True)
class Gone:
    """A node of the formation whose agent does not answer any more, since `since` (seconds since the epoch)."""

    node: str
    since: float
    why: str


@dataclass(slots=True)
class Follower:
    """What is known of one other node. `connection` None: its agent does not answer."""

    member: Member
    connection: Connection | None
    joined_at: float
    gone: Gone | None = None
    generation: int = -1
    step: int | None = None
    checkpointed: int | None = None
    marks: Marks = field(default_factory=Marks)
    processes: dict[int, int] = field(default_factory=dict)
    started: int = -1


class Crew:
    """The followers of one leader. Its methods may be called from any thread; `put` gets events, `changed` that somebody came or
    went."""

    def __init__(self, job: str, put: Callable[[Event], None], changed: Callable[[], None], say: Callable[[str], None]) -> None:
        self._job = job
        self._put = put
        self._changed = changed
        self._say = say
        self._lock = threading.RLock()
        self._followers: dict[str, Follower] = {}
        self._generation = -1
        self._formation: Formation | None = None
        self._interrupted = False
        self._ended: Mapping[str, Any] | None = None
        self._listener: Listener | None = None

    def listen(self, listener: Listener) -> None:
        """Take over a listener that was opened for us."""
        self._listener = listener

    def accept(self, connection: Connection) -> None:
        connection.start(self._heard, self._lost)

    def expect(self, formation: Formation | None, own: str, generation: int) -> None:
        """After a take-over: these nodes carry the present generation, and will be heard of again."""
        with self._lock:
            self._formation, self._generation = formation, generation
            for member in formation.members if formation is not None else ():
                if member.node != own:
                    gone = Gone(member.node, time.time(), "not heard of since this agent began to lead")
                    self._followers.setdefault(member.node, Follower(member, None, time.time(), gone))

    def present(self) -> dict[str, Member]:
        """The nodes whose agents answer."""
        with self._lock:
            return {node: item.member for node, item in self._followers.items() if item.connection is not None}

    def gone(self) -> tuple[Gone, ...]:
        """Nodes of the present formation whose agents do not answer."""
        with self._lock:
            nodes = self._formation.nodes if self._formation is not None else ()
            return tuple(
                item.gone for node, item in self._followers.items() if node in nodes and item.connection is None and item.gone
            )

    @property
    def generation(self) -> int:
        """The last one that the nodes were told of."""
        return self._generation

    def out_of_reach(self) -> list[tuple[str, int]]:
        """Where the agents that do not answer listened, of the present formation or of one before it."""
        with self._lock:
            lost = [item.member for item in self._followers.values() if item.connection is None]
            return [(member.host, member.port) for member in lost]

    def ranks_of(self, node: str) -> frozenset[int]:
        """Of the present formation."""
        with self._lock:
            return frozenset(() if self._formation is None else self._formation.ranks_of(node))

    def waiting(self) -> dict[str, float]:
        """Nodes that are there and carry nothing of the present formation, each with when it came."""
        with self._lock:
            nodes = self._formation.nodes if self._formation is not None else ()
            return {
                node: item.joined_at
                for node, item in self._followers.items()
                if item.connection is not None and node not in nodes
            }

    def steps(self) -> tuple[list[int], list[int | None]]:
        """(steps, finished checkpoints) of the other nodes of the formation, as their last beats say."""
        with self._lock:
            nodes = self._formation.nodes if self._formation is not None else ()
            members = [item for node, item in self._followers.items() if node in nodes and item.generation == self._generation]
            return [item.step for item in members if item.step is not None], [item.checkpointed for item in members]

    def marks(self) -> Marks:
        """What the ranks of the other nodes have told of themselves, as far as their agents answer."""
        with self._lock:
            found = Marks()
            for item in self._followers.values():
                if item.connection is not None and item.generation == self._generation:
                    found |= item.marks
            return found

    def start(self, formation: Formation, own: str, store: StoreAddress, resume: Mapping[str, Any]) -> None:
        """Tell the other members of `formation` to start their ranks; one that is gone meanwhile counts as failed."""
        self._tell(formation, own, {"op": "start", "resume": dict(resume), "store": asdict(store)})

    def reform(self, formation: Formation, own: str, store: StoreAddress, ranks: Collection[int]) -> None:
        """Tell the other members of `formation` that these ranks go on in their processes; one that is gone counts as failed."""
        with self._lock:
            for node in formation.nodes:
                if node != own:
                    self._followers[node].started = formation.generation
        self._tell(formation, own, {"op": "reform", "ranks": sorted(ranks), "store": asdict(store)})

    def rejoin(self, node: str, formation: Formation, store: StoreAddress, ranks: Collection[int]) -> None:
        """Tell a node, which may be back, to start its lost ranks beside the others; one that is gone is none of them."""
        with self._lock:
            follower = self._followers.get(node)
        if follower is not None and follower.connection is not None:
            message = {"op": "rejoin", "ranks": sorted(ranks), "store": asdict(store), "formation": asdict(formation)}
            follower.connection.send(message)

    def _tell(self, formation: Formation, own: str, message: Mapping[str, Any]) -> None:
        with self._lock:
            self._formation, self._generation = formation, formation.generation
            told = {node: self._followers[node] for node in formation.nodes if node != own}
        for node, follower in told.items():
            if follower.connection is None or not follower.connection.send({**message, "formation": asdict(formation)}):
                self._fail_ranks(node, f"node {node} was lost before its ranks were told of generation {formation.generation}")

    def all_started(self, formation: Formation, own: str) -> bool:
        with self._lock:
            return all(self._followers[node].started == formation.generation for node in formation.nodes if node != own)

    def processes(self) -> list[dict[str, Any]]:
        """{"rank", "local_rank", "node", "pid"} of the other nodes' ranks."""
        with self._lock:
            formation = self._formation
            if formation is None:
                return []
            return [
                {"rank": rank, "local_rank": rank - formation.place(node).first, "node": node, "pid": item.processes.get(rank)}
                for node, item in self._followers.items()
                for rank in formation.ranks_of(node)
            ]

    def signal(self, ranks: Iterable[int], number: int) -> frozenset[int]:
        """Signal ranks of other nodes; those of nodes that do not answer come back: nobody can end them, they are fenced off."""
        wanted, out_of_reach = set(ranks), set[int]()
        with self._lock:
            formation, followers = self._formation, dict(self._followers)
        if formation is None:
            return frozenset()
        for node, follower in followers.items():
            theirs = wanted & set(formation.ranks_of(node))
            if not theirs:
                continue
            message = {"op": "signal", "generation": formation.generation, "ranks": sorted(theirs), "number": number}
            if follower.connection is None or not follower.connection.send(message):
                out_of_reach |= theirs
        return frozenset(out_of_reach)

    def end(self, status: int, why: str) -> None:
        """Tell everybody, those who come later too, that the job is over."""
        message = {"op": "end", "status": status, "why": why}
        with self._lock:
            self._ended = message
            followers = list(self._followers.values())
        for follower in followers:
            if follower.connection is not None:
                follower.connection.send(message)

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        with self._lock:
            followers = list(self._followers.values())
        for follower in followers:
            if follower.connection is not None:
                follower.connection.close()

    def _heard(self, connection: Connection, message: Mapping[str, Any]) -> None:
        try:
            if message.get("op") == "join":
                self._join(connection, message)
                return
            if message.get("op") == "ask" and message["job"] == self._job:
                connection.send({"op": "welcome", "generation": self._generation})
                return
            node = next((node for node, item in self._followers.items() if item.connection is connection), None)
            if node is not None:
                self._hear(node, message)
        except (KeyError, TypeError, ValueError) as problem:
            connection.send({"op": "refused", "why": f"a message makes no sense: {problem!r}"})

    def _join(self, connection: Connection, message: Mapping[str, Any]) -> None:
        node, generation = str(message["node"]), int(message["generation"])
        if message["job"] != self._job:
            connection.send({"op": "refused", "why": f"here is job {self._job}, not {message['job']}"})
            connection.close()
            return
        order = message.get("order")
        member = Member(node, int(message["ranks"]), connection.peer, int(message["port"]), None if order is None else int(order))
        formed = None if message.get("formation") is None else formation_of(message["formation"])
        with self._lock:
            known = self._generation if self._formation is None else self._formation.generation
            is_newer = formed is not None and formed.generation > known
            if formed is not None and is_newer:
                # Said first: with this node all may be there that the next generation waits for.
                self._put(NewerFormed(formed))
            before = self._followers.get(node)
            if before is not None and before.connection is not None:
                before.connection.close()
            follower = Follower(member, connection, time.time(), generation=generation)
            if before is not None:
                follower.started, follower.processes = before.started, before.processes
            follower.marks = marks_of(message)
            self._followers[node] = follower
            present, formation = self._generation, self._formation
            ended = self._ended
        connection.send({"op": "welcome", "generation": present})
        if ended is not None:
            connection.send(ended)
        if formation is not None and node in formation.nodes and (is_newer or generation in (-1, present)):
            self._reconcile(formation, node, generation, message)
        self._say(f"node {node} joined with {member.ranks} ranks")
        self._changed()

    def _reconcile(self, formation: Formation, node: str, generation: int, message: Mapping[str, Any]) -> None:
        """What happened to the ranks of a node while its agent was not heard."""
        is_of_it = generation == formation.generation
        told = {exit_of(document).rank: exit_of(document) for document in (message["exits"] if is_of_it else ())}
        running = {int(rank) for rank in (message["running"] if is_of_it else ())}
        for rank in formation.ranks_of(node):
            if rank not in running:
                unknown = RankExit(rank, self._generation, None, None, time.time(), error=f"node {node} came back without it")
                self._put(Exited(told.get(rank, unknown)))

    def _hear(self, node: str, message: Mapping[str, Any]) -> None:
        follower = self._followers[node]
        match message["op"]:
            case "beat":
                follower.generation = int(message["generation"])
                follower.step, follower.checkpointed = message.get("step"), message.get("checkpointed")
                follower.marks = marks_of(message)
            case "exited":
                self._put(Exited(exit_of(message["exit"])))
            case "raised":
                self._put(Raised(exit_of(message["exit"])))
            case "started":
                with self._lock:
                    follower.started = follower.generation = int(message["generation"])
                    follower.processes = {int(rank): int(pid) for rank, pid in message["processes"]}
                self._changed()
            case "start_failed":
                if int(message["generation"]) == self._generation:
                    self._fail_ranks(node, f"node {node} could not start its ranks: {message['why']}")
            case "noticed":
                if int(message["generation"]) == self._generation:
                    self._put(Noticed(**message["notice"]))
            case "interrupted":
                # A scheduler signals every node: the second one to arrive is no second wish.
                if not self._interrupted:
                    self._interrupted = True
                    self._put(Interrupted(int(message["number"]), once=True))

    def _fail_ranks(self, node: str, why: str) -> None:
        formation = self._formation
        for rank in formation.ranks_of(node) if formation is not None else ():
            self._put(Exited(RankExit(rank, self._generation, None, None, time.time(), error=why)))
        with self._lock:
            # Whoever waits for it need not wait any longer.
            self._followers[node].started = self._generation
        self._changed()

    def _lost(self, connection: Connection, why: str) -> None:
        with self._lock:
            found = next(((node, item) for node, item in self._followers.items() if item.connection is connection), None)
            if found is None:
                return
            node, follower = found
            follower.connection = None
            follower.gone = Gone(node, time.time(), why)
            formation = self._formation
            starting = formation is not None and node in formation.nodes and follower.started != formation.generation
        self._say(f"node {node} does not answer: {why}")
        if starting:
            self._fail_ranks(node, f"node {node} was lost while its ranks were started")
        self._changed()


def exit_of(document: Mapping[str, Any]) -> RankExit:
    """Raises TypeError where it is none."""
    return RankExit(**document)
