"""Lines that reach Pitstop behind what a container runtime, a shipper or a logging set-up puts before them."""

from __future__ import annotations

import pytest

from rules.matcher import Clause, Matcher
from rules.pack import load_packs

SHIPPERS = {
    "kubectl --timestamps": "2024-05-05T10:11:12.123456789Z ",
    "the container runtime's file": "2024-05-05T10:11:12.123456789Z stderr F ",
    "kubectl --prefix": "[pod/llm-worker-3/pytorch] ",
    "docker compose": "worker-1  | ",
    "CloudWatch": "2024-05-05T10:11:12.123Z\t",
    "syslog": "May 05 10:11:12 gpu3 train.sh[4411]: ",
    "Python's logging": "2024-05-05 10:11:12,123 - trainer - ERROR - ",
}
# These stand at the beginning of a line or nowhere: the generic ones would else be found in the middle of any message.
FROM_THE_START = {"PS-PY-081", "PS-PY-082"}


@pytest.fixture(scope="module")
def python_rules() -> Matcher:
    return Matcher([rule for rule in load_packs() if rule.pack == "python" and rule.code not in FROM_THE_START])


@pytest.mark.parametrize("shipper", SHIPPERS)
def test_an_exception_of_python_is_known_behind_a_shippers_prefix(python_rules: Matcher, shipper: str) -> None:
    for index, rule in enumerate(python_rules.rules):
        for example in rule.examples.match:
            shipped = "".join(f"{SHIPPERS[shipper]}{line}\n" for line in example.split("\n"))
            found = {hit.rule for hit in python_rules.scan(shipped.encode()) if hit.clause is Clause.ANY}
            assert index in found, (rule.code, shipped)
