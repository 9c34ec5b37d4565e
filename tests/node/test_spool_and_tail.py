"""Following files, and keeping what was read until the service has it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.folding import fold
from node.log_shipping import LogShipping
from node.site_logs import SiteLogs
from node.spool import Spool
from node.tail import MAX_LINE_BYTES, FileTail, Position
from tests.node.peer import lines_in


def test_only_whole_lines_are_given_until_the_writer_is_gone(tmp_path: Path) -> None:
    file = tmp_path / "log"
    tail = FileTail(file)
    assert tail.read() == []
    file.write_text("one\ntw")
    assert (tail.read(), tail.position) == (["one"], Position(4, 1))
    assert tail.read() == []
    with file.open("a") as target:
        target.write("o")
    assert (tail.read(final=True), tail.position) == (["two"], Position(7, 2))


def test_a_carriage_return_starts_no_line(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_bytes(b"10%\r20%\r30%\nnext\r\n")
    assert FileTail(file).read() == ["10%\r20%\r30%", "next\r"]


def test_an_endless_line_is_cut_and_not_held_in_memory(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_bytes(b"x" * (MAX_LINE_BYTES + 10))
    assert sum(map(len, FileTail(file).read(most_bytes=1))) == MAX_LINE_BYTES


def test_a_file_that_became_shorter_is_read_from_its_new_beginning(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("old line\nold line\n")
    tail = FileTail(file, Position(18, 2))
    file.write_text("new\n")
    assert (tail.read(), tail.position) == (["new"], Position(4, 1))


@given(content=st.binary(max_size=300), cuts=st.lists(st.integers(0, 300), max_size=5))
def test_reading_in_pieces_gives_the_lines_of_the_whole_file(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, cuts: list[int]
) -> None:
    file = tmp_path_factory.mktemp("tail") / "log"
    position, texts = Position(), []
    for end in [*sorted(cuts), len(content)]:
        file.write_bytes(content[:end])
        tail = FileTail(file, position)
        texts += tail.read()
        position = tail.position
    tail = FileTail(file, position)
    texts += tail.read(final=True)
    expected = content.split(b"\n")
    if expected[-1] == b"":
        expected.pop()
    assert texts == [line.decode("utf-8", "replace") for line in expected]


def ship(tmp_path: Path, spool: Spool) -> LogShipping:
    return LogShipping(spool, "job", "node", tmp_path / "logs", wall_clock=lambda: 12.5)


def spool_in(tmp_path: Path, **options: int) -> Spool:
    folder = tmp_path / "spool"
    folder.mkdir(exist_ok=True)
    return Spool(folder, **options)


def write(tmp_path: Path, text: str, generation: int = 0, rank: int = 0) -> Path:
    file = tmp_path / "logs" / str(generation) / f"rank{rank}.log"
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as target:
        target.write(text)
    return file


def delivered(spool: Spool) -> list[tuple[str, int, str]]:
    lines = []
    while (batch := spool.oldest()) is not None:
        lines += [(item["path"], item["number"], item["line"]) for item in lines_in(batch.body)]
        spool.acknowledge(batch)
    return lines


def test_a_batch_carries_the_fields_of_the_contract(tmp_path: Path) -> None:
    file = write(tmp_path, "hello\n", generation=2, rank=1)
    spool = spool_in(tmp_path)
    assert ship(tmp_path, spool).ship() == 1
    batch = spool.oldest()
    assert batch is not None
    assert json.loads(batch.body) == {
        "job": "job",
        "attempt": 3,
        "node": "node",
        "rank": 1,
        "path": str(file),
        "number": 1,
        "time": 12.5,
        "lines": 1,
        "line": "hello\n",
    }


def test_a_new_agent_loses_and_doubles_no_line_wherever_the_old_one_died(tmp_path: Path) -> None:
    first = write(tmp_path, "a\nb\n")
    spool = spool_in(tmp_path)
    ship(tmp_path, spool).ship()
    write(tmp_path, "c\n")
    # It dies before anything was acknowledged; the next one sends the old batch under its old id and goes on behind it.
    again = spool_in(tmp_path)
    pending, same = spool.oldest(), again.oldest()
    assert pending is not None and same is not None and same.id == pending.id
    ship(tmp_path, again).ship()
    assert delivered(again) == [(str(first), number, text) for number, text in ((1, "a"), (2, "b"), (3, "c"))]
    write(tmp_path, "d\n")
    # It dies after everything was acknowledged.
    last = spool_in(tmp_path)
    ship(tmp_path, last).ship()
    assert delivered(last) == [(str(first), 4, "d")]


def test_a_full_spool_drops_nothing_the_lines_wait_in_their_file(tmp_path: Path) -> None:
    file = write(tmp_path, "a\n")
    spool = spool_in(tmp_path, max_bytes=1)
    shipping = ship(tmp_path, spool)
    assert shipping.ship() == 1
    write(tmp_path, "b\n")
    assert spool.full and shipping.ship() == 0
    assert delivered(spool) == [(str(file), 1, "a")]
    assert shipping.ship() == 1 and delivered(spool) == [(str(file), 2, "b")]


def test_lines_stay_unread_when_the_spool_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, "a\n")
    spool = spool_in(tmp_path)
    shipping = ship(tmp_path, spool)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("node.spool.write_atomically", full)
        with pytest.raises(OSError, match="No space"):
            shipping.ship()
    assert shipping.ship() == 1 and delivered(spool) == [(str(file), 1, "a")]


def folded(*texts: str) -> list[tuple[int, str]]:
    return [(number, text) for first, run in fold(1, texts) for number, text in enumerate(run, first)]


def test_equal_lines_in_a_row_are_told_once_with_their_count_the_first_and_the_last() -> None:
    xid = "NVRM: Xid (PCI:0000:b3:00): 79, GPU has fallen off the bus."
    flood = [f"[{1000 + number / 1000:.6f}] {xid}" for number in range(10_000)]
    assert folded("before", *flood, "after") == [
        (1, "before"),
        (2, flood[0]),
        (10_000, "pitstop: 9998 more lines like the one before"),
        (10_001, flood[-1]),
        (10_002, "after"),
    ]


def test_lines_that_differ_in_any_number_but_their_stamp_are_all_kept() -> None:
    steps = [f"2026-01-01 10:00:0{number} iteration {number} loss 2.5" for number in range(5)]
    assert [text for _, text in folded(*steps)] == steps
    assert folded("a", "a") == [(1, "a"), (2, "a")]


@given(st.lists(st.sampled_from(["a", "b", "12:00:00 a", "12:00:01 a"]), max_size=12))
def test_folding_accounts_for_every_line(texts: list[str]) -> None:
    found = folded(*texts)
    counts = [int(text.split()[1]) if text.startswith("pitstop: ") else 1 for _, text in found]
    assert sum(counts) == len(texts)
    assert [number for number, _ in found] == sorted({number for number, _ in found})


def test_a_rank_that_never_stops_talking_silences_no_other(tmp_path: Path) -> None:
    write(tmp_path, "".join(f"line {number}\n" for number in range(200_000)), rank=0)
    write(tmp_path, "I am here\n", rank=1)
    spool = spool_in(tmp_path)
    shipping = ship(tmp_path, spool)
    shipping.ship()
    shipping.ship()
    assert "I am here" in [text for _, _, text in delivered(spool)]


@pytest.mark.parametrize("damage", [b"", b"{", b"[]\n", b'{"id": 3}\n'])
def test_what_a_power_failure_left_empty_is_read_again(tmp_path: Path, damage: bytes) -> None:
    file = write(tmp_path, "a\n")
    spool = spool_in(tmp_path)
    ship(tmp_path, spool).ship()
    (path,) = (tmp_path / "spool").glob("*.batch")
    path.write_bytes(damage)
    again = spool_in(tmp_path)
    ship(tmp_path, again).ship()
    assert delivered(again) == [(str(file), 1, "a")]


def lines_of(spool: Spool) -> list[tuple[str, str, int, str]]:
    """(path, trust, number, line) of all that waits."""
    found = []
    while (batch := spool.oldest()) is not None:
        found += [(Path(it["path"]).name, it["trust"], it["number"], it["line"]) for it in lines_in(batch.body)]
        spool.acknowledge(batch)
    return found


def test_what_a_daemon_adds_to_its_log_is_kept_once_with_the_trust_of_its_node(tmp_path: Path) -> None:
    slurmd, absent = tmp_path / "slurmd.log", tmp_path / "later.log"
    slurmd.write_text("an old line\n")
    (tmp_path / "spool").mkdir()
    logs = SiteLogs(Spool(tmp_path / "spool"), "n1", [slurmd, absent])
    with slurmd.open("a") as target:
        target.write("error: Node n1 low RealMemory\nhalf a li")
    absent.write_text("first\n")
    logs.ship()
    logs.ship()
    with slurmd.open("a") as target:
        target.write("ne\n")
    spool = Spool(tmp_path / "spool")
    SiteLogs(spool, "n1", [slurmd, absent]).ship()
    assert lines_of(spool) == [
        ("slurmd.log", "node", 1, "error: Node n1 low RealMemory"),
        ("later.log", "node", 1, "first"),
        ("slurmd.log", "node", 2, "half a line"),
    ]


def test_a_log_that_cannot_be_read_is_told_and_keeps_no_other_one_back(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.log", tmp_path / "bad.log"
    good.touch()
    bad.mkdir()
    (tmp_path / "spool").mkdir()
    spool = Spool(tmp_path / "spool")
    spool.positions[str(bad)] = Position()
    logs = SiteLogs(spool, "n1", [bad, good])
    good.write_text("said\n")
    with pytest.raises(IsADirectoryError):
        logs.ship()
    assert lines_of(spool) == [("good.log", "node", 1, "said")]
