"""Outputs and verdicts on disk."""

import pytest

from evaluation.records import Appender, dataset_folder, read_records


def test_a_torn_last_line_is_no_record_and_does_not_spoil_the_next(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"sample":0,"output":"x"}\n{"sample":1,"out')
    assert set(read_records(tmp_path, 5).by_sample) == {0}
    with Appender(path) as appender:
        appender.write({"sample": 2, "output": "y"})
    records = read_records(tmp_path, 5)
    assert set(records.by_sample) == {0, 2} and records.unreadable == 1


def test_the_first_record_of_a_sample_stands(tmp_path):
    with Appender(tmp_path / "a.jsonl") as first, Appender(tmp_path / "b.jsonl") as second:
        first.write({"sample": 0, "output": "first"})
        second.write({"sample": 0, "output": "second"})
    records = read_records(tmp_path, 1)
    assert records.by_sample[0]["output"] == "first" and records.repeated == 1


@pytest.mark.parametrize(
    "line", [b"[]", b"7", b'{"sample":"0"}', b'{"sample":true}', b'{"sample":99}', b"\xff\xfe", b"[" * 100_000, b""]
)
def test_what_is_no_record_is_counted_and_skipped(tmp_path, line):
    (tmp_path / "a.jsonl").write_bytes(line + b'\n{"sample":0}\n')
    records = read_records(tmp_path, 5)
    assert set(records.by_sample) == {0} and records.unreadable == 1


@pytest.mark.parametrize("name", ["../x", "", "a/b", ".hidden", "a" * 300, "a\n"])
def test_a_name_that_could_leave_the_folder_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="cannot name a dataset"):
        dataset_folder(tmp_path, name)
