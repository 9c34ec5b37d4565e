"""The service's own fixtures, for what is shipped around it."""

from tests.service.conftest import client, pool, settings

__all__ = ["client", "pool", "settings"]
