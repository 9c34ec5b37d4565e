"""The generic driver: what a site's templates become, and what they can never become."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.drivers.command import DriverError, Operation, Values, holder_of, parse_templates, render

SLURM = {
    "state": {"command": ["sinfo", "-R", "-h", "-n", "{node}", "-o", "%E"]},
    "cordon": {"command": ["scontrol", "update", "NodeName={node}", "State=DRAIN", "Reason={why}"], "timeout_seconds": 10},
    "uncordon": {"webhook": "https://ops.example.org/uncordon"},
}
VALUES = Values("n1", "7/cordon/n1", incident="12", generation=4, why="Xid 79")


def test_a_command_is_filled_in_argument_by_argument():
    call = render(Operation.CORDON, parse_templates(SLURM)[Operation.CORDON], VALUES)
    assert call.argv == ("scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=pitstop 12: Xid 79")
    assert call.text == "scontrol update NodeName=n1 State=DRAIN 'Reason=pitstop 12: Xid 79'"
    assert (call.key, call.generation, call.timeout_seconds) == ("7/cordon/n1", 4, 10.0)


def test_a_webhook_gets_the_values_as_its_body():
    call = render(Operation.UNCORDON, parse_templates(SLURM)[Operation.UNCORDON], VALUES)
    assert call.url == "https://ops.example.org/uncordon"
    assert call.body is not None
    assert (call.body["operation"], call.body["node"], call.body["key"]) == ("uncordon", "n1", "7/cordon/n1")


@pytest.mark.parametrize("name", ["-all", "n1;reboot", "n1 n2", "$(reboot)", "", "n" * 300, "n1\nn2"])
def test_a_name_that_cannot_be_a_node_is_never_run(name):
    with pytest.raises(DriverError, match="cannot be a node"):
        render(Operation.CORDON, parse_templates(SLURM)[Operation.CORDON], Values(name, "k"))


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=400))
def test_what_a_job_wrote_stays_within_its_one_argument(text):
    call = render(Operation.CORDON, parse_templates(SLURM)[Operation.CORDON], Values("n1", "k", why=text))
    assert len(call.argv) == 5
    assert call.argv[:4] == ("scontrol", "update", "NodeName=n1", "State=DRAIN")
    assert call.argv[4].startswith("Reason=pitstop")
    assert call.argv[4].isprintable()
    assert len(call.argv[4]) <= 210


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"reboot": {"command": ["reboot", "{node}"]}}, "no operation"),
        ({"cordon": {}}, "either a command or a webhook"),
        ({"cordon": {"command": ["a", "{node}"], "webhook": "http://x"}}, "either a command or a webhook"),
        ({"cordon": {"command": "scontrol {node}"}}, "a list of arguments"),
        ({"cordon": {"command": ["drain"]}}, "does not name {node}"),
        ({"cordon": {"command": ["drain", "{host}"]}}, "no placeholder"),
        ({"cordon": {"command": ["drain", "{node!r}"]}}, "no placeholder"),
        ({"cordon": {"command": ["drain", "{node.x}"]}}, "no placeholder"),
        ({"cordon": {"command": ["drain", "{node"]}}, "cordon: "),
        ({"cordon": {"command": ["{node}", "x"]}}, "program itself"),
        ({"cordon": {"webhook": "file:///etc/passwd"}}, "not an http"),
        ({"state": {"webhook": "http://x"}}, "a webhook has none"),
        ({"cordon": {"command": ["a", "{node}"], "timeout_seconds": -1}}, "timeout_seconds"),
        ({"cordon": {"command": ["a", "{node}"], "shell": True}}, "not known here"),
    ],
)
def test_a_template_that_cannot_be_used_says_why(document, says):
    with pytest.raises(DriverError, match=says.replace("{", r"\{")):
        parse_templates(document)


def test_who_holds_a_node_is_read_from_the_state_command():
    assert holder_of("\n") == (None, False)
    assert holder_of("pitstop 12: Xid 79\n") == ("pitstop 12: Xid 79", True)
    assert holder_of("bad PSU [root]") == ("bad PSU [root]", False)
