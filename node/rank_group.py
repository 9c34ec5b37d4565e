"""The ranks of one job on this node as processes: started, signalled, found again, seen to end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from detectors.processes import ProcessId, is_running
from detectors.supervisor import RankExit
from node.dumps import dump_environment
from node.error_files import ErrorFiles, read_error
from node.formation import NodeBounds, Place
from node.hosting import Hosting
from node.job_state import JobFolder, Placement, RankProcess
from node.keeper_client import STORE_SOCKET, KeeperClient, KeeperError, open_store, recorded_exits, watch_ranks
from node.monitors import MonitorReader, RankReading, create_monitors, remove_monitors
from node.ranks import (
    RankFiles,
    StoreAddress,
    launcher_environment,
    monitor_folder,
    rank_environment,
    rank_files,
    staging_folder,
    starts_ranks_itself,
)
from node.reforming import FORMATION, Marks, read_marks, remove_formation, write_formation
from node.slurm_environment import SlurmPlace
from node.spare import Spare
from pitstop import protocol

__all__ = ["Launch", "RankGroup"]

LOST_EXIT_SECONDS = 2.0
LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Launch:
    """What `pitstop run` was asked for. `ranks`: on this node; `python`: the job's interpreter, None where there is none.

    `rendezvous`: where the agents of a job on several nodes find one another; None for a job on one. `place`: where in a job of
    its scheduler this is. `service_meant`: somebody named a service, which is missed where it does not answer.
    """

    job: str
    command: tuple[str, ...]
    ranks: int
    max_restarts: int
    node: str
    python: str | None
    host: str = "127.0.0.1"
    bounds: NodeBounds = field(default_factory=NodeBounds)
    rendezvous: tuple[str, int] | None = None
    order: int | None = None
    place: SlurmPlace | None = None
    spare: bool = True
    service_meant: bool = True


class RankGroup:
    """Keeper, store, ranks and monitor files. `on_exit` hears of every end of a rank, from any thread, perhaps twice;
    `on_raised` before that of the exception that it told."""

    def __init__(
        self,
        launch: Launch,
        folder: JobFolder,
        placement: Placement,
        on_exit: Callable[[RankExit], None],
        on_raised: Callable[[RankExit], None],
        say: Callable[[str], None],
    ) -> None:
        self._launch = launch
        self._folder = folder
        self._on_exit = on_exit
        self._on_raised = on_raised
        self._errors: ErrorFiles | None = None
        self._say = say
        self._keeper: KeeperClient | None = None
        self._monitor_folder = monitor_folder(folder.path)
        self._formation = self._monitor_folder / FORMATION
        self._monitors = MonitorReader({})
        self._gone_since: dict[ProcessId, float] = {}
        self._looked_at = 0.0
        self.hosting = Hosting(staging_folder(folder.path), folder.path, launch.python, launch.host, say)
        self.rejoining: frozenset[int] = frozenset()
        self.spare = Spare(folder.path, launch.python, launch.command, launch.spare, say)
        self.placement = placement

    @property
    def processes(self) -> dict[int, ProcessId]:
        return {item.rank: item.process for item in self.placement.processes}

    def readings(self) -> dict[int, RankReading]:
        """Of the ranks that take part."""
        return {item.rank: self._monitors.read(item.rank) for item in self.placement.processes if item.rank not in self.rejoining}

    def connect_keeper(self) -> None:
        """A keeper to start ranks with: the one that runs, else a new one. Raises KeeperError."""
        if self._keeper is None or self._keeper.lost:
            self._keeper = KeeperClient.start(self._folder.path, self._record)
            spare = self.placement.spare
            if spare is not None and is_running(spare):
                # What it forks would be nobody's child: the keeper that was to adopt it is gone.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(spare.pid, signal.SIGKILL)
            self.placement = replace(self.placement, keeper=self._keeper.process, spare=None)

    def start(self, generation: int, resume: Mapping[str, Any], place: Place, store: StoreAddress | None = None) -> None:
        """Start this node's ranks of `generation`, meeting at `store` or at one of ours. Raises KeeperError; none runs then."""
        self.connect_keeper()
        keeper = self._keeper
        assert keeper is not None
        environment = {**self._inherited(), protocol.NODE: self._launch.node}
        environment |= dump_environment(environment, self._folder.logs / str(generation))
        keeper.sweep()
        keeper.kill((item.process for item in self.placement.processes if item.rank in self.rejoining), signal.SIGKILL)
        self.rejoining = frozenset()
        self._drop_monitors()
        ranks = range(place.first, place.first + place.ranks)
        files = {rank: rank_files(self._folder.logs, self._monitor_folder, generation, rank) for rank in ranks}
        folder = files[place.first].log.parent
        folder.mkdir(exist_ok=True, mode=0o700)
        create_monitors({rank: item.monitor for rank, item in files.items()}, generation)
        self._watch_errors(folder, generation)
        if store is None and not starts_ranks_itself(self._launch.command):
            store = self._open_store(keeper, generation, environment)
        self._spawn(keeper, generation, environment, files, store, resume, place)
        self._monitors = MonitorReader({rank: item.monitor for rank, item in files.items()})
        watch_ranks(self._folder.path, self.processes.values())

    def marks(self, running: Collection[int]) -> Marks:
        """Which of our ranks that run can go on in their process, and which wait to."""
        return read_marks(self._formation, {rank: item for rank, item in self.processes.items() if rank in running})

    def reform(self, generation: int, members: Collection[int], store: StoreAddress | None = None) -> None:
        """Let `members` go on in their processes under `generation`, meeting at `store` or at one of ours; our others are ended.

        Raises KeeperError, OSError.
        """
        self.connect_keeper()
        keeper = self._keeper
        assert keeper is not None
        store = store or self._open_store(keeper, generation, dict(os.environ))
        if not store.served:
            raise KeeperError("there is no store to meet at")
        staying = [item for item in self.placement.processes if item.rank in members]
        keeper.kill((item.process for item in self.placement.processes if item.rank not in members), signal.SIGKILL)
        logs = {item.rank: rank_files(self._folder.logs, self._monitor_folder, generation, item.rank).log for item in staying}
        for log in logs.values():
            log.parent.mkdir(exist_ok=True, mode=0o700)
        self.placement = replace(
            self.placement,
            processes=tuple(replace(item, generation=generation, log=str(logs[item.rank])) for item in staying),
            store_host=store.host,
            store_port=store.port,
            store_served=store.served,
        )
        self.rejoining = frozenset()
        self._monitors.close()
        self._monitors = MonitorReader({item.rank: Path(item.monitor) for item in self.placement.processes})
        write_formation(self._formation, generation, members, (store.host, store.port), logs)
        watch_ranks(self._folder.path, self.processes.values())

    def rejoin(self, generation: int, ranks: Collection[int], place: Place, store: StoreAddress | None = None) -> None:
        """Start these ranks beside the others that run under `generation`: they wait until a formation has them in it.

        Whatever ran of them before is ended. Raises KeeperError.
        """
        self.connect_keeper()
        keeper = self._keeper
        assert keeper is not None
        keeper.kill((item.process for item in self.placement.processes if item.rank in ranks), signal.SIGKILL)
        files = {rank: rank_files(self._folder.logs, self._monitor_folder, generation, rank) for rank in ranks}
        for item in files.values():
            item.log.parent.mkdir(exist_ok=True, mode=0o700)
        create_monitors({rank: item.monitor for rank, item in files.items()}, generation)
        environment = {**self._inherited(), protocol.NODE: self._launch.node, protocol.JOINS: "1"}
        others = tuple(item for item in self.placement.processes if item.rank not in ranks)
        self._spawn(keeper, generation, environment, files, store or self.placement.meeting, {}, place)
        self.placement = replace(self.placement, processes=(*others, *self.placement.processes))
        self.rejoining = frozenset(ranks)
        watch_ranks(self._folder.path, self.processes.values())

    def _spawn(
        self,
        keeper: KeeperClient,
        generation: int,
        environment: Mapping[str, str],
        files: Mapping[int, RankFiles],
        store: StoreAddress | None,
        resume: Mapping[str, Any],
        place: Place,
    ) -> None:
        launch = self._launch
        processes: list[RankProcess] = []
        try:
            for rank, item in files.items():
                own = self._environment(environment, generation, rank, item, store, resume, place)
                label = {"rank": rank, "generation": generation}
                spare = self.spare.offer(self.placement.spare)
                process = keeper.spawn(label, launch.command, own, str(Path.cwd()), item.log, spare)
                processes.append(RankProcess(rank, generation, process, str(item.log), str(item.monitor), str(item.error_file)))
        except KeeperError:
            keeper.kill((item.process for item in processes), signal.SIGKILL)
            raise
        host, port, served = (store.host, store.port, store.served) if store is not None else ("", 0, False)
        self.placement = replace(
            self.placement, processes=tuple(processes), store_host=host, store_port=port, store_served=served
        )

    def _environment(
        self,
        inherited: Mapping[str, str],
        generation: int,
        rank: int,
        files: RankFiles,
        store: StoreAddress | None,
        resume: Mapping[str, Any],
        place: Place,
    ) -> dict[str, str]:
        job = self._launch.job
        if store is None:
            return launcher_environment(inherited, job=job, generation=generation, files=files, staging=self.hosting.staging)
        return rank_environment(
            inherited,
            job=job,
            rank=rank,
            place=place,
            generation=generation,
            store=store,
            files=files,
            resume=resume,
            staging=self.hosting.staging,
            formation=self._formation,
        )

    def _inherited(self) -> dict[str, str]:
        """The environment of whatever is started for the job: ours, without what lets us speak to the service."""
        return {key: value for key, value in os.environ.items() if key != "PITSTOP_TOKEN_FILE"}

    def _open_store(self, keeper: KeeperClient, generation: int, environment: Mapping[str, str]) -> StoreAddress:
        store, host = self.placement.store, self._launch.host
        present = store if store is not None and is_running(store) else None
        try:
            if self._launch.python is None:
                raise KeeperError("there is no Python on the job's PATH")
            opened = open_store(
                self._folder.path, keeper, self._launch.python, environment, str(Path.cwd()), present, generation, host
            )
        except KeeperError as problem:
            self._say(f"no process-group store beside the ranks: {problem}")
            return StoreAddress(host, free_port(host), served=False)
        self.placement = replace(self.placement, store=opened.process)
        return StoreAddress(opened.host, opened.port, served=True)

    def _watch_errors(self, folder: Path, generation: int) -> None:
        if self._errors is not None:
            self._errors.close()
        self._errors = ErrorFiles(folder, generation, lambda item: self._on_raised(self._as_of_now(item)))

    def find(self, running: Iterable[int]) -> int:
        """Take over what an earlier agent started; the number of ranks that run. Exits that it missed are told."""
        self._keeper = KeeperClient.connect(self._folder.path, self.placement.keeper, self._record)
        self._monitors = MonitorReader({item.rank: Path(item.monitor) for item in self.placement.processes})
        watch_ranks(self._folder.path, self.processes.values())
        for item in self.placement.processes[:1]:
            self._watch_errors(Path(item.error_file).parent, item.generation)
        records = recorded_exits(self._folder.path)
        awaited = set(running)
        for item in self.placement.processes:
            if item.rank in awaited and item.process in records:
                self._record(records[item.process])
        return sum(is_running(item.process) for item in self.placement.processes)

    def kill_all(self) -> None:
        """Nobody knows how far a start had come: end whatever the keeper runs, but for the store. Raises KeeperError."""
        self.connect_keeper()
        assert self._keeper is not None
        self._keeper.kill(self._keeper.running() - set(self.placement.helpers), signal.SIGKILL)

    def signal(self, ranks: Iterable[int], number: int) -> None:
        """Signal the process groups of `ranks`, with the keeper or without it."""
        wanted = set(ranks)
        running = [item.process for item in self.placement.processes if item.rank in wanted]
        if self._keeper is not None and not self._keeper.lost:
            with contextlib.suppress(KeeperError):
                self._keeper.kill(running, number)
                return
        for process in running:
            if is_running(process):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)

    def look(self, running: Iterable[int], now: float) -> None:
        """Notice ranks whose end nobody told, because their keeper died; and exceptions, where the system tells of no files."""
        running = set(running)
        if self._errors is not None:
            self._errors.look(running)
        if self._keeper is not None and not self._keeper.lost:
            placement = self.placement
            spare = self.spare.look(self._keeper, placement.spare, self.readings, self._inherited)
            host = self.hosting.look(self._keeper, placement.host)
            if (spare, host) != (placement.spare, placement.host):
                self.placement = replace(placement, host=host, spare=spare)
        if now - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = now
        for item in self.placement.processes:
            if item.rank not in running or is_running(item.process):
                continue
            # The keeper tells of exits at once, and writes them down before it can be gone itself.
            if now - self._gone_since.setdefault(item.process, now) < LOST_EXIT_SECONDS:
                continue
            unknown = {
                "label": {"rank": item.rank, "generation": item.generation},
                "pid": item.process.pid,
                "code": None,
                "signal": None,
                "time": time.time(),
            }
            self._record(recorded_exits(self._folder.path).get(item.process, unknown))

    def finish(self) -> None:
        """The job is over: whatever belongs to it ends, when what was staged is on disk."""
        self.hosting.finish(self._keeper, self.placement.host)
        if self._keeper is not None and not self._keeper.lost:
            with contextlib.suppress(KeeperError):
                self._keeper.kill(self._keeper.running(), signal.SIGKILL)
                self._keeper.sweep()
        else:
            with contextlib.suppress(OSError, ValueError):
                protocol.exchange(str(self._folder.path / STORE_SOCKET), {"op": "end"}, 2.0)
        (self._folder.path / STORE_SOCKET).unlink(missing_ok=True)

    def close(self) -> None:
        """After the last reading: the monitor files go, and the keeper with them."""
        if self._errors is not None:
            self._errors.close()
        self._drop_monitors()
        self.placement = Placement()
        if self._keeper is not None:
            self._keeper.close()

    def _drop_monitors(self) -> None:
        self._monitors.close()
        remove_formation(self._formation)
        remove_monitors(Path(item.monitor) for item in self.placement.processes)

    def _record(self, record: Mapping[str, Any]) -> None:
        with contextlib.suppress(KeyError, TypeError):
            label = record["label"]
            if "rank" in label:
                self._on_exit(self._as_of_now(self._exit_of(label["rank"], label["generation"], record)))

    def _as_of_now(self, item: RankExit) -> RankExit:
        """Of a process that went on in a later generation than it was started in, what it does is that generation's."""
        for present in self.placement.processes:
            if present.rank == item.rank and item.pid in (None, present.process.pid):
                return replace(item, generation=present.generation)
        return item

    def _exit_of(self, rank: int, generation: int, record: Mapping[str, Any]) -> RankExit:
        error = read_error(rank_files(self._folder.logs, self._monitor_folder, generation, rank).error_file)
        return RankExit(
            rank=rank,
            generation=generation,
            code=record["code"],
            signal=record["signal"],
            time=record["time"],
            pid=record["pid"],
            error=error["message"] if error else None,
            error_time=error["timestamp"] if error else None,
            step=error["step"] if error and error["step"] is not None else self._monitors.read(rank).step,
        )


def free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
