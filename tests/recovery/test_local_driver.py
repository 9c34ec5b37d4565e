"""What the agents of a job are told."""

from __future__ import annotations

from dataclasses import replace

from recovery.decision import Action, Audience, Decision, DirectiveKind, Mode, Resume
from recovery.drivers.local import agent_commands
from recovery.states import Act

RESTART = Decision(Action.RESTART, DirectiveKind.RESTART, Mode.AUTO, ("it will pass",), "restart")
STOP = Decision(Action.STOP, DirectiveKind.STOP, Mode.AUTO, ("a bug",), "stop", audience=Audience.OWNER)


def told(decision):
    commands = agent_commands(Act(decision, 4, 160.0), recovery="7", job="gpt", nodes=("n1", "n2"))
    return {command.node: command for command in commands}


def test_a_restart_tells_every_node_the_same_generation_and_deadline():
    commands = told(RESTART)
    assert [(c.kind, c.generation, c.deadline) for c in commands.values()] == [("restart_ranks", 4, 160.0)] * 2
    assert commands["n1"].key != commands["n2"].key
    assert commands["n1"].args["nodes"] == ["n1", "n2"]


def test_the_same_action_has_the_same_keys_and_another_generation_has_others():
    assert told(RESTART) == told(RESTART)
    other = agent_commands(Act(RESTART, 5, 160.0), recovery="7", job="gpt", nodes=("n1",))
    assert other[0].key != told(RESTART)["n1"].key


def test_a_stop_tells_every_node_why():
    commands = told(STOP)
    assert {command.kind for command in commands.values()} == {"stop_ranks"}
    assert commands["n2"].args["why"] == "a bug"


def test_a_node_that_is_left_out_is_stopped_and_a_spare_is_started():
    shrink = replace(RESTART, directive=DirectiveKind.SHRINK, exclude=("n2",), use=("n1",))
    assert {node: command.kind for node, command in told(shrink).items()} == {"n1": "restart_ranks", "n2": "stop_ranks"}
    spare = replace(RESTART, exclude=("n2",), use=("n1", "n7"))
    assert {node: c.kind for node, c in told(spare).items()} == {"n1": "restart_ranks", "n7": "restart_ranks", "n2": "stop_ranks"}


def test_a_node_that_cannot_be_told_to_stop_counts_as_off_only_where_a_person_approved():
    shrink = replace(RESTART, directive=DirectiveKind.SHRINK, exclude=("n1",), use=("n2",))
    assert told(shrink)["n2"].args["off"] == ["n1"]
    assert told(replace(shrink, out_of_reach=("n1",)))["n2"].args["off"] == []
    assert told(replace(shrink, out_of_reach=("n1",), mode=Mode.APPROVE))["n2"].args["off"] == ["n1"]


def test_where_to_resume_travels_with_the_restart():
    rollback = replace(RESTART, resume=Resume(200, "c200", ((200, 231),)))
    assert told(rollback)["n1"].args["resume"] == {"step": 200, "checkpoint": "c200", "skip_batches": [[200, 231]]}
