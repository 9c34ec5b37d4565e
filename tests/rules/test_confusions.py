"""How evidence misleads: one short log for each habit that a diagnosis has to unlearn (confusions.yaml has them)."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import yaml

from detectors.reading.scan import scan_text
from rules.artefact import load_matcher
from rules.diagnosis import Diagnosis
from rules.matcher import Matcher
from rules.ranking import rank

TIMEOUT = (
    "[rank{rank}]:[E1128 10:10:00.000 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=700, OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for 600050 milliseconds before "
    "timing out.\n"
)
NOW = 1_796_000_000.0
TRAPS = yaml.safe_load((Path(__file__).parent / "confusions.yaml").read_text(encoding="utf-8"))


@cache
def matcher() -> Matcher:
    return load_matcher(say=lambda line: None)


def diagnose(content: str) -> Diagnosis:
    return rank(scan_text(content.encode(), matcher(), lambda: NOW), matcher().rules)


def timeouts(*ranks: int) -> Diagnosis:
    return diagnose("".join(TIMEOUT.format(rank=rank) for rank in ranks))


@pytest.mark.parametrize("sentence", TRAPS, ids=lambda sentence: sentence.replace(" ", "_"))
def test_evidence_does_not_mislead(sentence: str) -> None:
    assert diagnose(TRAPS[sentence]["log"]).reason == TRAPS[sentence]["reason"]


def test_the_rank_that_reports_a_timeout_is_not_the_suspect() -> None:
    assert timeouts(5).fault_domain.rank is None


def test_the_only_rank_that_reports_nothing_is_the_suspect() -> None:
    assert timeouts(0, 1, 3).fault_domain.rank == "2"


def test_the_peer_in_a_message_is_the_suspect_not_its_reporter() -> None:
    line = (
        "n3:9:9 [0] misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to 10.20.1.12<45001> failed : Connection refused\n"
    )
    domain = diagnose(line).fault_domain
    assert (domain.node, domain.other) == (None, "peer 10.20.1.12")
