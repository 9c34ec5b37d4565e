"""A Slurm cluster of four nodes on this machine: real munged, slurmctld and slurmds in one folder, on loopback only."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["NODES", "PROGRAMS", "SlurmCluster", "open_slurm_cluster"]

NODES = ("n0", "n1", "n2", "n3")
HOOKS = Path(__file__).parents[1] / "deploy" / "slurm"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")

CONFIGURATION = """
ClusterName=lab
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ctld}
SlurmctldParameters=power_save_interval=600
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/d-%n
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/d-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,requeue_delay=1,sched_min_interval=100000,batch_sched_delay=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
MpiDefault=none
ReturnToService=2
SlurmdTimeout=6
InactiveLimit=0
KillWait=5
CompleteWait=0
MinJobAge=3600
JobRequeue=1
JobCompType=jobcomp/script
JobCompLoc={folder}/hooks/jobcomp
Prolog={folder}/hooks/prolog
Epilog={folder}/hooks/epilog
PrologSlurmctld={folder}/hooks/prolog_slurmctld
EpilogSlurmctld={folder}/hooks/epilog_slurmctld
HealthCheckProgram={folder}/hooks/healthcheck
HealthCheckInterval=20
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
NodeName=n[0-3] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[{ports}] CPUs=4 RealMemory=4000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=10
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=100
"""


@dataclass
class SlurmCluster:
    """The running cluster. Its tools (sbatch, scontrol, ...) work in `environment`."""

    folder: Path
    environment: dict[str, str]
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def run(self, *command: str, seconds: float = 60.0, check: bool = True) -> str:
        """What a tool of Slurm prints; raises CalledProcessError with its words."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL, check=False
        )
        if check and done.returncode != 0:
            raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
        return done.stdout.strip()

    def submit(self, script: str, *options: str, environment: Mapping[str, str] | None = None) -> str:
        """Hand a batch script in; its job id. Its output goes to JOB.out in the cluster's folder."""
        path = self.folder / f"script-{secrets.token_hex(4)}.sh"
        path.write_text(script, encoding="utf-8")
        command = ["sbatch", "--parsable", "--output", f"{self.folder}/%j.out", "--open-mode=append", *options, str(path)]
        done = subprocess.run(
            command, env={**self.environment, **(environment or {})}, capture_output=True, text=True, timeout=60, check=False
        )
        if done.returncode != 0:
            raise AssertionError(done.stderr)
        return done.stdout.strip().partition(";")[0]

    def job(self, job: str) -> dict[str, str]:
        """The fields of `scontrol show job`."""
        return dict(word.split("=", 1) for word in self.run("scontrol", "-o", "show", "job", job).split() if "=" in word)

    def node(self, node: str) -> dict[str, str]:
        """The fields of `scontrol show node`; a reason may hold blanks."""
        text = self.run("scontrol", "-o", "show", "node", node)
        fields = dict(word.split("=", 1) for word in text.split() if "=" in word)
        return fields | ({"Reason": text.partition("Reason=")[2]} if "Reason=" in text else {})

    def output(self, job: str) -> str:
        path = self.folder / f"{job}.out"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def until(self, what: str, look: Callable[[], object], seconds: float = 120.0) -> None:
        """Wait until `look` is true; raises AssertionError with what was waited for."""
        deadline = time.monotonic() + seconds
        while not look():
            assert time.monotonic() < deadline, f"waited {seconds:.0f} s for {what}; see {self.folder}"
            time.sleep(0.1)

    def start_slurmd(self, node: str) -> None:
        self._start(node, "slurmd", "-D", "-N", node, "-f", self.environment["SLURM_CONF"])

    def kill_slurmd(self, node: str) -> None:
        """As when a machine dies: nothing is said to anybody."""
        self.daemons[node].kill()
        self.daemons.pop(node).wait()

    def reset(self) -> None:
        """All nodes idle and in service, no job in the queue."""
        listed = self.run("squeue", "-h", "-o", "%i").split()
        if listed:
            self.run("scancel", *listed)
        for node in NODES:
            if node not in self.daemons:
                self.start_slurmd(node)
        self.until("an empty queue", lambda: not self.run("squeue", "-h", "-o", "%i"))
        for node in NODES:
            if self.node(node)["State"] != "IDLE":
                self.run("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
        self.until("four idle nodes", lambda: all(self.node(node)["State"] == "IDLE" for node in NODES))

    def tell(self, service: str | None, token_file: Path | None = None, **settings: object) -> None:
        """Point the hooks at a service; at none, they find nobody."""
        named = {
            "PITSTOP_SERVICE": service or "http://127.0.0.1:9",
            "PITSTOP_TOKEN_FILE": token_file or "",
            "PITSTOP_CLUSTER": "lab",
            **settings,
        }
        (self.folder / "hooks" / "pitstop.conf").write_text("".join(f"{name}={value}\n" for name, value in named.items()))

    def _start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment, start_new_session=True
            )

    def open(self) -> None:
        munge = self.folder / "munge"
        munge.mkdir(mode=0o755)
        key = munge / "key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        log, pid, seed = (f"--{word}={munge / word}" for word in ("log-file", "pid-file", "seed-file"))
        socket_path = munge / "socket"
        self._start("munged", "munged", "-F", "--force", f"--key-file={key}", f"--socket={socket_path}", log, pid, seed)
        self.until("munged's socket", socket_path.exists)
        (self.folder / "state").mkdir()
        shutil.copytree(HOOKS, self.folder / "hooks")
        self.tell(None)
        for node in NODES:
            (self.folder / f"d-{node}").mkdir()
        self._start("slurmctld", "slurmctld", "-D", "-f", self.environment["SLURM_CONF"])
        for node in NODES:
            self.start_slurmd(node)
        self.until("four idle nodes", self._is_up)

    def _is_up(self) -> bool:
        try:
            return self.run("sinfo", "-h", "-p", "main", "-o", "%t %D") == "idle 4"
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            return False

    def close(self) -> None:
        """End every job, then the daemons, by their pids."""
        try:
            listed = self.run("squeue", "-h", "-o", "%i", seconds=5).split()
            if listed:
                self.run("scancel", *listed, check=False)
                self.run("scancel", "-s", "KILL", *listed, check=False)
                deadline = time.monotonic() + 8
                while time.monotonic() < deadline and self.run("squeue", "-h", "-o", "%i", seconds=5):
                    time.sleep(0.2)
        except (subprocess.SubprocessError, OSError):
            pass
        for name in sorted(self.daemons, key=lambda name: (name == "munged", name == "slurmctld")):
            process = self.daemons[name]
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.daemons.clear()


def free_ports(count: int) -> list[int]:
    """Ports in a row on loopback that were free a moment ago. Another process of these tests looks elsewhere."""
    for base in range(17_000 + os.getpid() % 800 * 16, 32_000, 16):
        probes = [socket.socket() for _ in range(count)]
        try:
            for index, probe in enumerate(probes):
                probe.bind(("127.0.0.1", base + index))
            return list(range(base, base + count))
        except OSError:
            continue
        finally:
            for probe in probes:
                probe.close()
    raise AssertionError("no free ports for a cluster")


@contextmanager
def open_slurm_cluster(folder: Path) -> Iterator[SlurmCluster]:
    """A cluster in the empty `folder` (a short path: it holds sockets); nothing of it is left afterwards but its files."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    ctld, first, *_, last = free_ports(5)
    text = CONFIGURATION.format(folder=folder, ctld=ctld, ports=f"{first}-{last}")
    configuration = folder / "slurm.conf"
    configuration.write_text(text, encoding="utf-8")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "SBATCH_", "SRUN_"))}
    environment |= {"SLURM_CONF": str(configuration), "PATH": f"{environment.get('PATH', '')}:/usr/sbin:/sbin"}
    cluster = SlurmCluster(folder, environment)
    try:
        cluster.open()
        yield cluster
    finally:
        cluster.close()


def missing_programs() -> list[str]:
    """What of Slurm is not on this machine."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    return [program for program in PROGRAMS if shutil.which(program, path=path) is None]
