"""One sweep over time that builds a schedule: each worker, when free, starts the best operation that is ready.

Best is by rule (few under way: F before B before W; many: B before F before W) or by key, the least first. By key it also
runs in reversed time, where W takes an activation and F gives it back. Compiled by numba.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = ["queues", "sweep", "windows"]

Ints = NDArray[np.int64]


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
def _push(heap: Ints, begin: int, size: int, op: int, key: Ints) -> None:
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        other = heap[begin + parent]
        if key[other] < key[op] or (key[other] == key[op] and other < op):
            break
        heap[begin + i] = other
        i = parent
    heap[begin + i] = op


@numba.njit(cache=True, nogil=True)
def _pop(heap: Ints, begin: int, size: int, key: Ints) -> None:
    """Takes the top away; `size` is the size before."""
    last = heap[begin + size - 1]
    size -= 1
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        left = heap[begin + child]
        if child + 1 < size:
            right = heap[begin + child + 1]
            if key[right] < key[left] or (key[right] == key[left] and right < left):
                child += 1
                left = right
        if key[last] < key[left] or (key[last] == key[left] and last < left):
            break
        heap[begin + i] = left
        i = child
    heap[begin + i] = last


@numba.njit(cache=True, nogil=True)
def sweep(
    routing: Ints,
    offsets: Ints,
    flat: Ints,
    lengths: Ints,
    hop: int,
    cap: int,
    key: Ints,
    begin: Ints,
    ahead: Ints,
    reverse: bool,
    starts: Ints,
) -> bool:
    """Fill `starts` (kinds, stages, total) with times from 0 in the direction of the sweep; False where it gets stuck.

    `key` has the shape of `starts`, flat; `begin` (stages,) is when a stage may begin. `ahead` (stages,) turns on the rule: how
    many micro-batches to have under way before B goes before F; empty: by key. Cost: O(operations * log(queue) + time).
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

    waits = np.ones(operations, np.int8)
    for b in range(total):
        if not reverse:
            waits[b] = 0
        elif kinds == 3:
            for s in range(stages):
                waits[2 * per_kind + s * total + b] = 0
                if s > 0:
                    waits[per_kind + s * total + b] = 2
        else:
            waits[per_kind + b] = 0
    arrival = np.zeros(operations, np.int64)
    heaps = np.empty((kinds, per_kind), np.int64)
    sizes = np.zeros((kinds, workers), np.int64)
    for op in range(operations):
        if waits[op] == 0:
            kind, rest = op // per_kind, op % per_kind
            s = rest // total
            x = s * replicas + routing[s, rest % total]
            _push(heaps[kind], offsets[x], sizes[kind, x], op, key)
            sizes[kind, x] += 1

    longest = 0
    for kind in range(kinds):
        longest = max(longest, lengths[kind])
    ring = longest + hop + 1
    for s in range(stages):
        ring = max(ring, begin[s] + 1)
    heads = np.full(ring, -1, np.int64)
    after = np.full(operations + workers, -1, np.int64)
    for x in range(workers):
        slot = begin[x // replicas]
        after[operations + x] = heads[slot]
        heads[slot] = operations + x
    free = np.zeros(workers, np.int64)
    for x in range(workers):
        free[x] = begin[x // replicas]
    stamp = np.full(workers, -1, np.int64)
    awake = np.empty(workers, np.int64)
    held = np.zeros(workers, np.int64)
    forwards = np.zeros(workers, np.int64)
    backwards = np.zeros(workers, np.int64)
    left = operations
    now = 0
    quiet = 0
    while left > 0:
        entry = heads[now % ring]
        if entry < 0:
            quiet += 1
            if quiet > ring:
                return False
            now += 1
            continue
        quiet = 0
        heads[now % ring] = -1
        count = 0
        while entry >= 0:
            following = after[entry]
            if entry < operations:
                kind, rest = entry // per_kind, entry % per_kind
                s = rest // total
                x = s * replicas + routing[s, rest % total]
                _push(heaps[kind], offsets[x], sizes[kind, x], entry, key)
                sizes[kind, x] += 1
            else:
                x = entry - operations
            if stamp[x] != now:
                stamp[x] = now
                awake[count] = x
                count += 1
            entry = following
        for index in range(count):
            x = awake[index]
            s = x // replicas
            while free[x] <= now:
                chosen = -1
                at = offsets[x]
                if ruled:
                    may_f = False
                    blocked = False
                    if sizes[0, x] > 0 and heaps[0, at] % total == flat[at + forwards[x]]:
                        may_f = held[x] < cap
                        blocked = not may_f
                    may_b = sizes[1, x] > 0
                    may_w = kinds == 3 and sizes[2, x] > 0
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
                        if sizes[kind, x] == 0:
                            continue
                        value = key[heaps[kind, at]]
                        if kind == takes and held[x] >= cap:
                            lent = True
                            loan = value
                        elif chosen < 0 or value < best:
                            chosen = kind
                            best = value
                    # What is kept waiting by memory lends its key to what gives memory back.
                    if lent and chosen >= 0 and loan < best and sizes[gives, x] > 0:
                        chosen = gives
                if chosen < 0:
                    break
                op = heaps[chosen, at]
                _pop(heaps[chosen], at, sizes[chosen, x], key)
                sizes[chosen, x] -= 1
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
                b = op % total
                for way in range(2):
                    # What follows on this operation: across a hop, then on the same worker.
                    target = -1
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
                    arrival[target] = max(arrival[target], ready)
                    waits[target] -= 1
                    if waits[target] > 0:
                        continue
                    if arrival[target] <= now:
                        # Only behind an operation of no length, so it is this worker's own.
                        kind = target // per_kind
                        _push(heaps[kind], at, sizes[kind, x], target, key)
                        sizes[kind, x] += 1
                    else:
                        slot = arrival[target] % ring
                        after[target] = heads[slot]
                        heads[slot] = target
                if end > now:
                    slot = end % ring
                    after[operations + x] = heads[slot]
                    heads[slot] = operations + x
        now += 1
    return True


@numba.njit(cache=True, nogil=True)
def windows(starts: Ints, last_length: int) -> tuple[Ints, Ints]:
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
