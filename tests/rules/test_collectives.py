"""Collective timeouts laid side by side."""

from __future__ import annotations

from typing import Any

from rules.pack import Mark, Rule
from rules.signal import Signal
from tests.rules.casebook import diagnose, root_lines, rule, sighting

TIMEOUT = rule("T-TIMEOUT", "nccl_timeout_unattributed", "cascade")
STORE = rule("T-STORE", "rendezvous_store_unreachable", "cascade")
SAVE = rule("T-SAVE", role="context", marks=Mark.SAVE)
SAVED = rule("T-SAVED", role="context", marks=Mark.SAVED)
MAP = rule("T-MAP", role="context", marks=Mark.PREPARATION)
STEP = rule("T-STEP", role="routine", marks=Mark.PROGRESS)


def timeout(number: int, rank: int, sequence: int = 100, operation: str = "ALLREDUCE", **more: Any) -> tuple[Rule, Signal]:
    captures = {"reporter": str(rank), "sequence": str(sequence), "operation": operation, "size": "64", "elapsed_ms": "600000"}
    captures |= more.pop("captures", {})
    return sighting(TIMEOUT, number, rank=rank, captures=captures, **more)


def test_ranks_that_wait_for_different_operations_have_diverged() -> None:
    diagnosis = diagnose(timeout(1, 0), timeout(2, 1, 102, "_ALLGATHER_BASE"))
    assert (diagnosis.reason, root_lines(diagnosis)) == ("collective_mismatch", [1, 2])
    assert "ALLREDUCE against _ALLGATHER_BASE" in diagnosis.why[0]


def test_ranks_that_wait_for_the_same_operation_of_different_size_have_diverged() -> None:
    assert diagnose(timeout(1, 0), timeout(2, 1, captures={"size": "65"})).reason == "collective_mismatch"


def test_one_rank_alone_proves_no_divergence() -> None:
    assert diagnose(timeout(1, 0), timeout(2, 0, 102)).reason == "nccl_timeout_unattributed"


def test_timeouts_of_different_process_groups_are_not_compared() -> None:
    one, other = timeout(1, 0, captures={"group": "tp"}), timeout(2, 1, 99, captures={"group": "dp"})
    assert diagnose(one, other).reason == "nccl_timeout_unattributed"


def test_unnamed_groups_with_counters_far_apart_are_not_compared() -> None:
    assert diagnose(timeout(1, 0, 100), timeout(2, 1, 90_000)).reason == "nccl_timeout_unattributed"


def test_when_ranks_agree_the_only_silent_one_is_the_suspect() -> None:
    diagnosis = diagnose(*(timeout(n, rank) for n, rank in enumerate((0, 2, 3), 1)))
    assert (diagnosis.reason, diagnosis.fault_domain.rank) == ("nccl_timeout_unattributed", "1")
    assert "rank 1 is the only one that reports nothing" in diagnosis.why


def test_the_rank_that_has_enqueued_least_is_the_suspect() -> None:
    reports = [timeout(rank + 1, rank, captures={"enqueued": "99" if rank == 2 else "140"}) for rank in range(4)]
    assert diagnose(*reports).fault_domain.rank == "2"


def test_the_rank_that_prints_is_not_the_suspect() -> None:
    assert diagnose(timeout(1, 5)).fault_domain.rank is None


def test_a_save_at_the_start_of_the_time_limit_is_the_cause() -> None:
    diagnosis = diagnose(sighting(SAVE, 1, time=1000.0), timeout(2, 1, time=1610.0), timeout(3, 2, time=1610.0))
    assert (diagnosis.reason, root_lines(diagnosis)) == ("checkpoint_save_stall", [1])


def test_a_save_that_ended_is_not_the_cause() -> None:
    assert diagnose(sighting(SAVE, 1), sighting(SAVED, 2), timeout(3, 1)).reason == "nccl_timeout_unattributed"


def test_a_save_long_before_the_time_limit_began_is_not_the_cause() -> None:
    assert diagnose(sighting(SAVE, 1, time=1000.0), timeout(2, 1, time=9000.0)).reason == "nccl_timeout_unattributed"


def test_steps_after_a_save_acquit_it() -> None:
    assert diagnose(sighting(SAVE, 1), sighting(STEP, 2), timeout(3, 1)).reason == "nccl_timeout_unattributed"


def test_steps_of_another_rank_do_not_end_a_save() -> None:
    assert diagnose(sighting(SAVE, 1), sighting(STEP, 2, rank=7), timeout(3, 1)).reason == "checkpoint_save_stall"


def test_waiting_in_set_up_while_one_rank_prepares_data_is_the_owners_to_fix() -> None:
    diagnosis = diagnose(sighting(MAP, 4), sighting(STORE, 9, text="store->get('0') got error: Socket Timeout"))
    assert (diagnosis.reason, root_lines(diagnosis)) == ("rank0_preprocessing_timeout", [4])


def test_a_store_that_broke_during_preparation_is_no_wait() -> None:
    diagnosis = diagnose(sighting(MAP, 4), sighting(STORE, 9, text="store: Connection reset by peer"))
    assert diagnosis.reason == "rendezvous_store_unreachable"
