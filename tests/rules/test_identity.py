"""One machine, however it is named; and no machine for a name that could be two."""

from __future__ import annotations

import pytest

from rules.identity import JOB_KEYS, Directory, Gpu, job_of, subject_of

GPU = Gpu("n7", "GPU-4d2a8c1e-0000", "1650021", "0000:b3:00.0", 3)
DIRECTORY = Directory(
    frozenset({"n7", "n8"}),
    {
        "n7.cluster.example": frozenset({"n7"}),
        "10.0.0.7": frozenset({"n7"}),
        "fd00::7": frozenset({"n7"}),
        "gpu-0": frozenset({"n7", "n8"}),
    },
    (GPU, Gpu("n8", "GPU-ffff", None, "0000:b3:00.0", 3)),
)


@pytest.mark.parametrize(
    "name",
    ["n7", "N7", "n7:9400", "n7.cluster.example", "n7.cluster.example.:9100", "10.0.0.7:9400", "[fd00::7]:9400", "fd00::7"],
)
def test_a_node_is_found_under_each_of_its_names(name: str) -> None:
    assert DIRECTORY.node(name).id == "n7"


@pytest.mark.parametrize("name", ["gpu-0", "n70", "n7.other.example", "", "10.0.0.70"])
def test_an_ambiguous_or_unknown_name_stays_text(name: str) -> None:
    found = DIRECTORY.node(name)
    assert found.id is None and found.text == name and found.why


@pytest.mark.parametrize(
    "name",
    ["1650021", "GPU-4d2a8c1e-0000", "gpu-4D2A8C1E-0000", "4d2a8c1e-0000", "00000000:B3:00.0", "PCI:0000:b3:00", "b3:00.0", "3"],
)
def test_a_gpu_is_found_under_each_of_its_names_and_its_history_follows_the_serial(name: str) -> None:
    assert DIRECTORY.gpu(name, "n7").id == "1650021"


def test_an_index_or_pci_id_without_its_node_names_no_gpu() -> None:
    assert DIRECTORY.gpu("3").id is None
    assert DIRECTORY.gpu("0000:b3:00.0", "n8").id == "GPU-ffff"
    assert DIRECTORY.gpu("7", "n7").id is None


@pytest.mark.parametrize(
    ("labels", "job"),
    [
        ({"pitstop_job": "a", "job_id": "b"}, "a"),
        ({"job.id": "a", "slurm_job_id": "b"}, "a"),
        ({"job_id": "b", "k8s.job.name": "c"}, "b"),
        ({"k8s_job_name": "c", "job": "scrape"}, "c"),
        ({"job": "scrape"}, None),
        ({"job_id": ""}, None),
    ],
)
def test_the_job_id_is_taken_in_the_configured_order(labels: dict[str, str], job: str | None) -> None:
    assert job_of(labels) == job
    assert job_of({"mine": "x", "job_id": "y"}, ("mine", *JOB_KEYS)) == "x"


def test_the_label_job_alone_counts_for_loki_streams_only() -> None:
    assert job_of({"job": "train"}, scrape_label_counts=True) == "train"
    assert job_of({"job": "train", "job_id": "7"}, scrape_label_counts=True) == "7"


def test_an_instance_loses_its_port_and_a_strange_rank_is_none() -> None:
    assert subject_of({"instance": "10.0.0.7:9400", "rank": "three"}).node == "10.0.0.7"
    assert subject_of({"rank": "12", "gpu_uuid": "GPU-1"}).rank == 12
