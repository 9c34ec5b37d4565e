"""What a person reads of a diagnosis."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from cli.report import Style, report
from detectors.reading.excerpt import lines_around
from rules.diagnosis import Alternative, Diagnosis, Evidence, FaultDomain, Input
from rules.signal import Role
from rules.taxonomy import load_taxonomy

REASONS = load_taxonomy()
LOST = Diagnosis.of(
    REASONS["gpu_fallen_off_bus"],
    "GPU has fallen off the bus on node n1 (k.log:3).",
    confidence=0.97,
    rule="PS-XID-079",
    fault_domain=FaultDomain(node="n1", gpu="0000:91:00"),
    evidence=(
        Evidence(Role.ROOT, "NVRM: Xid 79\x1b[31m", "k.log", 3),
        *(Evidence(Role.CASCADE, f"timeout {n}", "k.log", n) for n in range(10, 18)),
    ),
    alternatives=(Alternative("nccl_timeout_unattributed", 0.02, "a consequence of PS-XID-079"),),
    collect=("nvidia-bug-report.sh",),
    inputs=(Input("k.log", "log", 20, 900, 9),),
)


def around(_path: str, numbers: Collection[int]) -> Mapping[int, str]:
    return {number + step: f"text {number + step}" for number in numbers for step in (-1, 0, 1)}


def text_of(diagnosis: Diagnosis) -> list[str]:
    return ["".join(piece.text for piece in row) for row in report(diagnosis, around)]


def test_verdict_place_evidence_in_context_consequences_and_what_to_do_stand_in_order() -> None:
    lines = text_of(LOST)
    assert lines[0].startswith(" SEV1  gpu_fallen_off_bus")
    headings = [line for line in lines if line in ("Where", "Evidence", "Consequences of it", "Ruled out", "What to do")]
    assert headings == ["Where", "Evidence", "Consequences of it", "Ruled out", "What to do"]
    assert "  >       3  text 3" in lines and "          4  text 4" in lines
    assert "    and 3 more lines" in lines
    assert "  2. Collect nvidia-bug-report.sh." in lines
    assert lines[-1] == "Read k.log (log): 20 lines, 900 bytes"


def test_without_the_file_at_hand_the_quoted_line_is_shown_without_terminal_control() -> None:
    rows = ["".join(piece.text for piece in row) for row in report(LOST, lambda path, numbers: {})]
    assert "  >       3  NVRM: Xid 79\N{REPLACEMENT CHARACTER}[31m" in rows


def test_no_failure_says_so_and_what_was_set_aside() -> None:
    healthy = Diagnosis.of(REASONS["none"], "No failure in 9 lines.", why=("T-NFS does not count: works again at line 4",))
    assert text_of(healthy) == [
        "No failure found  No failure in 9 lines.",
        "Looked at and set aside",
        "  T-NFS does not count: works again at line 4",
    ]


def test_an_unknown_failure_asks_for_one_restart_and_for_what_to_collect() -> None:
    unknown = Diagnosis.of(REASONS["unknown"], "Something failed.", collect=("kernel log",))
    assert any("Restart once on the same resources" in line for line in text_of(unknown))


def test_root_lines_stand_out() -> None:
    marked = [row for row in report(LOST, around) if any(piece.style is Style.ROOT for piece in row)]
    assert ["".join(piece.text for piece in row) for row in marked] == ["  >       3  text 3"]


def test_lines_around_come_from_the_file_with_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("".join(f"line {n}\n" for n in range(1, 30)))
    assert lines_around(str(path), [1, 20], around=1) == {n: f"line {n}" for n in (1, 2, 19, 20, 21)}


def test_what_cannot_be_read_again_gives_no_surroundings(tmp_path: Path) -> None:
    assert lines_around("-", [3]) == {}
    assert lines_around(str(tmp_path / "gone"), [3]) == {}
