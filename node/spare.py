"""The warm spare of one job on this node: started by the agent once the ranks are at work, used when they start again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from detectors.processes import ProcessId, is_running
from node.keeper_client import KeeperClient, KeeperError
from node.monitors import RankReading
from node.ranks import PYTHON_NAME
from node.sdk_process import program_of

__all__ = ["Spare", "script_of"]

SOCKET = "spare.sock"
# Interpreter options that change nothing for a script that runs in a fork.
HARMLESS = frozenset(("-u",))


def script_of(command: Sequence[str]) -> tuple[str, ...] | None:
    """The script and arguments of `python [-u] SCRIPT.py ARGUMENTS...`; None for a command that a fork of a Python cannot run."""
    words = tuple(command[1:])
    while words and words[0] in HARMLESS:
        words = words[1:]
    return words if PYTHON_NAME.fullmatch(Path(command[0]).name) and words and words[0].endswith(".py") else None


class Spare:
    """`enabled`: whether one is wanted at all; a command that no fork can run has none either."""

    def __init__(
        self, folder: Path, python: str | None, command: Sequence[str], enabled: bool, say: Callable[[str], None]
    ) -> None:
        self._folder = folder
        self._python = python
        self._script = script_of(command) if enabled and python is not None else None
        self._say = say

    def offer(self, present: ProcessId | None) -> tuple[Path, tuple[str, ...]] | None:
        """What the keeper needs to fork a rank from it; None where there is none that is ready."""
        path = self._folder / SOCKET
        if self._script is None or present is None or not is_running(present) or not path.exists():
            return None
        return path, self._script

    def look(
        self,
        keeper: KeeperClient,
        present: ProcessId | None,
        read: Callable[[], Mapping[int, RankReading]],
        inherit: Callable[[], Mapping[str, str]],
    ) -> ProcessId | None:
        """The spare's process, started when every rank has made a step: before that it would only be in their way."""
        if self._script is None or self._python is None or (present is not None and is_running(present)):
            return present
        readings = read()
        at_work = readings and all(it.progress is not None and it.progress.completed > 0 for it in readings.values())
        if not at_work:
            return present
        (self._folder / SOCKET).unlink(missing_ok=True)
        words = [self._python, "-c", program_of("pitstop.spare"), str(self._folder / SOCKET)]
        try:
            return keeper.spawn({"spare": True}, words, inherit(), str(Path.cwd()), self._folder / "spare.log")
        except KeeperError as problem:
            self._say(f"no warm spare: {problem}")
            self._script = None
            return None
