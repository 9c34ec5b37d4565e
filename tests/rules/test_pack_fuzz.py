"""Loading rules from any text: refused in words or loaded, and never a crash or a stall."""

from __future__ import annotations

import hypothesis.strategies as st
import yaml
from hypothesis import given, settings

from rules.check import check_packs
from rules.pack import FIELDS, PackError, parse_pack
from rules.taxonomy import load_taxonomy

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 10**20),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(
        ["root", "routine", "SEV1", "start", "a{9999}", "(" * 300, "(?:a{999}){999}", r"(a+)+\d{4}", "NaN", "\ud800"]
    ),
    st.binary(max_size=4),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(SCALARS, inner, max_size=4)), max_leaves=8
)
FIELD_NAMES = st.sampled_from([*sorted(FIELDS), "nonsense"])
RULES = st.dictionaries(FIELD_NAMES, VALUES, max_size=8).map(lambda fields: {"code": "A", "any": ["some text"]} | fields)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(RULES, VALUES), max_size=3), st.one_of(st.just("p"), VALUES))
def test_any_document_is_a_pack_or_is_refused_in_words(rules: list[object], name: object) -> None:
    try:
        text = yaml.safe_dump({"pack": name, "rules": rules}, allow_unicode=True)
    except (yaml.YAMLError, UnicodeError):
        return
    _, problems = check_packs([("p.yaml", text)], load_taxonomy())
    assert all(str(problem) for problem in problems)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(max_size=200), st.text(alphabet="&*[]{}:-?|>'\"\n !ab1,#%@", max_size=200)))
def test_any_text_is_a_pack_or_is_refused_in_words(text: str) -> None:
    try:
        parse_pack(text, load_taxonomy(), "p.yaml")
    except PackError as error:
        assert "p.yaml" in str(error)


def test_a_document_that_expands_without_end_is_refused_at_once() -> None:
    bomb = "pack: p\nrules: []\na0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
    assert parse_pack(bomb, load_taxonomy()) == ()
    nested = bomb.replace("rules: []\n", "").replace("pack: p\n", "pack: p\nrules: [{code: A, any: [some text], title: 1}]\n")
    rules = nested + "b: &b [*a39]\n"
    try:
        parse_pack(rules.replace("title: 1", "title: [1, 2]"), load_taxonomy(), "p.yaml")
    except PackError as error:
        assert len(str(error)) < 300
    else:
        raise AssertionError("a list is no title")
