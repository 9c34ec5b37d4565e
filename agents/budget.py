"""What a model may cost: tokens an incident and a day, and a circuit breaker for an endpoint that keeps failing. Pure state."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

__all__ = ["Breaker", "Budget", "Ledger", "Usage"]

DAY_SECONDS = 86_400


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that one or several calls took."""

    tokens_in: int = 0
    tokens_out: int = 0

    @property
    def tokens(self) -> int:
        return self.tokens_in + self.tokens_out

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.tokens_in + other.tokens_in, self.tokens_out + other.tokens_out)


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits in tokens; prices in currency units per million tokens."""

    tokens_per_incident: int = 30_000
    tokens_per_day: int = 1_000_000
    price_in: float = 0.0
    price_out: float = 0.0

    def cost(self, usage: Usage) -> float:
        return (usage.tokens_in * self.price_in + usage.tokens_out * self.price_out) / 1e6


@dataclass
class Ledger:
    """What was spent, by incident and by day (UTC), since this process began."""

    day: int = -1
    today: Usage = field(default_factory=Usage)
    incidents: dict[str, Usage] = field(default_factory=dict)

    def refusal(self, budget: Budget, incident: str, expected_tokens: int, now: float) -> str | None:
        """Why a call of `expected_tokens` may not be made, or None. `now` is seconds since the epoch."""
        self._turn(now)
        spent = self.incidents.get(incident, Usage()).tokens
        if spent + expected_tokens > budget.tokens_per_incident:
            return f"the incident's budget of {budget.tokens_per_incident} tokens would be passed ({spent} spent)"
        if self.today.tokens + expected_tokens > budget.tokens_per_day:
            return f"today's budget of {budget.tokens_per_day} tokens would be passed ({self.today.tokens} spent)"
        return None

    def spend(self, incident: str, usage: Usage, now: float) -> None:
        self._turn(now)
        self.today += usage
        self.incidents[incident] = self.incidents.get(incident, Usage()) + usage

    def _turn(self, now: float) -> None:
        day = int(now // DAY_SECONDS)
        if day != self.day:
            self.day, self.today, self.incidents = day, Usage(), {}


@dataclass(frozen=True, slots=True)
class Breaker:
    """Opens after `limit` failures in a row, for `rest_seconds`; then one trial call decides."""

    limit: int = 3
    rest_seconds: float = 60.0
    failures: int = 0
    opened_at: float | None = None

    def refusal(self, now: float) -> str | None:
        """Why no call may be made now, or None."""
        if self.opened_at is None or now - self.opened_at >= self.rest_seconds:
            return None
        rest = self.rest_seconds - (now - self.opened_at)
        return f"the endpoint failed {self.failures} times in a row; next trial in {rest:.0f} s"

    def failed(self, now: float) -> Breaker:
        failures = self.failures + 1
        return replace(self, failures=failures, opened_at=now if failures >= self.limit else None)

    def succeeded(self) -> Breaker:
        return replace(self, failures=0, opened_at=None)
