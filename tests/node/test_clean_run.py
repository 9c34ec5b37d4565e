"""Two hours of a healthy job on a simulated clock, through the real monitor files and the real watch: nobody cries wolf."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from detectors.processes import identify
from detectors.statistics.judgement import Finding
from node.monitors import MonitorReader
from node.watch import Watch
from pitstop import layout
from pitstop.monitor import Monitor

RANKS, HOURS, LOOK_SECONDS = 4, 2 * float(os.environ.get("SCALE", "1")), 0.5


def healthy(source: random.Random, monitors: list[Monitor], end: float) -> Iterator[tuple[float, Any]]:
    """(time, what happens then): a slow first step, noisy steps in lockstep, checkpoints, evaluations, some slow steps."""
    now, step = 0.0, 0
    while now < end:
        sections = [monitor.step(step) for monitor in monitors]
        begins = [now + source.uniform(0, 0.01) for _ in monitors]
        typical = 120.0 if step == 0 else 1.0
        works = [typical * math.exp(source.gauss(0, 0.08)) for _ in monitors]
        if source.random() < 0.01:
            works[source.randrange(len(works))] *= 2.2
        if source.random() < 0.001:
            works = [seconds * 2.8 for seconds in works]
        done = max(begin + work for begin, work in zip(begins, works, strict=True)) + 0.05
        events: list[tuple[float, Any]] = []
        for section, begin, work, monitor in zip(sections, begins, works, monitors, strict=True):
            events += [(begin, section.__enter__), (begin + work, monitor.sync().__enter__)]
            leave = done + source.uniform(0, 0.01)
            events += [(leave, lambda inner=monitor.sync(): inner.__exit__(None, None, None))]
            events += [(leave, lambda outer=section: outer.__exit__(None, None, None))]
        now = done + 0.02
        if step % 100 == 99 or step % 400 == 399:
            name, seconds = ("checkpoint", 20.0) if step % 400 != 399 else ("evaluation", 90.0)
            seconds *= math.exp(source.gauss(0, 0.2))
            for monitor in monitors:
                section = getattr(monitor, name)()
                events += [(now, section.__enter__), (now + seconds, lambda it=section: it.__exit__(None, None, None))]
            now += seconds + 0.02
        for monitor in monitors:
            loss = 10 * (step + 10) ** -0.3 * math.exp(source.gauss(0, 0.05))
            events.append((done + 0.015, lambda it=monitor, value=loss: it.report(loss=value)))
        yield from sorted(events, key=lambda event: event[0])
        step += 1


@pytest.mark.soak
@pytest.mark.parametrize("seed", [1, 2])
def test_two_hours_of_steps_checkpoints_and_evaluations_raise_no_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    clock = [0.0]
    monkeypatch.setattr("pitstop.monitor.monotonic_ns", lambda: int(clock[0] * 1e9))
    paths = {rank: tmp_path / str(rank) for rank in range(RANKS)}
    for rank, path in paths.items():
        layout.create(str(path), rank, 0)
    monkeypatch.delenv("RANK", raising=False)
    monitors = [Monitor(str(path)) for path in paths.values()]
    own = identify(os.getpid())
    assert own is not None
    reader, watch = MonitorReader(paths), Watch(dict.fromkeys(paths, own))
    found, next_look = [], LOOK_SECONDS
    for time, happen in healthy(random.Random(seed), monitors, HOURS * 3600):
        while next_look < time:
            found += watch.look({rank: reader.read(rank) for rank in paths}, range(RANKS), next_look)
            next_look += LOOK_SECONDS
        clock[0] = time
        happen()
    assert next_look > HOURS * 3600 - 1
    assert [item for item in found if item.finding is not Finding.UNDER_USE] == []
