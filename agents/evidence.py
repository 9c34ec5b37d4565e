"""What the failure agent may look at: the kept lines of one incident, memory, the history of nodes, the catalogue of rules."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from agents.failure_agent import Question
from rules.diagnosis import Diagnosis
from rules.pack import Rule

__all__ = ["KeptEvidence", "question_of"]


@dataclass(frozen=True, slots=True)
class KeptEvidence:
    """Read-only. `lines` are the incident's kept lines under numbers of the conversation's own, in order."""

    lines: Mapping[int, str]
    rules: Mapping[str, Rule] = field(default_factory=dict)
    remembered: Callable[[str, int], Sequence[str]] = lambda _text, _most: ()
    history: Callable[[str], Sequence[str]] = lambda _node: ()

    def grep(self, text: str, most: int) -> Mapping[int, str]:
        """The first `most` lines that hold `text`, letter for letter; an empty text finds nothing."""
        found: dict[int, str] = {}
        for number, line in self.lines.items():
            if text and text in line:
                found[number] = line
                if len(found) >= most:
                    break
        return found

    def window(self, number: int, around: int) -> Mapping[int, str]:
        return {key: self.lines[key] for key in range(number - around, number + around + 1) if key in self.lines}

    def search_memory(self, text: str, most: int) -> Sequence[str]:
        return self.remembered(text, most)

    def node_history(self, node: str) -> Sequence[str]:
        return self.history(node)

    def rule(self, code: str) -> str:
        found = self.rules.get(code)
        return "" if found is None else f"{found.code}: {found.title} (reason {found.reason}, role {found.role.value})"


def question_of(diagnosis: Diagnosis, lines: Mapping[int, str], incident: str, facts: Sequence[str] = ()) -> Question:
    """The failure as it is put to the model: the quoted evidence with what stands around it, then the newest lines."""
    quoted = {item.text for item in diagnosis.evidence}
    near = {key for number, text in lines.items() if text in quoted for key in range(number - 2, number + 3) if key in lines}
    chosen = sorted({*sorted(lines)[-20:], *sorted(near)[-20:]})
    known = (f"The rules say: {diagnosis.summary}", *facts)
    shown = {number: lines[number] for number in chosen}
    fingerprint = hashlib.sha256("\n".join((*known, *shown.values())).encode("utf-8", "surrogateescape")).hexdigest()
    return Question(incident, fingerprint, shown, known)
