"""`pitstop node`: the agent on a training node."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from cli.main import UsageError
from cli.run import DEFAULT_SERVICE, data_directory, service_clients
from node.job_state import JobBusyError
from node.launch import identity_of
from node.node_agent import NodeAgent, hold_node_folder
from node.service_client import ServiceClient

__all__ = ["app"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def node(
    service: Annotated[str, typer.Option(envvar="PITSTOP_SERVICE", help="address of pitstop serve")] = DEFAULT_SERVICE,
    token_file: Annotated[Path | None, typer.Option(envvar="PITSTOP_TOKEN_FILE", help="file with the node's token")] = None,
    name: Annotated[str | None, typer.Option("--node", help="name of this node")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="where the agent keeps its state")] = None,
) -> None:
    """Keep the node's lease and ship its kernel log, until SIGTERM."""
    address, token = service_clients(service, token_file)
    try:
        folder = hold_node_folder(data_directory(data_dir))
    except JobBusyError:
        raise UsageError("another pitstop node runs on this data directory; choose another with --data-dir") from None
    except OSError as problem:
        raise UsageError(f"the data directory cannot be used: {problem}; choose another with --data-dir") from None

    def say(text: str) -> None:
        print(f"pitstop node: {text}", file=sys.stderr, flush=True)

    identity = identity_of(name or socket.gethostname())
    NodeAgent(lambda: ServiceClient(address, token), identity, folder.spool, say).run()
