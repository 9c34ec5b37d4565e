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


def main() -> None:
    """Run the command line with a module path of our own."""
    sys.path[:] = own_module_path(sys.path, os.environ.get("PYTHONPATH", ""), str(Path.cwd()))
    from cli.main import run

    run(sys.argv[1:])


if __name__ == "__main__":
    main()
