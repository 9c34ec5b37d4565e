"""`pitstop rules`: what it prints and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.main import run
from rules.artefact import load_compiled


def status(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        run(["rules", *arguments])
    return int(ended.value.code or 0)


def write_pack(folder: Path, text: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "p.yaml").write_text(text)
    return str(folder)


def test_list_and_show_name_the_rules(capsys: pytest.CaptureFixture[str]) -> None:
    assert status("list", "--json") == 0
    rules = json.loads(capsys.readouterr().out)
    assert status("show", rules[0]["code"]) == 0
    assert rules[0]["title"] in capsys.readouterr().out


def test_an_unknown_rule_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert status("show", "PS-NOT-THERE") == 2
    assert "pitstop rules list" in capsys.readouterr().err


def test_explain_says_which_rule_and_what_it_read(capsys: pytest.CaptureFixture[str]) -> None:
    line = (
        " iteration       12/  500000 | consumed samples:        12288 | elapsed time per iteration (ms): 3123.4 | "
        "lm loss: 2.345678E+00 | loss scale: 1.0 | grad norm: 0.123 |"
    )
    assert status("explain", line, "--json") == 0
    assert {"step": "12", "loss": "2.345678E+00", "grad_norm": "0.123", "iteration_ms": "3123.4"} in [
        found["captures"] for found in json.loads(capsys.readouterr().out)
    ]
    assert status("explain", "nothing that any rule could know") == 0
    assert "no rule" in capsys.readouterr().out


def test_check_names_file_and_rule_and_ends_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_pack(
        tmp_path / "packs", "pack: p\nrules:\n- {code: P-1, role: context, any: ['a.*'], examples: {match: [a]}}\n"
    )
    assert status("check", folder) == 1
    captured = capsys.readouterr()
    assert "p.yaml: P-1: pattern 'a.*': ends in an open repeat" in captured.err
    assert "1 rules, 1 examples, 2 problems" in captured.out


@pytest.mark.parametrize("text", ["{", "[]", "pack: 3\nrules: []", "\x00"])
def test_check_of_what_is_no_pack_ends_with_2(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status("check", write_pack(tmp_path / "packs", text)) == 2
    assert "p.yaml" in capsys.readouterr().err


def test_check_of_no_folder_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status("check", str(tmp_path / "absent")) == 2
    assert "cannot read the packs" in capsys.readouterr().err


def test_compile_writes_the_named_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # What `make setup` compiled: to compile it once more is the same again, many seconds later.
    monkeypatch.setattr("cli.rules.compile_rules", load_compiled)
    assert status("compile", "-o", str(tmp_path / "sub" / "rules.compiled")) == 0
    assert (tmp_path / "sub" / "rules.compiled").stat().st_size > 1000
    assert status("compile", "-o", "/dev/null/no") == 1
    assert "cannot write" in capsys.readouterr().err


def test_a_candidate_rule_is_put_through_the_gate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack, cites, normal, settled = (tmp_path / name for name in ("new.yaml", "cites", "normal.log", "settled.jsonl"))
    pack.write_text("pack: new\nrules:\n- {code: X-1, title: lock, role: root, reason: nan_loss, any: ['phase lock']}\n")
    cites.write_text("node7: frobnicator lost its phase lock\n")
    normal.write_text("step 1\nphase lock acquired\n")
    case = {"id": "41", "log": ["lost phase lock"], "label": {"reason": "dns_resolution_failure"}}
    settled.write_text(json.dumps(case) + "\n")
    command = ["rules", "judge", str(pack), "--cites", str(cites), "--normal", str(normal), "--settled", str(settled), "--json"]
    with pytest.raises(SystemExit) as ended:
        run(command)
    result = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0 and not result["passes"] and len(result["objections"]) == 2
    assert result["differences"][0]["incident"] == "41"
