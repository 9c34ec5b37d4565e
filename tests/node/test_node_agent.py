"""`pitstop node` as a process, and the kernel log that it reads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from detectors.kernel_log import KMSG, KernelLine, KernelLog, parse_record
from tests.node.peer import ROOT, Peer, wait_for


def test_a_kernel_record_reads_as_dmesg_prints_it() -> None:
    record = b"3,1234,5678901234,-;NVRM: Xid (PCI:0000:b3:00): 79, GPU has fallen off the bus.\n SUBSYSTEM=pci\n"
    assert parse_record(record) == KernelLine(
        1234, 5678.901234, "[ 5678.901234] NVRM: Xid (PCI:0000:b3:00): 79, GPU has fallen off the bus."
    )
    escaped = parse_record(rb"6,1,2,-;a\x09b")
    assert escaped is not None and escaped.text.endswith("a\tb")
    assert [parse_record(bad) for bad in (b"", b"no separator", b"a,b,c;text", b"6,1;short")] == [None] * 4


@pytest.mark.skipif(not os.access(KMSG, os.R_OK), reason="the kernel log may not be read here")
def test_the_kernel_log_is_read_from_where_it_was_left_without_waiting() -> None:
    log = KernelLog(-1)
    lines = list(log.read())
    log.close()
    assert lines and [line.sequence for line in lines] == sorted(line.sequence for line in lines)
    again = KernelLog(lines[-2].sequence)
    assert [line.sequence for line in again.read()][:1] == [lines[-1].sequence]
    again.close()


def test_a_node_keeps_its_lease_and_refuses_what_it_cannot_do(peer: Peer, tmp_path: Path) -> None:
    peer.rows.append({"id": 4, "job": None, "generation": 0, "kind": "collect", "args": {}, "deadline": None})
    peer.rows.append({"id": 5, "job": "somebody's", "generation": 3, "kind": "stop_ranks", "args": {}, "deadline": None})
    command = [sys.executable, str(ROOT / "pitstop_entry.py"), "node", "--node", "n7", "--data-dir", str(tmp_path)]
    process = subprocess.Popen(
        [*command, "--service", f"http://127.0.0.1:{peer.port}"], stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    try:
        lease, later = wait_for(lambda: peer.posted("nodes/n7/lease")[1:3] if len(peer.posted("nodes/n7/lease")) > 2 else None)
        assert lease["boot_id"] == later["boot_id"] and lease["agent_id"] == later["agent_id"]
        (result,) = wait_for(lambda: peer.posted("commands/4/result"))
        assert result["status"] == "refused"
        assert peer.posted("commands/5/result") == [], "that is for the job's own agent"
        second = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert second.returncode == 2 and "--data-dir" in second.stderr
    finally:
        process.terminate()
        process.communicate(timeout=120)
    assert process.returncode == 0


@pytest.mark.acceptance
@pytest.mark.timeout(400)
def test_a_node_offers_probes_and_carries_them_out(peer: Peer, tmp_path: Path) -> None:
    words = ["node", "--node", "n7", "--python", sys.executable, "--data-dir", str(tmp_path)]
    command = [sys.executable, str(ROOT / "pitstop_entry.py"), *words, "--service", f"http://127.0.0.1:{peer.port}"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=tmp_path)
    try:
        wait_for(lambda: any(lease.get("probes") == "gloo" for lease in peer.posted("nodes/n7/lease")), 300)
        args = {"op": "alone", "id": "1.0.1", "backend": "gloo", "bytes": 1 << 18, "seconds": 60.0}
        peer.rows.append({"id": 9, "job": None, "generation": 0, "kind": "probe", "args": args, "deadline": None})
        (result,) = wait_for(lambda: peer.posted("commands/9/result"), 100)
        assert result["status"] == "done"
        assert result["probe"]["outcome"] == "passed", result
        assert result["probe"]["host"] == "127.0.0.1" and result["probe"]["port"] > 0
    finally:
        process.terminate()
        process.wait(120)
    assert process.returncode == 0
