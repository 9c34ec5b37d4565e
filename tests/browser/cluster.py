"""A small cluster in the middle of its night, told to a real service through its doors: what the pages have to show well."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import httpx2

from recovery.localization.probes import Pool
from recovery.localization.simulation import Cluster, FaultKind
from tests.service.probing_agents import ProbingAgents
from tests.service.service_process import ServiceProcess

PRETRAIN, FINETUNE, ODD, PROBED, HOSTILE_JOB = (
    "llama-70b-pretrain",
    "vit-l16-finetune",
    "mixtral-8x7b-sft",
    "deepseek-moe-pretrain",
    "<img src=x onerror=alert(1)>",
)
NODES = tuple(f"gpu-a{number:02}" for number in range(1, 9))
RIGHT_TO_LEFT, ESCAPES = "\u202egnp.exe\u202c", "\x1b[31;1mred\x1b[0m\x1b]0;title\x07\x1b[2J"
HOSTILE = (
    "RuntimeError: <script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"> "
    f"{ESCAPES} {RIGHT_TO_LEFT} &lt;b&gt; '\"`${{7*7}} {{{{7*7}}}}"
)
LONG_LINE = "RuntimeError: <b>" + "x" * 1_000_000

WATCHDOG = (
    "[rank{rank}]:[E1129 03:07:5{rank}.412 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=18412, OpType=ALLREDUCE, NumelIn=67108864, NumelOut=67108864, Timeout(ms)=600000) "
    "ran for 600025 milliseconds before timing out."
)
KERNEL = (
    "Nov 29 02:57:41 gpu-a03 kernel: NVRM: GPU at PCI:0000:81:00: GPU-5f6f2c7a-1f7c-9a51-6d0f-0b7bb3a1c8d2",
    "Nov 29 02:57:41 gpu-a03 kernel: NVRM: Xid (PCI:0000:81:00): 79, pid=4711, GPU has fallen off the bus.",
    "Nov 29 02:57:41 gpu-a03 kernel: NVRM: GPU 0000:81:00.0: GPU has fallen off the bus.",
)
OUT_OF_MEMORY = (
    "Traceback (most recent call last):",
    '  File "/home/bob/vit/train.py", line 212, in <module>',
    "    main()",
    '  File "/home/bob/vit/train.py", line 187, in main',
    "    loss.backward()",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.25 GiB. GPU 0 has a total capacity of 79.15 GiB.",
)
UNCORRECTABLE = "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"
UNHEARD_OF = (
    "[moe-router] token dispatch table version 41 does not match expert table version 40 on stage 3",
    "[moe-router] giving up after 5 attempts, last peer answered with status 0x1f",
    "fatal: router thread exited",
)


@dataclass
class Night:
    """Requests to one service, with its admin token. `incidents`: the number of each job's incident."""

    client: httpx2.Client
    incidents: dict[str, int] = field(default_factory=dict)
    candidate: int = 0
    tokens: dict[str, str] = field(default_factory=dict)

    def call(self, method: str, path: str, document: Any = None) -> Any:
        answer = self.client.request(method, f"/api/v1/{path}", json=document)
        assert answer.status_code < 300, (method, path, answer.status_code, answer.text)
        return answer.json() if answer.content else None

    def lease(self, node: str, index: int = 0) -> None:
        gpus = [
            {
                "serial": f"13251{index:02}{gpu:03}",
                "pci": f"0000:{0x41 + 0x20 * gpu:02x}:00.0",
                "index": gpu,
                "celsius": 58 + index + gpu,
            }
            for gpu in range(4)
        ]
        versions = {"driver": "550.90.07", "agent": "0.1.0"}
        aliases = [f"{node}.cluster.example", f"10.1.0.{index + 11}"]
        document = {"boot_id": f"boot-{node}", "agent_id": node, "aliases": aliases, "versions": versions, "gpus": gpus}
        self.call("POST", f"nodes/{node}/lease", document | {"clock": time.time() + 0.004, "probes": "gloo"})

    def start(self, job: str, nodes: Sequence[str], step: int, **registration: Any) -> None:
        """Register `job` with two ranks a node, start it and let it report a step."""
        ranks = [
            {"rank": rank, "local_rank": rank % 2, "node": nodes[rank // 2], "pid": 4100 + rank} for rank in range(2 * len(nodes))
        ]
        document = {"job": job, "ranks": len(ranks), "nodes": list(nodes), "min_ranks": len(ranks) // 2}
        self.call("POST", "jobs", document | registration)
        address = f"jobs/{quoted(job)}"
        self.call(
            "POST", f"{address}/attempts", {"attempt": 0, "generation": 0, "ranks": ranks, "started_at": time.time() - 5400}
        )
        beat = [{"rank": rank["rank"], "step": step, "step_seconds": 1.84, "loss": 2.1173, "state": "running"} for rank in ranks]
        for node in nodes:
            own = [item for item, place in zip(beat, ranks, strict=True) if place["node"] == node]
            self.call("POST", f"{address}/heartbeat", {"attempt": 0, "generation": 0, "node": node, "ranks": own})

    def send(self, job: str, lines: Sequence[str], node: str, rank: int | None, path: str, token: str | None = None) -> None:
        vouched = {} if token is None else {"trust": "node"}
        sent = [
            {"job": job, "attempt": 0, "node": node, "rank": rank, "path": path, "number": number, "line": line} | vouched
            for number, line in enumerate(lines, 4711)
        ]
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        answer = self.client.post("/api/v1/logs", content="\n".join(map(json.dumps, sent)), headers=headers)
        assert answer.status_code == 200, answer.text

    def fail(self, job: str, failed: list[dict[str, Any]], step: int) -> dict[str, Any]:
        document = {"attempt": 0, "generation": 0, "idempotency_key": f"{job}-0", "failed": failed, "last_step": step}
        answer: dict[str, Any] = self.call("POST", f"jobs/{quoted(job)}/failures?wait=0", document)
        self.incidents[job] = int(answer["incident"])
        return answer

    def until(self, job: str, *states: str) -> None:
        """The incident of `job` comes to one of these states."""
        deadline = time.monotonic() + 240
        while (found := self.call("GET", f"incidents/{self.incidents[job]}"))["state"] not in states:
            assert time.monotonic() < deadline, found
            time.sleep(0.05)


def quoted(name: str) -> str:
    return quote(name, safe="")


def open_night(service: ServiceProcess) -> Night:
    token = (service.data_dir / "admin.token").read_text().strip()
    return Night(httpx2.Client(base_url=service.url, headers={"Authorization": f"Bearer {token}"}, timeout=60))


def lose_a_gpu(night: Night, job: str = PRETRAIN, nodes: Sequence[str] = NODES[:4]) -> dict[str, Any]:
    """A GPU of the third node falls off the bus under `job`; the other ranks run into their watchdog."""
    night.start(
        job,
        nodes,
        18_412,
        owner="alice",
        contact="alice@example.org",
        project="foundation",
        command=["python", "train.py", "--config", "70b.yaml"],
    )
    night.send(job, KERNEL, nodes[2], None, "/var/log/kern.log", night.tokens.get(nodes[2]))
    for rank in (0, 1, 2, 3, 6, 7):
        night.send(job, [WATCHDOG.format(rank=rank)], nodes[rank // 2], rank, f"/scratch/logs/{job}/rank{rank}.log")
    failed = [{"rank": rank, "node": nodes[rank // 2], "exit_code": -6, "signal": 6, "error": None} for rank in (4, 0)]
    return night.fail(job, failed, 18_412)


def night_of(service: ServiceProcess) -> Night:
    """Everything that the pages can show, each at least once."""
    night = open_night(service)
    for index, node in enumerate(NODES):
        night.lease(node, index)
        night.call("PUT", f"nodes/{node}/place", {"rack": f"rack-{1 + index // 4}", "is_spare": node == NODES[-1]})
    night.call("PUT", "modes", {"modes": {"isolate": "approve"}, "why": "operators look at each isolation in the first month"})
    lose_a_gpu(night)
    night.start(
        FINETUNE, NODES[4:6], 902, owner="bob", contact="bob@example.org", project="vision", command=["python", "train.py"]
    )
    night.send(FINETUNE, OUT_OF_MEMORY, NODES[4], 0, f"/scratch/logs/{FINETUNE}/rank0.log")
    night.fail(FINETUNE, [{"rank": 0, "node": NODES[4], "exit_code": 1, "signal": None, "error": None}], 902)
    night.start(ODD, NODES[6:7], 77, owner="carol", project="moe", command=["python", "sft.py"])
    night.send(ODD, UNHEARD_OF, NODES[6], 1, f"/scratch/logs/{ODD}/rank1.log")
    night.fail(ODD, [{"rank": 1, "node": NODES[6], "exit_code": 1, "signal": None, "error": None}], 77)
    night.start(HOSTILE_JOB, NODES[6:7], 1, owner=HOSTILE[:200].replace("\x1b", "").replace("\x07", ""), command=[HOSTILE])
    lines = [HOSTILE, LONG_LINE, *(f"{HOSTILE} {number}" for number in range(3))]
    night.send(HOSTILE_JOB, lines, NODES[6], 0, f"/scratch/{HOSTILE}.log")
    night.fail(HOSTILE_JOB, [{"rank": 0, "node": NODES[6], "exit_code": 1, "signal": None, "error": HOSTILE}], 1)
    night.call(
        "POST",
        "alerts/alertmanager",
        alerts("GpuTemperatureHigh", [{"instance": f"{node}:9400", "gpu": "3"} for node in NODES[:3]]),
    )
    said = {"right": False, "reason": "extension_abi_mismatch", "comment": "the router was rolled out on half of the nodes"}
    night.until(ODD, "recovering")
    night.call("POST", f"incidents/{night.incidents[ODD]}/feedback", said)
    localise(night)
    evaluate(night)
    until = (datetime.now(UTC) + timedelta(hours=4)).isoformat()
    matchers = [{"name": "alertname", "value": "GpuTemperature.*", "isRegex": True}, {"name": "node", "value": "gpu-a02"}]
    night.call("POST", "silences", {"matchers": matchers, "endsAt": until, "comment": "the fans of rack 1 are being changed"})
    now = time.time()
    window = {"start": now + 3600, "end": now + 9 * 3600, "why": "firmware of the leaf switch", "racks": ["rack-2"]}
    night.call("POST", "maintenance", window)
    night.call("POST", f"nodes/{NODES[7]}/cordon", {"why": "its cable is bent"})
    written = {
        "pattern": r"token dispatch table version \d+ does not match",
        "reason": "extension_abi_mismatch",
        "title": "router tables of two versions",
    }
    night.candidate = int(night.call("POST", "candidates", written | {"cited": UNHEARD_OF[0]})["id"])
    for job in (PRETRAIN, FINETUNE, HOSTILE_JOB):
        night.until(job, "recovering", "waiting_for_approval", "verified", "stopped")
    night.call("POST", "plans", {"what_if": [f"node {NODES[4]} lost"]})
    return night


def alerts(name: str, labels: Sequence[dict[str, str]], status: str = "firing") -> dict[str, Any]:
    """Alertmanager's webhook, version 4."""
    items = [
        {
            "status": status,
            "labels": {"alertname": name, "severity": "warning", **own},
            "annotations": {"summary": f"{name} on {own.get('instance', 'a node')}"},
            "startsAt": "2026-11-29T02:57:41Z",
            "endsAt": "0001-01-01T00:00:00Z",
            "generatorURL": "",
            "fingerprint": f"{name}-{'-'.join(own.values())}",
        }
        for own in labels
    ]
    return {"version": "4", "groupKey": "{}", "status": status, "receiver": "pitstop", "truncatedAlerts": 0, "alerts": items}


def localise(night: Night) -> None:
    """A job says that a GPU's memory is broken, nothing else does: its machines are probed, and one of them is broken."""
    nodes = tuple(f"gpu-b{number:02}" for number in range(1, 7))
    agents = ProbingAgents(night.client, Cluster(Pool(nodes), {"gpu-b03": FaultKind.HARD}))
    agents.lease()
    night.start(
        PROBED, nodes, 5120, owner="erin", contact="erin@example.org", project="foundation", command=["python", "train.py"]
    )
    night.send(PROBED, [UNCORRECTABLE], nodes[2], 4, f"/scratch/logs/{PROBED}/rank4.log")
    night.fail(PROBED, [{"rank": 4, "node": nodes[2], "exit_code": 1, "signal": None, "error": None}], 5120)
    deadline = time.monotonic() + 240
    while (night.call("GET", f"incidents/{night.incidents[PROBED]}")["localization"] or {}).get("state") != "done":
        assert time.monotonic() < deadline, night.call("GET", f"incidents/{night.incidents[PROBED]}")
        for node in nodes:
            for row in night.call("GET", f"nodes/{node}/commands?after={agents.after.get(node, 0)}")["items"]:
                if row["kind"] == "stop_ranks":
                    agents.after[node] = row["id"]
                    stopped = {"status": "done", "generation": row["generation"], "detail": "every process is gone"}
                    night.call("POST", f"nodes/{node}/commands/{row['id']}/result", stopped)
        agents.look()
        time.sleep(0.05)


def evaluate(night: Night) -> None:
    """An evaluation run in the middle of its work."""
    night.call("POST", "jobs", {"job": "eval-70b-step-18000", "ranks": 8, "nodes": ["gpu-c01", "gpu-c02"], "owner": "dana"})
    names = ("mmlu", "gsm8k", "humaneval", "arc_challenge", "hellaswag", "a-dataset-of-a-very-long-name-in-twelve-languages")
    datasets = [
        {
            "name": name,
            "samples": 1000 * (index + 1),
            "generated": 700 * (index + 1),
            "verified": 500 * index,
            "score": 0.4137 + index / 20 if index else None,
            "failed_samples": index % 2,
            "given_up": "its verifier ended with status 1 three times" if name == "humaneval" else None,
        }
        for index, name in enumerate(names)
    ]
    bars = [
        {
            "row": f"gpu-c0{1 + slot // 4}:{slot % 4}",
            "label": names[(slot + part) % 6],
            "start": 300.0 * part,
            "end": 300.0 * part + 280,
            "failed": slot == part == 2,
        }
        for slot in range(8)
        for part in range(3)
    ]
    missing = "exit status 1: ModuleNotFoundError: No module named 'human_eval'"
    told = {
        "state": "running",
        "slots": 8,
        "model": "/checkpoints/llama-70b/step-18000",
        "expected_seconds": 900.0,
        "datasets": datasets,
        "bars": bars,
        "running": [{"slot": "gpu-c01:0", "label": "mmlu 3/8"}, {"slot": "gpu-c02:1", "label": "gsm8k 1/2"}],
        "failures": [{"kind": "metric", "row": "gpu-c01", "label": "humaneval", "error": missing}],
        "saved": {"decoupled": 1.62, "all": 1.94},
    }
    night.call("POST", "trials/eval-70b-step-18000", told)
