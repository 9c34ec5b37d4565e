"""Where a fault sits: what a node says of its hardware is joined to the ranks that ran there."""

from __future__ import annotations

from rules.pack import Mark
from tests.rules.casebook import diagnose, rule, sighting

XID = rule("T-XID-79", "gpu_fallen_off_bus", weight=95)
TIMEOUT = rule("T-TIMEOUT", "nccl_timeout_unattributed", role="cascade", weight=40)
EXIT = rule("T-EXIT", role="context", marks=Mark.EXIT)


def test_a_kernel_line_is_joined_to_the_ranks_that_ran_on_its_node() -> None:
    diagnosis = diagnose(
        sighting(XID, 1, path="dmesg", node="n7", captures={"gpu": "0000:b3:00"}),
        sighting(TIMEOUT, 2, path="r0.log", node="n1", rank=0),
        sighting(TIMEOUT, 3, path="r9.log", node="n7", rank=9),
    )
    domain = diagnosis.fault_domain
    assert (diagnosis.reason, domain.node, domain.gpu, domain.rank) == ("gpu_fallen_off_bus", "n7", "0000:b3:00", "9")


def test_a_launchers_summary_places_a_rank_too() -> None:
    diagnosis = diagnose(
        sighting(XID, 1, path="dmesg", node="n7"),
        sighting(EXIT, 2, path="run.log", captures={"exit_code": "-6", "rank": "12", "node": "n7"}),
    )
    assert diagnosis.fault_domain.rank == "12"


def test_a_node_whose_ranks_nobody_named_stays_without_one() -> None:
    diagnosis = diagnose(sighting(XID, 1, path="dmesg", node="n7"), sighting(TIMEOUT, 2, path="r0.log", node="n1", rank=0))
    assert (diagnosis.fault_domain.node, diagnosis.fault_domain.rank) == ("n7", None)


def test_more_ranks_than_a_node_can_single_out_are_not_listed() -> None:
    crowd = [sighting(TIMEOUT, 2 + rank, path=f"r{rank}.log", node="n7", rank=rank) for rank in range(16)]
    assert diagnose(sighting(XID, 1, path="dmesg", node="n7"), *crowd).fault_domain.rank is None
