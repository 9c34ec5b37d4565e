"""Models in shared memory."""

import hashlib
import http.server
import os
import subprocess
import sys
import threading

import pytest

from evaluation.sources import CommandSource, PathSource, StagingError, UrlSource
from evaluation.staging import ModelCache


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    (folder / "shards").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "shards" / "0.bin").write_bytes(os.urandom(1000))
    return folder


def test_a_model_is_brought_in_once(tmp_path, model):
    cache = ModelCache(tmp_path / "shm", 10_000)
    first, second = cache.stage(PathSource(model)), cache.stage(PathSource(model))
    assert not first.reused and second.reused and first.path == second.path
    assert (first.path / "shards" / "0.bin").read_bytes() == (model / "shards" / "0.bin").read_bytes()
    assert first.size == 1002


def test_several_precursors_at_once_make_one_copy(tmp_path, model):
    staged = []
    threads = [
        threading.Thread(target=lambda: staged.append(ModelCache(tmp_path / "shm", 10_000).stage(PathSource(model))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found.reused for found in staged) == [False, True, True, True]


def test_a_changed_model_is_another_one(tmp_path, model):
    cache = ModelCache(tmp_path / "shm", 10_000)
    before = cache.stage(PathSource(model))
    (model / "config.json").write_text('{"a": 1}')
    assert cache.stage(PathSource(model)).key != before.key


def test_an_unused_model_makes_room_and_a_used_one_does_not(tmp_path, model):
    cache = ModelCache(tmp_path / "shm", 1_500)
    old = cache.stage(PathSource(model))
    cache.hold(old.key, os.getpid())
    other = tmp_path / "other.bin"
    other.write_bytes(bytes(900))
    with pytest.raises(StagingError, match=r"needs 900 bytes, 1,002 of 1,500 .* in use"):
        cache.stage(PathSource(other))
    child = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True)
    for reference in (tmp_path / "shm" / old.key / "refs").iterdir():
        reference.rename(reference.with_name(f"{child.stdout.strip()}-1"))
    staged = cache.stage(PathSource(other))
    assert staged.path.read_bytes() == bytes(900)
    assert not (tmp_path / "shm" / old.key).exists(), "its only user is dead"


def test_what_a_dead_precursor_left_behind_is_removed(tmp_path, model):
    cache = ModelCache(tmp_path / "shm", 10_000)
    half = tmp_path / "shm" / "abc.part-999999999-1"
    (half / "files").mkdir(parents=True)
    cache.stage(PathSource(model))
    assert not half.exists()


def test_a_full_tmpfs_is_said_and_leaves_nothing(tmp_path, model):
    (model / "big.bin").write_bytes(bytes(100_000))
    cache = ModelCache(tmp_path / "shm", 10_000)
    with pytest.raises(StagingError, match="needs 101,002 bytes"):
        cache.stage(PathSource(model))
    assert not list((tmp_path / "shm").glob("*.part-*"))


def test_holding_what_is_not_there_and_staging_nothing_are_refused(tmp_path):
    cache = ModelCache(tmp_path / "shm", 10_000)
    with pytest.raises(StagingError, match="not staged"):
        cache.hold("0" * 32, os.getpid())
    with pytest.raises(StagingError, match="there is no model at"):
        cache.stage(PathSource(tmp_path / "absent"))


WEIGHTS = bytes(range(256)) * 40
SHA256 = hashlib.sha256(WEIGHTS).hexdigest()


@pytest.fixture
def storage():
    """An HTTP server with /ckpt/weights.bin; /torn breaks off half-way, /busy answers 503, the rest 404."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            whole = self.path in ("/ckpt/weights.bin?sig=s3cret", "/torn")
            self.send_response(200 if whole else 503 if self.path == "/busy" else 404)
            self.send_header("Content-Length", str(len(WEIGHTS)) if whole else "0")
            self.end_headers()
            if whole:
                self.wfile.write(WEIGHTS[: len(WEIGHTS) // 2] if self.path == "/torn" else WEIGHTS)

        def log_message(self, *_arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_file_behind_an_address_comes_in_once_and_is_checked(tmp_path, storage):
    cache = ModelCache(tmp_path / "shm", 20_000)
    source = UrlSource(f"{storage}/ckpt/weights.bin?sig=s3cret", {"": SHA256})
    first, second = cache.stage(source), cache.stage(source)
    assert first.path.name == "weights.bin" and first.path.read_bytes() == WEIGHTS
    assert second.reused and second.path == first.path and "s3cret" not in str(source)
    with pytest.raises(StagingError, match=f"has the SHA-256 {SHA256}, not {'0' * 64}"):
        cache.stage(UrlSource(source.url, {"": "0" * 64}))


@pytest.mark.parametrize(
    ("path", "words", "again"),
    [("/torn", "broke off|cannot be fetched", True), ("/busy", "answers 503", True), ("/absent", "answers 404", False)],
)
def test_an_address_that_gives_no_whole_model_says_so(tmp_path, storage, path, words, again):
    with pytest.raises(StagingError, match=words) as found:
        ModelCache(tmp_path / "shm", 20_000).stage(UrlSource(storage + path))
    assert found.value.again == again
    assert not list((tmp_path / "shm").glob("*.part-*"))


def test_a_command_fills_the_folder_and_its_files_are_checked(tmp_path, model):
    cache = ModelCache(tmp_path / "shm", 20_000)
    config = {"config.json": hashlib.sha256(b"{}").hexdigest()}
    staged = cache.stage(CommandSource(("cp", "-r", f"{model}/.", "{target}"), config))
    assert (staged.path / "shards" / "0.bin").read_bytes() == (model / "shards" / "0.bin").read_bytes() and staged.size == 1002
    with pytest.raises(StagingError, match=r"absent.bin of cp .* is not there"):
        cache.stage(CommandSource(("cp", "-r", f"{model}/.", "{target}"), {"absent.bin": SHA256}))


@pytest.mark.parametrize(
    ("words", "said", "again"),
    [
        (("false",), "false ended with status 1", True),
        (("true",), "left no file", False),
        (("no-such-program", "{target}"), "cannot be started", False),
    ],
)
def test_a_command_that_brings_nothing_says_so(tmp_path, words, said, again):
    with pytest.raises(StagingError, match=said) as found:
        ModelCache(tmp_path / "shm", 20_000).stage(CommandSource(words))
    assert found.value.again == again


def test_a_model_of_unknown_size_takes_unused_room_as_it_grows_and_no_more(tmp_path, model):
    cache = ModelCache(tmp_path / "shm", 5_000)
    unused = cache.stage(PathSource(model))
    fill = "head -c {size} /dev/zero > $0/weights.bin; sleep 60"
    with pytest.raises(StagingError, match=r"needs [0-9,]+ bytes, 0 of 5,000 .* in use"):
        cache.stage(CommandSource(("sh", "-c", fill.replace("{size}", "6000"), "{target}")))
    assert not (tmp_path / "shm" / unused.key).exists() and not list((tmp_path / "shm").glob("*.part-*"))
