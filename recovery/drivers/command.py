"""The generic driver: a site's own commands or webhooks for what Pitstop cannot do by itself. Pure: others run what it renders.

A site writes one template per operation. No shell is involved: each argument is filled in by itself, and what a job wrote never
becomes part of an argument's structure. Every call carries its key and generation, and a template may say how to look first.
"""

from __future__ import annotations

import re
import shlex
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

__all__ = ["Call", "DriverError", "Operation", "Template", "Values", "holder_of", "parse_templates", "render"]

MAX_VALUE = 200
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")
# How Pitstop marks what it cordoned itself.
OWN_MARK = "pitstop"


class DriverError(ValueError):
    """A template that cannot be used, or a call that cannot be rendered; one line that says what to do."""


class Operation(StrEnum):
    """What a site can be asked to do with a node. `state` prints nothing while it is in service, else who holds it and why."""

    STATE = "state"
    CORDON = "cordon"
    UNCORDON = "uncordon"
    RESET_GPU = "reset_gpu"
    PROBE = "probe"
    PROBE_PAIR = "probe_pair"


@dataclass(frozen=True, slots=True)
class Values:
    """What may stand in a template: {node}, {other}, {job}, {incident}, {generation}, {key}, {why}."""

    node: str
    key: str
    other: str = ""
    job: str = ""
    incident: str = ""
    generation: int = 0
    why: str = ""

    def mapping(self) -> dict[str, str]:
        """As text, each bounded and without control characters. Raises DriverError where a node's name cannot be one."""
        for name in (self.node, *((self.other,) if self.other else ())):
            if not NODE_NAME.fullmatch(name):
                raise DriverError(f"{name[:80]!r} cannot be a node's name: nothing is run")
        fields = {
            "node": self.node,
            "other": self.other,
            "job": self.job,
            "incident": self.incident,
            "generation": str(self.generation),
            "key": self.key,
            "why": f"{OWN_MARK} {self.incident}: {self.why}".strip(),
        }
        return {name: "".join(c if c.isprintable() else " " for c in value)[:MAX_VALUE] for name, value in fields.items()}


PLACEHOLDERS = frozenset({"node", "other", "job", "incident", "generation", "key", "why"})


@dataclass(frozen=True, slots=True)
class Template:
    """Either a command (argument by argument) or the URL of a webhook that gets the values as JSON."""

    command: tuple[str, ...] = ()
    webhook: str | None = None
    timeout_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class Call:
    """One call, ready to be made. `key` and `generation` travel as PITSTOP_KEY and PITSTOP_GENERATION, or as headers."""

    operation: Operation
    key: str
    generation: int
    argv: tuple[str, ...] = ()
    url: str | None = None
    body: Mapping[str, str] | None = None
    timeout_seconds: float = 60.0

    @property
    def text(self) -> str:
        """The exact command, as a dry run shows it."""
        return shlex.join(self.argv) if self.argv else f"POST {self.url} {dict(self.body or {})}"


def placeholders(text: str) -> Iterator[str]:
    for _, name, spec, conversion in string.Formatter().parse(text):
        if name is not None:
            if spec or conversion or name not in PLACEHOLDERS:
                raise DriverError(f"{{{name}}} is no placeholder: use {', '.join(sorted(PLACEHOLDERS))}")
            yield name


def parse_templates(document: Mapping[str, Any]) -> dict[Operation, Template]:
    """Templates from the parsed settings: {operation: {"command": [...]} or {"webhook": "https://..."}, "timeout_seconds"?}.

    Raises DriverError, naming the operation and what is wrong with it.
    """
    templates: dict[Operation, Template] = {}
    for name, entry in document.items():
        try:
            operation = Operation(name)
        except ValueError:
            raise DriverError(f"{name!r} is no operation: use {', '.join(Operation)}") from None
        if not isinstance(entry, Mapping) or ("command" in entry) == ("webhook" in entry):
            raise DriverError(f"{name}: give either a command or a webhook")
        unknown = set(entry) - {"command", "webhook", "timeout_seconds"}
        if unknown:
            raise DriverError(f"{name}: {sorted(unknown)[0]!r} is not known here")
        timeout = entry.get("timeout_seconds", 60.0)
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= 3600:
            raise DriverError(f"{name}: timeout_seconds is a number up to 3600")
        templates[operation] = _template(operation, entry, float(timeout))
    return templates


def _template(operation: Operation, entry: Mapping[str, Any], timeout: float) -> Template:
    if "webhook" in entry:
        url = entry["webhook"]
        if operation is Operation.STATE:
            raise DriverError("state: it is read from a command's output, a webhook has none")
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            raise DriverError(f"{operation}: the webhook is not an http(s) address")
        return Template(webhook=url, timeout_seconds=timeout)
    command = entry["command"]
    if not isinstance(command, list) or not command or not all(isinstance(part, str) and part for part in command):
        raise DriverError(f"{operation}: the command is a list of arguments, the program first")
    try:
        if any(placeholders(command[0])):
            raise DriverError(f"{operation}: the program itself cannot be filled in")
        used = {name for part in command for name in placeholders(part)}
    except ValueError as error:
        raise DriverError(f"{operation}: {error}") from None
    if "node" not in used:
        raise DriverError(f"{operation}: the command does not name {{node}}")
    return Template(command=tuple(command), timeout_seconds=timeout)


def render(operation: Operation, template: Template, values: Values) -> Call:
    """The call for these values. Raises DriverError where a value cannot be used."""
    mapping = values.mapping()
    timeout = template.timeout_seconds
    if template.webhook is not None:
        body = {"operation": operation.value, **mapping}
        return Call(operation, values.key, values.generation, url=template.webhook, body=body, timeout_seconds=timeout)
    argv = tuple(part.format_map(mapping) for part in template.command)
    return Call(operation, values.key, values.generation, argv=argv, timeout_seconds=timeout)


def holder_of(state_output: str) -> tuple[str | None, bool]:
    """(who holds the node out of service, whether that is us), from what the `state` command printed."""
    line = next((line.strip() for line in state_output.splitlines() if line.strip()), "")
    return (line[:MAX_VALUE], line.lower().startswith(OWN_MARK)) if line else (None, False)
