"""`pitstop node`: the agent on a training node."""

from __future__ import annotations

import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from cli.commands import CommandLine
from cli.main import UsageError
from cli.run import DEFAULT_SERVICE, data_directory, service_clients
from node.job_state import JobBusyError
from node.launch import identity_of
from node.node_agent import NodeAgent, hold_node_folder
from node.probes import ProbeWorker, address_towards
from node.service_client import ServiceClient

__all__ = ["app"]

app = CommandLine()


@app.command()
def node(
    service: Annotated[str, typer.Option(envvar="PITSTOP_SERVICE", help="address of pitstop serve")] = DEFAULT_SERVICE,
    token_file: Annotated[Path | None, typer.Option(envvar="PITSTOP_TOKEN_FILE", help="file with the node's token")] = None,
    name: Annotated[str | None, typer.Option("--node", help="name of this node")] = None,
    python: Annotated[str | None, typer.Option(help="the jobs' interpreter, for probes; else python3 of the PATH")] = None,
    address: Annotated[str | None, typer.Option(help="where other nodes reach this one, for probes")] = None,
    exporter: Annotated[
        list[str] | None,
        typer.Option(envvar="PITSTOP_EXPORTERS", help="metrics of this node, such as http://127.0.0.1:9400/metrics"),
    ] = None,
    log: Annotated[
        list[Path] | None,
        typer.Option(help="a log of this node's daemons, such as slurmd's, to be kept with the kernel's; may repeat"),
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="where the agent keeps its state")] = None,
) -> None:
    """Keep the node's lease, ship its kernel log and its daemons' and take part in probes, until SIGTERM."""
    url, token = service_clients(service, token_file)
    try:
        folder = hold_node_folder(data_directory(data_dir))
    except JobBusyError:
        raise UsageError("another pitstop node runs on this data directory; choose another with --data-dir") from None
    except OSError as problem:
        why = f"{problem.strerror}: {problem.filename}"
        raise UsageError(f"the data directory cannot be used: {why}; choose another with --data-dir") from None

    def say(text: str) -> None:
        print(f"pitstop node: {text}", file=sys.stderr, flush=True)

    identity = identity_of(name or socket.gethostname())
    probes = probe_worker(python, address, url, say)
    logs = [path.absolute() for path in log or ()]
    NodeAgent(lambda: ServiceClient(url, token), identity, folder.spool, say, probes, exporter or (), logs).run()


def probe_worker(python: str | None, address: str | None, service: str, say: Callable[[str], None]) -> ProbeWorker | None:
    """None, with the reason said, where this node can take part in no probes."""
    interpreter = shutil.which(python or "python3")
    if interpreter is None:
        if python is not None:
            raise UsageError(f"--python {python!r} is not found or cannot be executed")
        say("this node offers no probes: there is no python3")
        return None
    try:
        return ProbeWorker(interpreter, address or address_towards(service), say)
    except OSError as problem:
        say(f"this node offers no probes: no address towards the service ({problem}); name one with --address")
        return None
