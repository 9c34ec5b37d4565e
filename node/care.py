"""The care of one job, as a pure step function: what an agent does about exits, commands, signals and silence.

`step(care, event, now) -> (care, actions)`; `now` is a monotonic clock in seconds. The rules that matter:
- Ranks are restarted or stopped by a command of the service. Only when nothing is heard for `PATIENCE_SECONDS` after a failure
  does the agent act by itself, as a launcher without Pitstop would: a restart while restarts are left, else it gives up.
- Nothing but a rank's failure, a command or the user's signal ever touches the ranks. A silent service does not.
- A generation is only ever raised; a command that proposes one not above ours is refused.
"""

from __future__ import annotations

import signal
from dataclasses import replace

from detectors.supervisor import RankExit, first_failure
from node.care_states import (
    Action,
    Care,
    Command,
    CommandArrived,
    End,
    Event,
    Exited,
    Formed,
    Heard,
    Interrupted,
    KillRanks,
    NewerFormed,
    NotFormed,
    Noticed,
    Overtaken,
    Peers,
    Phase,
    PostFailure,
    PostNotice,
    Raised,
    Rejoined,
    Report,
    Respawn,
    Returned,
    Spawned,
    Tick,
)
from node.command_args import barred_after, delay_of, known_values, names_in, resume_after
from node.going_on import can_go_on, goes_on, on_peers, on_rejoined, reform, survivors

__all__ = ["step"]

PATIENCE_SECONDS = 5.0
# Too few nodes to go on by themselves need somebody who decides: they wait for that, or for the others, for this long.
FEW_SECONDS = 60.0
# An answer to a failure report promises a command; a service that then only keeps breathing is waited for this long.
DECISION_SECONDS = 60.0
# After the first failure, the others' exits and last lines belong to the same report.
SETTLE_SECONDS = 0.3
# Where every rank has ended or said what ends it, only the rest of its last words is waited for.
LAST_WORDS_SECONDS = 0.1
SETTLE_AT_MOST_SECONDS = 1.0
TERM_SECONDS = 5.0
# The cause of a generation that was begun for a node that came back.
RETURN = "return"
# The directive that lets ranks go on in their processes and nothing else.
ADAPT = "adapt"


def step(care: Care, event: Event, now: float) -> tuple[Care, tuple[Action, ...]]:
    """What follows from `event`. Pure: the same care, event and time always give the same answer."""
    if care.phase is Phase.ENDED:
        return care, ()
    match event:
        case Exited(exit=item):
            return on_exit(care, item, now)
        case CommandArrived():
            return on_command(care, event, now)
        case Heard(accepted=accepted, approval=approval):
            return replace(
                care,
                heard_at=now,
                accepted_at=now if accepted and care.accepted_at is None else care.accepted_at,
                needs_approval=approval if accepted else care.needs_approval,
            ), ()
        case Interrupted(once=True) if care.interrupted:
            return care, ()
        case Interrupted(number=number):
            return on_interrupt(care, number, now)
        case Noticed(kind=kind, rank=rank, why=why, bad_since=bad_since):
            if care.phase is not Phase.RUNNING or kind in care.noticed:
                return care, ()
            return replace(care, noticed=care.noticed | {kind}), (PostNotice(rank, why, kind, bad_since),)
        case Peers():
            return on_peers(care, event, now)
        case Overtaken():
            return on_overtaken(care, event, now)
        case Raised(exit=item):
            return on_raised(care, item, now)
        case Formed(generation=generation, ranks=ranks):
            if care.phase is not Phase.STARTING or generation != care.generation:
                return care, ()
            return replace(care, formed=True, ranks=ranks, running=frozenset(range(ranks))), ()
        case NotFormed(generation=generation, why=why):
            if care.phase is not Phase.STARTING or care.formed or generation != care.generation:
                return care, ()
            return end(care, 1, why)
        case NewerFormed():
            # What it means depends on nodes: the agent says so.
            return care, ()
        case Rejoined(ranks=ranks):
            return on_rejoined(care, ranks)
        case Returned(nodes=nodes):
            return on_returned(care, nodes, now)
        case Spawned(generation=generation):
            return on_spawned(care, generation, now)
        case Tick():
            return on_tick(care, now)


def on_exit(care: Care, item: RankExit, now: float) -> tuple[Care, tuple[Action, ...]]:
    if item.generation != care.generation or item.rank not in care.running:
        return care, ()
    if care.phase in (Phase.RESTARTING, Phase.STOPPING) and not (care.phase is Phase.STOPPING and care.interrupted):
        item = replace(item, by_us=True)
    if care.held_until is not None:
        item = replace(item, by_us=True)
    raised = tuple(before for before in care.raised if before.rank != item.rank)
    care = replace(care, running=care.running - {item.rank}, exits=(*care.exits, item), raised=raised, last_exit_at=now)
    return judge_exits(care, now)


def on_raised(care: Care, item: RankExit, now: float) -> tuple[Care, tuple[Action, ...]]:
    """The end of a process that tears torch down takes seconds; what it died of is known before."""
    if item.generation != care.generation or item.rank not in care.running or item.rank in {it.rank for it in care.raised}:
        return care, ()
    if care.phase not in (Phase.STARTING, Phase.RUNNING, Phase.FAILED):
        return care, ()
    return judge_exits(replace(care, raised=(*care.raised, item), last_exit_at=now), now)


def judge_exits(care: Care, now: float) -> tuple[Care, tuple[Action, ...]]:
    failed = first_failure(care.failures)
    if care.phase is Phase.RUNNING and failed is not None:
        if goes_on(care):
            return reform(care, f"rank {failed.rank}: {failed.description}")
        return replace(care, phase=Phase.FAILED, failed_at=now, why=f"rank {failed.rank}: {failed.description}"), ()
    if not care.running:
        return all_ended(care, now)
    return care, ()


def all_ended(care: Care, now: float) -> tuple[Care, tuple[Action, ...]]:
    if care.phase is Phase.RUNNING:
        return end(care, 0, "the command ended well")
    if care.phase is Phase.STOPPING:
        well = care.interrupted and all(item.code == 0 for item in care.exits)
        return end(care, 0 if well else 1, care.why)
    if care.phase is Phase.RESTARTING:
        if care.delay_seconds > 0:
            return replace(care, respawn_at=now + care.delay_seconds), ()
        return respawn(care)
    if care.phase is Phase.FAILED and care.command is not None:
        report = Report(care.command.id, "done", "every process of the job is gone, to go on when it is told to")
        return replace(care, command=None, done={**care.done, care.command.id: "done"}), (report,)
    return care, ()


def end(care: Care, status: int, why: str) -> tuple[Care, tuple[Action, ...]]:
    actions: list[Action] = []
    done = care.done
    if care.command is not None:
        done = {**done, care.command.id: "done"}
        actions.append(Report(care.command.id, "done", "every process of the job has ended"))
    actions.append(End(status, why))
    return replace(care, phase=Phase.ENDED, done=done, command=None, why=why), tuple(actions)


def respawn(care: Care) -> tuple[Care, tuple[Action, ...]]:
    generation = care.next_generation if care.next_generation is not None else care.generation + 1
    respawn = Respawn(generation, care.cause, care.resume, care.nodes)
    care = replace(
        care,
        phase=Phase.STARTING,
        generation=generation,
        restarts=care.restarts + (care.cause != RETURN),
        running=frozenset(),
        formed=False,
        nodes=(),
        exits=(),
        raised=(),
        failed_at=None,
        last_exit_at=None,
        noticed=frozenset(),
        posted=False,
        accepted_at=None,
        needs_approval=False,
        kill_at=None,
        delay_seconds=0.0,
        respawn_at=None,
        held_until=None,
        next_generation=None,
    )
    return care, (respawn,)


def on_returned(care: Care, nodes: tuple[str, ...], now: float) -> tuple[Care, tuple[Action, ...]]:
    """Go on in the larger formation: by itself, as an elastic launcher does, and at no cost of a restart."""
    if care.phase is not Phase.RUNNING:
        return care, ()
    why = f"{', '.join(nodes)} can carry ranks again"
    care = replace(care, phase=Phase.RESTARTING, cause=RETURN, next_generation=care.generation + 1, resume={}, why=why)
    return end_ranks(care, now, signal.SIGKILL)


def on_overtaken(care: Care, event: Overtaken, now: float) -> tuple[Care, tuple[Action, ...]]:
    """Two halves of a job must never both go on: the older one ends."""
    if care.leaves:
        return care, ()
    refused: tuple[Action, ...] = ()
    if care.command is not None and care.command.kind == "restart_ranks":
        refused = (Report(care.command.id, "refused", f"generation {event.generation} is led by another node"),)
        care = replace(care, command=None, done={**care.done, care.command.id: "refused"})
    why = f"another node leads the job, generation {event.generation}: what is left here of generation {care.generation} is ended"
    left = replace(care, phase=Phase.STOPPING, leaves=True, why=why, running=care.running & event.ours)
    left = replace(left, next_generation=max(care.generation, event.generation))
    care, actions = end_ranks(left, now, signal.SIGKILL)
    return care, (*refused, *actions)


def on_spawned(care: Care, generation: int, now: float) -> tuple[Care, tuple[Action, ...]]:
    if care.phase is not Phase.STARTING or not care.formed or generation != care.generation:
        return care, ()
    if care.interrupted:
        return end_ranks(replace(care, phase=Phase.STOPPING), now, signal.SIGTERM)
    care = replace(care, phase=Phase.RUNNING, why="")
    report: tuple[Action, ...] = ()
    if care.command is not None:
        report = (Report(care.command.id, "done", f"{care.ranks} ranks started under generation {generation}"),)
        care = replace(care, command=None, done={**care.done, care.command.id: "done"})
    # Ranks may have ended before all of them were started.
    care, actions = judge_exits(care, now)
    return care, report + actions


def on_command(care: Care, event: CommandArrived, now: float) -> tuple[Care, tuple[Action, ...]]:
    command, wall_time = event.command, event.wall_time
    care = replace(care, heard_at=now)
    if command.id in care.done or (care.command is not None and care.command.id == command.id):
        return care, ()

    def answered(status: str, detail: str) -> tuple[Care, tuple[Action, ...]]:
        return replace(care, done={**care.done, command.id: status}), (Report(command.id, status, detail),)

    if command.deadline is not None and wall_time > command.deadline:
        return answered("expired", "the deadline passed before the command arrived")
    forming = care.phase is Phase.STARTING and not care.formed
    if not forming and (care.command is not None or care.phase in (Phase.STARTING, Phase.RESTARTING, Phase.STOPPING)):
        return answered("refused", f"the agent is {care.phase.value} already, generation {care.generation}")
    if command.kind == "restart_ranks":
        # While nobody has come for the present generation yet, it may as well be the command's.
        if command.generation <= care.generation and not (forming and command.generation == care.generation):
            return answered("refused", f"generation {command.generation} is not above the present one, {care.generation}")
        if event.hindrance is not None:
            return answered("refused", event.hindrance)
        if event.in_place and not known_values(command.args.get("resume")) and can_go_on(care):
            told, (report,) = answered("done", f"ranks {sorted(survivors(care))} go on in their processes")
            after, actions = reform(replace(told, barred=barred_after(care, command)), care.why, command)
            return after, (*actions, report)
        if command.args.get("directive") == ADAPT:
            return answered("failed", "not all ranks that are left wait for a new group: they cannot go on in their processes")
        care, overtaken = overtake(care, command)
        care = replace(
            care,
            phase=Phase.RESTARTING,
            command=command,
            nodes=names_in(command.args.get("nodes")),
            barred=barred_after(care, command),
            next_generation=command.generation,
            cause="restart",
            resume=resume_after(care.resume, known_values(command.args.get("resume"))),
            delay_seconds=delay_of(command.args.get("delay_seconds")),
        )
        care, actions = end_ranks(care, now, signal.SIGKILL)
        return care, (*overtaken, *actions)
    if command.kind == "stop_ranks":
        if command.is_over(care.generation):
            return answered("refused", f"generation {command.generation} is over; here it is {care.generation}")
        why = str(command.args.get("why") or "the service said stop")
        care, overtaken = overtake(care, command)
        if command.args.get("hold"):
            care, actions = hold_ranks(care, command, why, now)
            return care, (*overtaken, *actions)
        leaves = bool(names_in(command.args.get("going_on")))
        care = replace(care, phase=Phase.STOPPING, command=command, why=why, leaves=leaves)
        care, actions = end_ranks(care, now, signal.SIGTERM)
        return care, (*overtaken, *actions)
    return answered("refused", f"this agent does not do {command.kind}")


def overtake(care: Care, command: Command) -> tuple[Care, tuple[Action, ...]]:
    """Give up a command whose nodes have not come yet, for the one that followed it."""
    if care.command is None:
        return care, ()
    report = Report(care.command.id, "failed", f"not all of its nodes came before command {command.id} did")
    return replace(care, command=None, done={**care.done, care.command.id: "failed"}), (report,)


def hold_ranks(care: Care, command: Command, why: str, now: float) -> tuple[Care, tuple[Action, ...]]:
    """Kill the ranks, and wait to be told what becomes of the job: its nodes are to be probed meanwhile."""
    running = care.phase is Phase.RUNNING
    care = replace(
        care,
        phase=Phase.FAILED,
        command=command,
        # A failure is reported once: where the ranks still ran, whoever has them stopped knows of it.
        posted=care.posted or running,
        failed_at=now if care.failed_at is None else care.failed_at,
        accepted_at=now,
        held_until=now + delay_of(command.args.get("hold_seconds")),
        why=care.why or why,
    )
    return end_ranks(care, now, signal.SIGKILL)


def end_ranks(care: Care, now: float, number: int) -> tuple[Care, tuple[Action, ...]]:
    if not care.running:
        return all_ended(care, now)
    kill_at = now + TERM_SECONDS if number != signal.SIGKILL else now + SETTLE_AT_MOST_SECONDS
    return replace(care, kill_at=kill_at), (KillRanks(number),)


def on_interrupt(care: Care, number: int, now: float) -> tuple[Care, tuple[Action, ...]]:
    name = signal.Signals(number).name
    if care.interrupted and number != signal.SIGINT:
        # A scheduler tells every node of a job, and again at its time limit: only a person means more by the second time.
        return care, ()
    if care.interrupted:
        return replace(care, kill_at=now + SETTLE_AT_MOST_SECONDS), (KillRanks(signal.SIGKILL),)
    care = replace(care, interrupted=True, why=f"{name} was passed on to the ranks")
    if care.phase is Phase.STARTING and care.formed:
        return care, ()
    care = replace(care, phase=Phase.STOPPING, kill_at=now + care.grace_seconds)
    if not care.running:
        return all_ended(care, now)
    return care, (KillRanks(number),)


def on_tick(care: Care, now: float) -> tuple[Care, tuple[Action, ...]]:
    if care.kill_at is not None and now >= care.kill_at and care.running:
        return replace(care, kill_at=now + SETTLE_AT_MOST_SECONDS), (KillRanks(signal.SIGKILL),)
    if care.respawn_at is not None and now >= care.respawn_at:
        return respawn(care)
    if care.phase is not Phase.FAILED or care.failed_at is None:
        return care, ()
    if not care.posted:
        patience = SETTLE_SECONDS if survivors(care) else LAST_WORDS_SECONDS
        settled = not care.running or now - (care.last_exit_at or care.failed_at) >= patience
        if settled or now - care.failed_at >= SETTLE_AT_MOST_SECONDS:
            return replace(care, posted=True), (PostFailure(care.failures),)
        return care, ()
    if care.accepted_at is None:
        alone = now - care.failed_at >= PATIENCE_SECONDS
    else:
        silent = now - max(care.accepted_at, care.heard_at or 0.0) >= PATIENCE_SECONDS
        since = max(care.accepted_at, care.held_until or 0.0)
        alone = silent or (not care.needs_approval and now - since >= DECISION_SECONDS)
    enough = care.alone or now - care.failed_at >= FEW_SECONDS
    return act_alone(care, now) if alone and enough else (care, ())


def act_alone(care: Care, now: float) -> tuple[Care, tuple[Action, ...]]:
    """What a launcher without Pitstop does, with the nodes that there are: go on with the ranks that can, else restart."""
    first = first_failure(care.failures)
    cause = f"rank {first.rank} failed ({first.description})" if first else care.why
    if care.alone and can_go_on(care):
        return reform(care, cause)
    if care.restarts < care.max_restarts:
        care = replace(care, phase=Phase.RESTARTING, cause="self", next_generation=care.generation + 1, why=cause)
        care = replace(care, resume=resume_after(care.resume, {}))
        return end_ranks(care, now, signal.SIGKILL)
    care = replace(care, phase=Phase.STOPPING, why=f"{cause}, and no restart is left of {care.max_restarts}")
    return end_ranks(care, now, signal.SIGTERM)
