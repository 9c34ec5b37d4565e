"""The check of rules: each kind of problem is found and named with its file and rule."""

from __future__ import annotations

import pytest
import yaml

from rules.check import check_packs, check_rules
from rules.pack import PACK_FOLDER, load_packs, parse_pack, read_packs
from rules.taxonomy import load_taxonomy


def pack_text(**rule: object) -> str:
    entry = {"code": "PS-TEST-001", "role": "context", "any": ["steady text"], "examples": {"match": ["some steady text here"]}}
    return yaml.safe_dump({"pack": "test", "rules": [entry | rule]})


def messages(**rule: object) -> list[str]:
    (parsed,) = parse_pack(pack_text(**rule), load_taxonomy())
    return check_rules([parsed])[parsed.code]


def test_a_sound_rule_has_no_problem() -> None:
    assert messages() == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"any": ["steady (text"]}, "not a pattern"),
        ({"any": ["steady\ntext"]}, "newline"),
        ({"any": ["steady text.*"]}, "open repeat"),
        ({"any": [r"\d+ \w+ x"]}, "no literal"),
        ({"any": ["steady", "(?:steady text)?"]}, "no literal"),
        ({"captures": ["steady"]}, "captures nothing"),
        ({"captures": [r"(?P<x>a"]}, "not a pattern"),
        ({"severity": [{"to": "SEV1", "when": "a("}]}, "not a pattern"),
        ({"examples": {"match": ["other"]}}, "not matched"),
        ({"examples": {"match": ["steady text"], "miss": ["a steady text"]}}, "should not"),
        ({"examples": {}}, "no example"),
        ({"all": ["beside it"], "examples": {"match": ["steady text"]}}, "not matched"),
        ({"none": ["recovered"], "window": 1, "examples": {"match": ["steady text\nrecovered"]}}, "not matched"),
    ],
)
def test_each_kind_of_problem_is_said_in_words(fields: dict[str, object], words: str) -> None:
    found = messages(**fields)
    assert len(found) == 1 and words in found[0], found


def test_conditions_are_looked_for_within_the_window() -> None:
    text = "steady text\n1\n2\nrecovered"
    assert messages(none=["recovered"], window=2, examples={"match": [text]}) == []
    assert messages(none=["recovered"], window=3, examples={"miss": [text], "match": ["steady text"]}) == []


def test_problems_name_file_and_rule_and_the_rest_is_still_checked() -> None:
    packs = [
        ("a.yaml", pack_text()),
        ("b.yaml", pack_text()),
        ("c.yaml", "{"),
        ("d.yaml", pack_text(code="X", overrides=["nobody"])),
    ]
    rules, problems = check_packs(packs, load_taxonomy())
    assert [rule.code for rule in rules] == ["PS-TEST-001", "X"]
    assert [(problem.file, problem.rule, problem.unreadable) for problem in problems] == [
        ("b.yaml", "PS-TEST-001", False),
        ("c.yaml", "", True),
        ("d.yaml", "X", False),
    ]
    assert str(problems[0]).startswith("b.yaml: PS-TEST-001: the code is used twice, also in a.yaml")


def test_every_rule_that_ships_passes() -> None:
    rules, problems = check_packs(read_packs(PACK_FOLDER), load_taxonomy())
    assert not problems
    assert tuple(rules) == load_packs()
