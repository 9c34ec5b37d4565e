"""The taxonomy: every reason for a failure that Pitstop can name, with what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

__all__ = [
    "NONE",
    "TAXONOMY_FILE",
    "UNKNOWN",
    "UNNAMED",
    "Category",
    "Reason",
    "Remedy",
    "Severity",
    "Taxonomy",
    "adopt_taxonomy",
    "load_taxonomy",
    "parse_reason",
    "parse_taxonomy",
    "reason_entry",
]

TAXONOMY_FILE = Path(__file__).parent / "taxonomy.yaml"

UNKNOWN = "unknown"
NONE = "none"
# Failures of which no line says why: an exit that nothing explains names no cause either.
UNNAMED = frozenset((UNKNOWN, "process_exit_unattributed"))


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


def parse_reason(entry: Mapping[str, Any]) -> Reason:
    return Reason(
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


def reason_entry(reason: Reason) -> dict[str, Any]:
    """The mapping of which parse_reason makes `reason`."""
    return {
        "name": reason.name,
        "family": reason.family,
        "category": reason.category,
        "component": reason.component,
        "severity": reason.severity,
        "retryable": reason.retryable,
        "action": reason.remedy,
        "definition": reason.definition,
        "confused_with": [{"reason": other, "how": how} for other, how in reason.confused_with],
    }


def parse_taxonomy(document: Mapping[str, Any]) -> Taxonomy:
    """Build a taxonomy from the parsed YAML. Raises KeyError or ValueError where it is malformed."""
    return Taxonomy({UNKNOWN: UNKNOWN_REASON} | {entry["name"]: parse_reason(entry) for entry in document["reasons"]})


shipped: list[Taxonomy] = []


def load_taxonomy() -> Taxonomy:
    """The taxonomy that ships with Pitstop, read once."""
    if not shipped:
        # Not at the top: with compiled rules (rules/artefact.py) nobody needs YAML.
        import yaml

        shipped.append(parse_taxonomy(yaml.load(TAXONOMY_FILE.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)))
    return shipped[0]


def adopt_taxonomy(taxonomy: Taxonomy) -> None:
    """Spare load_taxonomy the reading: `taxonomy` was made of the same file."""
    shipped[:] = [taxonomy]
