"""The agent's decisions, event by event."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from detectors.supervisor import RankExit
from node.care import step
from node.care_states import (
    Care,
    Command,
    CommandArrived,
    End,
    Exited,
    Formed,
    Heard,
    Interrupted,
    KillRanks,
    NotFormed,
    Overtaken,
    Phase,
    PostFailure,
    Raised,
    Report,
    Respawn,
    Returned,
    Spawned,
    Tick,
)

RUNNING = Care(Phase.RUNNING, 2, generation=4, formed=True, running=frozenset((0, 1)), max_restarts=3)
KILLED = RankExit(1, 4, None, 9, 100.0)


def failed(care: Care = RUNNING, now: float = 10.0) -> Care:
    """A care whose rank 1 was killed and whose failure was posted."""
    care, actions = step(care, Exited(KILLED), now)
    assert care.phase is Phase.FAILED and actions == ()
    care, actions = step(care, Tick(), now + 0.4)
    assert actions == (PostFailure((KILLED,)),)
    return care


def restart(number: int = 8, generation: int = 5, **fields: object) -> CommandArrived:
    return CommandArrived(Command(number, "restart_ranks", generation, **fields), wall_time=1000.0)  # type: ignore[arg-type]


def test_a_job_whose_ranks_all_end_well_ends_well() -> None:
    care, actions = step(RUNNING, Exited(RankExit(0, 4, 0, None, 1.0)), 1.0)
    assert actions == ()
    care, actions = step(care, Exited(RankExit(1, 4, 0, None, 1.0)), 1.0)
    assert actions == (End(0, "the command ended well"),)
    assert care.phase is Phase.ENDED


def test_a_leader_whose_job_another_node_leads_by_now_ends_its_ranks_and_goes_on_with_nothing() -> None:
    care, actions = step(RUNNING, Overtaken(6, RUNNING.running), 10.0)
    assert actions == (KillRanks(signal.SIGKILL),) and care.leaves and "generation 6" in care.why
    assert step(care, Overtaken(6, RUNNING.running), 10.5) == (care, ()), "told once"
    care, _ = step(care, Exited(replace(KILLED, rank=0)), 11.0)
    care, actions = step(care, Exited(KILLED), 11.0)
    assert actions == (End(1, care.why),)


def test_an_overtaken_leader_refuses_what_it_was_told_to_start_and_its_next_generation_is_above_the_other_ones() -> None:
    care, _ = step(RUNNING, restart(), 10.0)
    care, actions = step(care, Overtaken(6, RUNNING.running), 10.1)
    assert actions == (Report(8, "refused", "generation 6 is led by another node"), KillRanks(signal.SIGKILL))
    assert care.command is None and care.done == {8: "refused"} and care.next_generation == 6


def test_an_overtaken_leader_waits_for_no_rank_of_another_node() -> None:
    care, _ = step(RUNNING, Overtaken(6, frozenset((0,))), 10.0)
    care, actions = step(care, Exited(replace(KILLED, rank=0)), 11.0)
    assert actions == (End(1, care.why),)
    elsewhere, actions = step(RUNNING, Overtaken(6, frozenset()), 10.0)
    assert actions == (End(1, elsewhere.why),)


def test_where_nobody_has_come_for_the_next_generation_yet_a_leader_that_was_overtaken_waits_no_longer() -> None:
    care, _ = step(replace(RUNNING, phase=Phase.STARTING, formed=False, running=frozenset()), Overtaken(4, frozenset()), 10.0)
    assert care.phase is Phase.ENDED and care.leaves


def test_where_every_rank_has_said_its_last_word_the_report_waits_for_no_other() -> None:
    care, _ = step(RUNNING, Exited(KILLED), 10.0)
    assert step(care, Tick(), 10.15)[1] == (), "rank 0 may have something to say"
    peer = RankExit(0, 4, None, None, 100.1, error="RuntimeError: Connection reset by peer")
    care, _ = step(care, Raised(peer), 10.02)
    assert step(care, Tick(), 10.1)[1] == (), "its traceback is still being written"
    care, actions = step(care, Tick(), 10.15)
    assert actions == (PostFailure((KILLED, peer)),)


def test_a_failure_is_posted_once_with_all_that_failed_in_the_same_moment() -> None:
    care, _ = step(RUNNING, Exited(KILLED), 10.0)
    peer = RankExit(0, 4, 1, None, 100.1)
    care, actions = step(care, Exited(peer), 10.05)
    assert actions == ()
    care, actions = step(care, Tick(), 10.06)
    assert actions == (PostFailure((KILLED, peer)),)
    assert step(care, Tick(), 11.0)[1] == ()


def test_a_service_that_answers_is_waited_for() -> None:
    care, _ = step(failed(), Heard(accepted=True), 10.5)
    for now in (14.0, 18.0, 22.0, 40.0):
        care, _ = step(care, Heard(), now)
        care, actions = step(care, Tick(), now + 0.1)
        assert actions == () and care.phase is Phase.FAILED


@pytest.mark.parametrize("accepted_at", [None, 11.0])
def test_silence_after_a_failure_makes_the_agent_restart_by_itself(accepted_at: float | None) -> None:
    care = failed()
    if accepted_at is not None:
        care, _ = step(care, Heard(accepted=True), accepted_at)
    care, actions = step(care, Tick(), 16.1)
    assert actions == (KillRanks(signal.SIGKILL),)
    care, actions = step(care, Exited(RankExit(0, 4, None, 9, 101.0)), 16.2)
    assert actions == (Respawn(5, "self", {}),)
    assert (care.generation, care.restarts, care.running) == (5, 1, frozenset())
    care, _ = step(care, Formed(5, 2), 16.25)
    assert care.running == frozenset((0, 1))


def test_an_action_that_a_person_must_approve_is_waited_for_as_long_as_the_service_lives() -> None:
    care, _ = step(failed(), Heard(accepted=True, approval=True), 10.5)
    care, _ = step(care, Heard(), 500.0)
    assert step(care, Tick(), 500.1)[1] == ()
    assert step(care, Tick(), 505.1)[1] == (KillRanks(signal.SIGKILL),)


def test_a_service_that_breathes_but_never_decides_is_not_waited_for_for_ever() -> None:
    care, _ = step(failed(), Heard(accepted=True), 10.5)
    care, _ = step(care, Heard(), 70.0)
    assert step(care, Tick(), 70.6)[1] == (KillRanks(signal.SIGKILL),)


def test_a_silent_service_never_touches_healthy_ranks() -> None:
    care, actions = step(RUNNING, Tick(), 1e6)
    assert care == RUNNING and actions == ()


def test_too_few_nodes_to_go_on_by_themselves_wait_for_somebody_who_decides() -> None:
    few = replace(failed(), alone=False)
    assert step(few, Tick(), 16.0) == (few, ()), "not even where nothing is heard"
    told, actions = step(few, restart(), 17.0)
    assert told.phase is Phase.RESTARTING and actions == (KillRanks(signal.SIGKILL),)
    assert step(replace(few, alone=True), Tick(), 16.0)[0].phase is Phase.RESTARTING, "enough of them are back"
    assert step(few, Tick(), 70.1)[0].phase is Phase.RESTARTING, "nobody decides"


def test_a_command_that_the_other_half_of_the_job_hinders_is_refused_with_the_reason() -> None:
    care, (report,) = step(failed(), replace(restart(), hindrance="n1 may go on without n2"), 11.0)
    assert report == Report(8, "refused", "n1 may go on without n2") and care.phase is Phase.FAILED


def test_a_stop_that_was_decided_before_the_job_went_on_by_itself_is_refused() -> None:
    alone, _ = step(failed(), Tick(), 16.0)
    alone, _ = step(alone, Exited(RankExit(0, 4, None, 9, 102.0)), 16.1)
    alone, _ = step(step(alone, Formed(5, 2), 16.2)[0], Spawned(5), 16.3)
    for args in ({"recovery": "1", "why": "too few are left"}, {"recovery": "1", "going_on": ["n2"]}):
        same, (report,) = step(alone, CommandArrived(Command(9, "stop_ranks", 5, args), 1000.0), 17.0)
        assert report == Report(9, "refused", "generation 5 is over; here it is 5") and same.phase is Phase.RUNNING
        stopped, _ = step(failed(), CommandArrived(Command(9, "stop_ranks", 5, args), 1000.0), 11.0)
        assert stopped.phase is Phase.STOPPING


def test_with_no_restart_left_the_job_is_given_up_with_the_reason() -> None:
    care = failed(replace(RUNNING, restarts=3))
    care, actions = step(care, Tick(), 16.0)
    assert actions == (KillRanks(signal.SIGTERM),)
    care, actions = step(care, Exited(RankExit(0, 4, None, 15, 102.0)), 16.1)
    (end,) = actions
    assert isinstance(end, End) and end.status == 1 and "rank 1 failed (killed by SIGKILL)" in end.why


def test_a_restart_command_ends_the_ranks_starts_the_new_generation_and_reports_done() -> None:
    care, actions = step(failed(), restart(args={"resume": {"step": 40}}), 11.0)
    assert actions == (KillRanks(signal.SIGKILL),)
    care, actions = step(care, Exited(RankExit(0, 4, None, 9, 101.0)), 11.1)
    assert actions == (Respawn(5, "restart", {"step": 40}),)
    care, _ = step(care, Formed(5, 2), 11.2)
    care, actions = step(care, Spawned(5), 11.3)
    assert care.phase is Phase.RUNNING
    assert actions == (Report(8, "done", "2 ranks started under generation 5"),)
    assert step(care, restart(), 12.0)[1] == (), "each id runs once"


def test_a_command_of_an_old_generation_is_refused_with_the_present_one() -> None:
    care, actions = step(failed(), restart(generation=4), 11.0)
    (report,) = actions
    assert isinstance(report, Report) and report.status == "refused" and "present one, 4" in report.detail
    assert care.phase is Phase.FAILED


def test_a_command_past_its_deadline_is_not_run() -> None:
    _, actions = step(failed(), restart(deadline=999.0), 11.0)
    (report,) = actions
    assert isinstance(report, Report) and report.status == "expired"


def test_a_command_that_comes_after_the_agent_acted_alone_is_refused() -> None:
    care, _ = step(failed(), Tick(), 16.0)
    _, actions = step(care, restart(), 16.1)
    (report,) = actions
    assert isinstance(report, Report) and report.status == "refused"


def test_a_stop_command_ends_the_job_with_the_reason_that_it_gives() -> None:
    command = CommandArrived(Command(9, "stop_ranks", 4, {"why": "fix line 12"}), 1000.0)
    care, actions = step(failed(), command, 11.0)
    assert actions == (KillRanks(signal.SIGTERM),)
    assert step(care, Tick(), 16.1)[1] == (KillRanks(signal.SIGKILL),), "a rank that ignores SIGTERM"
    care, actions = step(care, Exited(RankExit(0, 4, None, 15, 101.0)), 11.1)
    assert [type(action) for action in actions] == [Report, End]
    assert actions[1] == End(1, "fix line 12")


def test_an_unknown_command_is_refused() -> None:
    _, actions = step(RUNNING, CommandArrived(Command(3, "dance", 9), 0.0), 0.0)
    assert actions == (Report(3, "refused", "this agent does not do dance"),)


def test_ranks_that_end_before_all_were_started_are_not_forgotten() -> None:
    care = replace(RUNNING, phase=Phase.STARTING)
    for rank in (0, 1):
        care, actions = step(care, Exited(RankExit(rank, 4, 0, None, 1.0)), 1.0)
        assert actions == ()
    _, actions = step(care, Spawned(4), 1.1)
    assert actions == (End(0, "the command ended well"),)


def test_exits_of_an_old_generation_change_nothing() -> None:
    assert step(RUNNING, Exited(RankExit(1, 3, None, 9, 1.0)), 1.0) == (RUNNING, ())


def test_an_interrupt_is_passed_on_and_the_second_one_kills() -> None:
    care, actions = step(RUNNING, Interrupted(signal.SIGINT), 1.0)
    assert actions == (KillRanks(signal.SIGINT),)
    care, actions = step(care, Interrupted(signal.SIGINT), 2.0)
    assert actions == (KillRanks(signal.SIGKILL),)
    care, _ = step(care, Exited(RankExit(0, 4, None, 9, 1.0)), 2.1)
    care, actions = step(care, Exited(RankExit(1, 4, None, 9, 1.0)), 2.1)
    assert actions == (End(1, "SIGINT was passed on to the ranks"),)


def test_ranks_that_end_well_on_sigterm_make_a_good_end() -> None:
    care, _ = step(RUNNING, Interrupted(signal.SIGTERM), 1.0)
    for rank in (0, 1):
        care, actions = step(care, Exited(RankExit(rank, 4, 0, None, 1.0)), 1.5)
    assert actions == (End(0, "SIGTERM was passed on to the ranks"),)


def test_a_scheduler_that_says_it_on_every_node_and_again_does_not_kill_ranks_that_save() -> None:
    care, actions = step(replace(RUNNING, grace_seconds=600.0), Interrupted(signal.SIGTERM), 1.0)
    assert actions == (KillRanks(signal.SIGTERM),)
    care, actions = step(care, Interrupted(signal.SIGTERM), 1.1)
    assert actions == ()
    assert step(care, Tick(), 500.0)[1] == ()
    assert step(care, Tick(), 601.0)[1] == (KillRanks(signal.SIGKILL),)


def test_a_restart_with_a_delay_waits_before_it_starts_the_ranks() -> None:
    care, _ = step(failed(), restart(args={"delay_seconds": 3, "resume": {"step": None, "skip_batches": []}}), 11.0)
    care, actions = step(care, Exited(RankExit(0, 4, None, 9, 101.0)), 11.1)
    assert actions == ()
    assert step(care, Tick(), 14.0)[1] == ()
    assert step(care, Tick(), 14.2)[1] == (Respawn(5, "restart", {}),)


def test_an_exception_is_a_failure_before_its_process_has_ended() -> None:
    told = RankExit(1, 4, None, None, 100.0, error="ValueError: bad batch", error_time=100.0, step=12)
    care, _ = step(RUNNING, Raised(told), 10.0)
    assert care.phase is Phase.FAILED and care.running == frozenset((0, 1))
    assert care.why == "rank 1: ValueError: bad batch, at step 12"
    assert step(care, Tick(), 10.4)[1] == (PostFailure((told,)),)


def test_an_exit_takes_the_place_of_the_exception_that_told_of_it() -> None:
    told = RankExit(1, 4, None, None, 100.0, error="ValueError: bad batch", step=12)
    care, _ = step(RUNNING, Raised(told), 10.0)
    ended = replace(told, code=1, time=100.1)
    care, _ = step(care, Exited(ended), 10.1)
    assert step(care, Tick(), 10.5)[1] == (PostFailure((ended,)),)
    assert step(care, Raised(told), 10.6)[0] == care, "the rank is gone"


def test_what_a_killed_rank_tells_while_it_is_being_ended_changes_nothing() -> None:
    care, _ = step(failed(), restart(), 11.0)
    assert step(care, Raised(RankExit(0, 4, None, None, 101.0, error="Connection reset")), 11.05) == (care, ())


def hold(number: int = 8, generation: int = 4, seconds: float = 60.0) -> CommandArrived:
    return CommandArrived(Command(number, "stop_ranks", generation, {"hold": True, "hold_seconds": seconds}), wall_time=1000.0)


def test_ranks_held_for_probes_are_killed_and_the_job_waits_to_be_told() -> None:
    care, actions = step(failed(), hold(), 11.0)
    assert actions == (KillRanks(signal.SIGKILL),)
    care, actions = step(care, Exited(RankExit(0, 4, None, 9, 101.0)), 11.1)
    assert [(action.command_id, action.status) for action in actions if isinstance(action, Report)] == [(8, "done")]
    assert care.phase is Phase.FAILED
    for second in range(12, 70):
        care, _ = step(care, Heard(), float(second))
        care, actions = step(care, Tick(), float(second))
        assert actions == ()
    _, actions = step(care, restart(9), 70.0)
    assert isinstance(actions[0], Respawn) and actions[0].generation == 5


def test_a_hung_job_that_is_held_is_not_reported_as_failed_once_more() -> None:
    care, _ = step(RUNNING, hold(), 11.0)
    for rank in (0, 1):
        care, actions = step(care, Exited(RankExit(rank, 4, None, 9, 101.0)), 11.1)
    assert isinstance(actions[0], Report)
    assert step(care, Tick(), 13.0)[1] == ()


def test_a_held_job_whose_service_dies_acts_by_itself() -> None:
    care, _ = step(failed(), hold(), 11.0)
    care, _ = step(care, Exited(RankExit(0, 4, None, 9, 101.0)), 11.1)
    _, actions = step(care, Tick(), 20.0)
    assert isinstance(actions[0], Respawn)


def test_a_held_job_that_nobody_decides_about_goes_on_by_itself() -> None:
    care, _ = step(failed(), hold(seconds=30.0), 11.0)
    care, _ = step(care, Exited(RankExit(0, 4, None, 9, 101.0)), 11.1)
    care, _ = step(care, Heard(), 102.0)
    _, actions = step(care, Tick(), 102.0)
    assert isinstance(actions[0], Respawn)


def test_a_command_overtakes_a_start_whose_nodes_have_not_come() -> None:
    care, _ = step(failed(), Tick(), 16.0)
    care, actions = step(care, Exited(RankExit(0, 4, None, 9, 101.0)), 16.1)
    assert actions == (Respawn(5, "self"),) and not care.formed
    care, actions = step(care, restart(args={"nodes": ["n1"]}), 17.0)
    assert actions == (Respawn(5, "restart", nodes=("n1",)),)
    care, actions = step(care, restart(9, 6, args={"nodes": ["n1", "n2"]}), 18.0)
    assert [type(action) for action in actions] == [Report, Respawn]
    assert actions[0] == Report(8, "failed", "not all of its nodes came before command 9 did")


def test_a_start_whose_nodes_never_come_is_given_up() -> None:
    care, _ = step(failed(), Tick(), 16.0)
    care, _ = step(care, Exited(RankExit(0, 4, None, 9, 101.0)), 16.1)
    assert step(care, NotFormed(5, "too few"), 700.0)[1] == (End(1, "too few"),)


def test_a_node_that_comes_back_costs_no_restart() -> None:
    care, actions = step(RUNNING, Returned(("n2",)), 1.0)
    assert actions == (KillRanks(signal.SIGKILL),)
    for rank in (0, 1):
        care, actions = step(care, Exited(RankExit(rank, 4, None, 9, 1.0)), 1.1)
    assert actions == (Respawn(5, "return"),) and care.restarts == 0


def test_an_isolated_node_is_taken_back_by_command_only() -> None:
    care, _ = step(failed(), restart(args={"nodes": ["n1"], "isolated": ["n2"]}), 11.0)
    assert care.barred == frozenset(("n2",))
    care, _ = step(failed(replace(RUNNING, barred=care.barred)), restart(args={"nodes": ["n1", "n2"]}), 11.0)
    assert care.barred == frozenset()
