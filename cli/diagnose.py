"""`pitstop diagnose`: say what broke, and why, from what a run left behind."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer

from cli.main import UsageError
from detectors.reading.scan import scan_inputs
from detectors.reading.sources import UnreadableInput
from rules.artefact import load_matcher
from rules.diagnosis import diagnosis_document
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
    print(f"{diagnosis.reason}: {diagnosis.summary}")
