"""Ranks that go on in their processes: what the agent decides, and what it can tell from their marks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from detectors.processes import ProcessId
from detectors.supervisor import RankExit
from node.care import step
from node.care_states import (
    Care,
    Command,
    CommandArrived,
    Exited,
    Heard,
    Interrupted,
    KillStuck,
    Peers,
    Phase,
    PostFailure,
    Reform,
    Rejoined,
    Report,
    Tick,
)
from node.formation import Formation, Member
from node.reforming import FORMATION, Marks, judge_stuck, read_marks, remove_formation, write_formation
from node.rejoining import Rejoining

ALL = frozenset(range(4))


def care(**fields: object) -> Care:
    return Care(Phase.RUNNING, 4, formed=True, **{"running": ALL, "elastic": ALL, **fields})  # type: ignore[arg-type]


def killed(rank: int, generation: int = 0) -> Exited:
    return Exited(RankExit(rank, generation, None, 9, 1.0))


def test_those_that_are_left_go_on_at_once_under_the_next_generation() -> None:
    after, actions = step(care(), killed(1), 1.0)
    assert after.phase is Phase.RUNNING and after.generation == 1 and after.restarts == 1
    (action,) = actions
    assert isinstance(action, Reform) and action.members == {0, 2, 3}
    assert [item.rank for item in action.before.failures] == [1] and action.before.generation == 0
    again, (second,) = step(after, killed(0, 1), 2.0)
    assert isinstance(second, Reform) and second.members == {2, 3} and again.generation == 2


def test_a_rank_that_cannot_go_on_makes_it_a_restart_like_any_other() -> None:
    for fields in ({"elastic": ALL - {2}}, {"restarts": 3}, {"running": frozenset({1})}):
        after, _ = step(care(**fields), killed(1), 1.0)
        assert after.phase is Phase.FAILED
        _, actions = step(after, Tick(), 5.0)
        assert any(isinstance(action, PostFailure) for action in actions)


def test_nothing_goes_on_that_is_being_ended() -> None:
    stopping, _ = step(care(), Interrupted(15), 1.0)
    after, actions = step(stopping, killed(1), 1.5)
    assert after.phase is Phase.STOPPING and not any(isinstance(action, Reform) for action in actions)


def test_all_ranks_that_left_go_on_together_and_one_that_hangs_is_ended_first() -> None:
    after, (action,) = step(care(), Peers(frozenset(), "all left"), 1.0)
    assert isinstance(action, Reform) and action.members == ALL and after.generation == 1
    same, (kill,) = step(care(), Peers(frozenset({3}), "stopped"), 1.0)
    assert isinstance(kill, KillStuck) and kill.ranks == {3} and same.generation == 0


def test_a_group_that_breaks_and_loses_nobody_costs_a_restart_only_where_not_a_step_was_done_since() -> None:
    state, restarts = care(), []
    for reached in (20, 31, 31, 31, 40, None):
        state, (action,) = step(state, Peers(frozenset(), "all left", step=reached), 1.0)
        assert isinstance(action, Reform) and action.members == ALL
        restarts.append(state.restarts)
    assert restarts == [0, 0, 1, 2, 2, 3]
    assert step(state, Peers(frozenset(), "all left", step=40), 1.0) == (state, ()), "a loop has its budget"


GONE = tuple(RankExit(rank, 0, None, None, 1.0, error="node n2 does not answer") for rank in (2, 3))


def test_ranks_that_nobody_reaches_are_left_behind_at_once_all_together() -> None:
    after, (action,) = step(care(elastic=frozenset({0, 1})), Peers(frozenset(), "n2 is gone", GONE), 1.0)
    assert isinstance(action, Reform) and action.members == {0, 1} and after.restarts == 1
    assert [item.rank for item in action.before.failures] == [2, 3]


def test_half_of_a_job_goes_on_only_when_it_is_told_to_and_then_in_its_processes() -> None:
    half, actions = step(care(elastic=frozenset({0, 1}), alone=False), Peers(frozenset(), "n2 is gone", GONE), 1.0)
    assert half.phase is Phase.FAILED and half.running == {0, 1} and not actions
    one, actions = step(care(alone=False), killed(3), 1.0)
    assert one.phase is Phase.FAILED and not actions, "whoever told of it: n2 may have been told to go on as well"
    posted, (post,) = step(half, Tick(), 2.0)
    assert isinstance(post, PostFailure)
    command = Command(7, "restart_ranks", 4, {"nodes": ["n1"], "isolated": ["n2"]})
    after, (reform, report) = step(posted, CommandArrived(command, 0.0, in_place=True), 3.0)
    assert isinstance(reform, Reform) and (reform.generation, reform.members, reform.command) == (4, {0, 1}, command)
    assert isinstance(report, Report) and report.status == "done" and after.done == {7: "done"}
    assert after.phase is Phase.RUNNING and after.barred == {"n2"} and after.cause == "restart"
    # A rollback is for new processes.
    back = Command(7, "restart_ranks", 4, {"nodes": ["n1"], "resume": {"step": 3}})
    again, _ = step(posted, CommandArrived(back, 0.0, in_place=True), 3.0)
    assert again.phase is Phase.RESTARTING


def test_a_job_that_ends_after_ranks_were_lost_ended_well() -> None:
    state, _ = step(care(), killed(1), 1.0)
    for rank in (0, 2, 3):
        state, actions = step(state, Exited(RankExit(rank, 1, 0, None, 2.0)), 2.0)
    assert state.phase is Phase.ENDED and actions[-1].status == 0  # type: ignore[union-attr]


def test_a_stopped_process_is_to_blame_at_once_and_a_slow_one_after_a_while() -> None:
    assert judge_stuck(ALL, (), (), 9.0) is None
    assert judge_stuck(ALL, {0, 1, 2}, (), 1.0) is None
    assert judge_stuck(ALL, {0, 1, 2}, {3}, 0.0).lost == {3}  # type: ignore[union-attr]
    assert judge_stuck(ALL, {0, 1, 2}, (), 6.0).lost == {3}  # type: ignore[union-attr]
    assert judge_stuck(ALL, ALL, (), 0.0).lost == frozenset()  # type: ignore[union-attr]


def test_ranks_out_of_reach_are_lost_once_everybody_else_waits_for_them() -> None:
    assert judge_stuck(ALL, {0}, (), 1.0, out_of_reach={2, 3}) is None
    found = judge_stuck(ALL, {0, 1}, (), 0.0, out_of_reach={2, 3})
    assert found is not None and found.lost == {2, 3} and found.unreachable
    # A silent agent alone touches no rank.
    assert judge_stuck(ALL, (), (), 9.0, out_of_reach={2, 3}) is None


def test_marks_of_other_processes_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / FORMATION
    for rank, pid, above in ((0, 10, None), (1, 11, 4), (2, 99, 4)):
        path.with_name(f"{FORMATION}.{rank}").write_text(json.dumps({"pid": pid, "waits_above": above}))
    path.with_name(f"{FORMATION}.3").write_text("{")
    marks = read_marks(path, {rank: ProcessId(10 + rank, 1) for rank in range(4)})
    assert marks.elastic == {0, 1} and marks.waiting_above(4) == {1} and not marks.waiting_above(5)


def test_what_the_agent_writes_is_what_the_ranks_read(tmp_path: Path) -> None:
    from pitstop.elastic.membership import parse_formation

    path = tmp_path / FORMATION
    write_formation(path, 3, {2, 0}, ("127.0.0.1", 4000), {0: Path("/log0"), 2: Path("/log2")})
    found = parse_formation(path.read_text(), 2)
    assert (found.generation, found.members, found.host, found.port, found.log) == (3, (0, 2), "127.0.0.1", 4000, "/log2")
    remove_formation(path)
    assert list(tmp_path.iterdir()) == []


def lost_at_a_price() -> Care:
    """Rank 1 of a job for which going on has a price was killed, the service has taken the report."""
    after, actions = step(care(priced=True), killed(1), 1.0)
    assert after.phase is Phase.FAILED and not actions
    posted, (post,) = step(after, Tick(), 1.5)
    assert isinstance(post, PostFailure)
    return step(posted, Heard(accepted=True), 1.6)[0]


ADAPT = Command(7, "restart_ranks", 1, {"nodes": ["n1"], "directive": "adapt"})


def test_where_going_on_has_a_price_the_service_says_whether_to() -> None:
    after, (reform, report) = step(lost_at_a_price(), CommandArrived(ADAPT, 0.0, in_place=True), 2.0)
    assert isinstance(reform, Reform) and (reform.generation, reform.members) == (1, {0, 2, 3})
    assert isinstance(report, Report) and report.status == "done" and after.phase is Phase.RUNNING
    # That nobody has died costs nothing: no need to ask.
    _, (again,) = step(care(priced=True), Peers(frozenset(), "all left"), 1.0)
    assert isinstance(again, Reform) and again.members == ALL


def test_an_adaptation_that_is_not_possible_is_answered_so_and_restarts_nobody() -> None:
    after, (report,) = step(lost_at_a_price(), CommandArrived(ADAPT, 0.0), 2.0)
    assert isinstance(report, Report) and report.status == "failed"
    assert after.phase is Phase.FAILED and after.running == {0, 2, 3} and after.generation == 0


def test_without_a_word_of_the_service_they_go_on_by_themselves_all_the_same() -> None:
    state, actions = lost_at_a_price(), ()
    for now in (3.0, 6.0, 7.0):
        state, actions = step(state, Tick(), now)
        if actions:
            break
    assert [type(action) for action in actions] == [Reform] and state.cause == "self" and state.phase is Phase.RUNNING


def test_ranks_that_are_ready_again_are_taken_in_once_and_count_as_no_restart() -> None:
    left, _ = step(lost_at_a_price(), CommandArrived(ADAPT, 0.0, in_place=True), 2.0)
    back, (reform,) = step(left, Rejoined(frozenset({1})), 9.0)
    assert isinstance(reform, Reform) and (reform.generation, reform.members) == (2, ALL)
    assert back.running == ALL and back.restarts == left.restarts and reform.before.failures == ()
    assert step(back, Rejoined(frozenset({1})), 9.1) == (back, ())


def test_lost_ranks_are_started_anew_once_where_their_node_is_there() -> None:
    formation = Formation(3, (Member("n1", 2, "h"), Member("n2", 2, "h")), lost=("n2",))
    present, marks = care(running=frozenset({0}), generation=3), Marks(frozenset({0}), {}, priced=frozenset({0}))
    rejoining = Rejoining()
    assert rejoining.to_start(present, formation, Marks(frozenset({0}), {0: 3}, priced=frozenset({0})), {"n1"}) == {}
    assert rejoining.to_start(present, formation, marks, {"n1"}) == {"n1": {1}}
    assert rejoining.to_start(present, formation, marks, {"n1"}) == {} and not rejoining.ready(present, marks)
    assert rejoining.to_start(replace(present, barred=frozenset({"n2"})), formation, marks, {"n1", "n2"}) == {}
    assert rejoining.to_start(present, formation, marks, {"n1", "n2"}) == {"n2": {2, 3}}
    assert rejoining.ready(present, replace(marks, priced=frozenset({0, 1}))) == {1}
    # A rank that came to its end is not missed, nor is any other from then on.
    done = replace(present, exits=(RankExit(1, 3, 0, None, 1.0),))
    ending = Rejoining()
    ending.settle(done)
    ending.settle(replace(done, exits=(), generation=4))
    assert ending.to_start(replace(done, generation=4), formation, marks, {"n1", "n2"}) == {}
    # What did not come before the next generation is begun anew in it.
    rejoining.settle(replace(present, generation=4, running=frozenset({0, 1})))
    assert rejoining.started == {}
