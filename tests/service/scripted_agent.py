"""A small agent that speaks the real protocol over HTTP, and keeps what it did: the world that recoveries are checked against."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Protocol


class Answer(Protocol):
    status_code: int

    def json(self) -> Any: ...


class Client(Protocol):
    def get(self, url: str, **options: Any) -> Answer: ...

    def post(self, url: str, **options: Any) -> Answer: ...


@dataclass
class ScriptedAgent:
    """Runs `ranks` ranks of `job` on `node` that exist in this object only. `restarts`, `stops`: generations it acted under."""

    client: Client
    job: str = "gpt"
    node: str = "n1"
    ranks: int = 2
    generation: int = 0
    step: int = 0
    running: bool = False
    after: int = 0
    restarts: list[int] = field(default_factory=list)
    stops: list[int] = field(default_factory=list)
    done: dict[int, dict[str, Any]] = field(default_factory=dict)

    def post(self, path: str, document: dict[str, Any], *expected: int) -> Any:
        answer = self.client.post(f"/api/v1/{path}", json=document)
        assert answer.status_code in (expected or (200, 201)), (path, answer.status_code, answer.json())
        return answer.json()

    def register(self, **fields: Any) -> None:
        registration = {"job": self.job, "owner": "ann", "contact": "ann@example.org", "ranks": self.ranks, "nodes": [self.node]}
        self.post("jobs", registration | fields)
        self.lease()

    def lease(self) -> None:
        document = {"boot_id": "b", "agent_id": "a", "aliases": [], "versions": {}, "clock": time.time()}
        self.post(f"nodes/{self.node}/lease", document)

    def start(self, cause: str = "start") -> None:
        self.running = True
        ranks = [{"rank": rank, "local_rank": rank, "node": self.node, "pid": 100 + rank} for rank in range(self.ranks)]
        document = {"attempt": self.generation, "generation": self.generation, "cause": cause, "ranks": ranks}
        self.post(f"jobs/{self.job}/attempts", document)

    def heartbeat(self, step: int | None = None, **fields: Any) -> None:
        self.step = self.step if step is None else step
        state = "running" if self.running else "exited"
        ranks = [{"rank": rank, "step": self.step, "state": state} for rank in range(self.ranks)]
        document = {"attempt": self.generation, "generation": self.generation, "node": self.node, "ranks": ranks}
        self.post(f"jobs/{self.job}/heartbeat", document | fields)

    def failure(self, key: str | None = None, **fields: Any) -> dict[str, Any]:
        """The report that one rank was killed."""
        document: dict[str, Any] = {
            "attempt": self.generation,
            "generation": self.generation,
            "idempotency_key": key or f"{self.job}-{self.generation}",
            "failed": [{"rank": 1, "node": self.node, "exit_code": None, "signal": 9, "error": None}],
            "last_step": self.step,
        }
        return document | fields

    def fail(self, wait: float = 0.0, **fields: Any) -> Any:
        self.running = False
        return self.post(f"jobs/{self.job}/failures?wait={wait}", self.failure(**fields))

    def poll(self, wait: float = 0.0) -> list[dict[str, Any]]:
        answer = self.client.get(f"/api/v1/nodes/{self.node}/commands?after={self.after}&wait={wait}", timeout=wait + 30)
        assert answer.status_code == 200, answer.json()
        return list(answer.json()["items"])

    def obey(self, wait: float = 0.0) -> int:
        """Carry out what is commanded, each id once, old generations refused; how many commands there were."""
        commands = self.poll(wait)
        for command in commands:
            if command["id"] not in self.done:
                self.done[command["id"]] = self._carry_out(command)
            self.answer(command["id"])
        return len(commands)

    def answer(self, command: int) -> None:
        """Report what became of a command; reporting it again does no harm."""
        self.post(f"nodes/{self.node}/commands/{command}/result", self.done[command])
        self.after = max(self.after, command)

    def _carry_out(self, command: dict[str, Any]) -> dict[str, Any]:
        if command["generation"] <= self.generation:
            return {"status": "refused", "generation": self.generation, "detail": "not above the present generation"}
        if command["deadline"] < time.time():
            return {"status": "expired", "generation": self.generation, "detail": "too late"}
        if command["kind"] == "stop_ranks":
            self.stops.append(command["generation"])
            self.running = False
            return {"status": "done", "generation": self.generation, "detail": "every process is gone"}
        self.generation = command["generation"]
        self.restarts.append(self.generation)
        self.running = True
        return {"status": "done", "generation": self.generation, "detail": "2 ranks started"}
