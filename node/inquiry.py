"""What is asked about ranks that hang, while they still do: their stacks (py-spy), and NCCL's own view of them (RAS).

Neither touches the ranks: py-spy reads their memory without pausing them. Both take a while, in threads of their own; stacks are
gone once the ranks are restarted, so that the report of the hang waits a moment for them.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from detectors.processes import ProcessId
from detectors.reading.nccl_ras import Sample, compare_samples, parse_status
from node.ras import ras_address, read_status

__all__ = ["Inquiry", "find_py_spy", "group_stacks", "main_stack"]

STACK_SECONDS = 1.5
# Of more ranks than these the rest stands where some of them stand.
MOST_STACKS = 16
MOST_FRAMES = 8
AT_ONCE = 4
# Counters of healthy ranks move; those of a hang still stand after this.
BETWEEN_SAMPLES_SECONDS = 2.0


def find_py_spy() -> str | None:
    """The program beside this interpreter or on the PATH; None where it is not installed."""
    beside = str(Path(sys.executable).parent)
    return shutil.which("py-spy", path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")


def main_stack(threads: Any) -> str:
    """The main thread's innermost frames, of what `py-spy dump --json` says. Raises LookupError, TypeError for anything else."""
    chosen = next((thread for thread in threads if thread.get("thread_name") == "MainThread"), threads[0])
    frames = [f"{frame['name']} ({frame['short_filename'] or frame['filename']}:{frame['line']})" for frame in chosen["frames"]]
    return " < ".join(frames[:MOST_FRAMES]) or "no Python frame"


def group_stacks(stacks: Mapping[int, str]) -> tuple[str, ...]:
    """One line for each distinct stack, the rarest first: who stands where the others do not is the suspect."""
    ranks = defaultdict(list)
    for rank, stack in sorted(stacks.items()):
        ranks[stack].append(rank)
    lines = []
    for stack, where in sorted(ranks.items(), key=lambda item: len(item[1])):
        who = f"rank {where[0]}" if len(where) == 1 else f"ranks {', '.join(map(str, where))}"
        lines.append(f"stack of {who}: {stack}")
    return tuple(lines)


class Inquiry:
    """`lines` gives what was found since; `waits` says whether the stacks are still being taken."""

    def __init__(
        self,
        py_spy: str | None = None,
        status: Callable[[tuple[str, int]], Any] = read_status,
        address: tuple[str, int] | None = None,
    ) -> None:
        self._py_spy = py_spy
        self._status = status
        self._address = address
        self._found: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._taking: threading.Thread | None = None

    @classmethod
    def here(cls) -> Inquiry:
        """With what this node has."""
        return cls(find_py_spy(), address=ras_address())

    @property
    def waits(self) -> bool:
        return self._taking is not None and self._taking.is_alive()

    def begin(self, processes: Mapping[int, ProcessId]) -> None:
        """Ask about these ranks, which hang."""
        if self._py_spy is not None and processes:
            chosen = dict(sorted(processes.items())[:MOST_STACKS])
            self._taking = threading.Thread(target=self._take_stacks, args=(self._py_spy, chosen), daemon=True)
            self._taking.start()
        if self._address is not None:
            threading.Thread(target=self._ask_ras, args=(self._address,), daemon=True).start()

    def lines(self) -> list[str]:
        found = []
        while not self._found.empty():
            found.append(self._found.get())
        return found

    def _take_stacks(self, py_spy: str, processes: Mapping[int, ProcessId]) -> None:
        until = time.monotonic() + STACK_SECONDS
        problems: set[str] = set()

        def take(rank: int) -> tuple[int, str | None]:
            words = [py_spy, "dump", "--json", "--nonblocking", "--pid", str(processes[rank].pid)]
            try:
                done = subprocess.run(words, capture_output=True, timeout=max(0.1, until - time.monotonic()))
                if done.returncode == 0:
                    return rank, main_stack(json.loads(done.stdout))
                problems.add(done.stderr.decode("utf-8", "replace").strip().splitlines()[0][:200])
            except subprocess.TimeoutExpired:
                problems.add(f"py-spy took longer than {STACK_SECONDS} s")
            except (OSError, ValueError, LookupError, TypeError, AttributeError) as problem:
                problems.add(f"{type(problem).__name__}: {problem}")
            return rank, None

        with ThreadPoolExecutor(AT_ONCE) as threads:
            taken = {rank: stack for rank, stack in threads.map(take, processes) if stack is not None}
        for line in group_stacks(taken):
            self._found.put(line)
        if not taken:
            self._found.put(f"no stack could be taken: {'; '.join(sorted(problems))}")

    def _ask_ras(self, address: tuple[str, int]) -> None:
        samples: list[Sample] = []
        try:
            for order in range(2):
                if order:
                    time.sleep(BETWEEN_SAMPLES_SECONDS)
                samples += parse_status(self._status(address), "nccl ras", time.time(), order) or ()
        except (OSError, ValueError):
            # Ranks without NCCL, or of a version that speaks no JSON, say nothing; one that is gone says so by that.
            return
        for line in compare_samples(samples):
            self._found.put(line.text)
