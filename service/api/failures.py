"""Failure reports and the directive that answers them."""

from __future__ import annotations

import time
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Depends, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from service.access import Principal, PrincipalDependency, Right, allow
from service.api.jobs import JobName, launched_job
from service.directives import RETRY_AFTER_SECONDS
from service.incidents import FailureReport
from service.problems import Problem
from service.progress import note_last_step
from service.state import Service, ServiceDependency

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/jobs", tags=["failures"])

# Storing comes before any answer; a database that takes longer than this is overloaded.
STORE_SECONDS = 4.0

Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
Text = Annotated[str, Field(max_length=65_536)]


class Document(BaseModel):
    model_config = ConfigDict(extra="ignore")


class FailedRank(Document):
    rank: Count | None = None
    node: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    exit_code: Annotated[int, Field(ge=-255, le=2**31 - 1)] | None = None
    signal: Annotated[int, Field(ge=0, le=128)] | None = None
    error: Text | dict[str, Any] | None = None
    # When the agent saw the process end, and when the process itself raised: seconds since the epoch.
    time: float | None = None
    raised_at: float | None = None


class NamedCheckpoint(Document):
    """`path` may be left to the job, which knows its checkpoints by step."""

    step: Annotated[int, Field(ge=0, le=2**53)]
    path: Annotated[str, Field(min_length=1, max_length=4096)] | None = None


class UnreachableNode(Document):
    """A node of the job that the reporting agent cannot reach: a witness, should its lease run out too."""

    node: Annotated[str, Field(min_length=1, max_length=255)]
    since: float | None = None
    why: Annotated[str, Field(max_length=1024)] = ""


class FailureDocument(Document):
    attempt: Count
    generation: Count
    idempotency_key: Annotated[str, Field(min_length=1, max_length=255)]
    failed: list[FailedRank] = Field(default=[], max_length=100_000)
    # None from a launcher that knows of no other agents; where given, what is not named in it was within reach.
    unreachable: Annotated[list[UnreachableNode], Field(max_length=1000)] | None = None
    last_step: Annotated[int, Field(ge=-1, le=2**53)] | None = None
    # Those that are complete on disk, and the first step whose numbers were wrong, where that is what failed.
    checkpoints: list[NamedCheckpoint] = Field(default=[], max_length=1000)
    bad_since: Annotated[int, Field(ge=0, le=2**53)] | None = None
    # The node whose agent tells it, and the ranks that can go on in their processes without those that failed.
    told_by: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    in_place: list[Count] = Field(default=[], max_length=100_000)
    last_checkpoint: NamedCheckpoint | Annotated[str, Field(max_length=4096)] | None = None


@router.post("/{job}/failures", operation_id="reportFailure", dependencies=[Depends(allow(Right.LAUNCH))])
async def report_failure(
    job: JobName,
    body: FailureDocument,
    service: ServiceDependency,
    principal: PrincipalDependency,
    response: Response,
    wait: Annotated[float, Query(ge=0, le=60)] = 0.0,
) -> dict[str, Any]:
    """The job failed: what is to be done? Answers within `wait` seconds; undecided is `wait`, to be asked again with the same
    key. Once decided, the same failure gets the same answer for ever."""
    until = time.monotonic() + wait
    with anyio.move_on_after(wait + STORE_SECONDS):
        recovery, seen = await anyio.to_thread.run_sync(_store, service, principal, job, body, abandon_on_cancel=True)
        service.supervisor.nudge()
        while True:
            answer = await anyio.to_thread.run_sync(_directive, service, recovery)
            left = until - time.monotonic()
            if answer["directive"] != "wait" or left <= 0 or service.watch.closing:
                break
            seen = await _changed(service, seen, left)
        if answer["directive"] == "wait":
            response.headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
        return answer
    raise Problem(503, "the database is too slow; send the report again with the same key", headers={"Retry-After": "1"})


async def _changed(service: Service, seen: int, seconds: float) -> int:
    """Wait until something was published after event `seen`; the newest event id that is known then."""
    await service.watch.wait_after(seen, seconds)
    return max(seen, service.watch.last_id)


def _store(service: Service, principal: Principal, name: str, body: FailureDocument) -> tuple[int, int]:
    nodes = {rank.node for rank in body.failed}
    report = FailureReport(
        job=name,
        attempt=body.attempt,
        generation=body.generation,
        idempotency_key=body.idempotency_key,
        failed=tuple(rank.model_dump(exclude={"error"}) | {"error": rank.error} for rank in body.failed),
        last_step=None if body.last_step is None or body.last_step < 0 else body.last_step,
        vouched=bool(nodes) and all(principal.vouches_for(node) for node in nodes),
        document=body.model_dump(exclude={"idempotency_key"}),
    )
    with service.heartbeats.settled(name), service.store.writing() as session:
        launched_job(session, name, principal)
        note_last_step(session, name, report.generation, report.last_step)
        return service.recoveries.report(session, report).id, service.watch.last_id


def _directive(service: Service, recovery: int) -> dict[str, Any]:
    with service.store.reading() as session:
        return service.recoveries.directive(session, recovery)
