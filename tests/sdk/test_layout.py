"""The monitor file, byte by byte."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop import layout
from pitstop.layout import Section
from pitstop.monitor import Monitor


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "monitor"
    layout.create(str(file), rank=3, generation=7)
    return file


def progress(path: Path) -> layout.Progress | None:
    content = path.read_bytes()
    return layout.read_progress(content, layout.read_header(content))


def test_a_new_file_says_nothing_and_belongs_to_nobody(path: Path) -> None:
    header = layout.read_header(path.read_bytes())
    assert (header.rank, header.generation, header.pid) == (3, 7, 0)
    assert progress(path) is None


def test_a_step_is_seen_while_it_runs_and_counted_when_it_ends(path: Path) -> None:
    monitor = Monitor(str(path))
    with monitor.step(41):
        running = progress(path)
    ended = progress(path)
    assert running is not None and (running.section, running.step, running.completed) == (Section.FIRST_STEP, 41, 0)
    assert ended is not None and (ended.section, ended.step, ended.completed) == (Section.OUTSIDE, 41, 1)
    assert ended.times[Section.FIRST_STEP].finished == 1 and ended.times[Section.STEP].finished == 0


def test_only_the_first_step_of_a_process_is_a_section_of_its_own(path: Path) -> None:
    monitor = Monitor(str(path))
    for number in range(3):
        with monitor.step(number):
            pass
    read = progress(path)
    assert read is not None and read.times[Section.FIRST_STEP].finished == 1 and read.times[Section.STEP].finished == 2


def test_a_section_inside_a_step_gives_the_step_back_when_it_ends(path: Path) -> None:
    monitor = Monitor(str(path))
    with monitor.step(5):
        with monitor.checkpoint():
            inside = progress(path)
        after = progress(path)
    assert inside is not None and inside.section is Section.CHECKPOINT and inside.checkpointed == -1
    assert after is not None and after.section is Section.FIRST_STEP and after.checkpointed == 5


def test_a_process_that_attaches_again_is_newer_than_what_stands_in_the_file(path: Path) -> None:
    for first in (100, 7):
        monitor = Monitor(str(path))
        with monitor.step(first):
            pass
        monitor.report(loss=float(first))
    read = progress(path)
    assert read is not None and (read.step, read.completed) == (7, 1)
    content = path.read_bytes()
    assert layout.read_metrics(content, layout.read_header(content)) == {"loss": (7, 7.0)}


def test_time_belongs_to_the_innermost_section(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10_000_000_000, 1_000_000_000))
    monkeypatch.setattr("pitstop.monitor.monotonic_ns", lambda: next(clock))
    monitor = Monitor(str(path))
    with monitor.step(0):
        with monitor.data():
            pass
        with monitor.sync(), monitor.transfer():
            pass
    read = progress(path)
    assert read is not None and read.last_step_ns == 7_000_000_000
    seconds = {section: read.times[section].seconds for section in Section if read.times[section].finished}
    assert seconds == {Section.FIRST_STEP: 3.0, Section.DATA: 1.0, Section.SYNC: 2.0, Section.TRANSFER: 1.0}


def test_time_between_steps_is_counted_as_outside(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter((0, 1, 5, 6))
    monkeypatch.setattr("pitstop.monitor.monotonic_ns", lambda: next(clock) * 1_000_000_000)
    monitor = Monitor(str(path))
    for number in range(2):
        with monitor.step(number):
            pass
    read = progress(path)
    assert read is not None and read.times[Section.OUTSIDE] == layout.SectionTime(4.0, 1, 0.0)


def test_reported_numbers_carry_the_step_they_belong_to(path: Path) -> None:
    monitor = Monitor(str(path))
    with monitor.step(1):
        monitor.report(loss=2.5, grad_norm=0.5)
    with monitor.step(2):
        monitor.report(loss=float("nan"))
    content = path.read_bytes()
    metrics = layout.read_metrics(content, layout.read_header(content))
    assert metrics["grad_norm"] == (1, 0.5)
    assert metrics["loss"][0] == 2 and metrics["loss"][1] != metrics["loss"][1]


def test_more_names_than_there_is_room_for_are_left_out(path: Path) -> None:
    monitor = Monitor(str(path))
    monitor.report(**{f"m{index}": float(index) for index in range(layout.MAX_METRICS + 3)})
    content = path.read_bytes()
    assert len(layout.read_metrics(content, layout.read_header(content))) == layout.MAX_METRICS


@given(damage=st.integers(min_value=0, max_value=8 * layout.PROGRESS_CELLS - 1))
def test_a_torn_write_shows_the_state_before_it_and_never_a_mixture(
    tmp_path_factory: pytest.TempPathFactory, damage: int
) -> None:
    path = tmp_path_factory.mktemp("torn") / "monitor"
    layout.create(str(path), 0, 0)
    monitor = Monitor(str(path))
    for number in range(4):
        with monitor.step(number):
            pass
    content = bytearray(path.read_bytes())
    header = layout.read_header(content)
    whole = layout.read_progress(content, header)
    sequences = [
        struct.unpack_from("<Q", content, header.progress_offset + 8 * slot * header.progress_cells + 8)[0] for slot in (0, 1)
    ]
    newer = header.progress_offset + 8 * header.progress_cells * sequences.index(max(sequences))
    content[newer + damage] ^= 0x55
    read = layout.read_progress(content, header)
    assert whole is not None and read is not None
    assert (read.section, read.completed) == (Section.STEP, 3), "what was written before"


def test_two_spoilt_slots_are_unreadable(path: Path) -> None:
    monitor = Monitor(str(path))
    with monitor.step(0):
        pass
    content = bytearray(path.read_bytes())
    header = layout.read_header(content)
    for slot in (0, 1):
        content[header.progress_offset + 8 * slot * header.progress_cells + 24] ^= 1
    assert layout.read_progress(content, header) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content[:100], "too short"),
        (lambda content: b"X" + content[1:], "not a monitor file"),
        (lambda content: content[:8] + struct.pack("<H", 9) + content[10:], "layout version 9"),
        (lambda content: content[:16] + struct.pack("<I", 1 << 30) + content[20:], "contradicts"),
    ],
)
def test_a_file_that_is_none_of_ours_is_refused_with_the_reason(path: Path, change: object, message: str) -> None:
    content = change(path.read_bytes())  # type: ignore[operator]
    with pytest.raises(layout.LayoutError, match=message):
        layout.read_header(content)


@pytest.mark.parametrize("extra", [-2, 6])
def test_a_minor_version_with_fewer_or_more_cells_works(
    path: Path, extra: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    with monkeypatch.context() as patch:
        patch.setattr(layout, "PROGRESS_CELLS", layout.PROGRESS_CELLS + extra)
        layout.create(str(other), 0, 0)
    monitor = Monitor(str(other))
    with monitor.step(12):
        pass
    read = progress(other)
    assert read is not None and (read.step, read.completed) == (12, 1)
