"""One sweep over time that builds a schedule: each worker, when free, starts the best operation that is ready.

Best is by rule (few under way: F before B before W; many: B before F before W) or by key, the least first. By key it also
runs in reversed time, where W takes an activation and F gives it back. Compiled by numba.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from recovery.planning.pipeline.model import Ints, Shorts

__all__ = ["queues", "sweep", "windows"]

Whole = int | np.integer[Any]


@numba.njit(cache=True, nogil=True)
def queues(routing: Ints, replicas: int) -> tuple[Ints, Ints]:
    """Micro-batches of each worker (stage * replicas + replica) in order of b: offsets by worker, and the flat list."""
    stages, total = routing.shape
    offsets = np.zeros(replicas * stages + 1, np.int64)
    for s in range(stages):
        for b in range(total):
            offsets[s * replicas + routing[s, b] + 1] += 1
    for x in range(replicas * stages):
        offsets[x + 1] += offsets[x]
    place = offsets.copy()
    flat = np.empty(total * stages, np.int64)
    for s in range(stages):
        for b in range(total):
            x = s * replicas + routing[s, b]
            flat[place[x]] = b
            place[x] += 1
    return offsets, flat


@numba.njit(cache=True, nogil=True)
def _push(heap: Ints, begin: Whole, size: Whole, item: Whole) -> None:
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        other = heap[begin + parent]
        if other < item:
            break
        heap[begin + i] = other
        i = parent
    heap[begin + i] = item


@numba.njit(cache=True, nogil=True)
def _pop(heap: Ints, begin: Whole, size: Whole) -> None:
    """Takes the top away; `size` is the size before."""
    size -= 1
    last = heap[begin + size]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        least = heap[begin + child]
        if child + 1 < size and heap[begin + child + 1] < least:
            child += 1
            least = heap[begin + child]
        if last < least:
            break
        heap[begin + i] = least
        i = child
    heap[begin + i] = last


@numba.njit(cache=True, nogil=True)
def sweep(
    homes: Shorts,
    offsets: Ints,
    flat: Ints,
    lengths: Ints,
    hop: int,
    cap: int,
    key: Shorts,
    begin: Ints,
    ahead: Ints,
    reverse: bool,
    starts: Shorts,
) -> bool:
    """Fill `starts` (kinds, stages, total) with times from 0 in the direction of the sweep; False where it gets stuck.

    `homes` (stages * total) is the worker of each micro-batch at each stage, `key` has the shape of `starts`, flat, and is not
    negative; `begin` (stages,) is when a stage may begin. `ahead` (stages,) turns on the rule: how many micro-batches to have
    under way before B goes before F; empty: by key. Cost: O(operations * log(queue) + time).
    """
    kinds, stages, total = starts.shape
    replicas = (offsets.shape[0] - 1) // stages
    workers = replicas * stages
    per_kind = stages * total
    operations = kinds * per_kind
    ruled = ahead.shape[0] > 0
    takes = kinds - 1 if reverse else 0
    gives = 0 if reverse else kinds - 1
    flat_starts = starts.reshape(-1)
    stage_of = np.empty(workers, np.int64)
    for x in range(workers):
        stage_of[x] = x // replicas

    # What is ready waits in a heap a worker and kind, as key and operation in one number.
    heaps = np.empty((kinds, per_kind), np.int64)
    sizes = np.zeros((workers, 3), np.int64)
    if not reverse:
        for b in range(total):
            x = homes[b]
            _push(heaps[0], offsets[x], sizes[x, 0], (np.int64(key[b]) << 32) | b)
            sizes[x, 0] += 1
    else:
        for rest in range(per_kind if kinds == 3 else total):
            x = homes[rest]
            op = takes * per_kind + rest
            _push(heaps[takes], offsets[x], sizes[x, takes], (np.int64(key[op]) << 32) | op)
            sizes[x, takes] += 1
    # Only B in reversed time waits for two: for its W, and for B of the stage before. The first to end leaves its time here.
    first = np.full(per_kind if reverse and kinds == 3 else 1, -1, np.int32)

    ring = hop + 1
    for kind in range(kinds):
        ring = max(ring, lengths[kind] + hop + 1)
    for s in range(stages):
        ring = max(ring, begin[s] + 1)
    heads = np.full(ring, -1, np.int32)
    after = np.full(operations + workers, -1, np.int32)
    free = np.empty(workers, np.int64)
    for x in range(workers):
        free[x] = begin[stage_of[x]]
        after[operations + x] = heads[free[x]]
        heads[free[x]] = operations + x
    stamp = np.full(workers, -1, np.int64)
    awake = np.empty(workers, np.int64)
    held = np.zeros(workers, np.int64)
    forwards = np.zeros(workers, np.int64)
    backwards = np.zeros(workers, np.int64)
    left = operations
    now = 0
    slot = 0
    quiet = 0
    while left > 0:
        entry: Whole = np.int64(heads[slot])
        if entry < 0:
            quiet += 1
            if quiet > ring:
                return False
        else:
            quiet = 0
            heads[slot] = -1
        count = 0
        while entry >= 0:
            if entry < operations:
                kind = int(entry >= per_kind) + int(entry >= 2 * per_kind)
                x = int(homes[entry - kind * per_kind])
                _push(heaps[kind], offsets[x], sizes[x, kind], (np.int64(key[entry]) << 32) | entry)
                sizes[x, kind] += 1
            else:
                x = entry - operations
            if stamp[x] != now:
                stamp[x] = now
                awake[count] = x
                count += 1
            entry = np.int64(after[entry])
        for index in range(count):
            x = awake[index]
            s = stage_of[x]
            at = offsets[x]
            while free[x] <= now:
                chosen = -1
                if ruled:
                    may_f = False
                    blocked = False
                    if sizes[x, 0] > 0 and heaps[0, at] >> 32 == flat[at + forwards[x]]:
                        may_f = held[x] < cap
                        blocked = not may_f
                    may_b = sizes[x, 1] > 0
                    may_w = sizes[x, 2] > 0
                    if forwards[x] - backwards[x] < min(ahead[s], offsets[x + 1] - at):
                        if may_f:
                            chosen = 0
                        elif blocked and may_w:
                            chosen = 2
                        elif may_b:
                            chosen = 1
                        elif may_w:
                            chosen = 2
                    elif may_b:
                        chosen = 1
                    elif may_f:
                        chosen = 0
                    elif may_w:
                        chosen = 2
                else:
                    best = np.int64(0)
                    lent = False
                    loan = np.int64(0)
                    for kind in range(kinds):
                        if sizes[x, kind] == 0:
                            continue
                        value = heaps[kind, at] >> 32
                        if kind == takes and held[x] >= cap:
                            lent = True
                            loan = value
                        elif chosen < 0 or value < best:
                            chosen = kind
                            best = value
                    # What is kept waiting by memory lends its key to what gives memory back.
                    if lent and chosen >= 0 and loan < best and sizes[x, gives] > 0:
                        chosen = gives
                if chosen < 0:
                    break
                op = heaps[chosen, at] & 0xFFFFFFFF
                _pop(heaps[chosen], at, sizes[x, chosen])
                sizes[x, chosen] -= 1
                flat_starts[op] = now
                left -= 1
                end = now + lengths[chosen]
                free[x] = end
                if chosen == takes:
                    held[x] += 1
                if chosen == gives:
                    held[x] -= 1
                if chosen == 0:
                    forwards[x] += 1
                elif chosen == 1:
                    backwards[x] += 1
                for way in range(2):
                    # What follows on this operation: across a hop, then on the same worker.
                    target = np.int64(-1)
                    ready = end
                    if not reverse:
                        if chosen == 0 and way == 0:
                            if s < stages - 1:
                                target = op + total
                                ready = end + hop
                            else:
                                target = op + per_kind
                        elif chosen == 1 and way == 0 and s > 0:
                            target = op - total
                            ready = end + hop
                        elif chosen == 1 and way == 1 and kinds == 3:
                            target = op + per_kind
                    elif chosen == 2 and way == 0:
                        target = op - per_kind
                    elif chosen == 1 and way == 0:
                        if s < stages - 1:
                            target = op + total
                            ready = end + hop
                        else:
                            target = op - per_kind
                    elif chosen == 0 and way == 0 and s > 0:
                        target = op - total
                        ready = end + hop
                    if target < 0:
                        continue
                    if reverse and kinds == 3 and chosen > 0 and target >= per_kind:
                        rest = target - per_kind
                        if rest >= total:
                            if first[rest] < 0:
                                first[rest] = ready
                                continue
                            ready = max(ready, np.int64(first[rest]))
                    if ready <= now:
                        # Only behind an operation of no length, so it is this worker's own.
                        kind = 0 if target < per_kind else (1 if target < 2 * per_kind else 2)
                        _push(heaps[kind], at, sizes[x, kind], (np.int64(key[target]) << 32) | target)
                        sizes[x, kind] += 1
                    else:
                        place = slot + ready - now
                        if place >= ring:
                            place -= ring
                        after[target] = heads[place]
                        heads[place] = target
                if end > now:
                    place = slot + end - now
                    if place >= ring:
                        place -= ring
                    after[operations + x] = heads[place]
                    heads[place] = operations + x
        now += 1
        slot += 1
        if slot == ring:
            slot = 0
    return True


@numba.njit(cache=True, nogil=True)
def windows(starts: Shorts, last_length: int) -> tuple[Ints, Ints]:
    """When each stage begins its first F, and when it ends its last operation."""
    kinds, stages, total = starts.shape
    begins = np.empty(stages, np.int64)
    ends = np.empty(stages, np.int64)
    for s in range(stages):
        low = starts[0, s, 0]
        high = starts[kinds - 1, s, 0]
        for b in range(total):
            low = min(low, starts[0, s, b])
            high = max(high, starts[kinds - 1, s, b])
        begins[s] = low
        ends[s] = high + last_length
    return begins, ends
