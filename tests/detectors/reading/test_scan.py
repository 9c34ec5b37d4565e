"""From bytes to findings: conditions, counts, ranks, bounded memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from detectors.reading.ledger import MAX_SIGNALS_PER_RULE
from detectors.reading.scan import scan_inputs, scan_text
from rules.findings import Findings
from rules.matcher import Matcher
from rules.pack import parse_pack
from rules.signal import Role
from rules.taxonomy import load_taxonomy

PACK = r"""
pack: test
rules:
- code: T-XID
  role: root
  reason: gpu_fallen_off_bus
  any: ['NVRM: Xid \(']
  captures: ['Xid \((?P<gpu>[^)]+)\): (?P<xid>\d+)']
- code: T-NEAR
  role: cascade
  reason: nccl_timeout_unattributed
  any: ['collective timed out']
  all: ['watchdog woke']
  none: ['all is well']
  window: 3
- {code: T-CODE, role: root, reason: python_code_error, any: ['(?:^|[\]\)>|:] ?)(?:TypeError|ShardError): ', 'raise ShardError']}
- {code: T-EXIT, role: context, marks: exit, any: ['exitcode  : -?[1-9]'], captures: ['exitcode  : (?P<exit_code>-?\d+)']}
- {code: T-WHOLE, title: whole, role: root, reason: process_killed_sigkill, any: ['exit code -9'], none: ['Xid']}
- {code: T-STEP, title: step, role: routine, marks: progress, any: ['step \d+ loss'], captures: ['step (?P<step>\d+)']}
- {code: T-LOAD, title: load, role: context, marks: loading, any: ['loading .* loss']}
- {code: T-DULL, title: dull, role: routine, any: ['heartbeat']}
"""
NOW = 1_796_000_000.0


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    return Matcher(parse_pack(PACK, load_taxonomy(), "test"))


def scan(matcher: Matcher, text: str) -> Findings:
    return scan_text(text.encode(), matcher, lambda: NOW)


def codes(findings: Findings) -> list[str]:
    return [signal.rule for signal in findings.signals]


def test_a_match_carries_its_place_rank_node_time_and_captures(matcher: Matcher) -> None:
    (signal,) = scan(matcher, "dull\n[rank3]: 2026-11-28 10:11:12 NVRM: Xid (PCI:0000:91:00): 79, x\n").signals
    assert (signal.rule, signal.role, signal.line.number, signal.line.rank) == ("T-XID", Role.ROOT, 2, 3)
    assert signal.captures == {"gpu": "PCI:0000:91:00", "xid": "79"}
    assert signal.line.time == 1795860672.0


def test_equal_lines_are_counted_and_the_first_and_last_kept(matcher: Matcher) -> None:
    findings = scan(matcher, "".join(f"[{n}.000000] NVRM: Xid (PCI:0000:91:00): 79, x\n" for n in range(1000)))
    (signal,) = findings.signals
    assert (signal.count, signal.line.number, signal.last and signal.last.number) == (1000, 1, 1000)
    assert findings.inputs[0].kept == 1000


def test_signals_that_all_differ_stay_bounded(matcher: Matcher) -> None:
    findings = scan(matcher, "".join(f"NVRM: Xid (PCI:{n:04x}): 79, x\n" for n in range(5000)))
    assert len(findings.signals) == MAX_SIGNALS_PER_RULE
    assert sum(signal.count for signal in findings.signals) == 5000


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("watchdog woke\n.\n.\ncollective timed out\n", True),
        ("watchdog woke\n.\n.\n.\ncollective timed out\n", False),
        ("collective timed out\n.\nwatchdog woke\n", True),
        ("watchdog woke\ncollective timed out\nall is well\n", False),
        ("watchdog woke\ncollective timed out\n.\n.\n.\nall is well\n", True),
        ("[rank1]: watchdog woke\n[rank1]: collective timed out\n[rank2]: all is well\n", True),
        ("[rank1]: watchdog woke\n[rank2]: collective timed out\n", False),
        ("[rank1]: watchdog woke\n" + "[rank2]: .\n" * 4 + "[rank2]: watchdog woke\n[rank1]: collective timed out\n", True),
    ],
)
def test_conditions_hold_within_their_window_of_the_same_rank(matcher: Matcher, text: str, found: bool) -> None:
    assert codes(scan(matcher, text)) == (["T-NEAR"] if found else [])


def test_a_window_reaches_across_blocks(matcher: Matcher) -> None:
    filler = "." * 2_000_000
    assert codes(scan(matcher, f"watchdog woke\n{filler}\ncollective timed out\n")) == ["T-NEAR"]


def test_a_condition_without_a_window_looks_at_all_inputs(matcher: Matcher, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("worker: exit code -9\n")
    assert codes(scan_inputs([str(tmp_path)], matcher, lambda: NOW)) == ["T-WHOLE"]
    (tmp_path / "b.log").write_text("NVRM: Xid (PCI:0000:91:00): 79, x\n")
    assert codes(scan_inputs([str(tmp_path)], matcher, lambda: NOW)) == ["T-XID"]


def test_of_routine_lines_that_mark_progress_those_next_to_signals_and_the_last_are_context(matcher: Matcher) -> None:
    text = "heartbeat\nstep 1 loss 2\nstep 2 loss 2\nNVRM: Xid (PCI:0000:3b:00): 79\nheartbeat\nstep 3 loss 1\nstep 4 loss 1\n"
    signals = scan(matcher, text).signals
    assert [(item.rule, item.role, item.line.number) for item in signals] == [
        ("T-STEP", Role.CONTEXT, 3),
        ("T-XID", Role.ROOT, 4),
        ("T-STEP", Role.CONTEXT, 6),
        ("T-STEP", Role.CONTEXT, 7),
    ]


def test_the_bar_of_weights_being_read_is_no_completed_step(matcher: Matcher) -> None:
    signals = scan(matcher, "loading step 1 loss\nloading step 2 loss\nloading step 3 loss\n").signals
    assert [(item.rule, item.count) for item in signals] == [("T-LOAD", 3)]


def test_the_last_completed_step_of_a_rank_before_its_signal_is_kept(matcher: Matcher) -> None:
    text = "".join(f"[rank{n % 3}]: step {n} loss 2\n" for n in range(9)) + "[rank1]: NVRM: Xid (PCI:0000:3b:00): 79, pid=1\n"
    steps = [item.line for item in scan(matcher, text).signals if item.rule == "T-STEP"]
    assert [(line.rank, line.number) for line in steps] == [(1, 8)]


def test_the_last_words_of_each_rank_are_kept(matcher: Matcher) -> None:
    text = "".join(f"[rank{n % 4}]: 2026-11-28 10:{n // 60:02d}:{n % 60:02d} step\n" for n in range(400) if n < 200 or n % 4 != 2)
    spans = scan(matcher, text).spans
    assert {rank: span.lines for rank, span in spans.items()} == {0: 100, 1: 100, 2: 50, 3: 100}
    assert spans[3].last_time - spans[2].last_time == 201
    assert spans[2].last_line is not None and spans[2].last_line.number == 199


def test_a_line_from_the_future_never_becomes_the_latest(matcher: Matcher) -> None:
    text = "[rank0]: 2026-11-28 10:00:00 a\n[rank0]: 2036-01-01 00:00:00 b\n"
    assert scan(matcher, text).spans[0].last_time in (None, 1795860000.0)


TRACEBACK = """\
Traceback (most recent call last):
  File "/workspace/train.py", line 41, in <module>
    main()
  File "/workspace/train.py", line 33, in main
    raise ShardError("no footer")
  File "/opt/venv/lib/python3.11/site-packages/shards/open.py", line 7, in load
    raise ShardError("no footer")
ShardError: no footer
"""


def test_the_exception_line_is_the_signal_and_its_frames_are_context(matcher: Matcher) -> None:
    (signal,) = scan(matcher, TRACEBACK).signals
    assert signal.line.text == "ShardError: no footer"
    assert signal.captures["raised_at"] == "/workspace/train.py:33 in main"


def test_a_traceback_without_its_end_is_known_by_its_frames(matcher: Matcher) -> None:
    torn = "\n".join(TRACEBACK.splitlines()[:5]) + "\n"
    assert [signal.line.number for signal in scan(matcher, torn).signals] == [5]


def test_tracebacks_of_several_ranks_are_put_together_when_their_lines_interleave(matcher: Matcher) -> None:
    other = TRACEBACK.replace("train.py", "other.py").replace("ShardError: no footer", "TypeError: no")
    mixed = "".join(
        f"[rank1]: {one}\n[rank2]: {two}\n" for one, two in zip(TRACEBACK.splitlines(), other.splitlines(), strict=True)
    )
    found = {signal.line.rank: signal for signal in scan(matcher, mixed).signals}
    assert {rank: signal.captures["raised_at"] for rank, signal in found.items()} == {
        1: "/workspace/train.py:33 in main",
        2: "/workspace/other.py:33 in main",
    }
    assert all(signal.count == 1 for signal in found.values()) and len(found) == 2


def test_a_torn_line_belongs_to_the_writer_of_its_matching_part(matcher: Matcher) -> None:
    (signal,) = scan(matcher, "[rank1]: consumed sam[rank2]: TypeError: no\n").signals
    assert (signal.line.rank, signal.line.text) == (2, "[rank2]: TypeError: no")


def test_a_local_rank_means_the_global_one_that_its_prefix_named_before(matcher: Matcher) -> None:
    (signal,) = scan(matcher, "[default3]:[rank11]: TypeError: a\n[default3]:TypeError: b\n").signals
    assert (signal.line.rank, signal.count) == (11, 2)


SUMMARY = """\
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-01-02_10:11:13
  host      : node-7
  rank      : 9 (local_rank: 1)
  exitcode  : 1 (pid: 4712)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-02_10:11:12
  host      : node-8
  rank      : 12 (local_rank: 4)
  exitcode  : -9 (pid: 4711)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 4711
"""


def test_each_failure_of_a_launcher_summary_knows_its_rank_node_and_time(matcher: Matcher) -> None:
    found = {signal.captures["exit_code"]: signal.captures for signal in scan(matcher, SUMMARY).signals}
    assert found["-9"] == {
        "exit_code": "-9",
        "rank": "12",
        "local_rank": "4",
        "node": "node-8",
        "failed_at": "2026-01-02_10:11:12",
        "observed": "first",
    }
    assert (found["1"]["rank"], found["1"]["node"]) == ("9", "node-7")


def test_times_of_a_rank_with_a_wrong_clock_are_put_right(matcher: Matcher) -> None:
    steps = "".join(
        f"[rank{rank}]: 2026-11-28 10:{5 if rank == 2 else 0:02d}:{step:02d} step {step} loss 2\n"
        for step in range(5)
        for rank in range(4)
    )
    text = steps + "[rank2]: 2026-11-28 10:05:10: TypeError: a\n[rank1]: 2026-11-28 10:00:12: TypeError: b\n"
    times = {signal.line.rank: signal.line.time for signal in scan(matcher, text).signals if signal.rule == "T-CODE"}
    assert times == {2: 1795860010.0, 1: 1795860012.0}


def test_a_time_of_day_alone_runs_on_over_midnight(matcher: Matcher) -> None:
    text = "2026-11-27 23:59:50 start\n2026-11-27 23:59:58: TypeError: a\n00:00:03 NVRM: Xid (PCI:0000:91:00): 79, x\n"
    times = [signal.line.time for signal in scan(matcher, text).signals]
    assert times == [1795823998.0, 1795824003.0]


@pytest.mark.parametrize(
    "form",
    [
        "[default{local}]:[rank{rank}]: NVRM: Xid (PCI:0000:{bus}): 79, x",
        "{rank}: NVRM: Xid (PCI:0000:{bus}): 79, x",
        "Nov 28 10:11:{local}2 node-{rank} kernel: NVRM: Xid (PCI:0000:{bus}): 79, x",
        "[default{local}]:NVRM: Xid (PCI:0000:{bus}): 79, x",
    ],
)
def test_lines_that_differ_in_digits_only_say_the_same_as_if_each_came_first(matcher: Matcher, form: str) -> None:
    lines = [form.format(local=n % 2, rank=8 + n % 3, bus=10 + n % 5) for n in range(40)]
    together = {(item.line.rank, item.line.node, item.captures["gpu"]) for item in scan(matcher, "\n".join(lines) + "\n").signals}
    alone = set()
    for line in lines:
        (item,) = scan(matcher, line + "\n").signals
        alone.add((item.line.rank, item.line.node, item.captures["gpu"]))
    assert together == alone
