"""A quotation counts only where it stands, letter for letter, under the number that it names."""

from __future__ import annotations

from agents.grounding import Citation, ground

STORED = {1: "node7: disk full", 2: "rank 3 exits"}
SHOWN = {1: "<HOST-1>: disk full", 2: "rank 3 exits"}


def test_true_quotations_hold() -> None:
    grounding = ground([Citation(1, "<HOST-1>: disk full"), Citation(2, " rank 3 exits ")], SHOWN, STORED)
    assert grounding.holds and grounding.numbers == (1, 2)


def test_one_false_letter_is_enough_to_refuse() -> None:
    assert "line 2" in ground([Citation(2, "rank 4 exits")], SHOWN, STORED).why


def test_a_line_under_another_number_is_refused() -> None:
    assert not ground([Citation(1, "rank 3 exits")], SHOWN, STORED).holds


def test_a_line_that_was_not_shown_is_refused() -> None:
    assert "not shown" in ground([Citation(9, "rank 3 exits")], SHOWN, STORED).why


def test_an_answer_without_quotations_is_refused() -> None:
    assert not ground([], SHOWN, STORED).holds
