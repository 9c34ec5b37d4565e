"""Steps of the Slurm allocation that the coordinator runs in: one `srun` a process, on the node that the plan says."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping, Sequence

from evaluation.drivers.local import LocalDriver

__all__ = ["SlurmDriver", "allocated_nodes"]

TIMEOUT_SECONDS = 20
# States (sinfo, %t) of nodes that take no step, also of an allocation that they are in; `*`: the node does not answer.
UNUSABLE = ("down", "fail", "failg", "boot", "unk", "pow_dn", "plnd_dn")


def allocated_nodes(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The nodes of this allocation, in Slurm's order. Raises OSError where there is none or Slurm does not answer."""
    listed = environment.get("SLURM_JOB_NODELIST")
    if not listed:
        raise OSError("there is no Slurm allocation here: run it inside sbatch or salloc (SLURM_JOB_NODELIST is not set)")
    try:
        answer = subprocess.run(
            ["scontrol", "show", "hostnames", listed], capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=True
        )
    except (subprocess.SubprocessError, OSError) as problem:
        raise OSError(f"scontrol cannot say which nodes {listed} names: {problem}") from None
    return tuple(answer.stdout.split())


class SlurmDriver(LocalDriver):
    """Implements Driver. srun passes signals and exit statuses on; the step ends with its srun."""

    def prefix(self, node: str) -> Sequence[str]:
        return ("srun", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}", "--kill-on-bad-exit=1", "--export=ALL")

    def is_lost(self, status: int) -> bool:
        # srun answers 128 + signal for a step that was killed, which is what a failed node does to it.
        return super().is_lost(status) or status == 128 + signal.SIGKILL

    def trouble_of(self, node: str) -> str | None:
        try:
            asked = ["sinfo", "--noheader", "--Node", f"--nodes={node}", "--format=%t"]
            answer = subprocess.run(asked, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=True)
        except (subprocess.SubprocessError, OSError):
            return None
        return unusable(answer.stdout)


def unusable(states: str) -> str | None:
    """What is wrong with a node whose states sinfo prints, a line for each partition; None where nothing is."""
    for state in states.split():
        if state.endswith("*") or state.rstrip("*~#!%$@+^-") in UNUSABLE:
            return f"Slurm says that it is {state}"
    return None
