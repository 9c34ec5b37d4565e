"""`python -m benchmarks [NAME...]`: run benchmarks and write what they measured to benchmarks/results/NAME.md."""

from __future__ import annotations

import importlib
import os
import platform
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results"


def names() -> list[str]:
    """The modules beside this one that have a `run`; the others are what those share."""
    return sorted(path.stem for path in FOLDER.glob("[a-z]*.py") if "\ndef run(" in path.read_text(encoding="utf-8"))


def main(wanted: list[str]) -> int:
    unknown = [name for name in wanted if name not in names()]
    if unknown:
        print(f"no benchmark {unknown[0]!r}; there are {', '.join(names())}", file=sys.stderr)
        return 2
    RESULTS.mkdir(exist_ok=True)
    for name in wanted or names():
        began = time.monotonic()
        print(f"{name} ...", flush=True)
        body = importlib.import_module(f"benchmarks.{name}").run()
        machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
        stamp = time.strftime("%Y-%m-%d", time.gmtime())
        (RESULTS / f"{name}.md").write_text(
            f"{body.rstrip()}\n\n`python -m benchmarks {name}`, {stamp}, {machine}, {time.monotonic() - began:.0f} s.\n"
        )
        print(body, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
