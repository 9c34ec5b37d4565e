"""What position, repetition and later lines make of a finding."""

from __future__ import annotations

from rules.pack import Mark, Phase, Rule
from rules.signal import Signal
from tests.rules.casebook import diagnose, root_lines, rule, sighting

START = rule("T-START", role="context", marks=Mark.START)
STEP = rule("T-STEP", role="routine", marks=Mark.PROGRESS)
RESTART = rule("T-RESTART", role="context", marks=Mark.RESTART)
RETRY = rule("T-RETRY", "rdma_retry_exceeded", weight=70)
PATH = rule("T-PATH", "rdma_path_unreachable", weight=75, phase=Phase.START, overrides=("T-RETRY",))
HUB = rule("T-HUB", "hub_unreachable", transient=True, overrides=("nccl_timeout_unattributed", "process_exit_unattributed"))
TIMEOUT = rule("T-TIMEOUT", "nccl_timeout_unattributed", "cascade")
NFS = rule("T-NFS", "storage_hang", weight=70)
NFS_OK = rule("T-NFS-OK", role="context", recovers=("T-NFS",))
TROUBLE = rule("T-TROUBLE", "unknown", "cascade")
ECC = rule("T-ECC", "gpu_uncorrectable_ecc", weight=90)
KEY = rule("T-KEY", "python_key_error")
SUMMARY = rule("T-SUMMARY", role="context", marks=Mark.EXIT)
FINISHED = rule("T-FINISHED", role="context", marks=Mark.FINISHED)
PEER = rule("T-PEER", "remote_peer_lost", "cascade")


def test_the_same_words_at_the_first_transfer_are_configuration() -> None:
    assert diagnose(sighting(START, 1), sighting(RETRY, 2), sighting(PATH, 2)).reason == "rdma_path_unreachable"


def test_the_same_words_after_traffic_has_worked_are_the_network() -> None:
    diagnosis = diagnose(sighting(START, 1), sighting(STEP, 2), sighting(RETRY, 3), sighting(PATH, 3))
    assert diagnosis.reason == "rdma_retry_exceeded"


def test_without_any_sign_of_a_start_the_job_counts_as_running() -> None:
    assert diagnose(sighting(RETRY, 3), sighting(PATH, 3)).reason == "rdma_retry_exceeded"


def test_a_retried_warning_alone_is_no_failure() -> None:
    diagnosis = diagnose(sighting(HUB, 1), sighting(STEP, 2))
    assert diagnosis.reason == "none"
    assert "retries by itself" in diagnosis.why[0]


def test_a_retried_warning_is_the_cause_of_the_failure_that_follows() -> None:
    diagnosis = diagnose(sighting(HUB, 1), sighting(TIMEOUT, 2))
    assert (diagnosis.reason, root_lines(diagnosis)) == ("hub_unreachable", [1])


def test_a_retried_warning_is_not_the_cause_where_the_failure_names_its_own() -> None:
    diagnosis = diagnose(sighting(HUB, 1), sighting(KEY, 2), sighting(TROUBLE, 2))
    assert (diagnosis.reason, root_lines(diagnosis)) == ("python_key_error", [2])


def test_a_retried_warning_is_not_the_cause_of_a_death_that_no_retry_brings_about() -> None:
    killed = sighting(SUMMARY, 3, captures={"signal": "SIGSEGV", "local_rank": "3"})
    assert diagnose(sighting(HUB, 1), killed, sighting(TROUBLE, 3)).reason == "process_segfault"


def test_a_retried_warning_is_forgotten_when_training_goes_on() -> None:
    diagnosis = diagnose(
        sighting(STEP, 1, captures={"step": "1"}),
        sighting(HUB, 2),
        sighting(STEP, 50, captures={"step": "9"}),
        sighting(TIMEOUT, 60),
    )
    assert diagnosis.reason == "nccl_timeout_unattributed"


def test_what_works_again_is_no_failure() -> None:
    assert diagnose(sighting(NFS, 1), sighting(NFS_OK, 9)).reason == "none"


def test_what_fails_again_after_it_worked_is_one() -> None:
    assert diagnose(sighting(NFS, 1, count=2, last=12), sighting(NFS_OK, 9)).reason == "storage_hang"


def test_another_server_that_answers_acquits_nobody() -> None:
    hung, well = sighting(NFS, 1, captures={"peer": "10.0.0.1"}), sighting(NFS_OK, 9, captures={"peer": "10.0.0.2"})
    assert diagnose(hung, well).reason == "storage_hang"


def test_fewer_repeats_than_a_rule_asks_for_are_noise() -> None:
    corrected = rule("T-AER", "pcie_link_errors", at_least=3)
    assert diagnose(sighting(corrected, 1)).reason == "none"
    assert diagnose(sighting(corrected, 1, count=3, last=4)).reason == "pcie_link_errors"


def test_trouble_without_a_cause_is_forgotten_when_the_process_goes_on() -> None:
    steps = [sighting(STEP, number, captures={"step": str(number)}) for number in (1, 3)]
    assert diagnose(steps[0], sighting(TROUBLE, 2), steps[1]).reason == "none"


def test_a_progress_bar_drawn_once_more_is_not_going_on() -> None:
    steps = [sighting(STEP, number, captures={"step": "7"}) for number in (1, 3)]
    assert diagnose(steps[0], sighting(TROUBLE, 2), steps[1]).reason == "unknown"


def test_of_several_attempts_the_last_that_failed_is_diagnosed() -> None:
    diagnosis = diagnose(sighting(ECC, 1), sighting(RESTART, 2), sighting(START, 3), sighting(KEY, 4))
    assert (diagnosis.reason, diagnosis.alternatives[0].reason) == ("python_key_error", "gpu_uncorrectable_ecc")
    assert "earlier attempt" in diagnosis.alternatives[0].ruled_out_by


def test_late_words_of_the_old_attempt_do_not_make_a_new_failure() -> None:
    diagnosis = diagnose(sighting(ECC, 1), sighting(RESTART, 2), sighting(TIMEOUT, 3), sighting(START, 4), sighting(STEP, 5))
    assert diagnosis.reason == "gpu_uncorrectable_ecc"


def test_a_log_that_goes_on_after_a_restart_still_says_what_failed() -> None:
    assert (
        diagnose(sighting(ECC, 1), sighting(RESTART, 2), sighting(START, 3), sighting(STEP, 9)).reason == "gpu_uncorrectable_ecc"
    )


def steps(*numbers: tuple[int, int]) -> list[tuple[Rule, Signal]]:
    return [sighting(STEP, line, captures={"step": str(step)}) for line, step in numbers]


def test_an_error_that_the_program_catches_and_lives_with_is_no_failure() -> None:
    before, *after = steps((1, 10), (3, 11), (9, 40))
    assert diagnose(before, sighting(KEY, 2), *after).reason == "none"


def test_an_optional_import_that_fails_before_the_first_steps_is_no_failure() -> None:
    assert diagnose(sighting(KEY, 2), *steps((3, 10), (4, 11))).reason == "none"


def test_a_step_or_two_of_the_other_ranks_after_an_error_prove_nothing() -> None:
    before, *after = steps((1, 10), (3, 11), (4, 12))
    assert diagnose(before, sighting(KEY, 2), *after).reason == "python_key_error"


def test_steps_after_a_new_start_do_not_undo_the_failure_before_it() -> None:
    before, *after = steps((1, 10), (5, 11), (9, 40))
    assert diagnose(before, sighting(KEY, 2), sighting(START, 4), *after).reason == "python_key_error"


def test_a_broken_gpu_stays_broken_while_training_goes_on() -> None:
    before, *after = steps((1, 10), (3, 11), (9, 40))
    assert diagnose(before, sighting(ECC, 2), *after).reason == "gpu_uncorrectable_ecc"


def test_steps_of_another_node_do_not_show_that_the_program_lived() -> None:
    other = [sighting(STEP, line, node="n2", captures={"step": str(step)}) for line, step in ((1, 10), (3, 11), (9, 40))]
    assert diagnose(other[0], sighting(KEY, 2), *other[1:]).reason == "python_key_error"


def test_step_numbers_that_jump_about_show_nothing() -> None:
    before, *after = steps((1, 10), (3, 900), (9, 40))
    assert diagnose(before, sighting(KEY, 2), *after).reason == "python_key_error"


def test_what_worked_again_too_late_for_those_that_waited_is_the_cause() -> None:
    away = rule("T-AWAY", "storage_hang", weight=70, overrides=("nccl_timeout_unattributed",))
    back = rule("T-BACK", role="context", recovers=("T-AWAY",))
    diagnosis = diagnose(sighting(away, 1), sighting(TIMEOUT, 2), sighting(back, 3))
    assert (diagnosis.reason, root_lines(diagnosis)) == ("storage_hang", [1])
    assert diagnose(sighting(away, 1), sighting(back, 2), sighting(TIMEOUT, 3)).reason == "nccl_timeout_unattributed"


def test_a_peer_that_goes_away_after_the_job_has_ended_well_is_no_failure() -> None:
    diagnosis = diagnose(sighting(STEP, 1), sighting(FINISHED, 2), sighting(PEER, 3))
    assert (diagnosis.reason, diagnosis.why[0]) == ("none", "T-PEER does not count: the job had ended well at line 2")


def test_a_peer_that_goes_away_in_the_job_after_one_that_ended_well_is_a_failure() -> None:
    assert diagnose(sighting(FINISHED, 1), sighting(START, 2), sighting(PEER, 3)).reason == "remote_peer_lost"


def test_a_cause_after_the_end_still_counts() -> None:
    assert diagnose(sighting(FINISHED, 1), sighting(PEER, 2), sighting(ECC, 3)).reason == "gpu_uncorrectable_ecc"


def test_a_read_that_failed_once_is_no_failure_where_training_went_on() -> None:
    reading = rule("T-IO", "storage_io_error", weight=70)
    steps = [sighting(STEP, number, captures={"step": str(number)}) for number in (1, 3, 9)]
    assert diagnose(steps[0], sighting(reading, 2), *steps[1:]).reason == "none"
