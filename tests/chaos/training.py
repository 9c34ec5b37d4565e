"""The small GPT of gpt.py as a job of four ranks on one or more nodes, under real agents and a real service."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.node.namespaces import Namespaces
from tests.node.peer import Peer, Runs
from tests.node.several_nodes import Nodes
from tests.service.service_process import ServiceProcess

__all__ = ["SCRIPT", "Site", "Training"]

SCRIPT = Path(__file__).with_name("gpt.py")
RANKS, STEPS = 4, 40
NOBODY = "http://127.0.0.1:9"


@dataclass
class Site:
    """Where jobs run. `hosts`: a network namespace for each node; None: all on loopback."""

    hosts: Namespaces | None
    address: str = "127.0.0.1"


class Training:
    """One job in `folder`, its ranks shared out over `nodes`. Without a `service`: with Pitstop dead all the time."""

    def __init__(self, folder: Path, site: Site, service: ServiceProcess | None, nodes: Sequence[str] = ("n1",)) -> None:
        folder.mkdir()
        self.site, self.names = site, tuple(nodes)
        self.checkpoint, self.result, self.times = folder / "model.pt", folder / "result", folder / "times"
        self.runs = Runs(folder, NOBODY if service is None else service.url, python=sys.executable)
        self.runs.environment |= {"FAULTS_CHECKPOINT": str(self.checkpoint), "STEP_TIMES": str(self.times)}
        if service is not None:
            self.runs.environment["PITSTOP_TOKEN_FILE"] = str(service.data_dir / "admin.token")
        # What Nodes passes on first is the checkpoint.
        self.nodes = Nodes(self.runs, Peer(), SCRIPT, self.checkpoint)
        if site.hosts is not None:
            self.nodes.rendezvous = f"{site.hosts.address(self.names[0])}:29400"
            self.runs.environment["GLOO_SOCKET_IFNAME"] = "eth0"

    def start(self, faults: str = "", *names: str, steps: int = STEPS) -> None:
        """The agents of `names`, or of all nodes."""
        self.runs.environment["FAULTS"] = faults
        for name in names or self.names:
            options: dict[str, Any] = {"ranks": RANKS // len(self.names), "nnodes": f"1:{len(self.names)}"}
            if self.site.hosts is not None:
                options["inside"] = ("ip", "netns", "exec", self.site.hosts.namespace(name))
            self.nodes.start(name, str(steps), str(self.result), **options)

    def end(self, *names: str, status: int = 0) -> dict[str, str]:
        """What the agents of `names`, or of all nodes, said, each of which ended with `status`."""
        names = names or self.names
        said = {name: self.nodes.agents[name].communicate(timeout=600)[1] for name in names}
        assert [self.nodes.agents[name].returncode for name in names] == [status] * len(names), "\n\n".join(said.values())
        return said

    @property
    def generation(self) -> int:
        """The newest that any agent knows of."""
        return max(int(self.nodes.care(name).get("generation", 0)) for name in self.names)

    def starts(self, node: str) -> int:
        """In how many generations its first rank was started anew."""
        return len(list((self.runs.data(node) / "run/job/logs").glob("*/rank0.log")))

    def trains(self, *names: str, above: int = -1) -> int | None:
        """The generation, above the one given, in which the agents of `names` run and steps were finished; None while none is."""
        generation = int(self.nodes.care(names[0]).get("generation", -1))
        runs = generation > above and all(self.nodes.running(name, generation) for name in names)
        return generation if runs and self._last_step[0] == generation else None

    @property
    def step(self) -> int:
        """The last one that was finished; -1 before the first."""
        return self._last_step[1]

    @property
    def _last_step(self) -> tuple[int, int]:
        """Its generation and number."""
        lines = self.times.read_text().splitlines() if self.times.exists() else []
        whole = [line.split() for line in lines[-2:] if line.count(" ") == 2]
        return (int(whole[-1][0]), int(whole[-1][1])) if whole else (-1, -1)
