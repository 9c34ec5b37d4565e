"""The agent's HTTP client: the paths of the service that an agent uses, each call bounded in time."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote

from node.kept_connection import KeptConnection

__all__ = ["Refused", "ServiceClient", "ServiceUnavailable", "read_token", "words_of"]

NUMBERS = re.compile(r"\[Errno -?\d+\] ")


class ServiceUnavailable(Exception):
    """No answer, or an answer that asks to come again (5xx, 429)."""


@dataclass(slots=True)
class Refused(Exception):
    """The service will not take this, now or later (4xx)."""

    status: int
    detail: str

    def __str__(self) -> str:
        return f"{self.status} {self.detail}"


def read_token(path: Path | None) -> str | None:
    """The token in `path`, without surrounding space; None for no file named. Raises OSError."""
    return None if path is None else path.read_text(encoding="utf-8").strip() or None


def words_of(problem: Exception) -> str:
    """What a failed call says, without the system's numbers."""
    return NUMBERS.sub("", str(problem))


class ServiceClient:
    """Calls of one thread. Every call raises ServiceUnavailable or Refused, and nothing else."""

    def __init__(self, service: str, token: str | None, timeout_seconds: float = 3.0) -> None:
        self._connection = KeptConnection(service, {"Authorization": f"Bearer {token}"} if token else {})
        self._timeout_seconds = timeout_seconds

    def close(self) -> None:
        self._connection.close()

    def register_job(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """The service's document of the job, with the generation that it heard of last."""
        return self._post("/api/v1/jobs", document)

    def report_attempt(self, job: str, document: Mapping[str, Any]) -> None:
        self._post(f"/api/v1/jobs/{quote(job, safe='')}/attempts", document)

    def heartbeat(self, job: str, document: Mapping[str, Any]) -> None:
        self._post(f"/api/v1/jobs/{quote(job, safe='')}/heartbeat", document)

    def report_failure(self, job: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """The directive document, which an agent reads only to know that somebody decides."""
        return self._post(f"/api/v1/jobs/{quote(job, safe='')}/failures?wait=0", document)

    def report_trials(self, run: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """Progress or report of an evaluation run; the answer names the nodes whose slots are asked back."""
        return self._post(f"/api/v1/trials/{quote(run, safe='')}", document)

    def renew_lease(self, node: str, document: Mapping[str, Any]) -> dict[str, Any]:
        return self._post(f"/api/v1/nodes/{quote(node, safe='')}/lease", document)

    def commands(self, node: str, after: int, wait_seconds: float) -> list[dict[str, Any]]:
        """Command rows with an id above `after`, waited for at most `wait_seconds`."""
        path = f"/api/v1/nodes/{quote(node, safe='')}/commands?after={after}&wait={wait_seconds:g}"
        answer = self._call("GET", path, None, {}, self._timeout_seconds + wait_seconds)
        items = answer.get("items")
        return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []

    def report_result(self, node: str, command: int, document: Mapping[str, Any]) -> None:
        self._post(f"/api/v1/nodes/{quote(node, safe='')}/commands/{command}/result", document)

    def send_logs(self, batch: str, body: bytes) -> dict[str, Any]:
        """Send one NDJSON batch; sending it twice under one id is harmless."""
        headers = {"Pitstop-Batch": batch, "Content-Type": "application/x-ndjson"}
        return self._call("POST", "/api/v1/logs", body, headers, 3 * self._timeout_seconds)

    def _post(self, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        return self._call("POST", path, json.dumps(document).encode(), headers, self._timeout_seconds)

    def _call(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], timeout_seconds: float
    ) -> dict[str, Any]:
        try:
            status, content = self._connection.request(method, path, body, headers, timeout_seconds)
        except (OSError, HTTPException, ValueError) as problem:
            raise ServiceUnavailable(words_of(problem) or type(problem).__name__) from None
        if status >= 500 or status == 429:
            raise ServiceUnavailable(f"status {status}")
        try:
            document = json.loads(content) if content else {}
        except ValueError:
            document = {}
        if status >= 400:
            detail = document.get("detail") or document.get("title") if isinstance(document, dict) else None
            raise Refused(status, str(detail or content[:200].decode("utf-8", "replace")))
        return document if isinstance(document, dict) else {}
