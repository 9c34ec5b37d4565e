"""`pitstop evaluate`: diagnose every case of a labelled corpus, and say how well that went.

Only the `log` of a case reaches the product; it takes the path that any text takes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.commands import CommandLine
from cli.ladder import LadderChoice, RungTally, build_ladder
from cli.main import UsageError
from detectors.reading.scan import scan_text
from rules.artefact import load_matcher
from rules.diagnosis import Diagnosis
from rules.file_errors import cannot_read, cannot_write
from rules.matcher import Matcher
from rules.pack import PackError
from rules.ranking import rank
from rules.scoring import Judged, random_halves, root_precision, score
from rules.signal import Role

app = CommandLine()

LABELS = ("reason", "family", "category", "severity")


def read_cases(path: Path) -> Iterator[Mapping[str, Any]]:
    """The cases of a corpus. Raises UsageError where the file or a case cannot be used, naming its line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(cannot_read(path, error)) from None
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            case = json.loads(line)
        except ValueError as error:
            raise UsageError(f"{path}:{number}: not JSON ({error})") from None
        log = case.get("log") if isinstance(case, dict) else None
        if not isinstance(log, list) or not all(isinstance(item, str) for item in log) or "id" not in case:
            raise UsageError(f"{path}:{number}: a case is an object with an id and a log, a list of lines")
        yield case


def diagnose_lines(lines: Sequence[str], matcher: Matcher) -> Diagnosis:
    """The diagnosis of a log given as lines; a newline within a line becomes a space, so that numbers stay those of the list."""
    content = "".join(line.replace("\n", " ") + "\n" for line in lines)
    return rank(scan_text(content.encode("utf-8", "surrogateescape"), matcher, time.time), matcher.rules)


def prediction_of(case: Mapping[str, Any], diagnosis: Diagnosis) -> dict[str, Any]:
    """One line of the predictions file (CONTRACT.md)."""
    roots = {item.line - 1 for item in diagnosis.evidence if item.role is Role.ROOT and item.line is not None}
    return {
        "id": case["id"],
        "reason": diagnosis.reason,
        "family": diagnosis.family,
        "category": diagnosis.category.value,
        "severity": diagnosis.severity.value,
        "action": diagnosis.remedy.value,
        "root_lines": sorted(roots),
    }


def truth_of(case: Mapping[str, Any]) -> str | None:
    label = case.get("label")
    reason = label.get("reason") if isinstance(label, dict) else None
    return reason if isinstance(reason, str) else None


def judge(case: Mapping[str, Any], prediction: Mapping[str, Any]) -> Judged | None:
    """The prediction beside the label; None for a case without one."""
    label = case.get("label")
    if not isinstance(label, dict) or not all(isinstance(label.get(name), str) for name in LABELS):
        return None
    return Judged(
        id=str(case["id"]),
        source=str(case.get("source", "")),
        hard=bool(case.get("hard")),
        truth={name: label[name] for name in LABELS},
        culprits=frozenset(case.get("culprit_lines") or ()),
        reason=prediction["reason"],
        family=prediction["family"],
        category=prediction["category"],
        severity=prediction["severity"],
        root_lines=tuple(prediction["root_lines"]),
    )


def report_of(judged: Sequence[Judged]) -> dict[str, Any]:
    """Measures with intervals, spread over random halves of the sources, and the cases that went wrong."""
    precision = root_precision(judged)
    return {
        "cases": len(judged),
        "measures": {name: item.document() for name, item in score(judged).items()},
        "root_line_precision": None if precision is None else round(precision, 4),
        "random_halves": {
            name: {"low": round(low, 3), "median": round(middle, 3), "high": round(high, 3)}
            for name, (low, middle, high) in random_halves(judged).items()
        },
        "wrong": [
            {"id": case.id, "truth": case.truth["reason"], "predicted": case.reason, "severity": case.severity}
            for case in judged
            if case.reason != case.truth["reason"]
        ],
    }


def print_report(report: Mapping[str, Any]) -> None:
    print(f"{report['cases']} cases")
    for name, item in report["measures"].items():
        if item["rate"] is not None:
            low, high = item["interval_95"]
            print(f"  {name:<22} {item['rate']:.3f}  ({item['count']} of {item['of']}; 95 %: {low:.3f} to {high:.3f})")
    if report["root_line_precision"] is not None:
        print(f"  {'root_line_precision':<22} {report['root_line_precision']:.3f}")
    print("over 200 random halves of the sources (2.5 %, median, 97.5 %)")
    for name, spread in report["random_halves"].items():
        print(f"  {name:<22} {spread['low']:.3f}  {spread['median']:.3f}  {spread['high']:.3f}")
    print("the ladder: each rung is asked where those before it abstained")
    for rung in report["rungs"]:
        print(
            f"  {rung['rung']:<8} asked {rung['asked']}, answered {rung['answered']}"
            f" ({rung['right']} right, {rung['wrong']} wrong), {rung['seconds']:.2f} s, {rung['tokens']} tokens"
        )
        for why, count in rung["abstained"].items():
            print(f"           abstained {count} times: {why}")
    for case in report["wrong"]:
        print(f"  {case['id']}: {case['predicted']} {case['severity']}, label {case['truth']}")


@app.command()
def evaluate(
    corpus: Annotated[Path, typer.Argument(metavar="CORPUS.jsonl", help="labelled cases, one JSON object a line")],
    predictions: Annotated[Path | None, typer.Option(help="write one prediction a case to this file")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON document")] = False,
    ladder: Annotated[
        LadderChoice, typer.Option(help="the rungs that may speak where the rules do not know")
    ] = LadderChoice.RULE,
) -> None:
    """Diagnose every case of a labelled corpus and measure the diagnoses against the labels."""
    cases = list(read_cases(corpus))
    if not cases:
        raise UsageError(f"{corpus} holds no case: one JSON object a line is needed, with an id and a log")
    try:
        matcher = load_matcher()
    except PackError as error:
        raise UsageError(f"{error}; pitstop rules check lists every problem") from None
    climb = build_ladder(ladder, matcher.rules)
    tally = RungTally()
    made = []
    for case in cases:
        result = climb(diagnose_lines(case["log"], matcher), case["log"], str(case["id"]))
        tally.add(result, truth_of(case))
        made.append(prediction_of(case, result.diagnosis))
    if predictions is not None:
        try:
            predictions.write_text("".join(json.dumps(item) + "\n" for item in made), encoding="utf-8")
        except OSError as error:
            raise UsageError(cannot_write(predictions, error)) from None
    judged = [item for case, made_of_it in zip(cases, made, strict=True) if (item := judge(case, made_of_it))]
    report = report_of(judged) | {"rungs": tally.document()}
    if as_json:
        print(json.dumps(report))
    else:
        print_report(report)
