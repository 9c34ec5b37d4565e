"""Documents beside the log: recognised by content, joined, and told as signals."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.reading.kinds import Kind, guess
from detectors.reading.scan import scan_inputs, scan_text
from detectors.reading.sources import UnreadableInput
from rules.findings import Findings
from rules.matcher import Matcher
from rules.pack import load_packs
from rules.signal import SignalKind, Trust

NOW = 1_796_000_000.0
SAMPLES = Path(__file__).parents[4] / "shared" / "reference" / "samples"


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    packs = ("records", "slurm", "xid", "gpu_memory", "python")
    return Matcher(tuple(rule for rule in load_packs() if rule.pack in packs))


def scan(matcher: Matcher, *paths: Path) -> Findings:
    return scan_inputs([str(path) for path in paths], matcher, lambda: NOW)


def write(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"step 1\nstep 2\n", Kind.LOG),
        (b"[  12.345678] NVRM: Xid (PCI:0000:3b:00): 79, x\n[  12.345679] x\n", Kind.KERNEL),
        (b"[Wed Jan 27 23:04:35 2021] NVRM: Xid\n", Kind.KERNEL),
        (b"Sep  5 15:17:02 gpu-1 kernel: NVRM: Xid\nSep  5 15:17:03 gpu-1 systemd[1]: Started x.\n", Kind.KERNEL),
        (b"[  12.345678] one kernel line\nstep 1\nstep 2\nstep 3\n", Kind.LOG),
        (b'{"__REALTIME_TIMESTAMP": "1795000000000000", "MESSAGE": "x"}\n{}\n', Kind.JOURNAL),
        (b"JobId=7 JobName=train\n   JobState=FAILED\n", Kind.SLURM),
        (b"JobID|JobName|State|ExitCode\n7|train|FAILED|1:0\n", Kind.SLURM),
        (b"", Kind.EMPTY),
        (b"PK\x03\x04....", Kind.BINARY),
        (b"\0\0\0\0Traceback (most recent call last):\n", Kind.LOG),
    ],
)
def test_the_kind_of_an_input_is_told_from_its_content(head: bytes, kind: Kind) -> None:
    assert guess(head).kind is kind


def test_error_files_of_torchelastic_are_joined_with_their_rank_and_time(matcher: Matcher, tmp_path: Path) -> None:
    document = {
        "message": {
            "message": "RuntimeError: CUDA error: uncorrectable ECC error encountered",
            "extraInfo": {
                "py_callstack": 'Traceback (most recent call last):\n  File "a.py", line 1\n',
                "timestamp": "1795000000",
            },
        },
        "errorCode": 1,
    }
    findings = scan(matcher, write(tmp_path / "none_x1/attempt_0/3/error.json", document))
    root = next(signal for signal in findings.signals if signal.reason == "gpu_uncorrectable_ecc")
    assert (root.line.rank, root.line.time, root.line.trust, root.kind) == (3, 1795000000.0, Trust.JOB, SignalKind.EXIT)
    assert next(signal for signal in findings.signals if signal.rule == "PS-TE-001").captures["exit_code"] == "1"
    assert findings.inputs[0].kind == "torchelastic"


def test_a_plain_message_in_an_error_file_is_read_too(matcher: Matcher, tmp_path: Path) -> None:
    findings = scan(matcher, write(tmp_path / "error.json", {"message": "ValueError: no", "errorCode": 1}))
    assert {"PS-PY-007", "PS-TE-001"} <= {signal.rule for signal in findings.signals}


def dump_of(enqueued: int) -> dict[str, Any]:
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "entries": [
            {
                "process_group": ["0", "default_pg"],
                "collective_seq_id": number,
                "profiling_name": "nccl:all_reduce",
                "input_sizes": [[4]],
                "output_sizes": [[4]],
                "input_dtypes": ["Float"],
                "state": "completed" if number < 3 else "scheduled",
                "time_created_ns": 1_795_000_000_000_000_000,
            }
            for number in range(1, enqueued + 1)
        ],
    }


def test_flight_recorder_dumps_of_several_files_and_forms_are_compared(matcher: Matcher, tmp_path: Path) -> None:
    write(tmp_path / "fr_0.json", dump_of(3))
    (tmp_path / "fr_1").write_bytes(pickle.dumps(dump_of(2), 2))
    write(tmp_path / "train.log", "step 1\n")
    findings = scan(matcher, tmp_path)
    (signal,) = [signal for signal in findings.signals if signal.rule.startswith("PS-FR-")]
    assert (signal.rule, signal.captures["rank"], signal.kind) == ("PS-FR-002", "1", SignalKind.MEASUREMENT)
    assert [read.kind for read in findings.inputs] == ["flight_recorder", "flight_recorder", "log"]


def ras(count: int, dead: bool = False, timestamp: str = "2026-11-28 10:00:00") -> dict[str, Any]:
    member = {"host": "gpu-2", "pid": 9, "cuda_dev": 1, "nvml_dev": 1}
    missing = [{"rank": 1, **member, "status": {"unresponsive": True, "considered_dead": dead}}]
    return {
        "nccl_version": "2.28.7",
        "timestamp": timestamp,
        "communicators": [
            {
                "hash": "0x5f3a",
                "size": 3,
                "ranks": [
                    {"rank": 0, **member, "host": "gpu-1", "collective_counts": {"AllReduce": 42}},
                    {"rank": 2, **member, "host": "gpu-3", "collective_counts": {"AllReduce": count}},
                ],
                "missing_ranks": missing if dead else [],
            }
        ],
    }


def test_one_ras_sample_says_nothing_of_a_hang_and_two_do(matcher: Matcher, tmp_path: Path) -> None:
    first = write(tmp_path / "ras1.json", ras(41))
    assert not [signal for signal in scan(matcher, first).signals if signal.rule.startswith("PS-RAS")]
    moving = write(tmp_path / "ras2.json", ras(42, timestamp="2026-11-28 10:00:30"))
    assert not [signal for signal in scan(matcher, first, moving).signals if signal.rule.startswith("PS-RAS")]
    still = write(tmp_path / "ras2.json", ras(41, timestamp="2026-11-28 10:00:30"))
    (signal,) = [signal for signal in scan(matcher, first, still).signals if signal.rule.startswith("PS-RAS")]
    assert (signal.rule, signal.line.rank, signal.line.node, signal.line.trust) == ("PS-RAS-003", 2, "gpu-3", Trust.NODE)


def test_a_rank_that_ras_counts_as_dead_is_told_at_once(matcher: Matcher, tmp_path: Path) -> None:
    (signal,) = scan(matcher, write(tmp_path / "ras.json", ras(42, dead=True))).signals
    assert (signal.rule, signal.captures["rank"], signal.captures["node"]) == ("PS-RAS-001", "1", "gpu-2")


SCONTROL = """JobId=77 JobName=big train
   UserId=u(1000) GroupId=u(1000)
   JobState=NODE_FAIL Reason=NodeDown Dependency=(null)
   RunTime=00:10:00 EndTime=2026-11-28T10:00:00
   NodeList=gpu-7
   BatchHost=gpu-7
"""


def test_the_schedulers_record_of_the_job_is_a_witness_of_its_own(matcher: Matcher, tmp_path: Path) -> None:
    (signal,) = scan(matcher, write(tmp_path / "job.txt", SCONTROL)).signals
    assert (signal.reason, signal.line.node, signal.line.trust) == ("node_failure", "gpu-7", Trust.NODE)
    assert signal.line.time == 1795860000.0


def test_records_of_other_jobs_than_the_logs_tell_nothing(matcher: Matcher, tmp_path: Path) -> None:
    write(tmp_path / "slurm-78.out", "step 1\n")
    write(
        tmp_path / "job.txt",
        SCONTROL + SCONTROL.replace("JobId=77", "JobId=78").replace("NODE_FAIL Reason=NodeDown", "COMPLETED"),
    )
    assert scan(matcher, tmp_path).signals == ()


def test_kernel_lines_count_as_the_nodes_own_word(matcher: Matcher, tmp_path: Path) -> None:
    xid = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=python, GPU has fallen off the bus."
    write(tmp_path / "dmesg-gpu-node-001.txt", f"[   12.345678] {xid}\n")
    journal = {"__REALTIME_TIMESTAMP": "1795000000000000", "_HOSTNAME": "gpu-9", "_TRANSPORT": "kernel", "MESSAGE": xid}
    write(tmp_path / "journal.json", json.dumps(journal) + "\n" + json.dumps(journal) + "\n")
    write(tmp_path / "train.log", f"step 1\nkernel says: {xid}\n")
    found = {
        (signal.line.node, signal.line.trust, signal.line.time)
        for signal in scan(matcher, tmp_path).signals
        if signal.reason == "gpu_fallen_off_bus"
    }
    assert found == {("gpu-node-001", Trust.NODE, None), ("gpu-9", Trust.NODE, 1795000000.0), (None, Trust.JOB, None)}


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="../shared is absent")
def test_alerts_that_fire_are_joined_and_resolved_ones_are_not(matcher: Matcher) -> None:
    firing = scan(matcher, SAMPLES / "alertmanager_firing.json")
    (signal,) = firing.signals
    assert (signal.rule, signal.line.rank, signal.line.trust, signal.kind) == ("PS-ALERT-001", 3, Trust.CLUSTER, SignalKind.ALERT)
    assert signal.line.time == pytest.approx(1795965858.389)
    assert scan(matcher, SAMPLES / "alertmanager_resolved.json").signals == ()


def test_inputs_that_hold_nothing_readable_are_an_error_that_says_why(matcher: Matcher, tmp_path: Path) -> None:
    (tmp_path / "empty.log").touch()
    (tmp_path / "model.pt").write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(UnreadableInput, match=r"empty\.log is empty; .*model\.pt is a zip archive or a checkpoint"):
        scan(matcher, tmp_path)


def test_json_that_is_no_known_document_is_read_as_a_log(matcher: Matcher) -> None:
    deep = b"[" * 200_000
    for content in (b'{"level": "error", "msg": "KeyError: \'x\'"}\n{"a": 1}\n', deep, b"{}", b"{" * 1000):
        findings = scan_text(content, matcher, lambda: NOW)
        assert findings.inputs[0].kind == "log"


@given(
    st.binary(max_size=400),
    st.sampled_from([b"", b"{", b"[{", b"\x80\x02}", b"JobId=1 ", b"[ 1.000000] ", b"\x1f\x8b", b"(\xb5/\xfd"]),
)
def test_any_input_is_read_without_error(matcher: Matcher, data: bytes, start: bytes) -> None:
    scan_text(start + data, matcher, lambda: NOW)
