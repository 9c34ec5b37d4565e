"""Matched lines of a shape that was seen before are read off by position."""

from __future__ import annotations

from detectors.reading.familiar import FamiliarShapes, Reading
from detectors.reading.lines import LineMaker
from detectors.reading.timestamps import Stamps
from rules.matcher import Matcher
from rules.pack import parse_pack
from rules.taxonomy import load_taxonomy

PACK = r"""
pack: test
rules:
- {code: T-MEMORY, title: memory, role: context, any: ['EDAC MC\d: 1 CE ']}
- {code: T-PAGE, title: page, role: context, any: ['EDAC MC\d: 1 CE '], captures: ['page:0x(?P<page>[0-9a-f]+)']}
"""
LINE = b"Nov 28 15:26:%02d node%03d kernel: EDAC MC0: 1 CE memory read error on DIMM#0 (slot:0 page:0x%06x offset:0x0)"


def familiar(rule: int) -> FamiliarShapes:
    matcher = Matcher(parse_pack(PACK, load_taxonomy(), "test"))
    shapes = FamiliarShapes(matcher, LineMaker("-", Stamps(lambda: 1_796_000_000.0)))
    for number in range(2):
        shapes.learn(rule, LINE % (number, number, 0x123456 + number))
    return shapes


def test_hexadecimal_numbers_make_no_new_shape_for_a_rule_that_captures_nothing() -> None:
    assert familiar(0).read(0, LINE % (9, 7, 0xABCDEF)) == Reading(None, "node007", {})


def test_what_is_captured_among_them_is_looked_for_each_time() -> None:
    assert familiar(1).read(1, LINE % (9, 7, 0xABCDEF)) is None
