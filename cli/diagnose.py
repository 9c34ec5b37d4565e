"""`pitstop diagnose`: say what broke, and why, from what a run left behind."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence

from cli.main import UsageError, complete_output, printable
from cli.options import option_parser
from cli.report import report
from detectors.reading.excerpt import lines_around
from detectors.reading.kinds import Kind
from detectors.reading.scan import scan_inputs
from detectors.reading.sources import UnreadableInput
from rules.artefact import load_compiled
from rules.diagnosis import Diagnosis, Input, diagnosis_document
from rules.pack import PackError
from rules.ranking import rank

__all__ = ["app"]

# Of those left out so many are named.
NAMED = 3


def app(args: Sequence[str], prog_name: str) -> None:
    """Raises UsageError."""
    parser = option_parser(
        prog_name,
        "Say what broke, and why, from what one failed run left behind: logs, kernel logs, flight-recorder dumps, "
        "error files of torchelastic, NCCL RAS status, Slurm's job records, alerts. What each one is is told from its content.",
    )
    parser.add_argument("paths", metavar="PATH", nargs="+", help="files, directories, .gz/.zst, or - for standard input")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(args)
    try:
        compiled = load_compiled()
        matcher = compiled.matcher()
        findings = scan_inputs(options.paths, matcher, time.time, compiled.shapes)
    except (PackError, UnreadableInput) as error:
        raise UsageError(str(error)) from None
    diagnosis = rank(findings, matcher.rules).with_inputs(findings.inputs)
    with complete_output():
        if options.json:
            tell_left_out(findings.inputs)
            print(json.dumps(diagnosis_document(diagnosis)))
        else:
            show(diagnosis)


def tell_left_out(inputs: Sequence[Input]) -> None:
    """On standard error, what could not be read of the folders that were named; the report for people says it by itself."""
    left_out = [read for read in inputs if read.kind == Kind.UNREADABLE]
    if left_out:
        named = "; ".join(f"{read.path} is {read.note}" for read in left_out[:NAMED])
        more = f"; and {len(left_out) - NAMED} more" if len(left_out) > NAMED else ""
        print(f"pitstop: left out {len(left_out)} of {len(inputs)} files: {printable(named)}{more}", file=sys.stderr)


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
