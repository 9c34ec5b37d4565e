"""GPU state by way of NVML's own Python client, against a library that answers as NVML's reference says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from node.gpus import Gpus, has_driver
from tests.node.peer import ROOT, Peer, wait_for

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="cc is not installed")
PLACE = "gpu 0, UUID GPU-8c3e, pci_bus_id 00000000:3B:00.0"

LOOKS = """
import json, os, sys
from node.gpus import Gpus
gpus = Gpus()
for state in sys.argv[1:]:
    with open(os.environ["NVML_STATE"], "w") as target:
        target.write(state)
    print(json.dumps([gpus.look(), gpus.inventory]))
"""


@pytest.fixture
def driver(tmp_path: Path) -> dict[str, str]:
    """An environment in which there is a driver; NVML_STATE names the file that says how its GPU is."""
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(Path(__file__).with_name("nvml.c"))], check=True)
    return os.environ | {"LD_LIBRARY_PATH": str(tmp_path), "NVML_STATE": str(tmp_path / "state"), "PYTHONPATH": str(ROOT)}


@needs_compiler
def test_counters_xids_and_a_lost_gpu_are_told_by_their_change(driver: dict[str, str]) -> None:
    states = ["7 0 0 0", "8 1 0 0", "8 1 79 0", "8 1 79 1", "8 1 79 1"]
    done = subprocess.run([sys.executable, "-c", LOOKS, *states], env=driver, capture_output=True, text=True, check=True)
    (first, gpus), (errors, _), (xid, _), (lost, left), (again, _) = map(json.loads, done.stdout.splitlines())
    assert first == [], "what was counted before the agent came is not news"
    assert gpus == [{"uuid": "GPU-8c3e", "serial": "1652922001234", "pci": "00000000:3B:00.0", "index": 0, "celsius": 41}]
    assert [line.split(" in ")[0] for line in errors] == [
        f"{PLACE}: DCGM_FI_DEV_ECC_DBE_VOL_TOTAL rose by 1",
        f"{PLACE}: DCGM_FI_DEV_ECC_DBE_AGG_TOTAL rose by 1",
        f"{PLACE}: DCGM_FI_DEV_ROW_REMAP_PENDING rose by 1",
    ]
    assert xid == [f"NVRM: Xid (PCI:00000000:3B:00.0): 79, told by NVML of {PLACE}"]
    assert lost == ["GPU 00000000:3B:00.0: GPU is lost"] and left == []
    assert again == [], "a GPU that stays lost is told once"


@needs_compiler
def test_the_agent_tells_of_gpus_in_its_lease_and_of_xids_in_the_drivers_words(
    driver: dict[str, str], peer: Peer, tmp_path: Path
) -> None:
    Path(driver["NVML_STATE"]).write_text("0 0 79 0")
    words = ["node", "--node", "n7", "--data-dir", str(tmp_path), "--service", f"http://127.0.0.1:{peer.port}"]
    process = subprocess.Popen([sys.executable, str(ROOT / "pitstop_entry.py"), *words], env=driver, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: any("Xid (PCI:00000000:3B:00.0): 79" in line for line in peer.lines()))
        wait_for(lambda: any(lease.get("gpus") for lease in peer.posted("nodes/n7/lease")))
    finally:
        process.terminate()
        process.wait(120)


@pytest.mark.gpu
@pytest.mark.skipif(not has_driver(), reason="there is no NVIDIA driver")
def test_real_gpus_are_found_with_their_temperature() -> None:
    gpus = Gpus()
    gpus.look()
    assert gpus.look() == [], "nothing goes wrong between two looks"
    assert gpus.inventory
    for gpu in gpus.inventory:
        assert gpu["uuid"].startswith("GPU-") and 0 < gpu["celsius"] < 120
