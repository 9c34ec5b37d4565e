"""From what `pitstop run` was asked for to an agent at work: a fresh start, or the take-over of ranks whose agent died."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from detectors.processes import is_running
from node.care_states import GRACE_SECONDS, Care, Phase
from node.job_on_node import JobOnNode, RendezvousError, pass_signals_to
from node.job_state import JobBusyError, JobFolder, JobState
from node.keeper_client import KeeperError
from node.link import Identity, ServiceLink
from node.log_shipping import Echo, LogShipping, log_files
from node.rank_group import Launch
from node.reports import registration_document
from node.service_client import Refused, ServiceClient, ServiceUnavailable
from node.spool import Spool
from node.tail import Position
from pitstop import layout
from rules.account import user_name

__all__ = ["LaunchError", "Start", "boot_id", "identity_of", "launch", "plan_start"]


SCHEDULER_GRACE_SECONDS = 86_400.0
# What the file systems of this kernel take at most; a job's folder is called as the job is.
MAX_NAME_BYTES = 255


class LaunchError(Exception):
    """Nothing was started; the message says what to do."""


class Start(StrEnum):
    FRESH = "fresh"
    TAKEOVER = "takeover"


def boot_id() -> str:
    return layout.read_boot_id().hex()


def plan_start(previous: JobState | None, launch: Launch, boot: str, now: float) -> tuple[Start, JobState]:
    """Whether the ranks of an earlier agent are to be taken over, and the state to begin with.

    The generation goes on from where the job's last one stood, whatever became of it. Raises LaunchError where a job of this name
    runs another command.
    """
    place = launch.place
    incarnation = "" if place is None else place.incarnation
    # A scheduler kills when its own time is up, and not before.
    grace = SCHEDULER_GRACE_SECONDS if place is not None else GRACE_SECONDS
    if previous is None or incarnation != previous.incarnation:
        # Another start by the scheduler, perhaps on other nodes: what an earlier one left here is over.
        generation = max(0 if previous is None else previous.care.generation + 1, 0 if place is None else place.restarts)
        care = Care(Phase.STARTING, launch.ranks, generation=generation, max_restarts=launch.max_restarts, grace_seconds=grace)
        after = 0 if previous is None else previous.after
        return Start.FRESH, JobState(launch.job, launch.command, boot, now, care, after=after, incarnation=incarnation)
    if previous.boot_id == boot and previous.care.phase is not Phase.ENDED:
        formation = previous.formation
        ranks = previous.care.ranks if formation is None else len(formation.ranks_of(launch.node)) or launch.ranks
        if previous.command != launch.command or ranks != launch.ranks:
            raise LaunchError(
                f"job {launch.job} was left running as {ranks} ranks of {' '.join(previous.command)!r}; "
                "start it with the same command to take it over, or choose another --job"
            )
        return Start.TAKEOVER, replace(previous, care=replace(previous.care, max_restarts=launch.max_restarts))
    generation = previous.care.generation + 1
    care = Care(
        Phase.STARTING,
        launch.ranks,
        generation=generation,
        max_restarts=launch.max_restarts,
        done=previous.care.done,
        grace_seconds=grace,
    )
    # A node that was down may find the others at work without it: it knows where they are.
    formation = previous.formation if previous.care.phase is not Phase.ENDED else None
    return Start.FRESH, JobState(
        launch.job,
        launch.command,
        boot,
        now,
        care,
        after=previous.after,
        formation=formation,
        met=previous.met,
        leads=previous.leads,
        incarnation=incarnation,
    )


def identity_of(node: str) -> Identity:
    from importlib.metadata import version

    versions = {"pitstop": version("pitstop"), "python": sys.version.split()[0]}
    return Identity(node, uuid.uuid4().hex, boot_id(), versions)


def say(text: str) -> None:
    print(f"pitstop: {text}", file=sys.stderr, flush=True)


def launch(request: Launch, data_directory: Path, new_client: Callable[[], ServiceClient] | None, now: float) -> int:
    """Run the job to its end; 0 when its command ended well, 1 when it was given up. `new_client` None: no service.

    Raises LaunchError where nothing was started.
    """
    folder = JobFolder.of(data_directory, request.job)
    try:
        folder.hold()
    except JobBusyError:
        raise LaunchError(f"job {request.job} is cared for by another pitstop run already; choose another --job") from None
    except OSError as problem:
        if problem.errno == errno.ENAMETOOLONG and len(folder.path.name) > MAX_NAME_BYTES:
            raise LaunchError("the job's name is too long for a folder's name; choose a shorter --job") from None
        raise LaunchError(
            f"the data directory cannot be used: {problem.strerror}: {problem.filename}; choose another with --data-dir"
        ) from None
    try:
        return launch_in(folder, request, new_client, now)
    finally:
        folder.release()


def registration_of(request: Launch) -> dict[str, Any]:
    least, most = (request.ranks * nodes for nodes in (request.bounds.least, request.bounds.most))
    document = registration_document(request.job, request.command, most, request.node, request.max_restarts, user_name(), least)
    return (
        document
        if request.place is None
        else {**document, "nodes": list(request.place.nodes), "scheduler": request.place.document}
    )


def above_known_generation(state: JobState, known: Mapping[str, Any]) -> JobState:
    """A job that is new to this data directory may be old to the service, which would refuse its past generations."""
    generation = known.get("generation")
    if not isinstance(generation, int) or (generation == 0 and known.get("state") == "registered"):
        return state
    return replace(state, care=replace(state.care, generation=max(state.care.generation, generation + 1)))


def end_leftovers(previous: JobState | None, state: JobState) -> None:
    """End what an earlier start by the scheduler left running here, as where its daemon had died."""
    if previous is None or previous.incarnation == state.incarnation or previous.boot_id != state.boot_id:
        return
    placement = previous.placement
    for process in (*(item.process for item in placement.processes), placement.store, placement.host, placement.keeper):
        if process is not None and is_running(process):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)


def ask_service(client: ServiceClient, registration: dict[str, Any]) -> Mapping[str, Any]:
    """What the service knows of the job; nothing where it does not answer."""
    try:
        return client.register_job(registration)
    except (ServiceUnavailable, Refused):
        return {}
    finally:
        client.close()


def launch_in(folder: JobFolder, request: Launch, new_client: Callable[[], ServiceClient] | None, now: float) -> int:
    try:
        previous = folder.load()
        kind, state = plan_start(previous, request, boot_id(), now)
        spool = Spool(folder.spool)
    except (OSError, ValueError) as problem:
        raise LaunchError(f"{problem}; move {folder.path} away to start this job anew") from None
    end_leftovers(previous, state)
    is_new = kind is Start.FRESH and (state.care.generation == 0 or request.place is not None)
    known: Mapping[str, Any] = {}
    if new_client is not None and (request.rendezvous is not None or is_new):
        known = ask_service(new_client(), registration_of(request))
    if is_new:
        state = above_known_generation(state, known)
    job = JobOnNode(request, folder, LogShipping(spool, request.job, request.node, folder.logs), say)
    if new_client is not None:
        identity, registration = identity_of(request.node), registration_of(request)
        about = identity, request.job, registration, spool
        job.link = ServiceLink(new_client, *about, job.put, say, job.heartbeat, state.after, request.service_meant)
        job.link.start()
    # Lines of earlier starts were shown by the agents of their time.
    shown = {path: Position(path.stat().st_size) for path, _, _ in log_files(folder.logs)}
    if kind is Start.TAKEOVER:
        current = {Path(item.log) for item in state.placement.processes}
        shown |= {path: spool.positions.get(str(path), Position()) for path in current}
    echo = Echo(shown.items(), folder.logs, sys.stdout.fileno())
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    pass_signals_to(job)
    try:
        return job.run(state, kind is Start.TAKEOVER, known.get("generation"))
    except (KeeperError, RendezvousError) as problem:
        raise LaunchError(str(problem)) from None
    finally:
        echo.finish(2.0)
        for number, handler in before.items():
            signal.signal(number, handler)
