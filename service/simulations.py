"""What `pitstop simulate --keep NAME` left in the data directory, for the report page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

__all__ = ["KeptSimulation", "Simulation", "kept_simulations"]

FOLDER = "simulations"
MOST, MOST_BYTES = 5, 16 * 1024 * 1024


class Ratio(BaseModel):
    """Accumulated WAF of the first policy over another's, with where 95 % of resampled seeds put it."""

    mean: float
    low: float
    high: float


class PolicyRow(BaseModel):
    policy: str
    kept: float = Field(alias="of_its_own_without_failures")
    lost: dict[str, float]
    ettr: float
    ratio: Ratio | None


class Simulation(BaseModel):
    """The document of `pitstop simulate --json`, version 1. `waf`: of one seed, (second, weighted FLOP/s from then on)."""

    model_config = ConfigDict(extra="ignore")

    nodes: int
    seconds: float
    seeds: int
    policies: list[PolicyRow] = Field(min_length=1, max_length=50)
    waf: dict[str, list[tuple[float, float]]]


@dataclass(frozen=True, slots=True)
class KeptSimulation:
    """`against`: why it cannot be shown, where it cannot."""

    name: str
    simulation: Simulation | None
    against: str | None = None


def kept_simulations(data_dir: Path) -> Sequence[KeptSimulation]:
    """The newest few; a file that is none is told, not hidden."""
    try:
        files = [path for path in (data_dir / FOLDER).glob("*.json") if path.is_file()]
        newest = sorted(files, key=lambda path: (-path.stat().st_mtime, path.name))[:MOST]
    except OSError as error:
        return [KeptSimulation(FOLDER, None, str(error.strerror))]
    return [read(path) for path in newest]


def read(path: Path) -> KeptSimulation:
    try:
        if path.stat().st_size > MOST_BYTES:
            return KeptSimulation(path.stem, None, f"larger than {MOST_BYTES >> 20} MiB")
        return KeptSimulation(path.stem, Simulation.model_validate_json(path.read_bytes()))
    except OSError as error:
        return KeptSimulation(path.stem, None, str(error.strerror))
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"])
        return KeptSimulation(path.stem, None, f"no document of pitstop simulate --json: {where}: {error.errors()[0]['msg']}")
