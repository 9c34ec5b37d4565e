"""`pitstop.Checkpointer`: saves that stall training for one copy into host memory, and restores from the nearest good copy.

    checkpointer = pitstop.Checkpointer("/checkpoints/run1", model=model, optimizer=optimizer, sampler=sampler)
    start = checkpointer.restore().step or 0
    for step in range(start + 1, steps + 1):
        ...
        if step % 100 == 0:
            checkpointer.save(step)

What is staged belongs to the agent's folder in /dev/shm and outlives this process; `pitstop.checkpoint.host` makes it durable.
"""

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import time
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

import torch.distributed as dist

from pitstop import protocol
from pitstop.checkpoint import durable, staged
from pitstop.checkpoint.capture import (
    OWN,
    SHARED,
    Content,
    RandomState,
    contents_of,
    copy_into,
    decode,
    parts_of,
    plan_of,
    split_states,
)
from pitstop.checkpoint.choice import Chosen, Held, Source, Stock, Tier, choose
from pitstop.checkpoint.host import ADDRESS, ATTACHED, SOCKET
from pitstop.checkpoint.interval import Advice, advise_interval
from pitstop.checkpoint.replica import Address, Choice, Place, choose_peer, fetch, list_slots
from pitstop.checkpoint.slots import Slots
from pitstop.checkpoint.staged import SEALED, Damaged, Header, Slot
from pitstop.directive import resume
from pitstop.layout import start_time
from pitstop.monitor import init

__all__ = ["Checkpointer", "NothingRestorable", "Restored", "Saved"]

START_SECONDS = 30.0
RANDOM = "random"


class NothingRestorable(RuntimeError):
    """There are checkpoints, and none of them is what was saved: starting anew silently would lose them."""


class Saved(NamedTuple):
    """`stall_seconds`: what training waited for."""

    step: int
    bytes: int
    stall_seconds: float


class Restored(NamedTuple):
    """`step` None: there was nothing to restore. `tiers`: where each rank took it from; `skipped`: what did not hold, and why."""

    step: Optional[int]
    tiers: Tuple[str, ...] = ()
    skipped: Tuple[str, ...] = ()


def say(text: str) -> None:
    sys.stderr.write("pitstop checkpoints: %s\n" % text)
    sys.stderr.flush()


def staging_folder(checkpoints: str) -> "Tuple[str, bool]":
    """The agent's folder, or one of our own that a later process with the same checkpoints finds again; whether it is our own."""
    given = os.environ.get(protocol.STAGING)
    if given:
        return given, False
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else "/tmp"
    name = hashlib.sha256(os.path.abspath(checkpoints).encode()).hexdigest()[:16]
    return os.path.join(shared, "pitstop-%d" % os.getuid(), "staged-" + name), True


class Checkpointer:
    """One rank's checkpoints. Every rank makes one, with equal arguments, after init_process_group where there is one.

    `folder`: on disk, the same for all ranks. `state`: members with state_dict() and load_state_dict(). `own`: the names of those
    that differ by rank; the others are equal on all ranks, and written to disk once, unless `replicated` is False (sharded
    states). `random`: keep the random generators too. `keep`: complete checkpoints to keep on disk, and every `keep_every`-th
    step for good. `group`: a process group on which objects can be gathered. `domain`: what this node fails together with.
    """

    def __init__(
        self,
        folder: str,
        *,
        own: Tuple[str, ...] = (),
        replicated: bool = True,
        random: bool = True,
        keep: int = 3,
        keep_every: int = 0,
        group: Optional[Any] = None,
        domain: Optional[str] = None,
        **state: Any,
    ) -> None:
        self.folder = os.path.abspath(folder)
        self._state: Dict[str, Any] = dict(state)
        self._own = tuple(own)
        if random:
            self._state[RANDOM] = RandomState()
            self._own += (RANDOM,)
        self._replicated = replicated
        self._keep, self._keep_every = keep, keep_every
        self._domain = domain or os.environ.get(protocol.DOMAIN)
        self._staging, self._is_own_folder = staging_folder(self.folder)
        self._slots = Slots(self._staging)
        self._monitor = init()
        self._stalls: List[float] = []
        self.peer = Choice(None, "")
        os.makedirs(self.folder, exist_ok=True)
        os.makedirs(self._staging, mode=0o700, exist_ok=True)
        self.generation = int(os.environ.get(protocol.GENERATION) or os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0)
        self._sequence = 1 + max((header.sequence for _, _, header in staged.slots_of(self._staging)), default=0)
        self.join(group, self.generation)
        if self._sequence > 1:
            # Whoever staged here before us may have died a moment ago: what it left is persisted, whatever we do next.
            self._tell({"op": "drain", "seconds": 0})

    def join(self, group: Optional[Any], generation: int) -> None:
        """Belong to `group` from now on, under `generation`: at first, and after each re-forming. All of its ranks call it."""
        self._group, self.generation = group, generation
        distributed = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank(group) if distributed else int(os.environ.get("RANK") or 0)
        self.world = dist.get_world_size(group) if distributed else 1
        self._distributed = distributed and self.world > 1
        self._attach(None)
        address = self._start_host()
        node = os.environ.get(protocol.NODE) or os.uname().nodename
        place = Place(self.rank, node, self._domain or node)
        self._addresses, places = [], []
        for found, where in self._gather((address, place)):
            self._addresses.append(Address(*found))
            places.append(Place(*where))
        self.peer = choose_peer(places, self.rank)
        self._attach(None if self.peer.rank is None else self._addresses[self.peer.rank])

    def _gather(self, value: Any) -> List[Any]:
        if not self._distributed:
            return [value]
        values: List[Any] = [None] * self.world
        dist.all_gather_object(values, value, group=self._group)
        return values

    def _attach(self, peer: Optional[Address]) -> None:
        """Tell the host who we are."""
        path = os.path.join(self._staging, "rank%d%s" % (self.rank, ATTACHED))
        document = {
            "rank": self.rank,
            "pid": os.getpid(),
            "started": start_time(os.getpid()) or 0,
            "folder": self.folder,
            "keep": self._keep,
            "keep_every": self._keep_every,
            "flush_own_only": self._replicated and self.rank != 0,
            "peer": None if peer is None else list(peer),
        }
        with open(path + ".new", "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as target:
            json.dump(document, target)
        os.replace(path + ".new", path)

    def _start_host(self) -> Address:
        """The host process of our folder: the agent's, or one that we start. Raises RuntimeError where none comes up."""
        path = os.path.join(self._staging, SOCKET)
        deadline = time.monotonic() + START_SECONDS
        started = not self._is_own_folder
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, ValueError, KeyError):
                protocol.exchange(path, {"op": "status"}, 5.0)
                with open(os.path.join(self._staging, ADDRESS)) as source:
                    document = json.load(source)
                return Address(document["host"], document["port"], document["token"])
            if not started:
                started = True
                with open(os.path.join(self._staging, "host.log"), "ab") as log:
                    subprocess.Popen(
                        [sys.executable, "-m", "pitstop.checkpoint.host", self._staging, "--own"],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                        env=dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path)),
                    )
            time.sleep(0.01)
        raise RuntimeError("no host process of staged checkpoints came up; see %s/host.log" % self._staging)

    def save(self, step: int, durable: bool = True) -> Saved:
        """Stage the present state as that after `step`. `durable` False: in memory only, until this process ends.

        Training waits for one copy in memory. Raises OSError where the node has no memory left: what was staged before stands.
        """
        began = time.perf_counter()
        with self._monitor.checkpoint():
            plan = plan_of(split_states(self._state, self._own))
            slot, lock = self._slots.writable(self.rank, plan.size)
            try:
                header = Header(0, durable, self.rank, self.world, step, self.generation, self._sequence, 0, 0, 0)
                copy_into(slot, plan, header)
            finally:
                os.close(lock)
            self._sequence += 1
            self._slots.prepare(self.rank, plan.size)
            self._tell({"op": "staged"})
        stall = time.perf_counter() - began
        self._stalls = [*self._stalls[-31:], stall]
        return Saved(step, plan.data_bytes, stall)

    def _tell(self, message: Dict[str, Any]) -> None:
        """The host looks by itself too: it only looks sooner for being told."""
        with contextlib.suppress(OSError), protocol.connect(os.path.join(self._staging, SOCKET), 1.0) as client:
            client.sendall(json.dumps(message).encode() + b"\n")

    def flush(self, seconds: float = 600.0) -> bool:
        """Wait until all that this node staged is on disk; False where that failed or took longer."""
        with contextlib.suppress(OSError, ValueError):
            path = os.path.join(self._staging, SOCKET)
            answer = protocol.exchange(path, {"op": "drain", "seconds": seconds}, seconds + 5.0)
            return bool(answer.get("ok"))
        return False

    def status(self) -> Dict[str, Any]:
        """What the host says: durable [(rank, generation, step)], copied, errors. Raises OSError where it is gone."""
        return protocol.exchange(os.path.join(self._staging, SOCKET), {"op": "status"}, 5.0)

    def advise(self, mtbf_seconds: float, durable_seconds: float = 0.0) -> Advice:
        """How often to save, from the stalls measured so far. Raises ValueError before the first save."""
        if not self._stalls:
            raise ValueError("nothing was saved yet: there is no cost to go by")
        return advise_interval(sum(self._stalls) / len(self._stalls), mtbf_seconds, durable_seconds)

    def restore(self, step: Optional[int] = None) -> Restored:
        """Bring all ranks to the newest state that all of them can get; with `step` (else what the directive says) to that step.

        A copy whose checksums do not fit is left for the next tier, and said. Raises NothingRestorable where there are copies and
        none of them holds.
        """
        directed = resume().step if step is None else step
        refused: Set[Tuple[int, int]] = set()
        stocks = [Stock(*entry) for entry in self._gather(self._stock())]
        skipped = sorted({stock.unread for stock in stocks if stock.unread})
        while True:
            chosen = choose(stocks, self._replicated, refused, directed)
            if chosen is None:
                break
            content, tier, problems = self._take(chosen)
            results = self._gather((content is not None, tier, problems))
            skipped += ["rank %d: %s" % (rank, problem) for rank, result in enumerate(results) for problem in result[2]]
            if all(result[0] for result in results) and content is not None:
                for problem in skipped:
                    if self.rank == 0:
                        say(problem)
                self._load(content)
                if directed is not None:
                    self._go_back(chosen)
                return Restored(chosen.step, tuple(result[1] for result in results), tuple(skipped))
            refused.add((chosen.generation, chosen.step))
        if skipped or refused:
            raise NothingRestorable("no checkpoint holds: %s" % "; ".join(skipped))
        if directed is not None and any(stock.memory or stock.disk for stock in stocks):
            raise NothingRestorable("no checkpoint of step %d or before is there" % directed)
        return Restored(None)

    def _stock(self) -> Stock:
        with contextlib.suppress(OSError, ValueError):
            # Whoever staged here last may have died before the host looked.
            protocol.exchange(os.path.join(self._staging, SOCKET), {"op": "seal"}, START_SECONDS)
        memory = [Held(item["rank"], item["step"], item["generation"], item["name"]) for item in list_slots(self._staging)]
        disk = [
            Held(rank, found.step, found.generation, found.name)
            for found in durable.checkpoints(self.folder)
            if found.is_complete
            for rank in found.ranks
            if rank in (0, self.rank)
        ]
        latest, unread = None, ""
        try:
            said = durable.read_latest(self.folder)
            latest = None if said is None else (said.generation, said.step)
        except Damaged as problem:
            unread = "%s; going by the checkpoints themselves" % problem
        return Stock(tuple(memory), tuple(disk), latest, unread)

    def _take(self, chosen: Chosen) -> "Tuple[Optional[Dict[str, Content]], str, List[str]]":
        """Our part of the state from the nearest source that holds: (contents, tier, what did not hold)."""
        problems: List[str] = []
        for source in chosen.sources[self.rank]:
            try:
                return self._read(source), source.tier.words, problems
            except (OSError, Damaged) as problem:
                problems.append("step %d in %s: %s; looking further" % (chosen.step, source.tier.words, problem))
        return None, "", problems

    def _read(self, source: Source) -> Dict[str, Content]:
        """Raises OSError, Damaged."""
        if source.tier in (Tier.DISK, Tier.LENT_DISK):
            return self._read_disk(source)
        path = os.path.join(self._staging, source.held.name)
        if source.holder != self.rank:
            path = os.path.join(self._staging, "fetched%d" % self.rank)
            fetch(self._addresses[source.holder], source.held.name, path)
        try:
            slot = Slot(path)
            header = staged.verify(path, slot.view)
            if (header.step, header.generation) != (source.held.step, source.held.generation):
                raise Damaged("it holds step %d by now" % header.step)
            contents = contents_of(slot.buffer, header)
        finally:
            if source.holder != self.rank:
                for name in (path, path + SEALED):
                    with contextlib.suppress(OSError):
                        os.unlink(name)
        return {SHARED: contents[SHARED]} if source.tier is Tier.LENT_MEMORY else contents

    def _read_disk(self, source: Source) -> Dict[str, Content]:
        name = source.held.name
        contents = parts_of(durable.read_shard(self.folder, name, source.held.rank))
        if source.tier is Tier.LENT_DISK:
            return {SHARED: contents[SHARED]}
        if SHARED not in contents:
            contents.update({SHARED: parts_of(durable.read_shard(self.folder, name, 0))[SHARED]})
        return contents

    def _load(self, contents: Dict[str, Content]) -> None:
        for name in (SHARED, OWN):
            if name not in contents:
                say("rank %d goes on without its own part (%s): nobody has it" % (self.rank, ", ".join(self._own)))
                continue
            states = decode(contents[name])
            for member, state in states.items():
                if member in self._state:
                    self._state[member].load_state_dict(state)

    def _go_back(self, chosen: Chosen) -> None:
        """What came after the state gone back to is abandoned, in memory and on disk."""
        for path, _, header in staged.slots_of(self._staging):
            if header.step > chosen.step and header.generation < self.generation:
                with contextlib.suppress(OSError):
                    os.unlink(path + SEALED)
        if self.rank == 0:
            for found in durable.checkpoints(self.folder):
                if (found.step, found.generation) == (chosen.step, chosen.generation) and found.is_complete:
                    durable.publish(self.folder, found, self.generation)
