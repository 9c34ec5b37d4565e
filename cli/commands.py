"""Commands whose options Typer reads: bad usage is told in one line, and what is no bad usage shows where it happened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer
from typer.main import get_command

from cli.main import UsageError

__all__ = ["CommandLine"]


class CommandLine(typer.Typer):
    """The options of one of `pitstop`'s commands, or its own commands with their options."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(add_completion=False, **settings)

    def __call__(self, args: Sequence[str], prog_name: str) -> None:
        """Raises UsageError, else SystemExit with the exit status."""
        try:
            status = get_command(self).main(args=list(args), prog_name=prog_name, standalone_mode=False)
        except typer.TyperException as error:
            raise UsageError(in_one_line(error)) from None
        except typer.Abort:
            raise SystemExit(1) from None
        raise SystemExit(status or 0)


def in_one_line(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    message = " ".join(error.format_message().split()).rstrip(".")
    message = message[:1].lower() + message[1:]
    return message if context is None else f"{message}; {context.command_path} --help says more"
