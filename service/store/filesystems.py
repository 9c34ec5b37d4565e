"""Which file system a path is on: SQLite's locks and its shared memory do not hold across machines."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["NETWORK_FILESYSTEMS", "filesystem_of"]

PARALLEL = (
    "nfs",
    "nfs4",
    "lustre",
    "beegfs",
    "gpfs",
    "ceph",
    "glusterfs",
    "pvfs2",
    "wekafs",
    "panfs",
    "cifs",
    "smb3",
    "afs",
    "9p",
)
THROUGH_FUSE = ("fuse.sshfs", "fuse.glusterfs", "fuse.ceph-fuse", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone")
NETWORK_FILESYSTEMS = frozenset((*PARALLEL, *THROUGH_FUSE))
ESCAPE = re.compile(r"\\([0-7]{3})")


def filesystem_of(path: Path, mounts: str) -> str:
    """The type of the file system that holds `path`, by the text of /proc/self/mountinfo; empty where it is not told."""
    found, depth = "", -1
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if len(fields) < 5 or not right:
            continue
        point = Path(ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[4]))
        # Of two mounts at one point the later one is seen.
        if (path == point or point in path.parents) and len(point.parts) >= depth:
            found, depth = right.split(" ")[0], len(point.parts)
    return found
