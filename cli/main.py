"""The table of commands and their lazy start."""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

__all__ = ["COMMANDS", "UsageError", "fail", "run"]

# name -> (module under cli/, one line of help); only the module of the command that runs is imported.
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("demo", "play a story on real processes, end to end"),
    "diagnose": ("diagnose", "say what broke, and why, from what a run left behind"),
    "evaluate": ("evaluate", "measure diagnoses against a labelled corpus"),
    "serve": ("serve", "the service: API, dashboard, ingest, recovery"),
    "migrate": ("migrate", "bring the service's database to this version's schema"),
    "backup": ("backup", "copy the service's database while it runs"),
    "freeze": ("freeze", "stop all action of the service at the next safe point, or let it go on"),
    "doctor": ("doctor", "say what the service sees, how far behind it is, and what is off"),
    "token": ("token", "make, list, rotate and revoke bearer tokens of the service"),
    "compress": ("compress", "drop the routine lines of a log, keep the others under their numbers"),
    "plan": ("plan", "say who should run where after something happened, and what else could be done"),
    "simulate": ("simulate", "what ways of recovering keep of a cluster's worth, on drawn or recorded faults"),
    "trials": ("trials", "evaluate a checkpoint on many datasets without waiting"),
    "rules": ("rules", "list, show, check and compile what is known; explain a line"),
    "node": ("node", "the agent on a training node: lease and kernel log"),
    "localize": ("localize", "find the broken node, link or rack by probes in pairs"),
    "run": ("run", "launch a training command under care"),
    "pipeline": ("pipeline", "schedules for a training pipeline with failed workers"),
}

GARBAGE_THRESHOLD = 50_000


class UsageError(Exception):
    """Bad usage or unreadable input: one line that says what to do; exit status 2."""


def overview() -> str:
    """The text of `pitstop --help`."""
    width = max(len(name) for name in COMMANDS)
    rows = "\n".join(f"  {name:<{width}}  {help_line}" for name, (_, help_line) in COMMANDS.items())
    return (
        f"Usage: pitstop COMMAND [OPTIONS]\n\nThe pit crew of large training runs.\n\nCommands:\n{rows}\n\n"
        "pitstop COMMAND --help describes one command; pitstop --version prints the version."
    )


def printable(text: str) -> str:
    """`text` as it may be shown: a name or a line can hold what moves a terminal's cursor or starts a new line."""
    return "".join(char if char.isprintable() or char == "\t" else "\N{REPLACEMENT CHARACTER}" for char in text)


def fail(message: str, status: int) -> NoReturn:
    print(f"pitstop: {printable(message)}", file=sys.stderr)
    raise SystemExit(status)


@contextmanager
def complete_output() -> Iterator[None]:
    """What is printed inside arrives on standard output, or the process ends with status 1 and a line that says why."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        # Else what is still buffered fails once more at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        fail(f"cannot write standard output: {error.strerror}; what is there is not complete", 1)


def run(arguments: Sequence[str]) -> None:
    """Start the command that `arguments` name. Ends the process with CONTRACT.md's exit statuses."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(overview())
        raise SystemExit(0 if arguments else 2)
    if arguments[0] == "--version":
        from importlib.metadata import version

        print(f"pitstop {version('pitstop')}")
        raise SystemExit(0)
    entry = COMMANDS.get(arguments[0])
    if entry is None:
        fail(f"no command {arguments[0]!r}; pitstop --help lists them", 2)
    # What starting makes is there to stay: collecting it again and again takes a tenth of the start.
    gc.set_threshold(GARBAGE_THRESHOLD)
    module = importlib.import_module(f"cli.{entry[0]}")
    try:
        module.app(args=list(arguments[1:]), prog_name=f"pitstop {arguments[0]}")
    except UsageError as error:
        fail(str(error), 2)
    except BrokenPipeError:
        # The reader of our output went away; there is nobody to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
