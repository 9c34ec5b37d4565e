"""Localisation on real probe workers in eight network namespaces, with real faults."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.node.fabric import Fabric
from tests.node.fabric_faults import FAULTS, nobody, strike
from tests.node.namespaces import why_not

SCALE = float(os.environ.get("SCALE", "0.1"))
# 20 at full size; once each where the size is a tenth.
REPEATS = max(1, round(20 * SCALE**1.3))


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fabric]:
    reason = why_not()
    if reason is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    fabric = Fabric(tmp_path_factory.mktemp("fabric"))
    try:
        fabric.up()
        yield fabric
    finally:
        fabric.down()


@pytest.mark.acceptance
@pytest.mark.parametrize("kind", ["bad_link"])
def test_the_fault_is_named_and_nothing_else(fabric: Fabric, kind: str) -> None:
    right, _, said = strike(fabric, kind)
    assert right, said


@pytest.mark.soak
@pytest.mark.whole
@pytest.mark.parametrize("kind", list(FAULTS))
def test_every_fault_is_named_every_time(fabric: Fabric, kind: str) -> None:
    wrong = [said for right, _, said in (strike(fabric, kind) for _ in range(REPEATS)) if not right]
    assert not wrong


@pytest.mark.soak
@pytest.mark.whole
def test_healthy_nodes_are_never_blamed(fabric: Fabric) -> None:
    """1,000 rounds at full size."""
    rounds = 0
    while rounds < 1000 * SCALE:
        found, _ = fabric.localize()
        assert nobody(found), found.summary
        rounds += len({result.probe.turn for result in found.results})
