"""Who may do what: bearer tokens with roles, and the caller on this machine who needs none."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, cast

from fastapi import Depends, Request
from sqlalchemy import func, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.problems import Problem
from service.store import Store
from service.store.access import Token, audit
from service.store.database import pieces, select_in

__all__ = [
    "LOCAL",
    "Principal",
    "PrincipalDependency",
    "Right",
    "Role",
    "TokenError",
    "allow",
    "authenticate",
    "bootstrap",
    "create_token",
    "holders",
    "principal_of",
    "revoke_token",
    "rotate_token",
]

TOKEN_BYTES = 32
TOKEN_FILE = "admin.token"
# Last use is a hint for people: writing it once a minute is enough.
LAST_USE_SECONDS = 60.0


class TokenError(ValueError):
    """A token that cannot be made or taken; one line that says what to do."""


class Right(StrEnum):
    READ = "read"
    OPERATE = "operate"
    LAUNCH = "launch"
    INGEST = "ingest"
    NODE = "node"
    ADMIN = "admin"


class Role(StrEnum):
    VIEWER = "viewer"
    OPERATOR = "operator"
    LAUNCHER = "launcher"
    INGEST = "ingest"
    NODE = "node"
    ADMIN = "admin"


RIGHTS: dict[Role, frozenset[Right]] = {
    Role.VIEWER: frozenset({Right.READ}),
    Role.OPERATOR: frozenset({Right.READ, Right.OPERATE, Right.LAUNCH}),
    Role.LAUNCHER: frozenset({Right.READ, Right.LAUNCH, Right.INGEST}),
    Role.INGEST: frozenset({Right.INGEST}),
    Role.NODE: frozenset({Right.NODE, Right.LAUNCH, Right.INGEST}),
    Role.ADMIN: frozenset(Right),
}


@dataclass(frozen=True, slots=True)
class Principal:
    """Who is calling. `binding`: the project, node or origins that the token is limited to; empty: no limit.

    `capped`: nobody vouched for the caller, so modes stop at suggest beyond the jobs that callers like it registered.
    """

    name: str
    rights: frozenset[Right]
    role: Role | None = None
    binding: tuple[str, ...] = ()
    capped: bool = False

    def bound_to(self, value: str | None) -> bool:
        """Whether the token reaches `value` (a project, a node or an origin)."""
        return not self.binding or value in self.binding

    def vouches_for(self, node: str | None) -> bool:
        """Whether what the caller says about `node` has trust `node`: only under a token bound to that node."""
        return self.role is Role.NODE and node is not None and node in self.binding


# Without a token: callers on this machine, who may do everything but manage access.
LOCAL = Principal("local", frozenset(Right) - {Right.ADMIN}, capped=True)


def digest_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def create_token(
    session: Session,
    name: str,
    role: Role,
    *,
    binding: tuple[str, ...] = (),
    now: float,
    expires_at: float | None = None,
    by: str,
) -> str:
    """Store a new token and return its secret, which nobody can read again. Raises TokenError where the name is taken."""
    if role in (Role.NODE, Role.LAUNCHER, Role.INGEST) and not binding:
        raise TokenError(f"a token of role {role} must be bound: to the project, the node or the origins that it may name")
    return store_secret(session, secrets.token_urlsafe(TOKEN_BYTES), name, role, binding, now, expires_at, by)


def store_secret(
    session: Session, secret: str, name: str, role: Role, binding: tuple[str, ...], now: float, expires_at: float | None, by: str
) -> str:
    fields: dict[str, Any] = {"created_at": now, "expires_at": expires_at}
    session.add(Token(name=name, role=role.value, digest=digest_of(secret), binding=list(binding), **fields))
    try:
        session.flush()
    except IntegrityError:
        raise TokenError(f"there is a token named {name!r} already: revoke or rotate it") from None
    audit(session, by, "token.create", name, f"role {role}", {"binding": list(binding), "expires_at": expires_at}, now)
    return secret


def find_token(session: Session, name: str) -> Token:
    token = session.scalar(select(Token).where(Token.name == name, Token.revoked_at.is_(None)))
    if token is None:
        raise TokenError(f"there is no valid token named {name!r}: pitstop token list shows them")
    return token


def rotate_token(session: Session, name: str, *, now: float, by: str) -> str:
    """Give a token a new secret; the old one ends at once."""
    token = find_token(session, name)
    secret = secrets.token_urlsafe(TOKEN_BYTES)
    token.digest = digest_of(secret)
    audit(session, by, "token.rotate", name, "new secret", at=now)
    return secret


def revoke_token(session: Session, name: str, *, now: float, by: str) -> None:
    """End a token. Its row stays for the audit trail, under a name that frees the old one."""
    token = find_token(session, name)
    token.revoked_at = now
    token.name = f"{name} (revoked {token.id})"
    audit(session, by, "token.revoke", name, "revoked", at=now)


def authenticate(store: Store, secret: str, now: float) -> Principal | None:
    """The holder of `secret`, or None where no valid token has it. Raises SQLAlchemyError."""
    return holders(store, [secret], now).get(secret)


def holders(store: Store, secrets: Iterable[str], now: float) -> dict[str, Principal]:
    """The holders of those `secrets` that a valid token has. Raises SQLAlchemyError."""
    digests = {digest_of(secret): secret for secret in secrets}
    valid = select(Token).where(Token.revoked_at.is_(None), or_(Token.expires_at.is_(None), Token.expires_at > now))
    with store.reading() as session:
        tokens = list(select_in(session, valid, Token.digest, digests))
    seldom = [token.id for token in tokens if token.last_used_at is None or now - token.last_used_at > LAST_USE_SECONDS]
    if seldom:
        with store.writing() as session:
            for some in pieces(seldom):
                session.execute(update(Token).where(Token.id.in_(some)).values(last_used_at=now))
    return {
        digests[token.digest]: Principal(token.name, RIGHTS[Role(token.role)], Role(token.role), tuple(token.binding))
        for token in tokens
    }


def bootstrap(store: Store, data_dir: Path, token_file: Path | None, now: float) -> Path | None:
    """Make the first admin token: from `token_file`, else a random one written to the data directory (0600).

    Returns the file written, or None where there was an admin token already or it came from `token_file`.
    Raises TokenError on an unusable file.
    """
    with store.writing() as session:
        if session.scalar(select(func.count()).select_from(Token).where(Token.role == Role.ADMIN.value)):
            return None
        if token_file is not None:
            try:
                secret = token_file.read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise TokenError(f"PITSTOP_BOOTSTRAP_TOKEN_FILE: cannot read {token_file}: {error}") from None
            if len(secret) < TOKEN_BYTES:
                raise TokenError(
                    f"PITSTOP_BOOTSTRAP_TOKEN_FILE: the token in {token_file} is shorter than {TOKEN_BYTES} characters"
                )
            store_secret(session, secret, "admin", Role.ADMIN, (), now, None, "bootstrap")
            return None
        secret = secrets.token_urlsafe(TOKEN_BYTES)
        store_secret(session, secret, "admin", Role.ADMIN, (), now, None, "bootstrap")
        path = data_dir / TOKEN_FILE
        data_dir.mkdir(parents=True, exist_ok=True)
        # Written before the commit: a token that nobody could read would lock everybody out.
        written = data_dir / f".{TOKEN_FILE}.{os.getpid()}"
        written.unlink(missing_ok=True)
        with os.fdopen(os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secret + "\n")
            file.flush()
            os.fsync(file.fileno())
        written.replace(path)
        return path


def principal_of(request: Request) -> Principal:
    """The caller, as service/gate.py found it."""
    return cast(Principal, request.state.principal)


# Coroutines, because FastAPI runs plain functions in threads, one after another.
async def caller(request: Request) -> Principal:
    return principal_of(request)


PrincipalDependency = Annotated[Principal, Depends(caller)]


def allow(right: Right) -> Callable[[Request], Awaitable[None]]:
    """A dependency of a route: 403 where the caller lacks `right`."""

    async def check(request: Request) -> None:
        principal = principal_of(request)
        if right not in principal.rights:
            raise Problem(403, f"the token {principal.name!r} does not carry the right to {right}")

    return check
