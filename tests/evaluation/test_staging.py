"""Models in shared memory."""

import os
import subprocess
import sys
import threading

import pytest

from evaluation.staging import ModelCache, StagingError


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    (folder / "shards").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "shards" / "0.bin").write_bytes(os.urandom(1000))
    return folder


def test_a_model_is_brought_in_once(tmp_path, model):
    cache = ModelCache(tmp_path / "shm", 10_000)
    first, second = cache.stage(model), cache.stage(model)
    assert not first.reused and second.reused and first.path == second.path
    assert (first.path / "shards" / "0.bin").read_bytes() == (model / "shards" / "0.bin").read_bytes()
    assert first.size == 1002


def test_several_precursors_at_once_make_one_copy(tmp_path, model):
    staged = []
    threads = [
        threading.Thread(target=lambda: staged.append(ModelCache(tmp_path / "shm", 10_000).stage(model))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found.reused for found in staged) == [False, True, True, True]


def test_a_changed_model_is_another_one(tmp_path, model):
    cache = ModelCache(tmp_path / "shm", 10_000)
    before = cache.stage(model)
    (model / "config.json").write_text('{"a": 1}')
    assert cache.stage(model).key != before.key


def test_an_unused_model_makes_room_and_a_used_one_does_not(tmp_path, model):
    cache = ModelCache(tmp_path / "shm", 1_500)
    old = cache.stage(model)
    cache.hold(old.key, os.getpid())
    other = tmp_path / "other.bin"
    other.write_bytes(bytes(900))
    with pytest.raises(StagingError, match=r"needs 900 bytes, 1,002 of 1,500 .* in use"):
        cache.stage(other)
    child = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True)
    for reference in (tmp_path / "shm" / old.key / "refs").iterdir():
        reference.rename(reference.with_name(f"{child.stdout.strip()}-1"))
    staged = cache.stage(other)
    assert staged.path.read_bytes() == bytes(900)
    assert not (tmp_path / "shm" / old.key).exists(), "its only user is dead"


def test_what_a_dead_precursor_left_behind_is_removed(tmp_path, model):
    cache = ModelCache(tmp_path / "shm", 10_000)
    half = tmp_path / "shm" / "abc.part-999999999-1"
    (half / "files").mkdir(parents=True)
    cache.stage(model)
    assert not half.exists()


def test_a_full_tmpfs_is_said_and_leaves_nothing(tmp_path, model):
    (model / "big.bin").write_bytes(bytes(100_000))
    cache = ModelCache(tmp_path / "shm", 10_000)
    with pytest.raises(StagingError, match="needs 101,002 bytes"):
        cache.stage(model)
    assert not list((tmp_path / "shm").glob("*.part-*"))


def test_holding_what_is_not_there_and_staging_nothing_are_refused(tmp_path):
    cache = ModelCache(tmp_path / "shm", 10_000)
    with pytest.raises(StagingError, match="not staged"):
        cache.hold("0" * 32, os.getpid())
    with pytest.raises(StagingError, match="there is no model at"):
        cache.stage(tmp_path / "absent")
