"""Tables and the small queries over them. Importing the package makes every table known to its metadata."""

from service.store import (
    access,
    accounts,
    candidates,
    evaluations,
    events,
    fleet,
    incidents,
    jobs,
    localizations,
    logs,
    memories,
    plans,
    recoveries,
    slurm,
)
from service.store.database import Base, Clock, DatabaseError, Store

__all__ = [
    "Base",
    "Clock",
    "DatabaseError",
    "Store",
    "access",
    "accounts",
    "candidates",
    "evaluations",
    "events",
    "fleet",
    "incidents",
    "jobs",
    "localizations",
    "logs",
    "memories",
    "plans",
    "recoveries",
    "slurm",
]
