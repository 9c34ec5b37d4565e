"""Cause ranking: from the findings of all ranks to one diagnosis.

Root before cascade before teardown; a cause before a symptom; the more telling line before the vaguer; among equals the one
that came first. Pure functions over frozen data: the same findings always give the same diagnosis.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache

from rules.diagnosis import Alternative, Diagnosis, Evidence, Source
from rules.findings import Findings
from rules.pack import Rule, load_packs
from rules.ranking.candidates import Candidate, choose, explain, gather
from rules.ranking.collectives import infer_collectives
from rules.ranking.domain import fault_domain, ranks_by_node
from rules.ranking.exits import infer_exits
from rules.ranking.hardware import infer_hardware
from rules.ranking.memory import infer_memory
from rules.ranking.observation import Observation, arrange
from rules.ranking.summary import collect_for, nothing_wrong, severity_of, summarise, unknown_failure
from rules.ranking.timeline import Settled, Timeline, settle
from rules.signal import Line, Role
from rules.taxonomy import NONE, UNKNOWN, load_taxonomy

__all__ = ["rank"]

# Evidence lines that a diagnosis quotes of each role.
QUOTED = {Role.ROOT: 12, Role.CASCADE: 20, Role.TEARDOWN: 10, Role.CONTEXT: 10}


@cache
def shipped_rules() -> tuple[Rule, ...]:
    return load_packs()


def rank(findings: Findings, rules: Iterable[Rule] | None = None) -> Diagnosis:
    """The diagnosis of what `findings` show; `rules` are those that found the signals (the shipped packs if not given).

    `none` where nothing failed; `unknown` (SEV2, confidence under 0.5, with what to collect) where something failed and no line
    says what. What was measured counts only in these two cases: it is never the root above a line that says what failed.
    """
    diagnosis = ranked(findings, rules)
    if not findings.measured or diagnosis.reason not in (NONE, UNKNOWN):
        return diagnosis
    measured = ranked(replace(findings, signals=(*findings.signals, *findings.measured)), rules)
    return diagnosis if measured.reason in (NONE, UNKNOWN) else measured


def ranked(findings: Findings, rules: Iterable[Rule] | None) -> Diagnosis:
    """The diagnosis of the signals alone."""
    by_code = {rule.code: rule for rule in (shipped_rules() if rules is None else rules)}
    observations = arrange(findings, by_code)
    timeline = Timeline(observations)
    settled = settle(observations, timeline)
    inferences = [
        *infer_hardware(settled.kept),
        *infer_memory(settled.kept),
        *infer_collectives(settled.kept, timeline),
        *infer_exits(settled.kept, timeline),
    ]
    explained = explain(settled.kept, inferences)
    chosen, others = choose(gather(settled.kept, inferences, explained), timeline)
    if chosen is None:
        return Diagnosis.of(
            load_taxonomy()[NONE],
            nothing_wrong(findings, settled.set_aside),
            confidence=0.9 if settled.set_aside else 0.97,
            inputs=findings.inputs,
            why=tuple(f"{item.rule.code} does not count: {why}" for item, why in settled.set_aside[:10]),
        )
    evidence = quote(chosen, settled.kept)
    if chosen.reason == UNKNOWN:
        return Diagnosis.of(
            load_taxonomy()[UNKNOWN],
            unknown_failure(chosen),
            source=Source.UNKNOWN,
            confidence=0.3,
            rule=chosen.leading.rule.code,
            fault_domain=fault_domain(chosen, ranks_by_node(settled.kept)),
            evidence=evidence,
            collect=collect_for(chosen),
            inputs=findings.inputs,
        )
    return established(chosen, others, evidence, settled, findings)


def established(
    chosen: Candidate, others: Sequence[Candidate], evidence: tuple[Evidence, ...], settled: Settled, findings: Findings
) -> Diagnosis:
    reason = load_taxonomy()[chosen.reason]
    confidence = confidence_in(chosen, others)
    why = [chosen.inference.why] if chosen.inference else []
    why += [f"{item.rule.code} does not count: {text}" for item, text in settled.set_aside[:5]]
    handling = severity_of(reason, chosen)
    domain = fault_domain(chosen, ranks_by_node(settled.kept))
    return Diagnosis.of(
        handling,
        summarise(handling, chosen, domain),
        confidence=confidence,
        rule=chosen.leading.rule.code,
        fault_domain=domain,
        evidence=evidence,
        alternatives=tuple(
            Alternative(item.reason, round(min(confidence, 1 - confidence) * item.weight / 100, 3), item.ruled_out_by)
            for item in others[:5]
        ),
        collect=collect_for(chosen),
        inputs=findings.inputs,
        why=tuple(why),
    )


def confidence_in(chosen: Candidate, others: Sequence[Candidate]) -> float:
    """How sure: by how directly the lines name the cause, less where another cause of about the same weight is in the
    evidence.
    """
    if not chosen.established:
        return 0.4 + chosen.weight / 500
    confidence = 0.55 + chosen.weight / 225
    rivals = [item for item in others if item.established and item.weight >= chosen.weight - 10]
    return max(0.5, confidence * 0.85 ** min(len(rivals), 3))


def quote(chosen: Candidate, observations: Sequence[Observation]) -> tuple[Evidence, ...]:
    """The lines that prove the diagnosis, and what became of the others, in order; every line once."""
    roots = {item.order for item in chosen.items}
    quoted: dict[tuple[str, int], Evidence] = {}
    counts: dict[Role, int] = {}
    for item in sorted(observations, key=lambda item: (item.order not in roots, item.order)):
        role = Role.ROOT if item.order in roots else Role.CASCADE if item.role is Role.ROOT else item.role
        if role is Role.CONTEXT and item.rule.marks is None:
            continue
        for line in dict.fromkeys((item.line, item.last)):
            key = (line.path, line.number)
            if key not in quoted and counts.get(role, 0) < QUOTED[role]:
                counts[role] = counts.get(role, 0) + 1
                quoted[key] = evidence_of(line, role, item)
    return tuple(sorted(quoted.values(), key=lambda item: (item.path, item.line or 0)))


def evidence_of(line: Line, role: Role, item: Observation) -> Evidence:
    return Evidence(
        role=role,
        text=line.text,
        path=line.path,
        line=line.number,
        rule=item.rule.code,
        trust=line.trust,
        node=line.node,
        rank=line.rank,
        time=line.time,
    )
