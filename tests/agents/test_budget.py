"""What a model may cost, and when an endpoint is left alone."""

from __future__ import annotations

from agents.budget import DAY_SECONDS, Breaker, Budget, Ledger, Usage


def test_an_incident_that_spent_its_tokens_is_refused_and_others_are_not() -> None:
    ledger, budget = Ledger(), Budget(tokens_per_incident=1000, tokens_per_day=10_000)
    ledger.spend("1", Usage(800, 100), 0.0)
    assert "900 spent" in (ledger.refusal(budget, "1", 200, 0.0) or "")
    assert ledger.refusal(budget, "2", 200, 0.0) is None


def test_a_spent_day_is_refused_until_the_next() -> None:
    ledger, budget = Ledger(), Budget(tokens_per_incident=1000, tokens_per_day=1000)
    ledger.spend("1", Usage(900), 0.0)
    assert ledger.refusal(budget, "2", 200, 10.0)
    assert ledger.refusal(budget, "2", 200, float(DAY_SECONDS)) is None


def test_cost_is_told_per_million_tokens() -> None:
    assert Budget(price_in=2.0, price_out=10.0).cost(Usage(500_000, 100_000)) == 2.0


def test_the_breaker_opens_after_failures_in_a_row_and_lets_one_trial_through_later() -> None:
    breaker = Breaker(limit=2, rest_seconds=60)
    breaker = breaker.failed(0.0)
    assert breaker.refusal(0.0) is None
    breaker = breaker.failed(1.0)
    assert "2 times" in (breaker.refusal(2.0) or "")
    assert breaker.refusal(61.0) is None
    assert breaker.failed(61.0).refusal(62.0)
    assert breaker.succeeded().refusal(62.0) is None
