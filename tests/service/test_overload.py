"""Far more than the service can take: it says so, stays small, and is itself again soon after."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from pathlib import Path

import httpx2
import psutil
import pytest

from tests.service.service_process import ServiceProcess

SCALE = float(os.environ.get("SCALE", "1"))
SECONDS = max(6.0, 60 * SCALE)
CLIENTS = 24
MEMORY_BYTES = 600 * 1024 * 1024


def body(client: int, number: int) -> bytes:
    """About 4 MB that no routine rule knows and zstd cannot shrink much."""
    noise = os.urandom(2048).hex()
    lines = ((f"{client}-{number}-{index} " + noise[index % 1000 :][:400]) for index in range(8000))
    return b"".join(json.dumps({"job": f"j{client}", "line": line}).encode() + b"\n" for line in lines)


class Flood(threading.Thread):
    def __init__(self, url: str, number: int, until: float) -> None:
        super().__init__(daemon=True)
        self.url, self.number, self.until = url, number, until
        self.answers: Counter[int] = Counter()
        self.without_retry_after = 0

    def run(self) -> None:
        content = body(self.number, 0)
        with httpx2.Client(base_url=self.url, timeout=60) as client:
            while time.monotonic() < self.until:
                try:
                    answer = client.post("/api/v1/logs", content=content)
                except httpx2.HTTPError:
                    # Refused before the body was read: the connection may close under the sender.
                    self.answers[0] += 1
                    continue
                self.answers[answer.status_code] += 1
                self.without_retry_after += answer.status_code == 503 and "retry-after" not in answer.headers


@pytest.mark.soak
def test_overload_is_answered_with_503_within_bounded_memory(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path / "data", environment={"PITSTOP_MAX_WAITING_BYTES": str(16 << 20)}) as service:
        process = psutil.Process(service.process.pid if service.process else 0)
        floods = [Flood(service.url, number, time.monotonic() + SECONDS) for number in range(CLIENTS)]
        for flood in floods:
            flood.start()
        peak = 0
        while any(flood.is_alive() for flood in floods):
            family = [process, *process.children(recursive=True)]
            peak = max(peak, sum(member.memory_info().rss for member in family))
            time.sleep(0.1)
        over = time.monotonic()
        answer = None
        while answer is None or answer.status_code != 200:
            answer = httpx2.post(f"{service.url}/api/v1/logs", content=b'{"line": "calm"}', timeout=30)
        recovered = time.monotonic() - over
        total: Counter[int] = Counter()
        for flood in floods:
            total += flood.answers
        print(f"answers {dict(total)}, peak {peak / 2**20:.0f} MiB, normal again after {recovered:.1f} s")
        assert set(total) <= {0, 200, 503}
        assert total[503] > 0 and total[200] > 0
        assert sum(flood.without_retry_after for flood in floods) == 0
        assert peak < MEMORY_BYTES
        assert recovered < 5
