"""Eight nodes on one machine: network namespaces on a bridge, a real probe worker in each, and faults that strike in them."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from node.probes import ProbeWorker
from recovery.localization.answers import Answer, combine
from recovery.localization.judgement import judge
from recovery.localization.limits import FIRST_WORLD_SECONDS, alone_limit, world_limit
from recovery.localization.probes import Localization, Outcome, Pool, Probe, ProbeResult
from recovery.localization.rounds import Effort, next_probes
from recovery.localization.standing import Ledger
from tests.node.namespaces import Namespaces, sh

PAYLOAD = 2 << 20

# Flips one byte of whatever large is written to a socket: a NIC or a memory that lies.
LIAR = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
static void lie(const struct iovec *part, int count) {
    for (int i = 0; i < count; i++)
        if (part[i].iov_len >= 65536) ((char *)part[i].iov_base)[part[i].iov_len / 2] ^= 4;
}
ssize_t writev(int fd, const struct iovec *part, int count) {
    lie(part, count);
    return ((ssize_t (*)(int, const struct iovec *, int))dlsym(RTLD_NEXT, "writev"))(fd, part, count);
}
ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    lie(message->msg_iov, message->msg_iovlen);
    return ((ssize_t (*)(int, const struct msghdr *, int))dlsym(RTLD_NEXT, "sendmsg"))(fd, message, flags);
}
"""


class Fabric(Namespaces):
    """Nodes n0..n7; `workers` as their agents would hold them. `liar`: the node whose data is wrong, from its start on."""

    def __init__(self, folder: Path, count: int = 8) -> None:
        super().__init__(f"ps{os.getpid() % 100000}", "10.87.0", tuple(f"n{index}" for index in range(count)))
        self.folder = folder
        self.workers: dict[str, ProbeWorker] = {}
        self.ports: dict[str, tuple[str, int]] = {}
        self.world_seconds = FIRST_WORLD_SECONDS

    def up(self) -> None:
        self.lay()
        for node in self.nodes:
            self.start(node)
        for node in self.nodes:
            self.wait_until_warm(node)

    def start(self, node: str, *environment: str) -> None:
        """A worker in the node's namespace, as the agent there would start it."""
        script = self.folder / f"python-{node}"
        words = f'{" ".join(environment)} {sys.executable} "$@"'
        script.write_text(f"#!/bin/sh\nexec ip netns exec {self.namespace(node)} env {words}\n")
        script.chmod(0o755)
        self.workers[node] = ProbeWorker(str(script), self.address(node), lambda text: None)
        self.workers[node].keep_warm()

    def wait_until_warm(self, node: str) -> None:
        def warm() -> bool:
            self.workers[node].keep_warm()
            return self.workers[node].backend is not None

        wait_for(warm, 300)

    def down(self) -> None:
        for worker in self.workers.values():
            worker.close()
        self.clear()

    def ranks(self, node: str) -> list[int]:
        """The processes that the node's worker forked for its present probe."""
        process = self.workers[node]._process
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if process is not None and int(fields[1]) == process.pid:
                found.append(int(path.parent.name))
        return found

    @contextmanager
    def signalling(self, node: str, number: int, times: int | None = None, after: float = 0.0) -> Iterator[None]:
        """Send a signal to each rank of a probe on `node` once it runs for `after` seconds, to so many of them."""
        ending, hit = threading.Event(), set[int]()

        def strike() -> None:
            while not ending.wait(0.01) and (times is None or len(hit) < times):
                for pid in set(self.ranks(node)) - hit:
                    time.sleep(after)
                    hit.add(pid)
                    try:
                        os.kill(pid, number)
                    except ProcessLookupError:
                        hit.discard(pid)

        thread = threading.Thread(target=strike)
        thread.start()
        try:
            yield
        finally:
            ending.set()
            thread.join()

    def run(self, batch: Sequence[Probe]) -> list[ProbeResult]:
        """All probes of a batch at once, as the service has the agents do."""
        jobs: list[tuple[Probe, str, dict[str, Any]]] = []
        for number, probe in enumerate(batch):
            args = {"id": f"{probe.turn}.{number}", "backend": "gloo", "bytes": PAYLOAD}
            if len(probe.members) == 1:
                jobs.append(
                    (probe, probe.members[0], {**args, "op": "alone", "seconds": alone_limit(probe.turn, self.world_seconds)})
                )
                continue
            host = self.ports.get(probe.members[0]) or ("", 0)
            place = {"members": len(probe.members), "local": 1, "host": host[0], "port": host[1], "seconds": self.world_seconds}
            jobs += [(probe, node, {**args, "op": "world", "index": at, **place}) for at, node in enumerate(probe.members)]
        answers: dict[Probe, dict[str, Answer]] = {probe: {} for probe in batch}
        took: dict[Probe, list[float]] = {probe: [] for probe in batch}
        with ThreadPoolExecutor(len(jobs)) as threads:
            done = threads.map(lambda job: (job[0], job[1], self.workers[job[1]].run(job[2])), jobs)
            for probe, node, said in done:
                answers[probe][node] = Answer(Outcome(said["outcome"]), said["seconds"], said["error"])
                took[probe].append(said["took"])
                if said["port"]:
                    self.ports[node] = (said["host"], said["port"])
        results = [combine(probe, answers[probe]) for probe in batch]
        alone = batch[0].turn == 0
        passed = [took[result.probe] for result in results if alone or (result.passed and not result.alone)]
        self.world_seconds = world_limit(self.world_seconds, [seconds for mine in passed for seconds in mine], alone)
        return results

    def localize(self, effort: Effort | None = None) -> tuple[Localization, float]:
        """The verdict, and the seconds that it took."""
        ledger, began = Ledger(Pool(self.nodes)), time.monotonic()
        while batch := next_probes(ledger, effort, time.monotonic() - began):
            ledger.add(self.run(batch))
        return judge(ledger), time.monotonic() - began


def wait_for(condition: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.05)


def build_liar(folder: Path) -> Path:
    """The library that falsifies what a process sends."""
    source, library = folder / "liar.c", folder / "liar.so"
    source.write_text(LIAR)
    sh("cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl")
    return library


STOP, KILL = signal.SIGSTOP, signal.SIGKILL
