"""Jobs, their attempts and heartbeats: what launchers and agents report."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from anyio import to_thread
from fastapi import APIRouter, Depends, Path, Query, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from rules.identity import addressable
from service.access import Principal, PrincipalDependency, Right, Role, allow
from service.api.documents import attempt_document, job_document, listing, offset_of, rank_state_document
from service.heartbeats import Heartbeat, note_wait, store_heartbeats
from service.placements import tell_taken_back
from service.problems import Problem, conflict
from service.progress import Sighting, note_generation
from service.slurm_words import note_slurm_job
from service.state import Service, ServiceDependency
from service.store.accounts import GenerationRow
from service.store.events import publish_event
from service.store.jobs import Attempt, Job, JobState, current_attempt, find_attempt, rank_states

__all__ = ["JobName", "hold_heartbeat", "job_or_404", "launched_job", "router"]

router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"])

JobName = Annotated[str, Path(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f]+$")]
Name = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f]+$")]
Epoch = Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]


class Report(BaseModel):
    """Senders may be newer than this service: what it does not know, it leaves."""

    model_config = ConfigDict(extra="ignore")


class SchedulerPlace(Report):
    """Which job of a scheduler carries this one. `restarts`: how often it requeued it; `nodes`: what it gave to this attempt."""

    kind: Literal["slurm"]
    id: Annotated[str, Field(pattern=r"^[1-9][0-9]{0,9}$")]
    cluster: Annotated[str, Field(max_length=64, pattern=r"^[^\x00-\x1f\x7f]*$")] = ""
    restarts: Count = 0
    nodes: list[Name] = Field(default=[], max_length=100_000)


def check_addressable(name: str) -> str:
    """Raises ValueError for a name that no address can hold: clients and servers take it for part of the path."""
    if not addressable(name):
        raise ValueError("a job's name holds no slash, and is neither . nor ..: it stands in addresses")
    return name


class JobRegistration(Report):
    job: Annotated[Name, AfterValidator(check_addressable)]
    owner: Name | None = None
    contact: Name | None = None
    project: Name | None = None
    command: list[str] = Field(default=[], max_length=4096)
    ranks: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    nodes: list[Name] = Field(default=[], max_length=100_000)
    min_ranks: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    layout: dict[str, Any] | None = None
    checkpoint_policy: dict[str, Any] | None = None
    max_restarts: Count | None = None
    scheduler: SchedulerPlace | None = None


class JobChange(Report):
    """What is not named stays; a null empties what may be empty."""

    owner: Name | None = None
    contact: Name | None = None
    project: Name | None = None
    nodes: list[Name] = Field(default=[], max_length=100_000)
    min_ranks: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    layout: dict[str, Any] | None = None
    checkpoint_policy: dict[str, Any] | None = None
    max_restarts: Count | None = None


class RankPlace(Report):
    rank: Count
    local_rank: Count = 0
    node: Name | None = None
    pid: Count | None = None


class RendezvousStore(Report):
    host: Name
    port: Annotated[int, Field(ge=0, le=65535)]


class AttemptReport(Report):
    attempt: Count
    generation: Count
    cause: Literal["start", "restart", "takeover", "self"] = "start"
    directive_id: Annotated[str, Field(max_length=64)] | None = None
    ranks: list[RankPlace] = Field(default=[], max_length=1_000_000)
    store: RendezvousStore | None = None
    started_at: Epoch | None = None


class RankReport(Report):
    rank: Count
    step: Annotated[int, Field(ge=-1, le=2**53)] | None = None
    step_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    loss: float | None = None
    state: Literal["running", "exited", "silent"] = "running"
    age_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    completed: Annotated[int, Field(ge=0, le=2**53)] | None = None
    section: Annotated[str, Field(max_length=32)] | None = None


class HeartbeatReport(Report):
    attempt: Count
    generation: Count
    node: Name | None = None
    ranks: list[RankReport] = Field(default=[], max_length=100_000)
    waits_for: Annotated[str, Field(max_length=1024)] | None = None
    time: Epoch | None = None
    ended: bool = False
    exit_status: Annotated[int, Field(ge=-255, le=255)] | None = None


def job_or_404(session: Session, name: str) -> Job:
    job = session.get(Job, name)
    if job is None:
        raise Problem(404, f"no job {name!r} is registered: POST /api/v1/jobs first")
    return job


def launches_for(principal: Principal, project: str | None) -> bool:
    """Not where a launcher's token is bound to other projects."""
    return principal.role is not Role.LAUNCHER or principal.bound_to(project)


def check_project(principal: Principal, project: str | None) -> None:
    """403 where the caller does not launch for `project`."""
    if not launches_for(principal, project):
        raise Problem(403, f"the token {principal.name!r} launches only for project {' or '.join(principal.binding)}")


def launched_job(session: Session, name: str, principal: Principal) -> Job:
    """The job, where the caller may report for it."""
    job = job_or_404(session, name)
    check_project(principal, job.project)
    return job


@router.post(
    "",
    status_code=201,
    operation_id="registerJob",
    dependencies=[Depends(allow(Right.LAUNCH))],
    responses={200: {"description": "It was registered before.", "model": dict[str, Any]}},
)
def register_job(
    body: JobRegistration, service: ServiceDependency, principal: PrincipalDependency, response: Response
) -> dict[str, Any]:
    """Register a job, by name: 201 the first time, 200 and its present document after that."""
    now = service.clock()
    fields = body.model_dump(exclude={"job", "scheduler"}, exclude_unset=True)
    check_project(principal, body.project)
    with service.heartbeats.settled(body.job), service.store.writing() as session:
        job = session.get(Job, body.job)
        if job is not None:
            check_project(principal, job.project)
        if job is None:
            fields = body.model_dump(exclude={"job", "scheduler"})
            job = Job(
                name=body.job,
                **fields,
                created_at=now,
                updated_at=now,
                state=JobState.REGISTERED.value,
                generation=0,
                weight=1.0,
                modes={},
                local=principal.capped,
            )
            session.add(job)
            publish_event(session, "job.registered", body.job, {"project": body.project}, now)
        else:
            response.status_code = 200
            for name, value in fields.items():
                setattr(job, name, value)
            job.updated_at = now
        session.flush()
        if body.scheduler is not None:
            note_slurm_job(session, body.job, body.scheduler.model_dump(), now)
        return job_document(job)


@router.get("", operation_id="listJobs", dependencies=[Depends(allow(Right.READ))])
def list_jobs(
    service: ServiceDependency,
    state: JobState | None = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    cursor: str | None = None,
) -> dict[str, Any]:
    """Jobs, the most recently changed first."""
    offset = offset_of(cursor)
    chosen = select(Job) if state is None else select(Job).where(Job.state == state.value)
    with service.store.reading() as session:
        total = session.scalar(select(func.count()).select_from(chosen.subquery())) or 0
        rows = session.scalars(chosen.order_by(Job.updated_at.desc(), Job.name).offset(offset).limit(limit)).all()
    return listing(rows, job_document, total, offset, limit)


@router.get("/{job}", operation_id="getJob", dependencies=[Depends(allow(Right.READ))])
def get_job(job: JobName, service: ServiceDependency) -> dict[str, Any]:
    """A job with its attempts and what its ranks last said."""
    with service.store.reading() as session:
        row = job_or_404(session, job)
        attempts = session.scalars(select(Attempt).where(Attempt.job == job).order_by(Attempt.number.desc()).limit(100)).all()
        ranks = rank_states(session, job)
        return {
            **job_document(row),
            "attempts": [attempt_document(attempt) for attempt in attempts],
            "rank_states": [rank_state_document(state) for state in ranks],
        }


@router.patch("/{job}", operation_id="changeJob", dependencies=[Depends(allow(Right.LAUNCH))])
def change_job(job: JobName, body: JobChange, service: ServiceDependency, principal: PrincipalDependency) -> dict[str, Any]:
    """Change what the owner may change; what is not named stays."""
    with service.heartbeats.settled(job), service.store.writing() as session:
        row = launched_job(session, job, principal)
        if "project" in body.model_fields_set:
            check_project(principal, body.project)
        for name, value in body.model_dump(exclude_unset=True).items():
            setattr(row, name, value)
        row.updated_at = service.clock()
        session.flush()
        return job_document(row)


@router.post(
    "/{job}/attempts",
    status_code=201,
    operation_id="reportAttempt",
    dependencies=[Depends(allow(Right.LAUNCH))],
    responses=conflict("The generation is over.") | {200: {"description": "The attempt was known.", "model": dict[str, Any]}},
)
def report_attempt(
    job: JobName, body: AttemptReport, service: ServiceDependency, principal: PrincipalDependency, response: Response
) -> dict[str, Any]:
    """An attempt began, or re-formed under a new generation. A generation below the job's own is refused."""
    now = service.clock()
    with service.heartbeats.settled(job), service.store.writing() as session:
        row = launched_job(session, job, principal)
        if body.generation < row.generation:
            raise Problem(409, f"generation {body.generation} is over: {job} is at {row.generation}", generation=row.generation)
        before = current_attempt(session, job)
        if before is not None and before.generation < body.generation and body.cause == "self":
            places = [place.model_dump() for place in body.ranks]
            tell_taken_back(session, job, before, places, body.generation, now)
        attempt = find_attempt(session, job, body.attempt)
        fields = body.model_dump(exclude={"attempt"})
        fields["started_at"] = now if body.started_at is None else body.started_at
        if attempt is None:
            attempt = Attempt(job=job, number=body.attempt, **fields)
            session.add(attempt)
        else:
            response.status_code = 200
            for name, value in fields.items():
                setattr(attempt, name, value)
        told = body.started_at is not None
        node = next((place.node for place in body.ranks if place.node and told), None)
        note_generation(session, row, body.generation, body.attempt, len(body.ranks), node, fields["started_at"])
        row.generation = body.generation
        row.state = JobState.RUNNING.value
        row.exit_status = row.ended_at = None
        carries = {place.node for place in body.ranks}
        row.waits = {name: wait for name, wait in row.waits.items() if name not in carries}
        row.updated_at = row.heartbeat_at = now
        session.flush()
        announced = {
            "attempt": body.attempt,
            "generation": body.generation,
            "cause": body.cause,
            "directive_id": body.directive_id,
        }
        publish_event(session, "job.attempt", job, announced, now)
        return attempt_document(attempt)


def heartbeat_of(job: str, body: HeartbeatReport, now: float) -> Heartbeat:
    seen = tuple(
        Sighting(
            rank=said.rank,
            state=said.state,
            step=said.step,
            loss=said.loss,
            completed=said.completed,
            step_seconds=said.step_seconds,
            age_seconds=said.age_seconds,
            section=said.section,
        )
        for said in body.ranks
    )
    return Heartbeat(job, body.attempt, body.generation, body.node, seen, now, body.waits_for)


def hold_heartbeat(service: Service, principal: Principal, job: str, body: bytes) -> dict[str, Any] | None:
    """The answer to a heartbeat that has only steps and times to tell; None where it has to be looked into."""
    now = service.clock()
    standing = service.heartbeats.standing(job, now)
    if standing is None or Right.LAUNCH not in principal.rights or not launches_for(principal, standing.project):
        return None
    try:
        report = HeartbeatReport.model_validate_json(body)
    except ValidationError:
        return None
    if report.ended or report.generation != standing.generation or not service.heartbeats.hold(heartbeat_of(job, report, now)):
        return None
    return {"generation": standing.generation, "accepted": True, "state": standing.state}


@router.post("/{job}/heartbeat", operation_id="reportHeartbeat", dependencies=[Depends(allow(Right.LAUNCH))])
async def report_heartbeat(
    job: JobName, body: HeartbeatReport, service: ServiceDependency, principal: PrincipalDependency
) -> dict[str, Any]:
    """What the ranks of one node are doing; with `ended`, that the job is over. One of an older generation changes nothing, nor
    does one of a newer generation of which no rank runs: it may never be formed, and the present one may live."""
    heartbeat = heartbeat_of(job, body, service.clock())
    standing = await to_thread.run_sync(service.heartbeats.look_up, job)
    waits = standing.waits.get(body.node or "", {}).get("for") if standing is not None else None
    if standing is not None and not body.ranks and waits is not None and waits == body.waits_for:
        check_project(principal, standing.project)
        return {"generation": standing.generation, "accepted": True, "state": standing.state}
    if standing is None or standing.state != JobState.RUNNING or standing.generation != body.generation or body.ended:
        return await to_thread.run_sync(change_by_heartbeat, service, principal, heartbeat, body.ended, body.exit_status)
    check_project(principal, standing.project)
    await service.first_heartbeats.put(heartbeat)
    return {"generation": standing.generation, "accepted": True, "state": standing.state}


def change_by_heartbeat(
    service: Service, principal: Principal, heartbeat: Heartbeat, ended: bool, exit_status: int | None
) -> dict[str, Any]:
    """Store a heartbeat that changes its job: that it runs, is of another generation, or is over."""
    job, now = heartbeat.job, heartbeat.at
    with service.heartbeats.settled(job), service.store.writing() as session:
        row = launched_job(session, job, principal)
        if heartbeat.waits_for is not None and not heartbeat.seen:
            # Of a node that carries nothing: it says nothing of what the job is.
            note_wait(row, heartbeat)
            return {"generation": row.generation, "accepted": True, "state": row.state}
        is_new = heartbeat.generation > row.generation
        if heartbeat.generation < row.generation or (is_new and not heartbeat.runs and not ended):
            return {"generation": row.generation, "accepted": False, "state": row.state}
        if is_new:
            # Whatever ended before, this lives.
            row.ended_at = row.exit_status = None
        row.generation = heartbeat.generation
        session.flush()
        store_heartbeats(session, {job: row}, [heartbeat])
        state = row.state
        if ended:
            row.waits = {}
            row.ended_at = now
            row.exit_status = exit_status
            row.state = (JobState.ENDED if exit_status == 0 else JobState.FAILED).value
            attempt = find_attempt(session, job, heartbeat.attempt)
            if attempt is not None:
                attempt.ended_at = now
            generation = session.get(GenerationRow, (job, heartbeat.generation))
            if generation is not None and exit_status == 0:
                generation.done_at = now
        elif row.state == JobState.REGISTERED and heartbeat.runs:
            row.state = JobState.RUNNING.value
        if row.state != state:
            row.updated_at = now
            publish_event(session, f"job.{row.state}", job, {"exit_status": row.exit_status}, now)
        return {"generation": row.generation, "accepted": True, "state": row.state}
