"""Members that join, replicas that differ, and the gradient of one float32 step."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pitstop.elastic.shares import first_shares, redistributed
from pitstop.sampler import Sampler
from tests.node.peer import wait_for
from tests.sdk.elastic.former import Former
from tests.sdk.elastic.ranks import BATCH, FEATURES, MICRO, SAMPLES, Net, ledger

STEPS = 30


@pytest.fixture
def former(tmp_path: Path) -> Iterator[Former]:
    made = Former(tmp_path, 2)
    yield made
    made.end()


@pytest.mark.acceptance
def test_a_rank_that_joins_takes_its_state_from_a_living_peer_and_no_step_is_done_twice(former: Former) -> None:
    former.start(STEPS, 9, {1: (3, "bucket", 1)}, pause=0.02)
    wait_for(lambda: not former.processes[1].is_alive())
    former.members = {0}
    former.form()
    former.join(1, STEPS, 9, pause=0.02)
    found = former.watch()
    assert [item["rank"] for item in found] == [0, 1] and found[0]["reformed"] == 2
    assert len({item["checksum"] for item in found}) == 1
    assert all(item["first"] == item["last"] == ledger(STEPS, 9) for item in found)
    assert len(found[1]["moments"]) < STEPS, "it did not begin anew"


@pytest.mark.soak
@pytest.mark.whole
def test_replicas_that_differ_go_back_to_a_checkpoint(former: Former, tmp_path: Path) -> None:
    former.world = 3
    checkpoints = str(tmp_path / "checkpoints")
    former.start(STEPS, 9, {1: (8, "bucket", 1), 2: (8, "rot", 0)}, pause=0.005, checkpoints=checkpoints, save_every=5)
    found = former.watch()
    assert [item["rank"] for item in found] == [0, 2]
    assert len({item["checksum"] for item in found}) == 1
    # Steps 5 to 7 are trained on again from the checkpoint of step 5: each sample still counts once.
    assert all(item["first"] == item["last"] == ledger(STEPS, 9) for item in found)


def gradient(shares: dict[int, tuple[int, ...]], done: dict[int, tuple[int, ...]]) -> torch.Tensor:
    """Of one float32 step: each member sums over its micro-batches in its order, then the members are summed."""
    torch.manual_seed(7)
    inputs = torch.randn(SAMPLES, FEATURES)
    targets = inputs[:, :4].sum(1, keepdim=True)
    net = Net(torch.float32).body.eval()
    ids, size = Sampler(SAMPLES, BATCH, seed=1).ids(0), BATCH // MICRO
    total = None
    for member in sorted(shares):
        net.zero_grad()
        for number in (*done.get(member, ()), *shares[member]):
            rows = torch.tensor(ids[number * size : (number + 1) * size])
            (torch.nn.functional.mse_loss(net(inputs[rows]), targets[rows]) / MICRO).backward()
        flat = torch.cat([parameter.grad.reshape(-1) for parameter in net.parameters() if parameter.grad is not None])
        total = flat if total is None else total + flat
    assert total is not None
    return total


def test_a_float32_gradient_is_the_same_whoever_computes_its_micro_batches() -> None:
    shares = first_shares(MICRO, range(4))
    expected = gradient(shares, {})
    done = {member: shares[member][:1] for member in (0, 2, 3)}
    left = redistributed(MICRO, {member: set(numbers) for member, numbers in done.items()}, shares)
    found = gradient(left, done)
    assert float((found - expected).norm() / expected.norm()) < 1e-5
    assert json.dumps(sorted(number for numbers in (*left.values(), *done.values()) for number in numbers))
