"""Which state ranks go on from, and where copies go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.checkpoint.choice import Held, Stock, Tier, choose
from pitstop.checkpoint.interval import advise_interval
from pitstop.checkpoint.replica import Place, choose_peer


def held(rank: int, step: int, generation: int = 0) -> Held:
    return Held(rank, step, generation, f"rank{rank}.{step}")


def tiers(chosen: object) -> list[Tier]:
    return [sources[0].tier for sources in chosen.sources]  # type: ignore[attr-defined]


def test_the_newest_state_that_all_ranks_have_is_taken_from_the_nearest_place() -> None:
    stocks = [
        Stock((held(0, 20), held(0, 10)), (held(0, 10),)),
        Stock((held(1, 10),), (held(1, 10), held(0, 10))),
    ]
    chosen = choose(stocks, replicated=False)
    assert chosen is not None and (chosen.step, tiers(chosen)) == (10, [Tier.LOCAL_MEMORY, Tier.LOCAL_MEMORY])


def test_a_node_that_lost_its_memory_takes_the_copy_of_its_peer() -> None:
    stocks = [Stock((held(0, 20), held(1, 20)), (held(0, 10),)), Stock((), (held(1, 10),))]
    chosen = choose(stocks, replicated=False)
    assert chosen is not None and chosen.step == 20
    assert tiers(chosen) == [Tier.LOCAL_MEMORY, Tier.PEER_MEMORY] and chosen.sources[1][0].holder == 0


def test_a_replica_lends_the_shared_parts_where_nobody_has_the_own_ones() -> None:
    stocks = [Stock((held(0, 20),), (held(0, 10),)), Stock((), (held(0, 10), held(1, 10)))]
    assert tiers(choose(stocks, replicated=True)) == [Tier.LOCAL_MEMORY, Tier.LENT_MEMORY]
    chosen = choose(stocks, replicated=False)
    assert chosen is not None and (chosen.step, tiers(chosen)) == (10, [Tier.DISK, Tier.DISK])


def test_what_was_gone_back_from_is_never_taken_again() -> None:
    poisoned = (held(0, 100), held(0, 90))
    assert choose([Stock((), (*poisoned, held(0, 50)), latest=(1, 50))], True).step == 50  # type: ignore[union-attr]
    after = Stock((), (*poisoned, held(0, 50), held(0, 60, 1)), latest=(1, 60))
    chosen = choose([after], True)
    assert chosen is not None and (chosen.generation, chosen.step) == (1, 60)


def test_a_directed_step_is_taken_or_the_newest_before_it() -> None:
    stock = Stock((held(0, 30),), (held(0, 10), held(0, 20)))
    assert choose([stock], True, step=20).step == 20  # type: ignore[union-attr]
    assert choose([stock], True, step=25).step == 20  # type: ignore[union-attr]
    assert choose([stock], True, step=5) is None


@given(st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.integers(0, 1)), max_size=8), min_size=1, max_size=3))
def test_every_rank_gets_a_source_of_the_same_state_or_nobody_does(given_stocks: list[list[tuple[int, int, int]]]) -> None:
    stocks = [Stock(tuple(held(rank, step, generation) for rank, step, generation in items)) for items in given_stocks]
    chosen = choose(stocks, replicated=False)
    everywhere = {
        (item.generation, item.step)
        for item in (held_item for stock in stocks for held_item in stock.memory)
        if all(
            any(
                (other.rank, other.generation, other.step) == (rank, item.generation, item.step)
                for stock in stocks
                for other in stock.memory
            )
            for rank in range(len(stocks))
        )
    }
    if chosen is None:
        assert not everywhere
        return
    assert (chosen.generation, chosen.step) == max(everywhere)
    for rank, sources in enumerate(chosen.sources):
        assert sources and all(source.held.rank == rank for source in sources)


def test_copies_go_outside_the_failure_domain_where_there_is_an_outside() -> None:
    places = [Place(0, "a", "r1"), Place(1, "a", "r1"), Place(2, "b", "r1"), Place(3, "c", "r2")]
    assert [choose_peer(places, rank).rank for rank in range(4)] == [3, 3, 3, 0]
    one_rack = [Place(0, "a", "r1"), Place(1, "b", "r1")]
    choice = choose_peer(one_rack, 0)
    assert choice.rank == 1 and "no node outside" in choice.why
    assert choose_peer([Place(0, "a", "a"), Place(1, "a", "a")], 0).rank is None


def test_the_interval_is_youngs_for_short_saves_and_never_below_the_time_to_durable() -> None:
    assert advise_interval(1.0, 86_400.0).seconds == pytest.approx((2 * 86_400) ** 0.5, rel=0.01)
    slow = advise_interval(0.1, 3600.0, durable_seconds=300.0)
    assert slow.seconds == 300.0 and "300 s to be durable" in slow.why
    assert advise_interval(100.0, 10.0).seconds == 10.0
    with pytest.raises(ValueError, match="positive"):
        advise_interval(0.0, 1.0)


@given(st.floats(0.01, 100.0), st.floats(1.0, 1e6))
def test_no_other_interval_loses_much_less(save: float, between: float) -> None:
    best = advise_interval(save, between)
    if save > 0.1 * between:
        return
    for factor in (0.5, 2.0):
        other = best.seconds * factor
        assert save / other + other / (2 * between) > best.lost_share * 0.98
