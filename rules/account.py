"""Whose process this is: the user's name, and where the user's programs keep what is theirs (XDG base directories)."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["NoHome", "cache_folder", "state_folder", "user_name"]

# What tables of users name as the home of those who have none.
NO_HOME = Path("/nonexistent")


class NoHome(RuntimeError):
    """The user has no home directory; one line that says what to name instead."""


def user_name() -> str:
    """The user's name; `uid N` where no table of users has it, as under a container's arbitrary user."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def state_folder() -> Path:
    """Where Pitstop keeps data unless it is told another place. Raises NoHome."""
    named = os.environ.get("XDG_STATE_HOME")
    if named:
        return Path(named) / "pitstop"
    home = home_folder()
    if home is None:
        raise NoHome(f"{user_name()} has no home directory: name a folder with --data-dir or PITSTOP_DATA_DIR")
    return home / ".local" / "state" / "pitstop"


def cache_folder() -> Path:
    """Where Pitstop keeps what it can make again; nothing can be kept there where the user has no home."""
    named = os.environ.get("XDG_CACHE_HOME")
    return (Path(named) if named else (home_folder() or NO_HOME) / ".cache") / "pitstop"


def home_folder() -> Path | None:
    try:
        return Path.home()
    except RuntimeError:
        return None
