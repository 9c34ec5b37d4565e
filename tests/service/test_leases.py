"""Leases are judged on the store's rows: silence is said once, and a service that was away judges nobody."""

from __future__ import annotations

from dataclasses import dataclass

from service.database_leases import DatabaseLeases
from service.leases import LeaseWatch
from service.store import Store
from service.store.events import events_after
from service.store.jobs import Node

TTL = 2.5


@dataclass
class Time:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def renew(store: Store, time: Time, *names: str) -> None:
    with store.writing() as session:
        for name in names:
            session.merge(Node(id=name, state="ready", versions={}, seen_at=time.now, lease_until=time.now + TTL))


def kinds(store: Store) -> list[tuple[str, str]]:
    with store.reading() as session:
        return [(event.kind, event.subject) for event in events_after(session, 0) if event.kind.startswith("node.")]


def run(watch: LeaseWatch, time: Time, seconds: float, store: Store, *renewing: str) -> None:
    for _ in range(int(seconds * 2)):
        time.now += 0.5
        renew(store, time, *renewing)
        watch.look()


def test_a_node_that_falls_silent_is_told_once_within_three_seconds_and_once_when_it_is_back(store: Store) -> None:
    time = Time()
    names = [f"n{number}" for number in range(10)]
    renew(store, time, *names)
    watch = LeaseWatch(store, time, DatabaseLeases(store, time, TTL), lambda: True)
    run(watch, time, 5, store, *names)
    run(watch, time, 3, store, *names[1:])
    assert kinds(store) == [("node.silent", "n0")]
    run(watch, time, 5, store, *names[1:])
    run(watch, time, 1, store, *names)
    assert kinds(store) == [("node.silent", "n0"), ("node.heard", "n0")]


def test_when_most_leases_end_at_once_the_service_suspects_itself(store: Store) -> None:
    time = Time()
    names = [f"n{number}" for number in range(10)]
    renew(store, time, *names)
    watch = LeaseWatch(store, time, DatabaseLeases(store, time, TTL), lambda: True)
    run(watch, time, 5, store, *names)
    run(watch, time, 10, store)
    assert kinds(store) == []
    assert watch.report()["silent"] == [] and watch.report()["suspects_itself"]


def test_after_a_pause_every_lease_has_its_full_time_again(store: Store) -> None:
    time = Time()
    renew(store, time, "n0")
    watch = LeaseWatch(store, time, DatabaseLeases(store, time, TTL), lambda: True)
    watch.look()
    time.now += 3600
    assert watch.look().silent == ()
    run(watch, time, 2, store)
    assert kinds(store) == []


def test_a_replica_that_does_not_hold_the_duties_says_nothing(store: Store) -> None:
    time = Time()
    renew(store, time, "n0")
    watch = LeaseWatch(store, time, DatabaseLeases(store, time, TTL), lambda: False)
    run(watch, time, 5, store)
    assert kinds(store) == []
