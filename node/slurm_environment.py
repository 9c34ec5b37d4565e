"""What Slurm tells a process about its job: which job and attempt, which node of how many, and who leads. Pure.

Read from the environment of a step (`srun`), else of a batch script or an allocation (man srun, man sbatch: output environment).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rules.hostlist import expand

__all__ = ["SlurmEnvironmentError", "SlurmPlace", "read_slurm_environment"]


FIRST_PORT, PORTS = 20_000, 12_000


class SlurmEnvironmentError(ValueError):
    """A start that cannot work under Slurm; one line that says what to do."""


@dataclass(frozen=True, slots=True)
class SlurmPlace:
    """This node's place in a Slurm job. `restarts`: how often Slurm requeued it; `nodes`: those of this step, in rank order;
    `launched_from`: the address of the node that srun ran on, which for a batch script is the first one;
    `name`: ours for the job, where it is not the id.
    """

    cluster: str
    job: str
    restarts: int
    node: str
    node_rank: int
    nodes: tuple[str, ...]
    launched_from: str = ""
    name: str = ""

    @property
    def port(self) -> int:
        """Where the agents of this attempt meet: below the ports that systems give out, another one for every attempt."""
        return FIRST_PORT + (int(self.job) * 7 + self.restarts) % PORTS

    @property
    def leader(self) -> str:
        return self.nodes[0]

    @property
    def incarnation(self) -> str:
        """The name of this attempt: what an earlier one left on the node's disk is not to be taken over."""
        return f"slurm:{self.cluster}:{self.job}:{self.restarts}"

    @property
    def document(self) -> dict[str, Any]:
        """What the service is told, so that it can find the job when Slurm speaks of it."""
        return {
            "kind": "slurm",
            "cluster": self.cluster,
            "id": self.job,
            "restarts": self.restarts,
            "nodes": list(self.nodes),
        }


def number(environment: Mapping[str, str], name: str) -> int:
    value = environment.get(name, "")
    return int(value) if value.isdecimal() else 0


def read_slurm_environment(environment: Mapping[str, str]) -> SlurmPlace | None:
    """None outside Slurm. Raises SlurmEnvironmentError where srun started several of us on one node."""
    job = environment.get("SLURM_JOB_ID", "")
    if not job.isdecimal():
        return None
    node = environment.get("SLURMD_NODENAME") or environment.get("SLURM_TOPOLOGY_ADDR", "").rpartition(".")[2]
    nodes: tuple[str, ...] = ()
    node_rank = 0
    if environment.get("SLURM_STEP_ID", "").isdecimal():
        tasks, count = number(environment, "SLURM_STEP_NUM_TASKS"), number(environment, "SLURM_STEP_NUM_NODES")
        if tasks > max(count, 1):
            raise SlurmEnvironmentError(
                f"srun started {tasks} tasks on {count} nodes; start one pitstop run a node (srun --ntasks-per-node=1), "
                "which starts the ranks itself (--ranks)"
            )
        nodes = expand(environment.get("SLURM_STEP_NODELIST", ""))
        node_rank = number(environment, "SLURM_NODEID")
    # A batch script runs on one node of its job, and so does what it starts without srun.
    if node and node not in nodes:
        nodes, node_rank = (node,), 0
    if not nodes:
        return None
    return SlurmPlace(
        cluster=environment.get("SLURM_CLUSTER_NAME", ""),
        job=job,
        restarts=number(environment, "SLURM_RESTART_COUNT"),
        node=node or nodes[min(node_rank, len(nodes) - 1)],
        node_rank=node_rank,
        nodes=nodes,
        launched_from=environment.get("SLURM_LAUNCH_NODE_IPADDR", ""),
    )
