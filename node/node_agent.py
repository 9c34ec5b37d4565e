"""The agent of `pitstop node`: a node's lease, kernel log and probe worker, and the commands that concern no one job."""

from __future__ import annotations

import json
import queue
import signal
import threading
import time
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from detectors.kernel_log import KernelLog
from node.care_states import Command
from node.collectors import Collectors, exporter_collector, machine_collector
from node.folding import fold
from node.gpus import Gpus, gpu_collector, has_driver
from node.job_state import JobFolder
from node.link import BEAT_SECONDS, HOPELESS, IDLE_SECONDS, POLL_SECONDS, RETRY_SECONDS, Identity, parse_command
from node.probes import ProbeWorker
from node.service_client import Refused, ServiceClient, ServiceUnavailable
from node.site_logs import SiteLogs
from node.spool import Spool
from node.tail import Position

__all__ = ["NodeAgent", "hold_node_folder"]

KERNEL_LOG = "/dev/kmsg"
# The path under which what the collectors found is kept.
COLLECTED = "collectors"


def hold_node_folder(data_directory: Path) -> JobFolder:
    """The state directory of this node's agent, held. Raises JobBusyError where another one runs, OSError."""
    folder = JobFolder(data_directory / "node")
    folder.hold()
    return folder


class NodeAgent:
    """Renews the lease every second, ships what the kernel says, and answers commands. Each goes on when another one fails."""

    def __init__(
        self,
        new_client: Callable[[], ServiceClient],
        identity: Identity,
        spool_folder: Path,
        say: Callable[[str], None],
        probes: ProbeWorker | None = None,
        exporters: Sequence[str] = (),
        logs: Sequence[Path] = (),
    ) -> None:
        """`exporters`: addresses of Prometheus exporters on this node; `logs`: files of its daemons."""
        self._new_client = new_client
        self._identity = identity
        self._say = say
        self._spool = Spool(spool_folder)
        self._probes = probes
        self._exporters = tuple(exporters)
        self._logs = SiteLogs(self._spool, identity.node, logs)
        self._asked: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._stopping = threading.Event()
        # Positions are of this boot: the sequence of the kernel's records begins anew with each.
        self._source = f"kmsg:{identity.boot_id}"
        self._said: dict[str, str] = {}

    def run(self) -> None:
        """Until SIGTERM or SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stopping.set())
        for loop in (self._poll, self._ship, *([self._probe] if self._probes else [])):
            threading.Thread(target=loop, args=(self._new_client(),), daemon=True).start()
        kernel_log = self._open_kernel_log()
        gpus = Gpus() if has_driver() else None
        of_gpus = [gpu_collector(gpus)] if gpus is not None else []
        collectors = Collectors([machine_collector(), *of_gpus, *map(exporter_collector, self._exporters)])
        client = self._new_client()
        while not self._stopping.is_set():
            began = time.monotonic()
            lease = {**self._identity.lease_document(), "clock": time.time()}
            lease |= {"gpus": gpus.inventory} if gpus is not None else {}
            if self._probes is not None:
                self._probes.keep_warm()
                lease |= {"probes": self._probes.backend} if self._probes.backend else {}
            self._try("lease", lambda lease=lease: client.renew_lease(self._identity.node, lease))  # type: ignore[misc]
            if not self._spool.full:
                if kernel_log is not None:
                    self._read(kernel_log)
                self._try("logs", self._logs.ship)
            self._tell(collectors.look())
            self._stopping.wait(max(0.0, BEAT_SECONDS - (time.monotonic() - began)))
        if self._probes is not None:
            self._probes.close()

    def _try(self, what: str, call: Callable[[], Any]) -> bool:
        """Whether it worked; what is in its way is said once until it changes."""
        problem = ""
        try:
            call()
        except (ServiceUnavailable, Refused, OSError) as found:
            problem = f"{what}: {found}"
        if problem != self._said.get(what, ""):
            self._say(problem or f"{what}: it works again")
        self._said[what] = problem
        return not problem

    def _open_kernel_log(self) -> KernelLog | None:
        known = self._spool.positions.get(self._source)
        try:
            return KernelLog(None if known is None else known.offset)
        except OSError as problem:
            self._say(f"the kernel log is not read: {problem}")
            return None

    def _read(self, kernel_log: KernelLog) -> None:
        lost, lines = kernel_log.lost, list(kernel_log.read())
        if kernel_log.lost > lost:
            self._say(f"{kernel_log.lost - lost} records of the kernel log were overwritten before they could be read")
        if not lines:
            return
        booted = time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)
        times = {line.sequence: booted + line.seconds for line in lines}
        last = lines[-1]
        records = []
        kept = fold(lines[0].sequence, [line.text for line in lines])
        for number, text in chain.from_iterable(enumerate(texts, first) for first, texts in kept):
            record = {"node": self._identity.node, "trust": "node", "path": KERNEL_LOG, "number": number}
            records.append(json.dumps({**record, "time": times.get(number, booted + last.seconds), "line": text}))
        try:
            self._spool.add(records, {self._source: Position(last.sequence, last.sequence)})
        except OSError as problem:
            self._say(f"the spool cannot be written: {problem}")

    def _tell(self, found: list[tuple[str, str]]) -> None:
        """Keep what collectors found among the lines that this node vouches for."""
        if not found:
            return
        records = []
        position = self._spool.positions.get(COLLECTED, Position())
        for number, (name, text) in enumerate(found, position.number + 1):
            record = {"node": self._identity.node, "trust": "node", "path": COLLECTED, "number": number}
            records.append(json.dumps({**record, "time": time.time(), "line": f"pitstop node: {name}: {text}"}))
        try:
            self._spool.add(records, {COLLECTED: Position(0, position.number + len(found))})
        except OSError as problem:
            self._say(f"the spool cannot be written: {problem}")

    def _ship(self, client: ServiceClient) -> None:
        while not self._stopping.is_set():
            batch = self._spool.oldest()
            if batch is None:
                self._spool.added.wait(RETRY_SECONDS)
                self._spool.added.clear()
                continue
            try:
                client.send_logs(batch.id, batch.body)
                self._spool.acknowledge(batch)
            except Refused as problem:
                self._say(f"the service refused a log batch: {problem}")
                if problem.status in HOPELESS:
                    self._spool.acknowledge(batch)
                self._stopping.wait(RETRY_SECONDS)
            except (ServiceUnavailable, OSError):
                self._stopping.wait(RETRY_SECONDS)

    def _poll(self, client: ServiceClient) -> None:
        """Commands about a job belong to its own agent; of the others this one carries probes out, one at a time."""
        after = 0
        node = self._identity.node
        while not self._stopping.is_set():
            try:
                rows = client.commands(node, after, POLL_SECONDS)
            except (ServiceUnavailable, Refused):
                self._stopping.wait(RETRY_SECONDS)
                continue
            for row in rows:
                command = parse_command(row)
                if command is None:
                    continue
                after = max(after, command.id)
                if row.get("job") is not None:
                    continue
                if command.kind == "probe" and self._probes is not None and self._probes.backend is not None:
                    self._asked.put(command)
                else:
                    self._answer(client, command, "refused", f"this agent does not do {command.kind}")
            if not rows:
                self._stopping.wait(IDLE_SECONDS)

    def _probe(self, client: ServiceClient) -> None:
        """A thread of its own: a probe that hangs must not hold up other commands."""
        assert self._probes is not None
        while not self._stopping.is_set():
            try:
                command = self._asked.get(timeout=BEAT_SECONDS)
            except queue.Empty:
                continue
            if command.deadline is not None and time.time() > command.deadline:
                self._answer(client, command, "expired", "the deadline passed before the command arrived")
                continue
            measured = self._probes.run(command.args)
            self._answer(client, command, "done", str(measured["error"])[:500] or str(measured["outcome"]), probe=measured)

    def _answer(self, client: ServiceClient, command: Command, status: str, detail: str, **more: Any) -> None:
        document = {"status": status, "generation": 0, "detail": detail, **more}
        self._try(f"result {command.id}", lambda: client.report_result(self._identity.node, command.id, document))
