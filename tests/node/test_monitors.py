"""The agent reads what ranks say of themselves many times a second."""

from __future__ import annotations

from pathlib import Path

from node.monitors import MonitorReader, create_monitors
from pitstop.layout import HEADER


def test_what_a_rank_says_is_made_sense_of_once_and_again_when_it_says_something_else(tmp_path: Path) -> None:
    path = tmp_path / "rank0"
    create_monitors({0: path}, 1)
    reader = MonitorReader({0: path})
    before = reader.read(0)
    assert not before.attached
    assert reader.read(0) is before
    fields = list(HEADER.unpack_from(path.read_bytes()))
    fields[-2] = 4711
    with path.open("r+b") as file:
        file.write(HEADER.pack(*fields))
    assert reader.read(0).attached
    reader.close()
