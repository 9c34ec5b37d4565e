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
from rules.file_errors import cannot_write

__all__ = ["app"]

app = CommandLine()
# Where one of these is, a story was played.
OF_A_STORY = ("report.json", "service.log")
STORIES = {"main": four_faults.tell, "learn": learn.tell}


def empty_for_story(folder: Path) -> None:
    """Empty the folder of an earlier story. Raises UsageError where it holds something else, or cannot be used."""
    try:
        if folder.exists() and any(folder.iterdir()) and not any((folder / name).exists() for name in OF_A_STORY):
            raise UsageError(f"{folder} holds other things, and would be emptied: name a new folder with --folder")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(cannot_write(folder, error)) from None


@app.command()
def demo(
    name: Annotated[str, typer.Argument(help=f"The story: {', '.join(STORIES)}.")] = "main",
    folder: Annotated[Path, typer.Option(help="Where logs, data and report.json go; one of an earlier story is emptied.")] = Path(
        "build/demo"
    ),
) -> None:
    """Play a story on real processes: break, notice, diagnose, decide, restart, verify."""
    if name not in STORIES:
        raise UsageError(f"no story {name!r}; there are: {', '.join(STORIES)}")
    folder = folder.absolute()
    empty_for_story(folder)
    try:
        with open_stage(folder) as stage:
            report = STORIES[name](stage, lambda text: print(text, flush=True))
    except StoryError as error:
        report = {"ok": False, "faults": [], "error": str(error)}
        print(f"\nThe story failed: {error}")
    (folder / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"\n{'All went as told' if report['ok'] else 'NOT all went well'}; the report is {folder / 'report.json'}")
    raise typer.Exit(0 if report["ok"] else 1)
