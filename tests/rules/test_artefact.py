"""The compiled rules: the same as the packs they were made of, used only where valid and safe, put in place whole."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rules.artefact import (
    ARTEFACT_VARIABLE,
    artefact_key,
    artefact_path,
    compile_rules,
    load_compiled,
    load_matcher,
    write_artefact,
)
from rules.matcher import Matcher
from rules.pack import PACK_FOLDER, Examples, load_packs
from rules.taxonomy import load_taxonomy

PACK = """
pack: small
rules:
  - code: PS-SMALL-001
    title: a small rule
    role: root
    reason: gpu_fallen_off_bus
    any: ['has fallen off the bus']
    none: ['never mind']
    window: 5
    captures: ['GPU (?P<gpu>\\d+)']
    severity: [{to: SEV2, when: 'bus again'}]
    overrides: [PS-SMALL-002]
    examples: {match: ['GPU 3 has fallen off the bus']}
  - code: PS-SMALL-002
    role: context
    marks: start
    phase: start
    at_least: 2
    any: ['the engine starts']
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one small pack; the cache is a fresh one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(ARTEFACT_VARIABLE, raising=False)
    packs = tmp_path / "packs"
    packs.mkdir()
    (packs / "small.yaml").write_text(PACK)
    return packs


def cached(folder: Path) -> Path:
    return artefact_path(artefact_key(folder))


def never(_: object = None) -> object:
    raise AssertionError("compiled again")


def finds(matcher: Matcher) -> bool:
    return [hit.rule for hit in matcher.scan(b"x\nGPU 3 has fallen off the bus\n")] == [0]


def test_the_second_start_compiles_nothing_and_knows_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_matcher(folder)
    monkeypatch.setattr("rules.artefact.compile_rules", never)
    said: list[str] = []
    second = load_matcher(folder, said.append)
    assert not said and finds(first) and finds(second)
    assert json.dumps([repr(rule) for rule in second.rules]) == json.dumps(
        [repr(rule).replace("match=('GPU 3 has fallen off the bus',)", "match=()") for rule in first.rules]
    )
    assert second.expressions == first.expressions
    assert second.captures(0, "GPU 3 has") == {"gpu": "3"}


def test_a_changed_pack_is_compiled_again(folder: Path) -> None:
    load_matcher(folder)
    (folder / "small.yaml").write_text(PACK.replace("PS-SMALL-001", "PS-SMALL-009"))
    assert load_matcher(folder).rules[0].code == "PS-SMALL-009"


def test_only_the_owner_can_read_it(folder: Path) -> None:
    load_matcher(folder)
    assert stat.S_IMODE(cached(folder).stat().st_mode) == 0o600
    assert stat.S_IMODE(cached(folder).parent.stat().st_mode) == 0o700
    assert [path.name for path in cached(folder).parent.iterdir()] == [cached(folder).name]


@pytest.mark.parametrize("place", [0, 20, 100, -1])
def test_a_damaged_one_is_rebuilt_and_that_is_said(folder: Path, place: int) -> None:
    load_matcher(folder)
    content = bytearray(cached(folder).read_bytes())
    content[place] ^= 1
    cached(folder).write_bytes(content)
    said: list[str] = []
    assert finds(load_matcher(folder, said.append))
    assert len(said) == 1 and ("damaged" in said[0] or "not compiled rules" in said[0])
    assert finds(load_matcher(folder, never))


@pytest.mark.parametrize("size", [0, 10, 60, 1000])
def test_a_cut_one_is_rebuilt(folder: Path, size: int) -> None:
    load_matcher(folder)
    os.truncate(cached(folder), size)
    said: list[str] = []
    assert finds(load_matcher(folder, said.append)) and len(said) == 1


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_one_that_others_may_write_is_refused(folder: Path, mode: int) -> None:
    load_matcher(folder)
    cached(folder).chmod(mode)
    said: list[str] = []
    assert finds(load_matcher(folder, said.append))
    assert "others" in said[0] and stat.S_IMODE(cached(folder).stat().st_mode) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a file away takes root")
def test_one_that_others_own_is_refused(folder: Path) -> None:
    load_matcher(folder)
    os.chown(cached(folder), 12345, 12345)
    said: list[str] = []
    assert finds(load_matcher(folder, said.append)) and "others" in said[0]


def test_a_link_is_not_followed(folder: Path, tmp_path: Path) -> None:
    load_matcher(folder)
    cached(folder).rename(tmp_path / "elsewhere")
    cached(folder).symlink_to(tmp_path / "elsewhere")
    said: list[str] = []
    assert finds(load_matcher(folder, said.append)) and len(said) == 1


def test_a_cache_that_cannot_be_written_costs_time_only(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder is wanted")
    said: list[str] = []
    assert finds(load_matcher(folder, said.append))
    assert "compile them again" in said[-1]


def test_the_named_file_comes_before_the_cache(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = tmp_path / "image" / "rules.compiled"
    write_artefact(compile_rules(folder), artefact_key(folder), named)
    monkeypatch.setenv(ARTEFACT_VARIABLE, str(named))
    monkeypatch.setattr("rules.artefact.compile_rules", never)
    assert finds(load_matcher(folder))
    monkeypatch.undo()


def test_one_made_for_other_packs_is_named_as_such(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = tmp_path / "rules.compiled"
    write_artefact(compile_rules(folder), artefact_key(folder), named)
    (folder / "small.yaml").write_text(PACK + "# changed\n")
    monkeypatch.setenv(ARTEFACT_VARIABLE, str(named))
    said: list[str] = []
    assert finds(load_matcher(folder, said.append))
    assert "other packs" in said[0]


def test_old_artefacts_do_not_pile_up(folder: Path) -> None:
    for number in range(12):
        (folder / "small.yaml").write_text(PACK + f"# {number}\n")
        load_matcher(folder)
    assert len(list(cached(folder).parent.iterdir())) <= 9


def test_the_shipped_packs_come_back_as_they_went_in() -> None:
    taxonomy = load_taxonomy()
    load_compiled()
    assert load_compiled().rules == tuple(replace(rule, examples=Examples()) for rule in load_packs())
    assert load_taxonomy() == taxonomy


def test_loading_from_the_artefact_imports_neither_yaml_nor_anything_heavy() -> None:
    load_compiled()
    script = (
        "import sys; from rules.artefact import load_matcher; load_matcher(); "
        "from rules.taxonomy import load_taxonomy; load_taxonomy(); "
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    environment = os.environ | {"PYTHONPATH": str(PACK_FOLDER.parent.parent)}
    output = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True).stdout
    assert {"rules", "hyperscan", "re2"} <= set(output.split())
    assert set(output.split()).isdisjoint({"yaml", "pydantic", "torch", "fastapi", "numpy", "typer", "sqlalchemy", "asyncio"})
