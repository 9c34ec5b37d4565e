"""Metrics as dcgm-exporter and node_exporter give them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from detectors.metrics import XID, Sample, Scrape, judge_scrapes, parse_exposition

DCGM = """\
# HELP DCGM_FI_DEV_XID_ERRORS Value of the last XID error encountered.
# TYPE DCGM_FI_DEV_XID_ERRORS gauge
DCGM_FI_DEV_XID_ERRORS{gpu="3",UUID="GPU-8a5e",pci_bus_id="00000000:3B:00.0",device="nvidia3",Hostname="gpu-17"} 79
DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{gpu="3",UUID="GPU-8a5e",pod="a \\"quoted\\" pod"} 2 1700000000000
DCGM_FI_DEV_GPU_TEMP{gpu="3"} 41
DCGM_FI_DEV_PCIE_REPLAY_COUNTER{gpu="3"} NaN
node_infiniband_link_downed_total{device="mlx5_0",port="1"} 4
not a sample
"""
GPU = (("gpu", "3"),)


def test_known_samples_are_read_with_the_labels_that_say_where() -> None:
    xid, ecc, link = parse_exposition(DCGM)
    assert xid == Sample(
        XID, (("gpu", "3"), ("UUID", "GPU-8a5e"), ("pci_bus_id", "00000000:3B:00.0"), ("device", "nvidia3")), 79.0
    )
    assert (ecc.name, ecc.value) == ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 2.0)
    assert link.where == "device mlx5_0, port 1"


def test_an_xid_is_an_event_when_it_changes_and_a_state_after_that() -> None:
    nothing = Scrape.of(0.0, [Sample(XID, GPU, 0.0)])
    fallen = Scrape.of(15.0, [Sample(XID, (*GPU,), 79.0)])
    assert judge_scrapes(nothing, fallen) == (f"NVRM: Xid (PCI:unknown): 79, told by {XID} of gpu 3",)
    assert judge_scrapes(fallen, Scrape.of(30.0, fallen.samples.values())) == ()
    assert judge_scrapes(fallen, Scrape.of(30.0, [Sample(XID, GPU, 94.0)])) != ()


def test_counters_are_rates_and_a_reset_counts_from_nothing() -> None:
    name = "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL"
    before = Scrape.of(0.0, [Sample(name, GPU, 100.0)])
    assert judge_scrapes(before, Scrape.of(10.0, [Sample(name, GPU, 110.0)])) == ()
    assert judge_scrapes(before, Scrape.of(10.0, [Sample(name, GPU, 111.0)])) == (f"gpu 3: {name} rose by 11 in 10 s, to 111",)
    assert judge_scrapes(before, Scrape.of(10.0, [Sample(name, GPU, 5.0)])) == ()


def test_a_device_that_is_seen_for_the_first_time_says_nothing() -> None:
    assert judge_scrapes(Scrape(0.0), Scrape.of(15.0, [Sample(XID, GPU, 79.0)])) == ()


@given(st.text(max_size=300))
def test_no_text_breaks_the_reading(text: str) -> None:
    for sample in parse_exposition(text):
        assert sample.value == sample.value
