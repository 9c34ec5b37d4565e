"""Frames are followed to their ends, whatever is in them and wherever reads cut them."""

from __future__ import annotations

import io

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from detectors.reading.sources import LineReader, text_source
from detectors.reading.unpacking import FollowedReader
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


@pytest.mark.parametrize("rest", [b"junk" * 10, b"ju", b"\0" * 512 + b"junk"])
def test_what_follows_the_frames_is_left_out_and_said(rest: bytes) -> None:
    with LineReader(text_source(frame(b"line 1\n", True, True) + frame(b"line 2\n", True, True) + rest)) as reader:
        assert b"".join(reader.chunks()) == b"line 1\nline 2\n"
    assert reader.note in (
        "bytes after the end of the zstd data were left out",
        "the zstd data ends early: read as far as it goes",
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(FRAME, min_size=1, max_size=2), st.binary(min_size=3, max_size=60), st.integers(1, 50))
def test_frames_are_told_from_what_follows_them_wherever_reads_cut_them(frames: list[bytes], rest: bytes, step: int) -> None:
    data = io.BytesIO(b"".join(frames) + b"\x01" + rest)
    followed = FollowedReader(data)
    assert b"".join(iter(lambda: followed.read(step), b"")) == b"".join(frames)
    assert followed.is_followed_by_others


@pytest.mark.parametrize("cut", [9, 20, -1])
def test_a_cut_archive_is_said_to_end_early(cut: int) -> None:
    packed = frame(b"".join(b"line %d\n" % number for number in range(100_000)), True, True)
    with LineReader(text_source(packed[:cut])) as reader:
        read = b"".join(reader.chunks())
    assert "ends early" in reader.note and read in b"".join(b"line %d\n" % number for number in range(100_000)) + b"\n"
