"""What a site says about carrying things out: its own commands and webhooks, and that its scheduler is Slurm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from recovery.drivers.command import DriverError, Operation, Template, holder_of, parse_templates
from recovery.drivers.slurm import SlurmSite, holder_of_node, node_templates
from service.settings import SettingsError

__all__ = ["SiteDrivers", "load_drivers"]


@dataclass(frozen=True, slots=True)
class SiteDrivers:
    """`holder` reads what the `state` command printed: (who holds the node out of service, whether that is us)."""

    templates: Mapping[Operation, Template] = field(default_factory=dict)
    slurm: SlurmSite | None = None
    holder: Callable[[str], tuple[str | None, bool]] = holder_of


def load_drivers(path: Path | None) -> SiteDrivers:
    """The site's drivers; with `slurm:`, Slurm's own commands stand for what is not named. Raises SettingsError with one line
    that names the file and what is wrong."""
    if path is None:
        return SiteDrivers()
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
        named = dict(document) if isinstance(document, dict) else {}
        if "slurm" not in named:
            return SiteDrivers(parse_templates(named))
        site = SlurmSite.parse(named.pop("slurm"))
        own = parse_templates(named)
        return SiteDrivers(node_templates(site) | own, site, holder_of if Operation.STATE in own else holder_of_node)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, DriverError) as error:
        raise SettingsError(f"PITSTOP_DRIVERS_FILE: {path}: {' '.join(str(error).split())}") from None
