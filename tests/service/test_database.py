"""Where the database may lie, and how writers share it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from service.store import DatabaseError, Store
from service.store import database as database_module
from service.store.access import Switch
from service.store.filesystems import filesystem_of

MOUNTS = r"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:41 / /home rw,relatime shared:9 - nfs4 server:/home rw,vers=4.2
31 30 8:2 / /home/local rw,relatime - xfs /dev/sdb1 rw
32 22 0:42 / /my\040scratch rw - lustre mgs:/fs rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/pitstop", "ext4"),
        ("/home/ada/pitstop", "nfs4"),
        ("/home/local/x", "xfs"),
        ("/my scratch/x", "lustre"),
        ("/homer", "ext4"),
    ],
)
def test_a_path_belongs_to_the_deepest_mount_above_it(path: str, kind: str) -> None:
    assert filesystem_of(Path(path), MOUNTS) == kind


def test_sqlite_on_a_network_file_system_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "filesystem_of", lambda path, mounts: "lustre")
    with pytest.raises(DatabaseError, match="is on lustre, where SQLite loses data: name a local disk"):
        Store(f"sqlite:///{tmp_path / 'pitstop.sqlite'}")


@pytest.mark.parametrize("url", ["nonsense", "mysql://h/d", "sqlite://", "sqlite:////proc/nowhere/pitstop.sqlite"])
def test_a_database_that_cannot_be_used_is_refused_in_one_line(url: str) -> None:
    with pytest.raises(DatabaseError) as caught:
        Store(url)
    assert "\n" not in str(caught.value)


def test_writers_that_read_before_they_write_wait_for_each_other(store: Store) -> None:
    with store.writing() as session:
        session.add(Switch(name="count", value={"n": 0}, set_by="test", set_at=0.0))

    def count() -> None:
        for _ in range(20):
            with store.writing() as session:
                row = session.get_one(Switch, "count")
                row.value = {"n": row.value["n"] + 1}

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with store.reading() as session:
        assert session.get_one(Switch, "count").value == {"n": 80}
        assert session.scalar(text("PRAGMA journal_mode")) == "wal"
        assert session.scalar(text("PRAGMA synchronous")) == 2


def test_threads_of_one_process_wait_for_one_another_before_they_ask_sqlite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "BUSY_TIMEOUT_SECONDS", 0.05)
    store = Store(f"sqlite:///{tmp_path / 'pitstop.sqlite'}")

    def write() -> object:
        with store.writing() as session:
            return session.scalar(text("SELECT 1"))

    with ThreadPoolExecutor(1) as other:
        with store.writing() as session, pytest.raises(OperationalError, match="another thread"):
            session.scalar(text("SELECT 1"))
            other.submit(write).result()
        assert other.submit(write).result() == 1
    store.close()
