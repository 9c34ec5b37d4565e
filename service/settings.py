"""What can be set about the service, from PITSTOP_* variables and the options of `pitstop serve`."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from rules.account import NoHome, state_folder
from rules.identity import JOB_KEYS

__all__ = ["Settings", "SettingsError", "load_settings", "misspelt"]

MEBIBYTE = 1024 * 1024
# How alike two names are that differ by a slip, as difflib counts; the prefix, always alike, counts too.
NEARLY = 0.93


class SettingsError(ValueError):
    """A setting that cannot be used; one line that names it."""


class Settings(BaseSettings):
    """Read once, at the composition root (service/app.py); nothing below it reads the environment."""

    model_config = SettingsConfigDict(env_prefix="PITSTOP_", env_ignore_empty=True, extra="ignore", frozen=True)

    data_dir: Path = Field(default_factory=state_folder)
    host: str = "127.0.0.1"
    port: int = Field(default=8787, ge=0, le=65535)
    database: str | None = None
    bootstrap_token_file: Path | None = None
    # Without tokens the service answers loopback only.
    require_token: bool = False
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = ("localhost", "127.0.0.1", "[::1]")
    job_keys: Annotated[tuple[str, ...], NoDecode] = JOB_KEYS
    rules_dir: Path | None = None
    # YAML: the site's own commands and webhooks for what Pitstop cannot do by itself; see docs/recovery.md.
    drivers_file: Path | None = None
    # YAML: who is told of what through which channel; see docs/deployment.md.
    notify_file: Path | None = None
    # Where people reach the dashboard, for links in messages.
    public_url: str | None = Field(default=None, pattern=r"^https?://")

    matcher_processes: int = Field(default=1, ge=1, le=64)
    max_body_bytes: int = Field(default=16 * MEBIBYTE, ge=1024)
    max_decoded_bytes: int = Field(default=32 * MEBIBYTE, ge=1024)
    max_line_bytes: int = Field(default=256 * 1024, ge=256)
    max_nesting: int = Field(default=64, ge=4)
    # What bodies may hold together while they are received and worked on; above it the answer is 503.
    max_waiting_bytes: int = Field(default=64 * MEBIBYTE, ge=MEBIBYTE)

    # Kept lines stay this long, and no longer than there is room: per job in bytes of lines, in all in bytes of the database.
    log_days: float = Field(default=30, gt=0)
    event_days: float = Field(default=7, gt=0)
    max_job_log_bytes: int = Field(default=4 * 1024 * MEBIBYTE, ge=MEBIBYTE)
    max_stored_bytes: int = Field(default=20 * 1024 * MEBIBYTE, ge=MEBIBYTE)

    # The model that is asked where rules and memory do not know; see docs/models.md. Without an address none is.
    llm_base_url: str | None = None
    llm_model: str | None = None
    llm_api_key_file: Path | None = None
    llm_timeout_seconds: float = Field(default=30.0, gt=0)
    llm_tokens_per_incident: int = Field(default=30_000, ge=0)
    llm_tokens_per_day: int = Field(default=1_000_000, ge=0)
    # Per million tokens, in whatever currency; for the cost that is shown.
    llm_price_in: float = Field(default=0.0, ge=0)
    llm_price_out: float = Field(default=0.0, ge=0)
    # A learnt rule goes into use by itself after this many hits that agree with the settled cause; 0: only by hand.
    learnt_agreeing: int = Field(default=3, ge=0)

    lease_seconds: float = Field(default=2.5, gt=0)
    # Where the leases of agents are kept instead of in the database: http://HOST:PORT.
    etcd: str | None = Field(default=None, pattern=r"^https?://[^/:]+(:[0-9]+)?$")
    flap_hold_seconds: float = Field(default=600.0, ge=0)

    @field_validator("allowed_hosts", "job_keys", mode="before")
    @classmethod
    def split(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("port", mode="before")
    @classmethod
    def not_of_kubernetes(cls, value: object) -> object:
        """Beside a Service of the name pitstop, Kubernetes tells its address under our name: tcp://ADDRESS:PORT."""
        return cls.model_fields["port"].default if isinstance(value, str) and value.startswith("tcp://") else value

    @property
    def database_url(self) -> str:
        return self.database or f"sqlite:///{self.data_dir.absolute() / 'pitstop.sqlite'}"


def misspelt(names: Iterable[str]) -> dict[str, str]:
    """Those of `names` that are no setting but nearly are one, each with the setting that it resembles."""
    known = [f"PITSTOP_{name.upper()}" for name in Settings.model_fields]
    unknown = (name for name in names if name.startswith("PITSTOP_") and name not in known)
    return {name: near[0] for name in unknown if (near := get_close_matches(name, known, n=1, cutoff=NEARLY))}


def load_settings(**overrides: object) -> Settings:
    """Settings from the environment; an override of None stands for "not given". Raises SettingsError."""
    try:
        return Settings(**{name: value for name, value in overrides.items() if value is not None})  # type: ignore[arg-type]
    except NoHome as error:
        raise SettingsError(str(error)) from None
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"]) or "a setting"
        raise SettingsError(f"PITSTOP_{name.upper()}: {first['msg']}") from None
