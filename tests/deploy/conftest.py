"""The service's own fixtures, for what is shipped around it."""

from tests.service.conftest import client, empty_database, pool, settings

__all__ = ["client", "empty_database", "pool", "settings"]
