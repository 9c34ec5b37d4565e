"""What an agent tells of what it noticed."""

from __future__ import annotations

import pytest

from detectors.statistics.judgement import Finding, Judgement
from node.crew import Gone
from node.reports import noticed

GONE = Gone("n2", 100.0, "nothing was heard for 2 s")
SUSPECTED = Judgement(Finding.HANG, "rank 1 is in sync of step 9 for 1.2 s", 1.2, 0.5, rank=1, firm=False)


@pytest.mark.parametrize("judged", [[SUSPECTED], []], ids=["seen after the loss", "seen before the loss"])
def test_ranks_that_get_nowhere_without_a_lost_node_are_told_of_whichever_of_the_two_was_seen_first(
    judged: list[Judgement],
) -> None:
    (told,) = noticed(judged, SUSPECTED, [GONE], "n1")
    assert (told.kind, told.rank) == ("node_unreachable", None)
    assert told.why.startswith("node n2 cannot be reached from n1 (nothing was heard for 2 s)") and SUSPECTED.why in told.why


def test_a_suspected_hang_alone_and_a_lost_node_alone_are_no_news() -> None:
    assert not list(noticed([SUSPECTED], SUSPECTED, [], "n1"))
    assert not list(noticed([], None, [GONE], "n1"))


def test_numbers_that_went_wrong_are_told_with_the_first_bad_step() -> None:
    bad = Judgement(Finding.NOT_FINITE, "the loss is NaN", 1.0, 0.0, rank=0, step=14, since=12)
    (told,) = noticed([bad], None, [], "n1")
    assert (told.kind, told.rank, told.bad_since) == ("not_finite", 0, 12)
