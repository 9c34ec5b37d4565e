"""`pitstop demo`: stories on real processes, played from end to end."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Annotated

import typer

from cli.commands import CommandLine
from cli.main import UsageError
from cli.stories import four_faults, learn
from cli.stories.stage import StoryError, open_stage

__all__ = ["app"]

app = CommandLine()
STORIES = {"main": four_faults.tell, "learn": learn.tell}


@app.command()
def demo(
    name: Annotated[str, typer.Argument(help=f"The story: {', '.join(STORIES)}.")] = "main",
    folder: Annotated[Path, typer.Option(help="Where logs, data and report.json go; emptied first.")] = Path("build/demo"),
) -> None:
    """Play a story on real processes: break, notice, diagnose, decide, restart, verify."""
    if name not in STORIES:
        raise UsageError(f"no story {name!r}; there are: {', '.join(STORIES)}")
    folder = folder.absolute()
    shutil.rmtree(folder, ignore_errors=True)
    try:
        with open_stage(folder) as stage:
            report = STORIES[name](stage, lambda text: print(text, flush=True))
    except StoryError as error:
        report = {"ok": False, "faults": [], "error": str(error)}
        print(f"\nThe story failed: {error}")
    (folder / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"\n{'All went as told' if report['ok'] else 'NOT all went well'}; the report is {folder / 'report.json'}")
    raise typer.Exit(0 if report["ok"] else 1)
