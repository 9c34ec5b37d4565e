"""A link that is cut under a job on three hosts: no socket says so, and the others go on all the same."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.namespaces import Namespaces, why_not
from tests.node.peer import Peer, Runs, wait_for
from tests.node.several_nodes import Nodes
from tests.node.test_going_on import HANGS, STEPS, TRAIN
from tests.sdk.elastic.ranks import ledger

pytestmark = [pytest.mark.soak, pytest.mark.whole, pytest.mark.timeout(300)]
# Required of survivors: to be free this long after the threshold.
FREE_SECONDS = 0.5


@pytest.fixture
def network() -> Iterator[Namespaces]:
    reason = why_not()
    if reason is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    made = Namespaces(f"pl{os.getpid() % 100000}", "10.88.0", ("n1", "n2", "n3"))
    try:
        made.lay()
        yield made
    finally:
        made.clear()


def test_survivors_of_a_cut_link_are_free_soon_after_the_threshold_and_go_on_without_it(
    network: Namespaces, runs: Runs, peer: Peer, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    runs.python = sys.executable
    runs.environment |= {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"} | HANGS
    nodes = Nodes(runs, peer, script, tmp_path / "result")
    nodes.rendezvous = f"{network.address('n1')}:29400"
    for node in network.nodes:
        inside = ("ip", "netns", "exec", network.namespace(node))
        nodes.start(node, str(tmp_path / "progress"), nnodes="1:3", ranks=1, inside=inside, flags=("--no-spare",))
    logs = {node: runs.data(node) / f"run/job/logs/0/rank{rank}.log" for rank, node in enumerate(network.nodes)}
    # Past the steps from which the threshold is learnt.
    wait_for(lambda: all((tmp_path / f"progress{rank}.5").exists() for rank in range(3)), 100, "step 5")
    before = {node: nodes.pids(node) for node in ("n1", "n2")}
    network.inside("n3", "ip", "link", "set", "eth0", "down")
    for node in before:
        _, said = nodes.agents[node].communicate(timeout=120)
        assert nodes.agents[node].returncode == 0, said
    found = [json.loads((tmp_path / f"result{rank}").read_text()) for rank in (0, 1)]
    assert found[0]["checksum"] == found[1]["checksum"] and all(item["reformed"] == 1 for item in found)
    assert found[0]["first"] == found[0]["last"] == ledger(STEPS, 3)
    waited = [re.search(r"did not come for ([0-9.]+) s \(limit ([0-9.]+) s", logs[node].read_text()) for node in before]
    free = [float(match[1]) - float(match[2]) for match in waited if match]
    print("free after the threshold:", free)
    assert free and max(free) < FREE_SECONDS
