"""The hooks as Slurm runs them: no PATH, a small environment, and a Pitstop that may be away."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cli.stories.stage import free_port
from detectors.slurm_states import parse_environment

FOLDER = Path(__file__).parents[2] / "deploy" / "slurm"
HOOKS = sorted(path.name for path in FOLDER.iterdir() if os.access(path, os.X_OK) and path.name != "hook")
ENVIRONMENT = {"SLURM_JOB_ID": "42", "SLURM_CLUSTER_NAME": "lab", "SLURMD_NODENAME": "n1", "SLURM_JOB_NAME": "a\nJOBSTATE=FAILED"}


class Door:
    """Takes what is posted; answers with `answer`, or not at all."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, bytes, str | None]] = []
        self.answer: bytes | None = b"OK\n"
        self.released = threading.Event()
        door = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                door.posted.append((self.path, body, self.headers.get("Authorization")))
                if door.answer is None:
                    door.released.wait(120)
                    return
                self.send_response(200)
                self.end_headers()
                self.wfile.write(door.answer)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def heard(self) -> tuple[str, bytes, str | None]:
        """What was posted, once; the hook does not wait until it is."""
        deadline = time.monotonic() + 120
        while not self.posted:
            assert time.monotonic() < deadline, "nothing was posted"
            time.sleep(0.01)
        (only,) = self.posted
        return only

    def close(self) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def door() -> Iterator[Door]:
    opened = Door()
    yield opened
    opened.close()


def run(
    name: str, folder: Path, port: int, *arguments: str, more: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    token = folder / "token"
    token.write_text("secret-token\n")
    configuration = folder / "hook.conf"
    # On a busy machine curl may take its time to start.
    settings = [f"PITSTOP_SERVICE=http://127.0.0.1:{port}", f"PITSTOP_TOKEN_FILE={token}", "PITSTOP_CONNECT_SECONDS=5", more]
    configuration.write_text("\n".join(settings) + "\n")
    given = {**ENVIRONMENT, "PITSTOP_HOOK_CONF": str(configuration), **environment}
    return subprocess.run([str(FOLDER / name), *arguments], env=given, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_says_its_kind_with_the_token_and_ends_well(name: str, door: Door, tmp_path: Path) -> None:
    done = run(name, tmp_path, door.port, "n[1-2]", JOBID="42", JOBSTATE="PREEMPTED", HOME="/root", AWS_SECRET="x")
    assert done.returncode == 0, done.stderr
    path, body, authorization = door.heard()
    kinds = {"jobcomp": "job_end", "healthcheck": "health"}
    assert path == f"/api/v1/slurm/hooks/{'node_state' if name.startswith('node-') else kinds.get(name, name)}"
    assert authorization == "Bearer secret-token"
    fields = parse_environment(body)
    assert fields["SLURM_JOB_ID"] == "42"
    assert fields["SLURM_JOB_NAME"] == ENVIRONMENT["SLURM_JOB_NAME"]
    assert "AWS_SECRET" not in fields and "PITSTOP_TOKEN_FILE" not in fields
    if name.startswith("node-"):
        assert (fields["PITSTOP_EVENT"], fields["PITSTOP_NODES"]) == (name.removeprefix("node-"), "n[1-2]")


@pytest.mark.parametrize("name", HOOKS)
def test_no_hook_fails_while_pitstop_is_away(name: str, tmp_path: Path) -> None:
    done = run(name, tmp_path, free_port())
    assert done.returncode == 0
    assert done.stdout == ("UNKNOWN: Pitstop does not answer\n" if name == "healthcheck" else "")


def test_slurm_waits_for_no_answer_that_decides_nothing(door: Door, tmp_path: Path) -> None:
    door.answer = None
    assert run("epilog", tmp_path, door.port, more="PITSTOP_APART_SECONDS=60").returncode == 0
    door.heard()


def test_a_pitstop_that_hangs_is_waited_for_no_longer_than_its_limit(door: Door, tmp_path: Path) -> None:
    door.answer = None
    assert run("healthcheck", tmp_path, door.port, more="PITSTOP_SECONDS=0.3").stdout == "UNKNOWN: Pitstop does not answer\n"
    assert len(door.posted) == 1


def test_a_node_that_is_taken_out_fails_the_prolog_only_where_the_site_asks_for_it(door: Door, tmp_path: Path) -> None:
    door.answer = b"CRITICAL: n1 is taken out by Pitstop\n"
    assert run("prolog", tmp_path, door.port).returncode == 0
    assert run("prolog", tmp_path, door.port, more="PITSTOP_GATE=yes").returncode == 1
    assert run("prolog", tmp_path, free_port(), more="PITSTOP_GATE=yes").returncode == 0
    assert run("healthcheck", tmp_path, door.port).returncode == 0


@pytest.mark.parametrize(("answer", "status"), [("OK\n", 0), ("WARNING: x\n", 1), ("CRITICAL: x\n", 2), ("", 3)])
def test_as_a_nagios_plugin_it_has_the_exit_statuses_of_one(answer: str, status: int, door: Door, tmp_path: Path) -> None:
    door.answer = answer.encode()
    assert run("healthcheck", tmp_path, door.port, more="PITSTOP_NAGIOS=yes").returncode == status


def test_without_curl_nothing_stands_in_the_way(tmp_path: Path) -> None:
    copy = tmp_path / "hooks"
    copy.mkdir()
    for name in ("hook", "healthcheck"):
        text = (FOLDER / name).read_text().replace("curl --silent", "no-such-curl --silent")
        (copy / name).write_text(text)
        (copy / name).chmod(0o755)
    assert (
        subprocess.run([str(copy / "healthcheck")], env=ENVIRONMENT, capture_output=True, timeout=120, check=False).returncode
        == 0
    )
