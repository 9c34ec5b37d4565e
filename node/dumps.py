"""Flight-recorder dumps that PyTorch writes on this node when a collective times out: where it is told to, and what they say."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from detectors.reading.flight_recorder import compare_dumps, parse_dump, read_plain_pickle

__all__ = ["dump_environment", "read_dumps"]

# The older name first: torch 2.13 reads both, others only one. The rank's number is appended to it.
VARIABLES = ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE")
PREFIX = "flight_recorder_rank_"
MOST_BYTES = 256 << 20


def dump_environment(inherited: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Lets the ranks of one generation dump into `folder`; a place that the job chose itself is left."""
    return {} if any(name in inherited for name in VARIABLES) else {name: str(folder / PREFIX) for name in VARIABLES}


def read_dumps(folder: Path) -> tuple[str, ...]:
    """What the dumps of one generation on this node tell together. What cannot be read is left out."""
    dumps = []
    for path in sorted(folder.glob(f"{PREFIX}*")):
        with contextlib.suppress(OSError, ValueError):
            if (found := path.stat()).st_size <= MOST_BYTES:
                dumps.append(parse_dump(read_plain_pickle(path.read_bytes()), str(path), found.st_mtime))
    return tuple(line.text for line in compare_dumps([dump for dump in dumps if dump is not None]))
