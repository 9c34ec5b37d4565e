"""`pitstop token`: make, list, rotate and revoke bearer tokens, directly in the database."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.commands import CommandLine
from cli.database import Database, DataDir, store_of
from cli.main import UsageError
from rules.account import user_name

app = CommandLine(help="Bearer tokens of the service.")

Name = Annotated[str, typer.Argument(help="the token's name")]


@contextmanager
def session_of(database: str | None, data_dir: Path | None) -> Iterator[Any]:
    from service.migration import migrate

    with store_of(database, data_dir) as store:
        migrate(store)
        with store.writing() as session:
            yield session


@app.command()
def create(
    name: Name,
    role: Annotated[str, typer.Option(help="viewer, operator, launcher, ingest, node or admin")],
    bind: Annotated[list[str] | None, typer.Option(help="project (launcher), node (node) or origin (ingest); repeatable")] = None,
    days: Annotated[float | None, typer.Option(min=0, help="days until it expires; without: never")] = None,
    database: Database = None,
    data_dir: DataDir = None,
) -> None:
    """Make a token and print its secret, once."""
    from service.access import Role, create_token

    try:
        wanted = Role(role)
    except ValueError:
        raise UsageError(f"there is no role {role!r}: use one of {', '.join(Role)}") from None
    now = time.time()
    expires_at = None if days is None else now + days * 86400
    with session_of(database, data_dir) as session:
        secret = create_token(session, name, wanted, binding=tuple(bind or ()), now=now, expires_at=expires_at, by=user_name())
    typer.echo(secret)


@app.command("list")
def list_tokens(database: Database = None, data_dir: DataDir = None) -> None:
    """Every token with its role, limits and last use; never a secret."""
    from sqlalchemy import select

    from service.store.access import Token
    from service.store.database import timestamp

    with session_of(database, data_dir) as session:
        for token in session.scalars(select(Token).order_by(Token.name)):
            ends = timestamp(token.revoked_at or token.expires_at) or "never"
            bound = ",".join(token.binding) or "-"
            typer.echo(f"{token.name}\t{token.role}\t{bound}\tends {ends}\tlast used {timestamp(token.last_used_at) or 'never'}")


@app.command()
def rotate(name: Name, database: Database = None, data_dir: DataDir = None) -> None:
    """Give a token a new secret and print it; the old one ends at once."""
    from service.access import rotate_token

    with session_of(database, data_dir) as session:
        secret = rotate_token(session, name, now=time.time(), by=user_name())
    typer.echo(secret)


@app.command()
def revoke(name: Name, database: Database = None, data_dir: DataDir = None) -> None:
    """End a token."""
    from service.access import revoke_token

    with session_of(database, data_dir) as session:
        revoke_token(session, name, now=time.time(), by=user_name())
    typer.echo(f"revoked {name}")
