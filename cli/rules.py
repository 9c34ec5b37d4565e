"""`pitstop rules`: list, show and check what is known, and say which rules recognise a line."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.commands import CommandLine
from cli.main import UsageError, fail
from rules.artefact import ARTEFACT_VARIABLE, artefact_key, artefact_path, compile_rules, load_matcher, write_artefact
from rules.check import check_packs
from rules.file_errors import cannot_read, cannot_write
from rules.gate import Candidate, SettledIncident, inspect
from rules.matcher import Clause
from rules.pack import PACK_FOLDER, PackError, Rule, load_packs, read_packs
from rules.taxonomy import load_taxonomy

__all__ = ["app"]

app = CommandLine(help="What is known: the rules, one by one.", rich_markup_mode=None)

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]


def known_rules() -> tuple[Rule, ...]:
    try:
        return load_packs()
    except PackError as error:
        raise UsageError(f"{error}; pitstop rules check lists every problem") from None


@app.command("list")
def list_rules(as_json: AsJson = False) -> None:
    """One line a rule: code, role, reason, title."""
    rules = known_rules()
    if as_json:
        print(json.dumps([summary(rule) for rule in rules]))
        return
    for rule in rules:
        print(f"{rule.code:<16} {rule.role.value:<9} {rule.reason or '-':<34} {rule.title}")


@app.command()
def show(code: Annotated[str, typer.Argument(help="The code of the rule, as in PS-XID-079.")], as_json: AsJson = False) -> None:
    """Everything one rule says."""
    rules = {rule.code: rule for rule in known_rules()}
    rule = rules.get(code)
    if rule is None:
        near = get_close_matches(code.upper(), rules, n=3, cutoff=0.75)
        hint = f"there is {', '.join(near)}; " if near else ""
        raise UsageError(f"no rule {code!r}; {hint}pitstop rules list has them all")
    document = {name: value for name, value in asdict(rule).items() if value not in (None, (), "")}
    if as_json:
        print(json.dumps(document))
        return
    for name, value in document.items():
        if isinstance(value, tuple):
            print(f"{name}:")
            for item in value:
                print(f"  {item}")
        elif isinstance(value, dict):
            for kind, texts in value.items():
                print(f"{name}.{kind}:")
                for item in texts:
                    print(f"  {item}")
        else:
            print(f"{name}: {value}")


@app.command()
def check(folder: Annotated[Path, typer.Argument(help="A folder of packs; Pitstop's own if left out.")] = PACK_FOLDER) -> None:
    """Compile every pattern and run every example in both engines; print each problem. Exit status 1 if there is one."""
    try:
        rules, problems = check_packs(read_packs(folder), load_taxonomy())
    except PackError as error:
        raise UsageError(str(error)) from None
    if not rules and not problems:
        raise UsageError(f"no rule under {folder}: name a folder of packs (*.yaml)")
    for problem in problems:
        print(problem, file=sys.stderr)
    examples = sum(len(rule.examples.match) + len(rule.examples.miss) for rule in rules)
    print(f"{len(rules)} rules, {examples} examples, {len(problems)} problems")
    if any(problem.unreadable for problem in problems):
        raise typer.Exit(2)
    if problems:
        raise typer.Exit(1)


@app.command()
def explain(line: Annotated[str, typer.Argument(help="A line of a log, or - to read lines.")], as_json: AsJson = False) -> None:
    """Which rules recognise a line, and what they read from it."""
    try:
        matcher = load_matcher()
    except PackError as error:
        raise UsageError(f"{error}; pitstop rules check lists every problem") from None
    rules = matcher.rules
    text = sys.stdin.buffer.read().decode("utf-8", "surrogateescape") if line == "-" else line
    lines = text.removesuffix("\n").split("\n")
    found = []
    block = (text.removesuffix("\n") + "\n").encode("utf-8", "surrogateescape")
    for hit in matcher.scan(block):
        rule = rules[hit.rule]
        found.append(
            {
                "line": hit.line + 1,
                **summary(rule),
                "clause": hit.clause.value,
                "pattern": getattr(rule, hit.clause.value)[hit.ordinal],
                "captures": matcher.captures(hit.rule, lines[hit.line]),
            }
        )
    if as_json:
        print(json.dumps(found))
        return
    if not found:
        print("no rule recognises it")
    for item in found:
        condition = "" if item["clause"] == Clause.ANY else f", as a condition ({item['clause']})"
        place = f"line {item['line']}: " if len(lines) > 1 else ""
        print(f"{place}{item['code']}  {item['role']}  {item['reason'] or '-'}  {item['title']}{condition}")
        print(f"  pattern: {item['pattern']}")
        for name, value in dict(item["captures"]).items():
            print(f"  {name}: {value}")


@app.command()
def judge(
    candidate: Annotated[Path, typer.Argument(metavar="PACK.yaml", help="a pack with one rule")],
    cites: Annotated[Path, typer.Option(help="the lines that the rule was made from")],
    normal: Annotated[list[Path], typer.Option(help="logs of healthy runs, in which it must find nothing")],
    settled: Annotated[Path | None, typer.Option(help="settled failures: CORPUS.jsonl as evaluate reads it")] = None,
    as_json: AsJson = False,
) -> None:
    """Put a candidate rule through the gate: every objection, and the settled failures that it would explain otherwise."""
    try:
        rules, problems = check_packs([(candidate.name, candidate.read_text(encoding="utf-8"))], load_taxonomy())
        # Examples may be missing: the cited lines stand in for them.
        if len(rules) != 1:
            raise UsageError(str(problems[0]) if problems else f"{candidate} has to hold one rule, and holds {len(rules)}")
        healthy = [line for path in normal for line in path.read_text(encoding="utf-8", errors="replace").split("\n")]
        cited = tuple(cites.read_text(encoding="utf-8", errors="replace").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(cannot_read(getattr(error, "filename", None) or candidate, error)) from None
    # Not at the top: only this command reads a corpus.
    from cli.evaluate import read_cases

    past = [] if settled is None else [settled_of(case) for case in read_cases(settled)]
    result = inspect(Candidate(rules[0], cited), load_matcher(), healthy, past)
    if as_json:
        print(json.dumps(asdict(result)))
        return
    print("passes" if result.passes else "is refused")
    for objection in result.objections:
        print(f"  {objection}")
    for difference in result.differences:
        print(f"  incident {difference.incident} ({difference.settled_reason}): {difference.line}")


def settled_of(case: Mapping[str, Any]) -> SettledIncident:
    label = case.get("label")
    reason = str(label["reason"]) if isinstance(label, dict) else ""
    lines = tuple(case["log"])
    return SettledIncident(str(case["id"]), reason, lines, tuple(lines[index] for index in case.get("culprit_lines") or ()))


@app.command("compile")
def compile_command(
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help=f"The file to write; {ARTEFACT_VARIABLE} then names it.")
    ] = None,
) -> None:
    """Compile the packs to one file, in the user's cache if not told otherwise, so that commands start at once."""
    key = artefact_key()
    path = output or artefact_path(key)
    try:
        # Before the seconds that compiling takes.
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        compiled = compile_rules()
        write_artefact(compiled, key, path)
    except PackError as error:
        raise UsageError(f"{error}; pitstop rules check lists every problem") from None
    except OSError as error:
        fail(cannot_write(path, error), 1)
    print(f"{len(compiled.rules)} rules in {path}")


def summary(rule: Rule) -> dict[str, object]:
    return {"code": rule.code, "role": rule.role.value, "reason": rule.reason, "title": rule.title, "pack": rule.pack}
