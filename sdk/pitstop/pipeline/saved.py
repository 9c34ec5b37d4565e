"""Checkpoints of a pipeline: a file a stage and iteration, in one folder that all workers share, whoever has the stage."""

import contextlib
import os
import re
from typing import Dict, Optional, Set

import torch

__all__ = ["SavedStages"]

NAME = re.compile(r"stage-(\d+)-(\d+)\.pt")
# Of each stage; the newest may be there for some stages only.
KEPT = 2


class SavedStages:
    """Written and read by stage, so that they serve any number of workers."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        os.makedirs(folder, exist_ok=True)

    def _found(self) -> Dict[int, Set[int]]:
        """Iterations by stage."""
        found: Dict[int, Set[int]] = {}
        for name in os.listdir(self.folder):
            match = NAME.fullmatch(name)
            if match is not None:
                found.setdefault(int(match[1]), set()).add(int(match[2]))
        return found

    def _path(self, stage: int, done: int) -> str:
        return os.path.join(self.folder, "stage-%d-%d.pt" % (stage, done))

    def newest(self, stages: int) -> Optional[int]:
        """The last iteration that every stage has; None where there is none."""
        found = self._found()
        common = set.intersection(*(found.get(stage, set()) for stage in range(stages)))
        return max(common, default=None)

    def save(self, stage: int, done: int, content: torch.Tensor) -> None:
        """Whole or not at all; older ones go. Raises OSError."""
        path = self._path(stage, done)
        with open(path + ".new", "wb") as target:
            target.write(memoryview(content.numpy()))
            target.flush()
            os.fsync(target.fileno())
        os.replace(path + ".new", path)
        for old in sorted(self._found().get(stage, set()))[:-KEPT]:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path(stage, old))

    def load(self, stage: int, done: int) -> torch.Tensor:
        """Raises OSError."""
        with open(self._path(stage, done), "rb") as source:
            return torch.frombuffer(bytearray(source.read()), dtype=torch.uint8)
