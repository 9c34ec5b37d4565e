"""Names that must not leave the machine do not, and come back as they were."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.placeholders import Placeholders

PIECES = st.sampled_from(
    [
        "node7",
        "node70",
        "alice",
        "HOST",
        "<HOST-1>",
        "<TEXT-2>",
        "10.1.2.3",
        "a@b.org",
        "/home/bob/x",
        "gpu.corp",
        "-",
        " ",
        ": ",
        "\\1",
        "é",
    ]
)


@given(st.lists(st.one_of(PIECES, st.text(max_size=5)), max_size=12).map("".join))
def test_restoring_undoes_hiding(text: str) -> None:
    hide = Placeholders(hosts=("node7", "node70", "HOST"), users=("alice", "TEXT"))
    assert hide.restore(hide.hide(text)) == text


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("node7: out of memory", "node7"),
        ("rank 3 on gpu-a.cluster.example died", "gpu-a.cluster.example"),
        ("peer 10.20.30.40:29500 closed", "10.20.30.40"),
        ("peer fe80:0:0:0:1ff:fe23:4567:890a closed", "4567"),
        ("open /home/alice/run.py", "alice"),
        ("mail bob.b@lab.org on failure", "bob.b"),
        ("submitted by carol", "carol"),
    ],
)
def test_hosts_addresses_and_people_do_not_leave(text: str, secret: str) -> None:
    hidden = Placeholders(hosts=("node7",), users=("carol",)).hide(text)
    assert secret not in hidden and hidden != text


def test_equal_names_get_equal_placeholders() -> None:
    hide = Placeholders(hosts=("node7", "node8"))
    assert hide.hide("node7 node8 node7") == "<HOST-1> <HOST-2> <HOST-1>"


def test_a_placeholder_that_was_never_given_out_is_left_alone() -> None:
    assert Placeholders().restore("<HOST-9>") == "<HOST-9>"
