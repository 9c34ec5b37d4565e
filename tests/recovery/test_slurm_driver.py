"""The Slurm driver's choices: each move follows from what Slurm says, and what others set is left alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.drivers.command import DriverError, Operation, Values, render
from recovery.drivers.slurm import (
    Done,
    JobGoal,
    JobSeen,
    Left,
    Move,
    SlurmSite,
    Verb,
    Wait,
    carry_out,
    holder_of_node,
    next_move,
    node_templates,
    read_job,
)

RUNNING = JobSeen("RUNNING", 0, ("n0", "n1"), "None", "", ())
GOAL = JobGoal(Verb.REQUEUE, "42", 0, "12", "Xid 79 on n1", ("n1",))
MARK = "pitstop 12: Xid 79 on n1"


def test_a_requeue_with_exclusion_marks_holds_excludes_and_lets_go_in_this_order():
    moves = []
    seen = RUNNING
    for after in (
        replace(seen, comment=MARK),
        JobSeen("PENDING", 1, (), "job requeued in held state", MARK, ()),
        JobSeen("PENDING", 1, (), "job requeued in held state", MARK, ("n1",)),
        JobSeen("PENDING", 1, (), "BeginTime", MARK, ("n1",)),
    ):
        move = next_move(GOAL, seen)
        assert isinstance(move, Move)
        moves.append(" ".join(move.argv))
        seen = after
    assert moves == [
        f"scontrol update JobId=42 AdminComment={MARK}",
        "scontrol requeuehold 42",
        "scontrol update JobId=42 ExcNodeList=n1",
        "scontrol release 42",
    ]
    assert isinstance(next_move(GOAL, seen), Done)


def test_what_the_user_excluded_stays_excluded():
    move = next_move(GOAL, JobSeen("PENDING", 1, (), "Priority", MARK, ("n3",)))
    assert isinstance(move, Move) and move.argv[-1] == "ExcNodeList=n3,n1"


def test_a_job_that_slurm_requeued_by_itself_is_not_requeued_again():
    plain = replace(GOAL, exclude=())
    assert isinstance(next_move(plain, JobSeen("PENDING", 1, (), "BeginTime", "", ())), Done)
    assert isinstance(next_move(plain, JobSeen("RUNNING", 1, ("n0", "n2"), "None", "", ())), Done)
    assert isinstance(next_move(GOAL, JobSeen("RUNNING", 1, ("n0", "n2"), "None", "", ())), Done)


def test_a_job_that_slurm_put_back_onto_the_excluded_node_is_taken_off_it():
    move = next_move(GOAL, JobSeen("RUNNING", 1, ("n0", "n1"), "None", MARK, ()))
    assert isinstance(move, Move) and move.argv == ("scontrol", "requeuehold", "42")


@pytest.mark.parametrize("state", ["CANCELLED", "COMPLETED", "TIMEOUT", "DEADLINE"])
def test_what_its_user_ended_is_never_requeued(state):
    assert isinstance(next_move(GOAL, replace(RUNNING, state=state)), Left)


@pytest.mark.parametrize("state", ["FAILED", "NODE_FAIL", "OUT_OF_MEMORY"])
def test_what_failed_can_be_requeued(state):
    move = next_move(replace(GOAL, exclude=()), replace(RUNNING, state=state, comment=MARK))
    assert isinstance(move, Move) and move.argv == ("scontrol", "requeue", "42")


@pytest.mark.parametrize("reason", ["JobHeldAdmin", "JobHeldUser", "job requeued in held state"])
def test_a_hold_of_others_is_never_released(reason):
    for goal in (GOAL, replace(GOAL, verb=Verb.RELEASE)):
        seen = JobSeen("PENDING", 1, (), reason, "ann: wait for me", ("n1",))
        assert isinstance(next_move(goal, seen), Done | Left)
    assert isinstance(next_move(replace(GOAL, verb=Verb.RELEASE), JobSeen("PENDING", 0, (), reason, MARK, ())), Move)


def test_completing_is_waited_for():
    assert isinstance(next_move(GOAL, replace(RUNNING, state="COMPLETING", restarts=1)), Wait)


def test_cancel_hold_and_an_unknown_job():
    assert next_move(replace(GOAL, verb=Verb.CANCEL), RUNNING) == Move(("scancel", "42"))
    assert isinstance(next_move(replace(GOAL, verb=Verb.CANCEL), replace(RUNNING, state="CANCELLED")), Done)
    assert isinstance(next_move(replace(GOAL, verb=Verb.CANCEL), replace(RUNNING, restarts=3)), Left)
    assert isinstance(next_move(replace(GOAL, verb=Verb.HOLD), RUNNING), Left)
    waiting = JobSeen("PENDING", 0, (), "Resources", MARK, ())
    assert next_move(replace(GOAL, verb=Verb.HOLD), waiting) == Move(("scontrol", "hold", "42"))
    assert isinstance(next_move(GOAL, None), Left)


STATES = st.sampled_from(["PENDING", "RUNNING", "COMPLETING", "FAILED", "CANCELLED", "COMPLETED", "TIMEOUT", "SUSPENDED"])
REASONS = st.sampled_from(["None", "Resources", "JobHeldAdmin", "JobHeldUser", "job requeued in held state", "BeginTime"])


@given(
    verb=st.sampled_from(Verb),
    state=STATES,
    reason=REASONS,
    restarts=st.integers(0, 2),
    comment=st.sampled_from(["", MARK, "ann: mine"]),
    excluded=st.sampled_from([(), ("n1",), ("n3",)]),
)
def test_no_state_leads_to_a_release_of_what_is_not_ours_or_a_requeue_of_what_was_ended(
    verb, state, reason, restarts, comment, excluded
):
    move = next_move(replace(GOAL, verb=verb), JobSeen(state, restarts, ("n0", "n1"), reason, comment, excluded))
    if not isinstance(move, Move):
        return
    if "release" in move.argv:
        assert comment == MARK
    if move.argv[1].startswith("requeue"):
        assert state in ("RUNNING", "SUSPENDED", "FAILED")
        assert comment == MARK


@given(st.text(max_size=300))
def test_what_a_job_wrote_stays_one_argument_and_cannot_forge_a_column(text):
    comment = replace(GOAL, why=text).comment
    assert comment.startswith("pitstop 12:")
    assert comment.isprintable() and "|" not in comment and len(comment) <= 200


@pytest.mark.parametrize("job", ["", "all", "-u root", "42 43", "42;x", "0", "4_", "--help"])
def test_what_cannot_be_a_job_id_is_never_run(job):
    with pytest.raises(DriverError, match="cannot be a Slurm job id"):
        JobGoal(Verb.CANCEL, job, 0, "1", "w")


def test_a_node_is_held_by_who_drained_it_and_by_nobody_while_it_is_only_down():
    assert holder_of_node("idle      |none \n") == (None, False)
    assert holder_of_node("down*|Not responding") == (None, False)
    assert holder_of_node("idle+drain|pitstop 12: Xid | 79") == ("pitstop 12: Xid | 79", True)
    assert holder_of_node("allocated+drain|bad PSU\n") == ("bad PSU", False)
    assert holder_of_node("down+drain+not_responding|pitstop is wrong, I keep it [ann]") == (
        "pitstop is wrong, I keep it [ann]",
        False,
    )
    assert holder_of_node("idle+maint|none")[1] is False
    with pytest.raises(DriverError, match="knows no node"):
        holder_of_node("\n")


def test_the_node_commands_are_slurms_own():
    templates = node_templates(SlurmSite(("ssh", "ctl0"), 9.0))
    call = render(Operation.CORDON, templates[Operation.CORDON], Values("n1", "k", incident="12", why="Xid 79"))
    assert call.argv == ("ssh", "ctl0", "scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=pitstop 12: Xid 79")
    assert call.timeout_seconds == 9.0
    assert holder_of_node(f"idle+drain|{call.argv[-1].removeprefix('Reason=')}")[1] is True


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ([], "give its settings"),
        ({"host": "x"}, "'host' is not known"),
        ({"prefix": "ssh x"}, "prefix"),
        ({"timeout_seconds": 0}, "timeout"),
    ],
)
def test_settings_that_cannot_be_used_say_why(entry, says):
    with pytest.raises(DriverError, match=says):
        SlurmSite.parse(entry)


def test_what_squeue_prints_is_read():
    line = "RUNNING    |1   |n[0,2]   |None      |pitstop 12: a | b"
    assert read_job(line, "n[1,3]\n") == JobSeen("RUNNING", 1, ("n0", "n2"), "None", "pitstop 12: a | b", ("n1", "n3"))
    assert read_job("PENDING|0||Resources|(null)", "\n") == JobSeen("PENDING", 0, (), "Resources", "", ())
    assert read_job("", "") is None


def test_an_answer_that_cannot_be_read_is_no_unknown_job():
    def garbled(argv: Sequence[str], seconds: float) -> tuple[bool, str]:
        return True, "RUNNING |0 |n[0-1]"

    carried = carry_out(GOAL, SlurmSite(), garbled)
    assert (carried.done, carried.final, carried.did) == (False, False, ())
    assert "cannot be read" in carried.detail


def test_slurm_that_cannot_be_asked_is_not_acted_on_and_tried_again_later():
    def away(argv: Sequence[str], seconds: float) -> tuple[bool, str]:
        return False, "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"

    carried = carry_out(GOAL, SlurmSite(), away)
    assert (carried.done, carried.final, carried.did) == (False, False, ())
