"""The packs about hardware, fabric, storage and schedulers: what each example leads to, which of several lines is the root, and
what must not raise an alarm.
"""

from __future__ import annotations

import re
from functools import cache

import pytest

from detectors.reading.scan import scan_text
from rules.artefact import load_matcher
from rules.diagnosis import Diagnosis
from rules.matcher import Matcher
from rules.pack import Rule, RuleRole, load_packs
from rules.ranking import rank
from rules.signal import Role
from rules.taxonomy import Severity

PACKS = frozenset(
    {
        "amd_gpu",
        "ascend",
        "fabric_manager",
        "gaudi",
        "gpu_driver",
        "gpu_memory",
        "host_memory",
        "infiniband",
        "kernel",
        "kubernetes",
        "network",
        "nvlink",
        "object_store",
        "pcie",
        "slurm",
        "storage_local",
        "storage_network",
        "sxid",
        "thermal",
        "xid",
    }
)


@cache
def matcher() -> Matcher:
    return load_matcher()


def diagnose(text: str) -> Diagnosis:
    return rank(scan_text(text.encode() + b"\n", matcher(), lambda: 1.8e9), matcher().rules)


def roots(diagnosis: Diagnosis) -> list[int | None]:
    return [item.line for item in diagnosis.evidence if item.role is Role.ROOT]


def rules_of(*roles: RuleRole) -> list[Rule]:
    return [rule for rule in load_packs() if rule.pack in PACKS and rule.role in roles]


def needs_company(rule: Rule) -> bool:
    """Rules that count only at a certain point of the run, or only if something fails after them."""
    return rule.phase is not None or rule.transient


@pytest.mark.parametrize(
    "rule", [rule for rule in rules_of(RuleRole.ROOT) if not needs_company(rule)], ids=lambda rule: rule.code
)
def test_each_example_of_a_cause_leads_to_that_cause(rule: Rule) -> None:
    found = {text: diagnose(text).reason for text in rule.examples.match}
    assert found == dict.fromkeys(rule.examples.match, rule.reason)


@pytest.mark.parametrize("rule", rules_of(RuleRole.TEARDOWN, RuleRole.CONTEXT), ids=lambda rule: rule.code)
def test_context_and_teardown_raise_no_isolation(rule: Rule) -> None:
    assert all(diagnose(text).severity is not Severity.SEV1 for text in rule.examples.match)


@pytest.mark.parametrize("rule", rules_of(RuleRole.ROOT, RuleRole.CASCADE), ids=lambda rule: rule.code)
def test_rules_state_their_source_and_several_shapes(rule: Rule) -> None:
    assert rule.title
    assert rule.reference.startswith("https://")
    assert len(rule.examples.match) >= 2 or rule.all
    assert rule.examples.miss


def test_what_to_gather_is_named_item_by_item_and_no_comma_cuts_one_in_two() -> None:
    halves = re.compile(r"(?:which|who|whose|where|with|and|or|that|to)\b")
    assert [(rule.code, item) for rule in load_packs() for item in rule.collect if halves.match(item)] == []


def test_a_firmware_hang_is_the_root_of_the_engine_timeouts_that_follow() -> None:
    diagnosis = diagnose(
        "NVRM: _kgspRpcRecvPoll: GSP RM heartbeat timed out\n"
        "NVRM: Xid (PCI:0000:01:00): 8, pid=2211, name=python3, Channel 0000001c\n"
        "NVRM: Xid (PCI:0000:01:00): 109, pid=2211, name=python3, Ch 0000001c, errorString CTX SWITCH TIMEOUT, Info 0x5c00a\n"
        "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
    )
    assert (diagnosis.reason, roots(diagnosis)) == ("gsp_firmware_fault", [1])


def test_an_engine_that_stops_before_the_firmware_answers_no_more_is_the_root() -> None:
    diagnosis = diagnose(
        "NVRM: Xid (PCI:0000:01:00): 62, 0b1d(2480) 00000000 00000000\n"
        "NVRM: Xid (PCI:0000:01:00): 119, pid=9, name=python3, Timeout waiting for RPC from GSP! Expected function 76\n"
        "NVRM: Xid (PCI:0000:01:00): 45, pid=9, name=python3, Ch 00000008"
    )
    assert (diagnosis.reason, roots(diagnosis)) == ("gpu_engine_halt", [1])


def test_an_engine_timeout_after_the_applications_own_fault_isolates_nothing() -> None:
    diagnosis = diagnose(
        "NVRM: Xid (PCI:0000:cb:00): 13, pid=17, name=x, Graphics SM Warp Exception on (GPC 7, TPC 7, SM 0): Illegal\n"
        "NVRM: Xid (PCI:0000:cb:00): 109, pid=17, name=x, Ch 00000008, errorString CTX SWITCH TIMEOUT, Info 0x58005"
    )
    assert (diagnosis.severity, roots(diagnosis)) == (Severity.SEV2, [1])


def test_a_double_bit_error_outranks_the_codes_that_come_with_it() -> None:
    diagnosis = diagnose(
        "NVRM: Xid (PCI:0000:9c:00): 94, pid=41, name=python3, Ch 00000008\n"
        "NVRM: Xid (PCI:0000:9c:00): 63, Row Remapper: New row marked for remapping, reset gpu to activate.\n"
        "NVRM: Xid (PCI:0000:9c:00): 48, An uncorrectable double bit error (DBE) has been detected on GPU"
    )
    assert (diagnosis.reason, diagnosis.severity, roots(diagnosis)) == ("gpu_uncorrectable_ecc", Severity.SEV1, [3])


def test_a_failed_remap_outranks_a_contained_error_and_a_recorded_remap() -> None:
    diagnosis = diagnose(
        "NVRM: Xid (PCI:0000:9c:00): 94, pid=41, name=python3, Ch 00000008\n"
        "NVRM: Xid (PCI:0000:9c:00): 63, Row Remapper: New row marked for remapping, reset gpu to activate.\n"
        "NVRM: Xid (PCI:0000:9c:00): 64, Row Remapper Error: (0x18f31d80) - All reserved rows for bank are remapped"
    )
    assert (diagnosis.reason, roots(diagnosis)) == ("gpu_row_remap_failure", [3])


def test_a_contained_error_with_its_remap_restarts_the_process_only() -> None:
    diagnosis = diagnose(
        "nvidia-nvswitch2: SXid (PCI:0000:07:00.0): 12028, Non-fatal, Link 62 egress non-posted PRIV error (First)\n"
        "NVRM: Xid (PCI:0000:4c:00): 94, Contained: SM (0x1). RST: No, D-RST: No\n"
        "NVRM: Xid (PCI:0000:4c:00): 63, Row Remapper: New row marked for remapping, reset gpu to activate.\n"
        "NVRM: Xid (PCI:0000:cb:00): 137, TLC RX interrupt hit on link 4 on GPU0: PRIV Error"
    )
    assert (diagnosis.reason, diagnosis.severity) == ("gpu_contained_memory_error", Severity.SEV2)


def test_cudas_word_for_a_contained_error_does_not_make_it_a_reason_to_isolate() -> None:
    diagnosis = diagnose(
        "NVRM: Xid (PCI:0000:52:00): 94, pid=88, name=python, Contained: SM (0x1). RST: No, D-RST: No\n"
        "RuntimeError: CUDA error: uncorrectable ECC error encountered"
    )
    assert (diagnosis.reason, diagnosis.severity) == ("gpu_contained_memory_error", Severity.SEV2)


@pytest.mark.parametrize("code", [45, 154])
def test_teardown_xid_is_never_the_root(code: int) -> None:
    assert not diagnose(f"NVRM: Xid (PCI:0000:dc:00): {code}, pid=18, name=python3, Ch 00000001").is_failure


def test_the_switch_outranks_the_link_errors_that_the_gpus_report() -> None:
    diagnosis = diagnose(
        "NVRM: Xid (PCI:0000:07:00): 74, pid=11, name=python, NVLink: fatal error detected on link 10(0x10000, 0x0)\n"
        "nvidia-nvswitch0: SXid (PCI:0000:86:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
    )
    assert (diagnosis.reason, diagnosis.fault_domain.link) == ("nvswitch_fatal_error", "30")


def test_fatality_of_an_nvlink_event_is_in_its_words() -> None:
    line = "NVRM: Xid (PCI:0018:01:00): 145, RLW_RXPIPE {} XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x0 0x0 0x0 0x0)"
    assert diagnose(line.format("Nonfatal")).severity is Severity.SEV3
    assert diagnose(line.format("Fatal")).severity is Severity.SEV1


def test_a_link_error_storm_explains_the_lost_gpu() -> None:
    storm = "\n".join(["pcieport 0000:d7:00.0: AER: Corrected error received: 0000:d8:00.0"] * 5)
    assert diagnose(f"{storm}\nNVRM: Xid (PCI:0000:d8:00): 79, GPU has fallen off the bus.").reason == "pcie_link_errors"
    assert not diagnose(storm).is_failure


def test_a_slot_that_lost_its_link_once_follows_the_lost_gpu() -> None:
    slot = "pcieport 0000:b0:01.0: pciehp: Slot(14): Link Down"
    assert diagnose(f"{slot}\nNVRM: Xid (PCI:0000:b1:00): 79, pid=1, GPU has fallen off the bus.").reason == "gpu_fallen_off_bus"


def test_the_same_completion_error_means_the_path_at_launch_and_the_peer_in_mid_run() -> None:
    error = "NCCL WARN NET/IB : Got completion from peer 10.0.17.147<38560> with error 12, opcode 0, len 0, vendor err 129"
    launch = diagnose(f"NCCL INFO NET/IB : Using [0]mlx5_0:1/IB\n{error}")
    running = diagnose(f"NCCL INFO NET/IB : Using [0]mlx5_0:1/IB\nstep 10 loss: 2.31 lr 1e-4\n{error}")
    assert (launch.reason, running.reason) == ("rdma_path_unreachable", "rdma_retry_exceeded")


def test_flushed_requests_follow_the_one_that_timed_out() -> None:
    flushed = "NCCL WARN NET/IB : Got completion from peer 10.0.0.5<1> with status=5 opcode=0 len=0 vendor err 249 (Recv)"
    timed_out = "NCCL WARN NET/IB : Got completion from peer 10.0.0.5<1> with status=12 opcode=0 len=0 vendor err 129 (Recv)"
    diagnosis = diagnose(f"{flushed}\n{timed_out}")
    assert (diagnosis.reason, roots(diagnosis)) == ("rdma_retry_exceeded", [2])
    assert diagnose(flushed).reason == "remote_peer_lost"


def test_port_errors_explain_the_transport_errors_around_them() -> None:
    diagnosis = diagnose(
        "NCCL WARN NET/IB : Got completion from peer 10.0.0.5<44120> with error 12, opcode 0, len 0, vendor err 129\n"
        "NCCL WARN NET/IB : Got async event : port error\n"
        "NCCL WARN NET/IB : Got async event : port error"
    )
    assert diagnosis.reason == "ib_link_flap"


def test_a_lockup_inside_the_network_driver_is_the_adapters_fault() -> None:
    lockup = "watchdog: BUG: soft lockup - CPU#31 stuck for 22s! [swapper/31:0]"
    assert diagnose(f"mlx5_core 0000:3b:00.0 eth0: TX timeout detected\n{lockup}").reason == "nic_hardware_fault"
    assert diagnose(lockup).reason == "kernel_fault"


def test_a_storage_server_that_answers_again_is_no_failure() -> None:
    hang = "kernel: nfs: server nfs-2 not responding, still trying"
    assert diagnose(hang).reason == "storage_hang"
    assert not diagnose(f"{hang}\nkernel: nfs: server nfs-2 OK").is_failure


def test_a_dead_disk_explains_the_errors_that_programs_see() -> None:
    diagnosis = diagnose(
        "nvme nvme2: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff\n"
        "EXT4-fs (nvme2n1): Remounting filesystem read-only\n"
        "OSError: [Errno 30] Read-only file system: '/local/ckpt/step_100'"
    )
    assert (diagnosis.reason, diagnosis.severity) == ("local_disk_failure", Severity.SEV1)


def test_an_oom_kill_explains_the_signal_that_the_launcher_saw() -> None:
    diagnosis = diagnose(
        "torch/distributed/elastic/multiprocessing/api.py:826] failed (exitcode: -9) local_rank: 0 (pid: 1322) of binary: py\n"
        "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=191.batch cgroup."
    )
    assert (diagnosis.reason, roots(diagnosis)) == ("host_oom_killed", [2])


@pytest.mark.parametrize(
    "cause, reason",
    [
        ("DUE TO TIME LIMIT", "job_time_limit"),
        ("DUE TO PREEMPTION", "job_preempted"),
        ("DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS", "node_failure"),
    ],
)
def test_a_cancelled_job_is_named_by_what_cancelled_it(cause: str, reason: str) -> None:
    diagnosis = diagnose(
        "srun: Job step aborted: Waiting up to 47 seconds for job step to finish.\n"
        f"slurmstepd: error: *** JOB 77 ON gpu-12 CANCELLED AT 2024-04-20T09:09:37 {cause} ***\n"
        "srun: error: gpu-12: task 0: Exited with exit code 1\n"
        "W0409 07:28:49 api.py:719] Received 15 death signal, shutting down workers"
    )
    assert (diagnosis.reason, roots(diagnosis)) == (reason, [2])


NOISE = """\
mlx5_core 0000:d2:00.0: mlx5_cmd_out_err:838:(pid 268269): ACCESS_REG(0x805) op_mod(0x1) failed
mlx5_core 0000:5c:00.0: mlx5_pcie_event:299:(pid 268269): Detected insufficient power on the PCIe slot (27W).
mlx5_core 0000:19:00.0: firmware version: 28.39.1002
mlx5_core 0000:19:00.0: 252.048 Gb/s available PCIe bandwidth (16.0 GT/s PCIe x16 link)
mlx5_core 0000:19:00.0: Port module event: module 0, Cable plugged
mlx5_core 0000:19:00.1: Port module event: module 1, Cable unplugged
mlx5_core 0000:19:00.1 ens2f1np1: Link down
mlx5_core 0000:19:00.0 ens2f0np0: Link up
igb 0000:01:00.0 eno1: igb: eno1 NIC Link is Down
igb 0000:01:00.0 eno1: igb: eno1 NIC Link is Up 1000 Mbps Full Duplex, Flow Control: RX/TX
hrtimer: interrupt took 11384 ns
workqueue: ib_cache_event_task [ib_core] hogged CPU for >10000us 4 times, consider switching to WQ_UNBOUND
docker0: port 1(veth4f1c2aa) entered blocking state
pcieport 0000:00:1c.5: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)
EDAC MC0: 1 CE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x1 offset:0x0 grain:32)
mce: [Hardware Error]: Machine check events logged
CPU12: Package temperature above threshold, cpu clock throttled (total events = 1)
nvidia-nvswitch2: SXid (PCI:0000:07:00.0): 22013, Non-fatal, Link 47 Minion Link DLREQ interrupt
NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build
NVRM: GPU at PCI:0000:4c:00: GPU-00000000-e144-7b1c-26a4-000000000000
nvidia-uvm: Loaded the UVM driver, major device number 235.
EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode. Quota mode: none.
XFS (nvme1n1): Mounting V5 Filesystem
Lustre: Mounted scratch-client
slurmd: task/affinity: task_p_slurmd_batch_request: job 77
srun: job 77 queued and waiting for resources
srun: job 77 has been allocated resources
[2024-01-09T03:10:58.100] slurmctld: sched: Allocate JobId=77 NodeList=gpu-[1-4] #CPUs=512 Partition=train
Normal  Scheduled  3s  default-scheduler  Successfully assigned default/train-0 to gpu-1
Normal  Pulled     2s  kubelet            Container image "train:1" already present on machine
        SW Power Cap                      : Active
        HW Slowdown                       : Not Active
            HW Thermal Slowdown           : Not Active
    Remapped Rows
        Uncorrectable Error               : 0
        Pending                           : No
        Remapping Failure Occurred        : No
[Feb 27 2025 07:23:02] [INFO] [tid 1808] multicast group 1 is allocated.
systemd[1]: Started nvidia-fabricmanager.service - NVIDIA fabric manager service.
libibverbs: Warning: couldn't open config directory '/etc/libibverbs.d'.
n1:9:9 [1] NCCL INFO NET/IB : No device found.
python3[1234]: segfault handler installed"""


@pytest.mark.parametrize("line", NOISE.splitlines(), ids=lambda line: line[:40])
def test_noise_alone_raises_no_alarm(line: str) -> None:
    assert not diagnose(line).is_failure


def test_a_boot_log_full_of_noise_raises_no_alarm() -> None:
    assert not diagnose(NOISE).is_failure
