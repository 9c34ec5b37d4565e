"""The `pitstop` console script, under a name that nobody else has: other people's `rules` or `agents` must not shadow ours."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def own_module_path(path: list[str], python_path: str, working_directory: str) -> list[str]:
    """`path` without the entries that PYTHONPATH or the working directory brought; the environment itself is untouched."""
    foreign = {str(Path(entry).absolute()) for entry in python_path.split(os.pathsep) if entry}
    home = str(Path(__file__).resolve().parent)
    return [
        entry for entry in path if entry == home or (entry and str(Path(entry).absolute()) not in foreign | {working_directory})
    ]


def fill_standard_descriptors() -> None:
    """Open what the caller closed of descriptors 0 to 2 on nothing: the next file that we opened would get its number, and what
    a child prints would be written into it."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def main() -> None:
    """Run the command line with a module path of our own."""
    fill_standard_descriptors()
    try:
        working_directory = str(Path.cwd())
    except FileNotFoundError:
        print("pitstop: the working directory was removed: change to one that exists", file=sys.stderr)
        raise SystemExit(2) from None
    sys.path[:] = own_module_path(sys.path, os.environ.get("PYTHONPATH", ""), working_directory)
    from cli.main import run

    run(sys.argv[1:])


if __name__ == "__main__":
    main()
