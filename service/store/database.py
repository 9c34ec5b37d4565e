"""The one way to the database: an engine, reading sessions, and writing transactions that never start as readers."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Engine,
    Executable,
    Integer,
    MetaData,
    Select,
    create_engine,
    event,
    or_,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import DeclarativeBase, InstrumentedAttribute, Session

from service.store.filesystems import NETWORK_FILESYSTEMS, filesystem_of

__all__ = [
    "PUBLISHED",
    "Base",
    "BigId",
    "Clock",
    "DatabaseError",
    "Store",
    "hold_lock",
    "insert_or_add",
    "pieces",
    "select_in",
    "timestamp",
]

# 64-bit keys everywhere; SQLite only grows a key by itself when it is called INTEGER.
BigId = BigInteger().with_variant(Integer, "sqlite")

BUSY_TIMEOUT_SECONDS = 30
NAMED_AT_ONCE = 10_000
# What is dated later than now by more than this was written by a clock that was moved back since.
CLOCK_MOVED_SECONDS = 60.0
# In a session's info: whether its transaction published events.
PUBLISHED = "published_events"

Found = TypeVar("Found")
# Seconds since the epoch.
Clock = Callable[[], float]


class DatabaseError(RuntimeError):
    """A database that cannot be used; one line that says what to do."""


class Base(DeclarativeBase):
    """All tables of the service. Times are seconds since the epoch (UTC), as floats."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(column_0_label)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


def timestamp(seconds: float | None) -> str | None:
    """RFC 3339 text in UTC with milliseconds, as the API shows every time."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def sqlite_engine(url: URL) -> Engine:
    engine = create_engine(
        url, connect_args={"timeout": BUSY_TIMEOUT_SECONDS, "check_same_thread": False}, pool_size=16, max_overflow=32
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: Any) -> None:
        # Transactions are begun by `begin` below, never by the driver.
        connection.isolation_level = None
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A deferred transaction that reads, then writes after another wrote, fails at once whatever the timeout.
        connection.exec_driver_sql("BEGIN" if connection.get_execution_options().get("reading") else "BEGIN IMMEDIATE")

    return engine


def check_place(file: Path) -> None:
    """Make the folder of a SQLite file. Raises DatabaseError where SQLite cannot be trusted there, or nothing can be written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DatabaseError(f"cannot use {file.parent}: {error.strerror or error}; choose another with --data-dir") from None
    mounts = Path("/proc/self/mountinfo")
    kind = filesystem_of(file.parent.resolve(), mounts.read_text(errors="replace")) if mounts.exists() else ""
    if kind in NETWORK_FILESYSTEMS:
        raise DatabaseError(
            f"{file} is on {kind}, where SQLite loses data: name a local disk, or use postgresql://USER@HOST/NAME"
        )


class WriterTurns:
    """SQLite has one writer. Who waits for it inside SQLite sleeps for up to 0.1 s between two tries, however short the others
    write, and may never come to it: threads of this process wait for one another here. `one_writer`: whether they have to."""

    def __init__(self, one_writer: bool) -> None:
        self._lock = threading.Lock() if one_writer else None

    @contextmanager
    def mine(self) -> Iterator[None]:
        """Raises OperationalError after BUSY_TIMEOUT_SECONDS of waiting, as SQLite does."""
        if self._lock is None:
            yield
        elif self._lock.acquire(timeout=BUSY_TIMEOUT_SECONDS):
            try:
                yield
            finally:
                self._lock.release()
        else:
            raise OperationalError("BEGIN IMMEDIATE", None, TimeoutError("the database is locked by another thread"))


class Store:
    """A database: SQLite (WAL, synchronous FULL) or PostgreSQL. Safe to share between threads, not between processes."""

    def __init__(self, url: str) -> None:
        try:
            parsed = make_url(url)
        except Exception:
            raise DatabaseError("the database is not a URL: use sqlite:///PATH or postgresql://USER@HOST/NAME") from None
        if parsed.get_backend_name() == "sqlite":
            if not parsed.database or parsed.database == ":memory:":
                raise DatabaseError("SQLite needs a file: sqlite:///PATH")
            check_place(Path(parsed.database))
            self.engine = sqlite_engine(parsed.set(drivername="sqlite+pysqlite"))
        elif parsed.get_backend_name() == "postgresql":
            self.engine = create_engine(
                parsed.set(drivername="postgresql+psycopg"), pool_size=16, max_overflow=32, pool_pre_ping=True
            )
        else:
            raise DatabaseError(
                f"{parsed.get_backend_name()} is not supported: use sqlite:///PATH or postgresql://USER@HOST/NAME"
            )
        self.url = parsed
        # Called after every commit that published events, in the thread that committed.
        self.on_published: Callable[[], None] = lambda: None
        self._readers = self.engine.execution_options(reading=True)
        self._turns = WriterTurns(self.is_sqlite)

    @property
    def is_sqlite(self) -> bool:
        return self.engine.dialect.name == "sqlite"

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A consistent view; nothing written in it is kept."""
        with Session(self._readers, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """One transaction: committed (durably) when the block ends, rolled back when it raises."""
        with Session(self.engine, expire_on_commit=False) as session:
            with self._turns.mine(), session.begin():
                yield session
            if session.info.pop(PUBLISHED, False):
                self.on_published()

    def close(self) -> None:
        self.engine.dispose()


def insert_or_add(
    session: Session,
    table: type[Base],
    rows: Sequence[dict[str, Any]],
    *,
    keys: Sequence[str],
    added: Sequence[str] = (),
    replaced: Sequence[str] = (),
    raised: str | None = None,
    newest: str | None = None,
) -> None:
    """Insert `rows`; where a row with the same `keys` exists, add to its `added` columns and overwrite its `replaced` ones.

    `raised`: a column that only grows; a row in which it would not stays as it is. `newest`: a column of times; a row that is
    newer stays as it is, unless by so much that a clock was moved back since.
    """
    dialect = session.get_bind().dialect.name
    statement = adding_insert(dialect, table, tuple(keys), tuple(added), tuple(replaced), raised, newest)
    session.connection().execute(statement, list(rows))


@cache
def adding_insert(
    dialect: str,
    table: type[Base],
    keys: tuple[str, ...],
    added: tuple[str, ...],
    replaced: tuple[str, ...],
    raised: str | None,
    newest: str | None,
) -> Executable:
    """Built once for each kind of call: building takes longer than running."""
    statement: postgresql.Insert | sqlite.Insert
    statement = postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)
    columns = table.__table__.c
    changes = {name: columns[name] + statement.excluded[name] for name in added}
    changes |= {name: statement.excluded[name] for name in (*replaced, *([raised] if raised else ()))}
    held = None if raised is None else statement.excluded[raised] > columns[raised]
    if newest is not None:
        ahead = columns[newest] - statement.excluded[newest]
        held = or_(ahead <= 0, ahead > CLOCK_MOVED_SECONDS)
    return statement.on_conflict_do_update(index_elements=[columns[name] for name in keys], set_=changes, where=held)


def hold_lock(session: Session, *names: str) -> None:
    """Serialise transactions that hold one of the same `names` until they end. SQLite has one writer anyway.

    Names that are held by one call are taken in one order everywhere, so that two such calls cannot wait for each other.
    """
    if session.get_bind().dialect.name == "postgresql":
        keys = sorted({zlib.crc32(name.encode()) - 2**31 for name in names})
        taken = text("SELECT pg_advisory_xact_lock(:space, key) FROM unnest(CAST(:keys AS integer[])) AS key")
        session.execute(taken, {"space": 8787, "keys": keys})


def pieces(values: Iterable[Any]) -> Iterator[list[Any]]:
    """`values` in lists that one statement may name: databases limit how many parameters it has."""
    wanted = list(values)
    for start in range(0, len(wanted), NAMED_AT_ONCE):
        yield wanted[start : start + NAMED_AT_ONCE]


def select_in(
    session: Session, statement: Select[Found], column: ColumnElement[Any] | InstrumentedAttribute[Any], values: Iterable[Any]
) -> Iterator[Found]:
    """What `statement` finds where `column` holds one of `values`, however many."""
    for some in pieces(values):
        yield from session.scalars(statement.where(column.in_(some)))
