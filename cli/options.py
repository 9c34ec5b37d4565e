"""Option parsers that start at once, for the commands that are timed in tenths of a second."""

from __future__ import annotations

import argparse
import os

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


def option_parser(prog: str, description: str, epilog: str | None = None) -> argparse.ArgumentParser:
    # Not Typer: its import takes longer than sifting 100 MB (docs/decisions/0012).
    return argparse.ArgumentParser(prog=prog, description=description, epilog=epilog, formatter_class=QuickFormatter)
