"""`pitstop run`: launch a training command under care."""

from __future__ import annotations

import os
import shutil
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from cli.commands import CommandLine
from cli.main import UsageError
from node.formation import NodeBounds, parse_bounds
from node.launch import LaunchError
from node.launch import launch as launch_job
from node.rank_group import Launch
from node.ranks import job_interpreter, starts_ranks_itself
from node.service_client import ServiceClient, read_token
from node.slurm_environment import SlurmEnvironmentError, SlurmPlace, read_slurm_environment
from rules.account import NoHome, state_folder
from rules.file_errors import cannot_read
from rules.identity import addressable

__all__ = ["app", "data_directory", "service_clients"]

DEFAULT_SERVICE = "http://127.0.0.1:8787"

app = CommandLine()


def data_directory(option: Path | None) -> Path:
    """--data-dir, PITSTOP_DATA_DIR, else $XDG_STATE_HOME/pitstop. Raises UsageError."""
    if option is not None:
        return option.absolute()
    if os.environ.get("PITSTOP_DATA_DIR"):
        return Path(os.environ["PITSTOP_DATA_DIR"]).absolute()
    try:
        return state_folder()
    except NoHome as problem:
        raise UsageError(str(problem)) from None


def service_clients(service: str, token_file: Path | None) -> tuple[str, str | None]:
    """The checked address and the token. Raises UsageError."""
    try:
        parts = urlsplit(service)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address:
        raise UsageError(f"--service {service!r} is no address such as {DEFAULT_SERVICE}")
    try:
        return service.rstrip("/"), read_token(token_file)
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(cannot_read(f"the token file {token_file}", problem)) from None


def default_job(command: list[str]) -> str:
    """A name that is this run's own: of the script, the time and our pid."""
    word = next((word for word in command if word.endswith(".py")), command[0])
    return f"{Path(word).stem}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.getpid()}"


def bounds_of(nnodes: str) -> NodeBounds:
    """Raises UsageError."""
    try:
        return parse_bounds(nnodes)
    except ValueError:
        raise UsageError(f"--nnodes {nnodes!r} is neither a number of nodes nor MIN:MAX") from None


def rendezvous_of(text: str | None, bounds: NodeBounds) -> tuple[str, int] | None:
    """Raises UsageError where a job on several nodes has none, or it is no address."""
    if text is None:
        if bounds.most > 1:
            raise UsageError("a job on several nodes needs --rendezvous HOST:PORT, the same on each: a port of the first one")
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"--rendezvous {text!r} is no HOST:PORT")
    return host.strip("[]"), int(port)


def place_in_slurm(alone: bool) -> SlurmPlace | None:
    """This node's place in the Slurm job that we run in, None outside. `alone`: the command finds its other nodes by itself.

    Raises UsageError.
    """
    try:
        place = read_slurm_environment(os.environ)
    except SlurmEnvironmentError as problem:
        raise UsageError(str(problem)) from None
    if place is not None and alone and len(place.nodes) > 1:
        # Each node's launcher is a job of its own to us.
        return replace(place, name=f"{place.job}-{place.node}", nodes=(place.node,), node_rank=0)
    return place


def address_of_leader(place: SlurmPlace) -> str:
    """The name of the first node where it resolves, else the address that srun was started from, which is that node's."""
    try:
        socket.getaddrinfo(place.leader, None)
    except OSError:
        return place.launched_from or place.leader
    return place.leader


def job_directory(option: Path | None, place: SlurmPlace | None) -> Path:
    """Nodes of a cluster often share a file system: each keeps its part of a job apart."""
    return data_directory(option) if place is None else data_directory(option) / "nodes" / place.node


@app.command()
def run(
    command: Annotated[list[str], typer.Argument(help="the training command, after --", metavar="-- COMMAND...")],
    job: Annotated[str | None, typer.Option(help="name of the job; starting it again takes its ranks over")] = None,
    ranks: Annotated[int, typer.Option(min=1, help="processes to start on this node")] = 1,
    nnodes: Annotated[str | None, typer.Option(help="nodes of the job: N, or MIN:MAX; one pitstop run on each")] = None,
    rendezvous: Annotated[str | None, typer.Option(help="HOST:PORT of the node that leads; for --nnodes above 1")] = None,
    node_rank: Annotated[int | None, typer.Option(min=0, help="this node's place among the others; 0 leads")] = None,
    max_restarts: Annotated[int, typer.Option(min=0, help="restarts without a service that decides")] = 3,
    service: Annotated[str, typer.Option(envvar="PITSTOP_SERVICE", help="address of pitstop serve")] = DEFAULT_SERVICE,
    token_file: Annotated[Path | None, typer.Option(envvar="PITSTOP_TOKEN_FILE", help="file with the token")] = None,
    node: Annotated[str | None, typer.Option(help="name of this node")] = None,
    spare: Annotated[bool, typer.Option(help="keep a warm interpreter with torch imported, so that restarts are quick")] = True,
    python: Annotated[str | None, typer.Option(help="the job's interpreter, for the process-group store")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="where the state of jobs is kept")] = None,
) -> None:
    """Launch a training command under care. Exit status 0: it ended well; 1: it was given up."""
    if shutil.which(command[0]) is None:
        raise UsageError(f"the command {command[0]!r} is not found or cannot be executed")
    if python is not None and shutil.which(python) is None:
        raise UsageError(f"--python {python!r} is not found or cannot be executed")
    if ranks > 1 and starts_ranks_itself(command):
        raise UsageError(f"{command[0]} starts the ranks itself: give their number to it, not to --ranks")
    if job is not None and not addressable(job):
        raise UsageError(f"--job {job!r}: a name without a slash is needed, and neither . nor ..")
    address, token = service_clients(service, token_file)
    alone = starts_ranks_itself(command)
    place = place_in_slurm(alone)
    several = place is not None and len(place.nodes) > 1
    bounds = bounds_of(nnodes or (str(len(place.nodes)) if place is not None else "1"))
    if place is not None and several and rendezvous is None:
        rendezvous = f"{address_of_leader(place)}:{place.port}"
    if bounds.most > 1 and starts_ranks_itself(command):
        raise UsageError(f"{command[0]} finds its other nodes itself: give --nnodes to it, and start pitstop run on each node")
    request = Launch(
        job=job or (place.name or place.job if place is not None else default_job(command)),
        command=tuple(command),
        ranks=ranks,
        max_restarts=max_restarts,
        node=node or (place.node if place is not None else socket.gethostname()),
        python=job_interpreter(python, command, os.environ.get("PATH")),
        bounds=bounds,
        rendezvous=rendezvous_of(rendezvous, bounds),
        order=place.node_rank if several and place is not None and node_rank is None else node_rank,
        place=place,
        spare=spare,
        service_meant=service != DEFAULT_SERVICE,
    )
    try:
        status = launch_job(request, job_directory(data_dir, place), lambda: ServiceClient(address, token), time.time())
    except LaunchError as problem:
        raise UsageError(str(problem)) from None
    raise SystemExit(status)
