"""Candidates for the cause: which findings explain which, and which of the unexplained ones is the root."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rules.ranking.inference import Inference
from rules.ranking.memory import amount, is_absurd
from rules.ranking.observation import Observation, position
from rules.ranking.timeline import Timeline
from rules.signal import Role
from rules.taxonomy import UNKNOWN

__all__ = ["Candidate", "choose", "explain", "gather"]

# Reasons that name a symptom, by the taxonomy's own definitions: any cause in the evidence outranks them, whatever their
# rules weigh.
SYMPTOMS = frozenset(
    (
        "coordination_heartbeat_timeout",
        "cuda_error_unattributed",
        "nccl_timeout_unattributed",
        "process_bus_error",
        "process_exit_unattributed",
        "process_killed_sigkill",
        "process_segfault",
        "remote_peer_lost",
        "rendezvous_store_unreachable",
        "terminated_by_sigterm",
        UNKNOWN,
    )
)
# Reasons within this much weight of the best one compete by which came first.
CLOSE = 15


@dataclass(frozen=True, slots=True)
class Candidate:
    """A reason with what speaks for it. `established` is False for reasons that only name a symptom."""

    reason: str
    weight: int
    established: bool
    items: tuple[Observation, ...]
    inference: Inference | None = None
    ruled_out_by: str = ""

    @property
    def is_retried(self) -> bool:
        """Whether nothing speaks for it but warnings of what the software tried again by itself."""
        return self.inference is None and all(item.rule.transient for item in self.items)

    @property
    def first(self) -> int:
        return min(item.order for item in self.items)

    @property
    def last(self) -> int:
        return max(item.order for item in self.items)

    @property
    def leading(self) -> Observation:
        """The line that speaks most directly, the earliest of them."""
        return min(self.items, key=lambda item: (-item.weight, item.order))


def explain(observations: Sequence[Observation], inferences: Sequence[Inference]) -> dict[int, str]:
    """Which observations (by order) are consequences of others, and of which.

    An observation is a consequence where a more telling one overrides its rule or reason, or where its own rule names one of the
    others as its explanation. Rules that explain one another settle it by weight, then by order.
    """
    explained: dict[int, str] = {}
    for inference in inferences:
        for item in observations:
            if item.is_named_by(inference.explains) and item.reason != inference.reason:
                explained.setdefault(item.order, inference.why)
    failing = [item for item in observations if item.role in (Role.ROOT, Role.CASCADE, Role.TEARDOWN)]
    firsts: dict[str, Observation] = {}
    for item in failing:
        firsts.setdefault(item.rule.code, item)
    leaders = sorted(firsts.values(), key=lambda item: (-item.weight, item.order))
    consequences: dict[str, Observation] = {}
    for cause in leaders:
        for effect in leaders:
            if cause.rule.code == effect.rule.code or effect.rule.code in consequences:
                continue
            named = effect.is_named_by(cause.rule.overrides) or cause.is_named_by(effect.rule.explained_by)
            if named and not is_consequence_of(cause.rule.code, effect.rule.code, consequences):
                consequences[effect.rule.code] = cause
    for item in failing:
        if item.rule.code in consequences:
            cause = consequences[item.rule.code]
            explained.setdefault(item.order, f"a consequence of {cause.rule.code} at {position(cause.line)}")
        elif item.role is Role.ROOT and is_absurd(amount(item.capture("requested"))):
            explained.setdefault(item.order, "asks for more memory than any device has: the sizes are garbage")
    return explained


def is_consequence_of(code: str, other: str, consequences: Mapping[str, Observation]) -> bool:
    """Whether `code` follows, step by step, from `other`."""
    seen: set[str] = set()
    while code in consequences and code not in seen:
        seen.add(code)
        code = consequences[code].rule.code
        if code == other:
            return True
    return False


def gather(
    observations: Sequence[Observation], inferences: Sequence[Inference], explained: Mapping[int, str]
) -> tuple[Candidate, ...]:
    """Every reason in the evidence: first those that could be the cause, then (`ruled_out_by` set) those that others explain."""
    open_items: dict[str, list[Observation]] = {}
    closed: dict[str, tuple[list[Observation], str]] = {}
    for item in observations:
        if item.role is Role.CONTEXT or item.reason is None:
            continue
        if item.order in explained:
            closed.setdefault(item.reason, ([], explained[item.order]))[0].append(item)
        else:
            open_items.setdefault(item.reason, []).append(item)
    candidates = {}
    for reason, items in open_items.items():
        roots = [item for item in items if item.role is Role.ROOT]
        chosen = roots or items
        weight = max(item.weight for item in chosen)
        candidates[reason] = Candidate(reason, weight, bool(roots) and reason not in SYMPTOMS, tuple(chosen))
    for inference in sorted(inferences, key=lambda item: item.weight):
        known = candidates.get(inference.reason)
        established = inference.established or (known is not None and known.established)
        weight = max(inference.weight, known.weight if known else 0)
        proof = inference.roots
        if known is not None and not inference.established:
            proof = tuple(sorted({item.order: item for item in (*known.items, *proof)}.values(), key=lambda item: item.order))
        candidates[inference.reason] = Candidate(inference.reason, weight, established, proof, inference)
    ruled_out = [
        Candidate(reason, max(item.weight for item in items), False, tuple(items), ruled_out_by=why)
        for reason, (items, why) in closed.items()
        if reason not in candidates and reason != UNKNOWN
    ]
    return (*candidates.values(), *ruled_out)


def is_retry_in_vain(candidate: Candidate, retried: Sequence[Candidate]) -> bool:
    """Whether `candidate` is how a program ends that tried one of `retried` again in vain, by what their rules name."""
    return any(candidate.reason in item.rule.overrides for other in retried for item in other.items)


def competing(current: Sequence[Candidate]) -> list[Candidate]:
    """Those of one attempt between which weight and order decide: causes before symptoms, failures before retried warnings.

    A symptom that no retry brings about, such as a crash in native code, outranks such a warning too.
    """
    named = [item for item in current if item.reason != UNKNOWN]
    pool = [item for item in named if item.established] or named or list(current)
    if all(item.is_retried for item in pool):
        pool = [item for item in named if not is_retry_in_vain(item, pool)] or pool
    return [item for item in pool if not item.is_retried] or pool


def choose(candidates: Sequence[Candidate], timeline: Timeline) -> tuple[Candidate | None, tuple[Candidate, ...]]:
    """The cause, and the others with what ruled them out.

    Of several attempts in one log the last one that failed is diagnosed. In it, a reason that names a cause outranks any
    that names a symptom, and a failure outranks a warning of something that was tried again; then the weightier; among those of
    about the same weight the one that came first, for the rest are likely its consequences.
    """
    open_ones = [item for item in candidates if not item.ruled_out_by]
    if not open_ones:
        return None, tuple(candidates)
    latest = max(timeline.attempt_of(item.last) for item in open_ones)
    current = [item for item in open_ones if timeline.attempt_of(item.last) == latest]
    pool = competing(current)
    top = max(item.weight for item in pool)
    chosen = min((item for item in pool if item.weight >= top - CLOSE), key=lambda item: (item.first, -item.weight, item.reason))
    others = []
    for item in candidates:
        if item is chosen or item.reason == UNKNOWN:
            continue
        if item.ruled_out_by:
            others.append(item)
        elif item not in current:
            others.append(replace(item, ruled_out_by=f"an earlier attempt failed with it ({position(item.leading.line)})"))
        elif item not in pool and item.is_retried:
            others.append(
                replace(item, ruled_out_by="a warning that the software retries by itself, while a failure stands apart")
            )
        elif item not in pool:
            others.append(replace(item, ruled_out_by="names a symptom, while a cause is in the evidence"))
        elif item.weight < top - CLOSE:
            others.append(replace(item, ruled_out_by=f"says less directly what failed than {position(chosen.leading.line)}"))
        else:
            others.append(replace(item, ruled_out_by=f"came after {position(chosen.leading.line)}"))
    return chosen, tuple(sorted(others, key=lambda item: (bool(item.ruled_out_by), -item.weight, item.reason)))
