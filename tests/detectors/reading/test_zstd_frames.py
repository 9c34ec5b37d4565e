"""Frames are followed to their ends, whatever is in them and wherever reads cut them."""

from __future__ import annotations

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from detectors.reading.sources import LineReader, text_source
from detectors.reading.zstd_frames import ZstdFrames

SKIPPABLE = b"\x53\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"\x00" * 5


def frame(content: bytes, checksum: bool, size: bool) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=checksum, write_content_size=size).compress(content)


FRAME = st.builds(frame, st.binary(max_size=300) | st.just(b"a" * 300_000), st.booleans(), st.booleans()) | st.just(SKIPPABLE)


@settings(max_examples=60, deadline=None)
@given(st.lists(FRAME, min_size=1, max_size=3), st.integers(1, 50))
def test_a_stream_is_complete_at_the_ends_of_its_frames_only(frames: list[bytes], step: int) -> None:
    data = b"".join(frames)
    ends = {sum(map(len, frames[:count])) for count in range(len(frames) + 1)}
    follower = ZstdFrames()
    for start in range(0, len(data), step):
        assert follower.complete == (start in ends)
        follower.feed(data[start : start + step])
    assert follower.complete


@pytest.mark.parametrize("cut", [9, 20, -1])
def test_a_cut_archive_is_said_to_end_early(cut: int) -> None:
    packed = frame(b"".join(b"line %d\n" % number for number in range(100_000)), True, True)
    with LineReader(text_source(packed[:cut])) as reader:
        read = b"".join(reader.chunks())
    assert "ends early" in reader.note and read in b"".join(b"line %d\n" % number for number in range(100_000)) + b"\n"
