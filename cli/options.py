"""Option parsers that start at once, for the commands that are timed in tenths of a second."""

from __future__ import annotations

import argparse
import os
from typing import NoReturn

from cli.main import UsageError

__all__ = ["option_parser"]

COLUMNS_UNKNOWN = 80


class QuickFormatter(argparse.HelpFormatter):
    """Asks for the terminal's width itself: argparse makes a formatter for every option, and imports shutil to ask."""

    def __init__(self, prog: str) -> None:
        try:
            columns = int(os.environ.get("COLUMNS", 0)) or os.get_terminal_size().columns
        except (ValueError, OSError):
            columns = COLUMNS_UNKNOWN
        super().__init__(prog, width=columns - 2)


class OptionParser(argparse.ArgumentParser):
    """Tells bad usage as all of `pitstop` does: one line, by UsageError."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; {self.prog} --help says more")


def option_parser(prog: str, description: str, epilog: str | None = None) -> argparse.ArgumentParser:
    # Not Typer: its import takes longer than sifting 100 MB (docs/decisions/0012).
    return OptionParser(prog=prog, description=description, epilog=epilog, formatter_class=QuickFormatter)
