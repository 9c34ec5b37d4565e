"""The taxonomy: every reason for a failure that Pitstop can name, with what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import yaml

__all__ = ["NONE", "UNKNOWN", "Category", "Reason", "Remedy", "Severity", "Taxonomy", "load_taxonomy", "parse_taxonomy"]

UNKNOWN = "unknown"
NONE = "none"


class Severity(StrEnum):
    """What a failure asks for, from isolating hardware down to nothing automatic."""

    SEV1 = "SEV1"
    SEV2 = "SEV2"
    SEV3 = "SEV3"
    NONE = "NONE"


class Category(StrEnum):
    INFRASTRUCTURE = "infrastructure"
    FRAMEWORK = "framework"
    SCRIPT = "script"
    NONE = "none"


class Remedy(StrEnum):
    """What the taxonomy recommends; the policy chooses the action."""

    ISOLATE_NODE = "isolate_node"
    RESET_GPU = "reset_gpu"
    RESTART_PROCESS = "restart_process"
    RETRY_IN_PLACE = "retry_in_place"
    ROLLBACK_CHECKPOINT = "rollback_checkpoint"
    FIX_USER_CODE = "fix_user_code"
    FIX_CONFIGURATION = "fix_configuration"
    FIX_ENVIRONMENT = "fix_environment"
    FREE_RESOURCES = "free_resources"
    CONTACT_OPERATOR = "contact_operator"
    LOCALISE = "localise"
    REQUEUE = "requeue"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Reason:
    """One named cause of failure, with the handling that its definition implies."""

    name: str
    family: str
    category: Category
    component: str
    severity: Severity
    retryable: bool
    remedy: Remedy
    definition: str
    confused_with: tuple[tuple[str, str], ...] = ()


# A failure whose cause is not established: one restart on the same resources, then stop and ask; never SEV1.
UNKNOWN_REASON = Reason(
    name=UNKNOWN,
    family=UNKNOWN,
    category=Category.FRAMEWORK,
    component="unknown",
    severity=Severity.SEV2,
    retryable=True,
    remedy=Remedy.RESTART_PROCESS,
    definition="A failure whose cause is not established by the evidence at hand.",
)


@dataclass(frozen=True, slots=True)
class Taxonomy:
    """All reasons by name; `unknown` is always among them."""

    reasons: Mapping[str, Reason]

    def __getitem__(self, name: str) -> Reason:
        return self.reasons[name]

    def __contains__(self, name: object) -> bool:
        return name in self.reasons

    def remedies(self) -> frozenset[tuple[Severity, Remedy]]:
        """Every (severity, remedy) pair that a diagnosis can carry; the policy has a row for each."""
        return frozenset((reason.severity, reason.remedy) for reason in self.reasons.values())


def parse_taxonomy(document: Mapping[str, Any]) -> Taxonomy:
    """Build a taxonomy from the parsed YAML. Raises KeyError or ValueError where it is malformed."""
    reasons = {UNKNOWN: UNKNOWN_REASON}
    for entry in document["reasons"]:
        reasons[entry["name"]] = Reason(
            name=entry["name"],
            family=entry["family"],
            category=Category(entry["category"]),
            component=entry["component"],
            severity=Severity(entry["severity"]),
            retryable=bool(entry["retryable"]),
            remedy=Remedy(entry["action"]),
            definition=entry["definition"],
            confused_with=tuple((other["reason"], other["how"]) for other in entry.get("confused_with") or ()),
        )
    return Taxonomy(reasons)


@cache
def load_taxonomy() -> Taxonomy:
    """The taxonomy that ships with Pitstop."""
    text = (Path(__file__).parent / "taxonomy.yaml").read_text(encoding="utf-8")
    return parse_taxonomy(yaml.load(text, Loader=yaml.CSafeLoader))
