"""Staged state as a file: whole and sealed, or not a copy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pitstop.checkpoint import staged
from pitstop.checkpoint.capture import contents_of, copy_into, decode, encode, plan_of
from pitstop.checkpoint.slots import Slots
from pitstop.checkpoint.staged import Damaged, Header, Slot
from tests.node.peer import wait_for

STATE = {
    "w": torch.arange(6.0).view(2, 3),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "n": [1, {"t": torch.tensor(7)}],
    "e": torch.empty(0),
}


def write(folder: Path, state: object = STATE, step: int = 5, sealed: bool = True) -> str:
    plan = plan_of({"shared": encode(state), "own": encode({})})
    path = staged.slot_path(str(folder), 0, 1)
    slot = Slot(path, plan.size)
    copy_into(slot, plan, Header(0, True, 0, 1, step, 2, 9, 0, 0, 0))
    if sealed:
        staged.seal(path, slot.view)
    return path


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    path = write(tmp_path)
    slot = Slot(path)
    header = staged.verify(path, slot.view)
    assert (header.step, header.generation, header.sequence) == (5, 2, 9)
    found = decode(contents_of(slot.buffer, header)["shared"])
    assert torch.equal(found["w"], STATE["w"]) and torch.equal(found["half"], STATE["half"])  # type: ignore[arg-type]
    assert found["n"][0] == 1 and found["n"][1]["t"] == 7 and found["e"].numel() == 0


@settings(max_examples=60)
@given(st.data())
def test_no_changed_byte_goes_unnoticed(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = Path(write(tmp_path_factory.mktemp("slot")))
    content = bytearray(path.read_bytes())
    header = staged.read_header(bytes(content))
    index = staged.read_index(memoryview(content), header)
    # Of the header only what is checked counts, and between tensors there is padding.
    places = [*range(60), *range(staged.HEADER_SIZE, staged.HEADER_SIZE + header.index_bytes + header.skeleton_bytes)]
    for tensor in index["tensors"]:
        start = header.data_offset + tensor["offset"]
        places += range(start, start + tensor["bytes"])
    place = data.draw(st.sampled_from(places))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    with pytest.raises(Damaged):
        staged.verify(str(path), memoryview(bytes(content)))


def test_what_was_being_written_or_never_sealed_is_no_copy(tmp_path: Path) -> None:
    path = write(tmp_path, sealed=False)
    with Path(path).open("rb") as source, pytest.raises(Damaged, match="never sealed"):
        staged.verify(path, memoryview(source.read()))
    slot = Slot(path, 4096)
    slot.begin(Header(0, True, 0, 1, 6, 2, 10, 2, 0, 0), b"{}", b"")
    assert staged.slots_of(str(tmp_path)) == []
    with pytest.raises(Damaged, match="being written"):
        staged.verify(path, slot.view)


def test_a_slot_that_was_cut_short_is_left(tmp_path: Path) -> None:
    path = Path(write(tmp_path))
    path.write_bytes(path.read_bytes()[:-100])
    assert staged.slots_of(str(tmp_path)) == []


def test_memory_that_is_not_there_is_an_error_and_no_signal(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        Slot(str(tmp_path / "rank0.0"), 1 << 50)
    assert list(tmp_path.iterdir()) == []


def test_the_memory_of_the_second_save_is_there_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slots = Slots(str(tmp_path))
    size = 1 << 16
    first, lock = slots.writable(0, size)
    os.close(lock)
    header = Header(0, True, 0, 1, 6, 2, 10, 0, 0, size - staged.HEADER_SIZE)
    first.begin(header, b"", b"")
    first.finish(header)
    slots.prepare(0, size)
    wait_for(lambda: any(path.stat().st_size == size for path in tmp_path.glob("rank0.1.new")), what="the second slot")

    def none_left(*_: int) -> None:
        raise OSError("no memory is left")

    monkeypatch.setattr(os, "posix_fallocate", none_left)
    second, lock = slots.writable(0, size)
    os.close(lock)
    assert second.path == str(tmp_path / "rank0.1") and second.size == size
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank0.0", "rank0.1"]


def test_views_and_lazily_conjugated_tensors_are_staged_as_they_read(tmp_path: Path) -> None:
    table = torch.arange(12.0).view(3, 4)
    state = {"turned": table.t(), "part": table[:, 1:3], "conj": torch.view_as_complex(table.view(3, 2, 2)).conj()}
    path = write(tmp_path, state)
    slot = Slot(path)
    found = decode(contents_of(slot.buffer, staged.verify(path, slot.view))["shared"])
    assert all(torch.equal(found[name], state[name].resolve_conj()) for name in state)


def test_a_tensor_that_is_more_than_memory_is_refused_with_what_to_do() -> None:
    with pytest.raises(TypeError, match="plain tensors"):
        encode({"sparse": torch.eye(2).to_sparse()})
