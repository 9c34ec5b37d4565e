"""`pitstop localize --simulate`: figures for people and for programs."""

from __future__ import annotations

import json

import pytest

from cli.main import run


def said(capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        run(["localize", *arguments])
    assert ended.value.code == 0
    return str(capsys.readouterr().out)


def test_a_simulation_gives_error_rates_with_intervals_beside_the_peers(capsys):
    text = said(capsys, "--simulate", "--nodes", "8", "--fault", "hard", "--fault", "link", "--draws", "5", "--json")
    document = json.loads(text)
    assert [(item["fault"], item["nodes"]) for item in document["experiments"]] == [("hard", 8), ("link", 8)]
    hard, link = (item["rules"] for item in document["experiments"])
    assert hard["pitstop"]["recall"] == 1.0
    low, high = hard["pitstop"]["recall_interval"]
    assert low < 1.0 <= high
    assert link["plain two rounds"]["recall"] == 0.0


def test_a_simulation_reads_as_a_table_too(capsys):
    text = said(capsys, "--simulate", "--nodes", "8", "--draws", "2")
    assert "hard, 8 nodes" in text
    assert "DLRover's pairing" in text


def test_an_unknown_fault_gets_one_line(capsys):
    with pytest.raises(SystemExit) as ended:
        run(["localize", "--simulate", "--fault", "gremlins"])
    assert ended.value.code == 2
    assert "--fault takes all, healthy, hard" in capsys.readouterr().err


def test_who_is_to_be_looked_at_must_be_said(capsys):
    for arguments in ([], ["n1", "--job", "gpt"], ["n1", "--simulate"]):
        with pytest.raises(SystemExit) as ended:
            run(["localize", *arguments])
        assert ended.value.code == 2
        assert capsys.readouterr().err.startswith("pitstop: ")
