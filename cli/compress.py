"""`pitstop compress`: drop the routine lines of a log, keep the others under their numbers."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from cli.main import UsageError, complete_output, fail, printable
from cli.options import option_parser
from detectors.reading.foreign import foreign_format, noise
from detectors.reading.sources import LineReader, UnreadableInput, find_sources
from detectors.reading.text import rank_span, strip_escapes_of_view
from rules.artefact import load_compiled
from rules.compression import CompressionReport, Compressor, RankTrace
from rules.file_errors import cannot_write
from rules.pack import PackError

__all__ = ["app"]


def app(args: Sequence[str], prog_name: str) -> None:
    """Raises UsageError."""
    parser = option_parser(
        prog_name,
        "Drop the routine lines of a log, keep the others under their numbers. Lines that any signal rule could "
        "match are never dropped; what the dropped ones measured is kept per rank.",
        "Kept lines go to OUT (standard output if left out), each after its line number and a tab.",
    )
    parser.add_argument("path", metavar="PATH", help="a file, .gz or .zst, or - for standard input")
    parser.add_argument("-o", "--output", metavar="OUT", help="where kept lines go")
    parser.add_argument("--json", action="store_true", help="print what was dropped as one JSON document on standard output")
    options = parser.parse_args(args)
    began = time.monotonic()
    try:
        compiled = load_compiled()
        sources = find_sources([options.path])
    except (PackError, UnreadableInput) as error:
        raise UsageError(str(error)) from None
    if len(sources) != 1:
        raise UsageError(f"{options.path} holds {len(sources)} files; compress takes one, as line numbers are those of one file")
    compressor = Compressor(compiled.matcher(), compiled.shapes, rank_span, collect_hits=False)
    try:
        reader = LineReader(sources[0])
    except UnreadableInput as error:
        raise UsageError(str(error)) from None
    if note := foreign_format(reader.head) or noise(reader.head):
        reader.close()
        raise UsageError(f"cannot read {options.path}: it is {note}")
    with reader, opened(options.output, options.json, options.path) as output:
        for block in reader.views():
            stripped = strip_escapes_of_view(block)
            sifted = compressor.feed(stripped, None if stripped is block else block)
            if sifted.kept:
                output.write(sifted.kept)
    report = compressor.report(stamp_reader() if options.json else None)
    if reader.note:
        print(f"pitstop: {printable(options.path)}: {reader.note}", file=sys.stderr)
    if options.json:
        with complete_output():
            print(json.dumps(document(report, compressor.lines, reader.bytes, time.monotonic() - began)))
    else:
        print(summary(report, compressor.lines, reader.bytes), file=sys.stderr)


def stamp_reader() -> Callable[[str], float | None]:
    # Not at the top: dates take a while to import.
    from detectors.reading.timestamps import Stamps

    return Stamps(time.time).read


class Output:
    """Where kept lines go. Ends the process with status 1 where they cannot all be written."""

    def __init__(self, file: BinaryIO | None, name: str) -> None:
        self._file = file
        self._name = name

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *_: object) -> None:
        self._attempt(lambda file: file.flush())

    def write(self, data: bytes) -> None:
        self._attempt(lambda file: file.write(data))

    def _attempt(self, action: Callable[[BinaryIO], object]) -> None:
        if self._file is None:
            return
        try:
            action(self._file)
        except BrokenPipeError:
            raise
        except OSError as error:
            self._file = None
            fail(f"cannot write {self._name}: {error.strerror}; what is there is not complete", 1)


def opened(path: str | None, as_json: bool, source: str) -> Output:
    """Kept lines go to `path`, else to standard output unless the document does. Raises UsageError."""
    if path is None or path == "-":
        if path and as_json:
            raise UsageError("--json prints on standard output; name a file with -o, or leave it out")
        return Output(None if as_json else sys.stdout.buffer, "standard output")
    if source != "-" and Path(path).exists() and Path(path).samefile(source):
        raise UsageError(f"{path} is what is to be read; name another file with -o")
    try:
        return Output(Path(path).open("wb"), path)
    except OSError as error:
        raise UsageError(cannot_write(path, error)) from None


def document(report: CompressionReport, lines: int, size: int, seconds: float) -> dict[str, Any]:
    """CONTRACT.md's document. Under `measurements`, by rank (`-`: lines that name none): see `trace_document`."""
    return {
        "lines": lines,
        "bytes": size,
        "kept_lines": report.kept_lines,
        "kept_bytes": report.kept_bytes,
        "dropped_by_rule": dict(report.dropped_by_rule),
        "measurements": {"-" if rank is None else str(rank): trace_document(trace) for rank, trace in report.ranks.items()},
        "seconds": round(seconds, 3),
    }


def trace_document(trace: RankTrace) -> dict[str, Any]:
    """Lines of the rank, the number and time of its last one, and what was measured: sums, and readings thinned out over time."""
    return {
        "lines": trace.lines,
        "last_line": trace.last_number,
        "last_time": trace.last_time,
        "series": {
            name: {"count": series.count, "last": series.last, "min": series.least, "max": series.most}
            for name, series in trace.series.items()
        },
        "readings": [{"line": reading.number, "time": reading.time, **reading.values} for reading in trace.readings],
    }


def summary(report: CompressionReport, lines: int, size: int) -> str:
    share = 100 * report.kept_lines / lines if lines else 0.0
    return f"{lines} lines, {size} bytes: kept {report.kept_lines} lines ({share:.1f} %), {report.kept_bytes} bytes"
