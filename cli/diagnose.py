"""`pitstop diagnose`: say what broke, and why, from what a run left behind."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated

import typer

from cli.main import UsageError
from cli.report import report
from detectors.reading.excerpt import lines_around
from detectors.reading.scan import scan_inputs
from detectors.reading.sources import UnreadableInput
from rules.artefact import load_matcher
from rules.diagnosis import Diagnosis, diagnosis_document
from rules.ranking import rank

app = typer.Typer(add_completion=False)


@app.command()
def diagnose(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="files, directories, .gz/.zst, or - for standard input")],
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON document")] = False,
) -> None:
    """Say what broke, and why, from logs, dumps and records of one failed run."""
    matcher = load_matcher()
    try:
        findings = scan_inputs(paths, matcher, time.time)
    except UnreadableInput as error:
        raise UsageError(str(error)) from None
    diagnosis = rank(findings, matcher.rules).with_inputs(findings.inputs)
    if as_json:
        print(json.dumps(diagnosis_document(diagnosis)))
        return
    show(diagnosis)


def show(diagnosis: Diagnosis) -> None:
    """Print the report, in colours only on a terminal."""
    rows = report(diagnosis, lines_around)
    if not sys.stdout.isatty():
        for row in rows:
            print("".join(piece.text for piece in row))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for row in rows:
        console.print(Text.assemble(*((piece.text, piece.style) for piece in row)))
