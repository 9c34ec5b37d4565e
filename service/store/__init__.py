"""Tables and the small queries over them. Importing the package makes every table known to its metadata."""

from service.store import access, events, incidents, jobs, logs, recoveries
from service.store.database import Base, DatabaseError, Store

__all__ = ["Base", "DatabaseError", "Store", "access", "events", "incidents", "jobs", "logs", "recoveries"]
