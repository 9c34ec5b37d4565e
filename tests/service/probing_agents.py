"""Node agents that exist in this object only and answer probes as a simulated cluster would: real HTTP, invented hardware."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import Any

from recovery.localization.probes import Probe
from recovery.localization.simulation import Cluster
from tests.service.scripted_agent import Client

# Well within the time for which an offer of probes holds.
RENEW_SECONDS = 3.0


@dataclass
class ProbingAgents:
    """The agents of all nodes of `cluster`. `silent` ones never answer. `asked`: every probe command that was carried out."""

    client: Client
    cluster: Cluster
    silent: frozenset[str] = frozenset()
    asked: list[dict[str, Any]] = field(default_factory=list)
    after: dict[str, int] = field(default_factory=dict)
    rng: random.Random = field(default_factory=lambda: random.Random(5))
    shown: dict[str, dict[str, Any]] = field(default_factory=dict)
    leased_at: float | None = None

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.cluster.pool.everyone

    def lease(self) -> None:
        self.leased_at = time.monotonic()
        for node in self.nodes:
            document = {"boot_id": "b", "agent_id": "a", "clock": time.time(), "probes": "gloo"}
            assert self.client.post(f"/api/v1/nodes/{node}/lease", json=document).status_code == 200

    def look(self) -> None:
        """Answer what is asked now; go on offering probes, where they were offered."""
        if self.leased_at is not None and time.monotonic() - self.leased_at > RENEW_SECONDS:
            self.lease()
        for node in self.nodes:
            if node in self.silent:
                continue
            rows = self.client.get(f"/api/v1/nodes/{node}/commands?after={self.after.get(node, 0)}").json()["items"]
            for row in rows:
                self.after[node] = row["id"]
                if row["kind"] == "probe":
                    self.asked.append(row | {"node": node})
                    answer = {"status": "done", "generation": 0, "detail": "", "probe": self.measure(node, row["args"])}
                    answered = self.client.post(f"/api/v1/nodes/{node}/commands/{row['id']}/result", json=answer)
                    assert answered.status_code == 200, answered.json()

    def measure(self, node: str, args: dict[str, Any]) -> dict[str, Any]:
        # The members of a world come one by one; the first to come settles what all of them see.
        place = {"host": f"10.0.0.{self.nodes.index(node)}", "port": 40000 + len(self.asked) % 10000}
        return {**self.shown.setdefault(args["id"], self.show(node, args)), **place, "took": 0.2}

    def show(self, node: str, args: dict[str, Any]) -> dict[str, Any]:
        if args["op"] == "alone":
            members: tuple[str, ...] = (node,)
        else:
            members = self.members[args["id"]]
        result = self.cluster.run(Probe(0, 1, members), self.rng)
        return {"outcome": result.outcome.value, "seconds": result.seconds, "error": result.error}

    @property
    def members(self) -> dict[str, tuple[str, ...]]:
        """Who was asked under each probe's id, from the service's own document."""
        number = max(int(item["id"]) for item in self.client.get("/api/v1/localizations").json()["items"])
        probes = self.client.get(f"/api/v1/localizations/{number}").json()["probes"]
        return {f"{number}.{probe['turn']}.{probe['id']}": tuple(probe["members"]) for probe in probes}


def until_done(agents: ProbingAgents, number: str, seconds: float = 240.0) -> dict[str, Any]:
    """Let the agents answer until the localisation is done; its document."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        agents.look()
        document: dict[str, Any] = agents.client.get(f"/api/v1/localizations/{number}").json()
        if document["state"] == "done":
            return document
        time.sleep(0.02)
    raise AssertionError(f"not done within {seconds} s")
