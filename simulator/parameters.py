"""What the simulator assumes, from parameters.yaml: a value each, and a range where no source confirms it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

__all__ = ["Parameter", "ParameterError", "Parameters", "load_parameters"]

FILE = Path(__file__).parent / "parameters.yaml"


class ParameterError(ValueError):
    """A parameter that does not exist, or lies outside its range; one line."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """`low` equals `high` where a source gives the value."""

    name: str
    value: float
    low: float
    high: float
    source: str

    @property
    def is_open(self) -> bool:
        return self.low < self.high


@dataclass(frozen=True, slots=True)
class Parameters:
    """One choice of all of them, by dotted name."""

    known: Mapping[str, Parameter]
    chosen: Mapping[str, float]

    def __getitem__(self, name: str) -> float:
        return self.chosen[name]

    def with_(self, **changes: float) -> Parameters:
        """The same with some changed; dots are written as double underscores. Raises ParameterError."""
        return self.changed({name.replace("__", "."): value for name, value in changes.items()})

    def changed(self, changes: Mapping[str, float]) -> Parameters:
        """Raises ParameterError on a name that is not known."""
        for name in changes:
            if name not in self.known:
                raise ParameterError(f"no parameter {name!r}; simulator/parameters.yaml lists them")
        return Parameters(self.known, {**self.chosen, **changes})

    def drawn(self, chance: random.Random) -> Parameters:
        """Every open parameter somewhere in its range, each equally likely; whole ones whole."""
        changes = {}
        for name, item in self.known.items():
            if item.is_open:
                whole = float(item.value).is_integer() and name.startswith("cluster.")
                changes[name] = (
                    float(chance.randint(int(item.low), int(item.high))) if whole else chance.uniform(item.low, item.high)
                )
        return self.changed(changes)

    def open(self) -> list[Parameter]:
        return [item for item in self.known.values() if item.is_open]


@cache
def load_parameters(path: Path = FILE) -> Parameters:
    """The parameters at their values. Raises ParameterError where the file is not of its form."""
    known = {}
    for group, items in yaml.safe_load(path.read_text(encoding="utf-8")).items():
        for name, item in items.items():
            value = float(item["value"])
            low, high = float(item.get("low", value)), float(item.get("high", value))
            if not low <= value <= high or not item.get("source"):
                raise ParameterError(f"{group}.{name}: low <= value <= high, and a source, are needed")
            known[f"{group}.{name}"] = Parameter(f"{group}.{name}", value, low, high, item["source"])
    return Parameters(known, {name: item.value for name, item in known.items()})
