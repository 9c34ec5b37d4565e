"""The agent of `pitstop run`: starts the ranks of one job on this node, cares for them, takes them over from a dead agent."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from detectors.processes import ProcessId, is_running
from detectors.supervisor import RankExit
from node import care as caring
from node.care import End, Event, Exited, Interrupted, KillRanks, Phase, PostFailure, Report, Respawn, Spawned, Tick
from node.job_state import JobFolder, JobState, RankProcess
from node.keeper_client import STORE_SOCKET, KeeperClient, KeeperError, open_store, recorded_exits, watch_ranks
from node.link import ServiceLink
from node.log_shipping import LogShipping
from node.monitors import MonitorReader, RankReading, create_monitors, remove_monitors
from node.ranks import StoreAddress, monitor_folder, rank_environment, rank_files
from node.reports import attempt_document, end_document, failure_document, heartbeat_document
from pitstop import protocol

__all__ = ["Agent", "Launch"]

TICK_SECONDS = 0.1
SHIP_SECONDS = 0.25
FINISH_SECONDS = 5.0
LOST_EXIT_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Launch:
    """What `pitstop run` was asked for. `python`: the job's interpreter, None where there is none."""

    job: str
    command: tuple[str, ...]
    ranks: int
    max_restarts: int
    node: str
    python: str | None
    host: str = "127.0.0.1"


class Agent:
    """Composes keeper, store, tails, monitors and the link to the service around `care.step`. One thread, one queue of events."""

    def __init__(
        self,
        launch: Launch,
        folder: JobFolder,
        state: JobState,
        shipping: LogShipping,
        say: Callable[[str], None],
    ) -> None:
        self._launch = launch
        self._folder = folder
        self._state = state
        self._shipping = shipping
        self._say = say
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._keeper: KeeperClient | None = None
        self._monitors = MonitorReader({})
        self._gone_since: dict[ProcessId, float] = {}
        self._shipped_at = 0.0
        self.link: ServiceLink | None = None
        self.heartbeat: Mapping[str, Any] | None = None

    @property
    def after(self) -> int:
        return self._state.after

    def put(self, event: Event) -> None:
        """Tell the agent of something; from any thread, and from a signal handler."""
        self._events.put(event)

    def run(self, taken_over: bool) -> int:
        """Care for the job until it ends; the exit status of `pitstop run`. Raises KeeperError where nothing can be started."""
        if taken_over:
            self._take_over()
        else:
            self._start_generation(Respawn(self._state.care.generation, "start"))
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
        after, actions = caring.step(before, event, time.monotonic())
        lasting = bool(actions) or after.phase is not before.phase or after.exits != before.exits or after.done != before.done
        self._state = replace(self._state, care=after, after=self.link.after if self.link else self._state.after)
        if lasting:
            # On disk before it is done: an agent that starts after us must not do it twice.
            self._save()
        if after.phase is Phase.FAILED and before.phase is not Phase.FAILED:
            self._say(
                f"{after.why}; {'the service decides' if self.link else 'there is no service'} (generation {after.generation})"
            )
        status = None
        for action in actions:
            found = self._act(action)
            status = found if found is not None else status
        return status

    def _act(self, action: caring.Action) -> int | None:
        care = self._state.care
        match action:
            case KillRanks(number=number):
                self._kill(number)
            case Respawn():
                self._say(f"starting generation {action.generation} ({action.cause})")
                self._start_generation(action)
            case PostFailure(exits=exits):
                self._shipping.refresh()
                with contextlib.suppress(OSError):
                    self._shipping.flush((item.generation, item.rank) for item in care.exits)
                if self.link is not None:
                    document = failure_document(self._launch.job, self._launch.node, care, exits, self._readings())
                    self.link.report_failure(document, self._shipping.last_batch)
            case Report(command_id=number, status=result, detail=detail):
                self._say(f"command {number}: {result}: {detail}")
                if self.link is not None:
                    document = {"status": result, "generation": care.generation, "detail": detail}
                    self.link.report_result(number, {**document, "ranks": self._rank_documents()})
            case End(status=exit_status, why=why):
                self._say(why if exit_status == 0 else f"given up: {why}")
                return exit_status
        return None

    def _save(self) -> None:
        try:
            self._folder.save(self._state)
        except OSError as problem:
            self._say(f"the job's state cannot be written, and would be lost with this agent: {problem}")

    # Processes

    def _on_exit(self, record: Mapping[str, Any]) -> None:
        with contextlib.suppress(KeyError, TypeError):
            if "rank" in record["label"]:
                self.put(Exited(self._exit_of(record)))

    def _exit_of(self, record: Mapping[str, Any]) -> RankExit:
        rank, generation = record["label"]["rank"], record["label"]["generation"]
        path = rank_files(self._folder.logs, monitor_folder(self._folder.path), generation, rank).error_file
        error = None
        with contextlib.suppress(OSError):
            error = protocol.parse_error_document(path.read_text(encoding="utf-8", errors="replace"))
        return RankExit(
            rank=rank,
            generation=generation,
            code=record["code"],
            signal=record["signal"],
            time=record["time"],
            pid=record["pid"],
            error=error["message"] if error else None,
            error_time=error["timestamp"] if error else None,
            step=error["step"] if error else self._monitors.read(rank).step,
        )

    def _start_generation(self, action: Respawn) -> None:
        launch, generation = self._launch, action.generation
        environment = {key: value for key, value in os.environ.items() if key != "PITSTOP_TOKEN_FILE"}
        keeper = self._need_keeper()
        keeper.sweep()
        self._drop_monitors()
        monitors = monitor_folder(self._folder.path)
        files = [rank_files(self._folder.logs, monitors, generation, rank) for rank in range(launch.ranks)]
        files[0].log.parent.mkdir(exist_ok=True, mode=0o700)
        create_monitors((item.monitor for item in files), generation)
        store = self._open_store(keeper, generation, environment)
        processes = []
        try:
            for rank, item in enumerate(files):
                own = rank_environment(
                    environment,
                    job=launch.job,
                    rank=rank,
                    ranks=launch.ranks,
                    generation=generation,
                    store=store,
                    files=item,
                    resume=action.resume,
                )
                label = {"rank": rank, "generation": generation}
                process = keeper.spawn(label, launch.command, own, str(Path.cwd()), item.log)
                processes.append(RankProcess(rank, generation, process, str(item.log), str(item.monitor), str(item.error_file)))
        except KeeperError:
            keeper.kill((item.process for item in processes), signal.SIGKILL)
            raise
        self._state = replace(self._state, processes=tuple(processes), store_host=store.host, store_port=store.port)
        self._monitors = MonitorReader({rank: item.monitor for rank, item in enumerate(files)})
        self._shipping.refresh()
        watch_ranks(self._folder.path, (item.process for item in processes))
        if self.link is not None:
            self.link.report_attempt(attempt_document(self._launch.node, self._state, action.cause, self._directive(action)))
        self.put(Spawned(generation))

    def _directive(self, action: Respawn) -> str | None:
        command = self._state.care.command
        if command is None or action.cause == "self":
            return None
        directive = command.args.get("directive_id")
        return directive if isinstance(directive, str) else None

    def _need_keeper(self) -> KeeperClient:
        if self._keeper is None or self._keeper.lost:
            self._keeper = KeeperClient.start(self._folder.path, self._on_exit)
            # A store of a keeper that died goes on; its process is known by the state.
            self._state = replace(self._state, keeper=self._keeper.process)
            self._save()
        return self._keeper

    def _open_store(self, keeper: KeeperClient, generation: int, environment: Mapping[str, str]) -> StoreAddress:
        present = self._state.store if self._state.store is not None and is_running(self._state.store) else None
        try:
            if self._launch.python is None:
                raise KeeperError("there is no Python on the job's PATH")
            python, host = self._launch.python, self._launch.host
            opened = open_store(self._folder.path, keeper, python, environment, str(Path.cwd()), present, generation, host)
        except KeeperError as problem:
            self._say(f"no process-group store beside the ranks: {problem}")
            return StoreAddress(self._launch.host, free_port(self._launch.host), served=False)
        self._state = replace(self._state, store=opened.process)
        return StoreAddress(opened.host, opened.port, served=True)

    def _kill(self, number: int) -> None:
        running = [item.process for item in self._state.processes if item.rank in self._state.care.running]
        if self._keeper is not None and not self._keeper.lost:
            with contextlib.suppress(KeeperError):
                self._keeper.kill(running, number)
                return
        for process in running:
            if is_running(process):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)

    def _take_over(self) -> None:
        """Find the ranks of the agent that died, and what happened to them since."""
        self._keeper = KeeperClient.connect(self._folder.path, self._state.keeper, self._on_exit)
        self._monitors = MonitorReader({item.rank: Path(item.monitor) for item in self._state.processes})
        care = self._state.care
        if care.phase in (Phase.STARTING, Phase.RESTARTING):
            # Nobody knows how far it had come: all of it again, under a generation that nobody used.
            keeper = self._need_keeper()
            keeper.kill(keeper.running() - {self._state.store}, signal.SIGKILL)
            care = replace(
                care, phase=Phase.STARTING, generation=care.generation + 1, running=frozenset(range(care.ranks)), exits=()
            )
            self._state = replace(self._state, care=care, processes=())
            self._save()
            self._start_generation(Respawn(care.generation, care.cause, care.resume))
            return
        now = time.monotonic()
        if care.phase is Phase.FAILED:
            # A patience of our own: the service may have heard the other agent's report, or not.
            self._state = replace(self._state, care=replace(care, failed_at=now, last_exit_at=now, posted=False))
        if care.phase is Phase.STOPPING:
            self._state = replace(self._state, care=replace(care, kill_at=now))
        watch_ranks(self._folder.path, (item.process for item in self._state.processes))
        alive = sum(is_running(item.process) for item in self._state.processes)
        self._say(f"took over {alive} of {care.ranks} ranks, generation {care.generation}")
        if self.link is not None:
            self.link.report_attempt(attempt_document(self._launch.node, self._state, "takeover", None))
        for record in self._missed_exits():
            self._on_exit(record)

    def _missed_exits(self) -> Iterator[Mapping[str, Any]]:
        records = recorded_exits(self._folder.path)
        for item in self._state.processes:
            if item.rank in self._state.care.running and item.process in records:
                yield records[item.process]

    def _look(self) -> None:
        """What nobody tells us of: log lines, monitors, and the end of a rank whose keeper died."""
        now = time.monotonic()
        care = self._state.care
        if now - self._shipped_at >= SHIP_SECONDS:
            self._shipped_at = now
            with contextlib.suppress(OSError):
                self._shipping.ship((item.generation, item.rank) for item in care.exits)
        self.heartbeat = heartbeat_document(self._launch.node, care, self._readings(), now)
        if care.phase is Phase.STARTING:
            return
        for item in self._state.processes:
            if item.rank not in care.running or is_running(item.process):
                continue
            # The keeper tells of exits at once, and writes them down before it can be gone itself.
            if now - self._gone_since.setdefault(item.process, now) < LOST_EXIT_SECONDS:
                continue
            record = recorded_exits(self._folder.path).get(item.process)
            unknown = {
                "label": {"rank": item.rank, "generation": item.generation},
                "pid": item.process.pid,
                "code": None,
                "signal": None,
                "time": time.time(),
            }
            self._on_exit(record or unknown)

    def _readings(self) -> dict[int, RankReading]:
        return {rank: self._monitors.read(rank) for rank in range(self._state.care.ranks)}

    def _rank_documents(self) -> list[dict[str, Any]]:
        return [{"rank": item.rank, "pid": item.process.pid} for item in self._state.processes]

    def _drop_monitors(self) -> None:
        self._monitors.close()
        remove_monitors(Path(item.monitor) for item in self._state.processes)

    def _finish(self, status: int) -> int:
        """Everything that belongs to the job goes; what it said is delivered as far as the service takes it."""
        care = self._state.care
        if self._keeper is not None and not self._keeper.lost:
            with contextlib.suppress(KeeperError):
                self._keeper.kill(self._keeper.running(), signal.SIGKILL)
                self._keeper.sweep()
        else:
            with contextlib.suppress(OSError, ValueError):
                protocol.exchange(str(self._folder.path / STORE_SOCKET), {"op": "end"}, 2.0)
        (self._folder.path / STORE_SOCKET).unlink(missing_ok=True)
        self._shipping.refresh()
        with contextlib.suppress(OSError):
            self._shipping.flush((generation, rank) for generation in range(care.generation + 1) for rank in range(care.ranks))
        if self.link is not None:
            self.link.report_end(end_document(self._launch.node, care, self._readings(), status, time.monotonic()))
            if not self.link.finish(FINISH_SECONDS):
                self._say("not everything reached the service; the next run of this job sends the rest")
        self._drop_monitors()
        self._state = replace(self._state, exit_status=status, store=None, keeper=None, processes=())
        self._save()
        if self._keeper is not None:
            self._keeper.close()
        return status


def free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def pass_signals_to(agent: Agent) -> None:
    """SIGTERM and SIGINT reach the ranks through the agent; SIGHUP only means that our terminal is gone."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _frame: agent.put(Interrupted(received)))
    signal.signal(signal.SIGHUP, lambda *_: None)
