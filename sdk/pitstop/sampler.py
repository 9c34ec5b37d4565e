"""Which samples make up which batch: a function of the seed and the batch's number alone, so that any batch can be left out.

    sampler = pitstop.Sampler(len(dataset), batch=256, seed=1)
    for number, ids in sampler:
        with monitor.step(number):
            ...

A batch that is skipped takes none of its neighbours' samples with it: every other batch is the one that it would have been.
"""

from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from pitstop.directive import resume

__all__ = ["Sampler", "merged", "permuted"]

ROUNDS = 6
MASK = (1 << 64) - 1


def mixed(value: int) -> int:
    """splitmix64's finaliser."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def permuted(index: int, size: int, key: int) -> int:
    """Where a pseudo-random permutation of range(size) sends `index`: a Feistel network, walked until it lands inside.

    Needs no memory however large the data set is. Raises IndexError outside of range(size).
    """
    if not 0 <= index < size:
        raise IndexError("sample %d of %d" % (index, size))
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = index >> half, index & mask
        for number in range(ROUNDS):
            left, right = right, left ^ (mixed(right ^ mixed(key + number)) & mask)
        index = (left << half) | right
        if index < size:
            return index


def merged(intervals: Sequence[Sequence[int]]) -> List[Tuple[int, int]]:
    """Half-open intervals, in order and without overlaps."""
    found: List[Tuple[int, int]] = []
    for first, end in sorted((int(first), int(end)) for first, end in intervals if first < end):
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((first, end))
    return found


class Sampler:
    """Global batches in order, epoch after epoch, each epoch permuted anew; what does not fill a batch at its end is left out.

    `samples`: of the data set; `batch`: of each global batch, the same however many ranks share it; `skip`: half-open intervals
    of batch numbers to leave out, in addition to those of the directive. `position`: the number of the next batch.
    """

    def __init__(self, samples: int, batch: int, seed: int = 0, skip: Optional[Sequence[Sequence[int]]] = None) -> None:
        if not 0 < batch <= samples:
            raise ValueError("a batch of %d samples out of %d" % (batch, samples))
        self.samples, self.batch, self.seed = samples, batch, seed
        self.position = 0
        self.skip = merged([*resume().skip_batches, *(skip or ())])

    def ids(self, number: int) -> List[int]:
        """The samples of one batch."""
        epoch, place = divmod(number, self.samples // self.batch)
        key = mixed(mixed(self.seed) + epoch)
        return [permuted(place * self.batch + offset, self.samples, key) for offset in range(self.batch)]

    def skips(self, number: int) -> bool:
        return any(first <= number < end for first, end in self.skip)

    def next_number(self) -> int:
        """The next batch that is not skipped; `position` is moved there."""
        for first, end in self.skip:
            if first <= self.position < end:
                self.position = end
        return self.position

    def __iter__(self) -> Iterator[Tuple[int, List[int]]]:
        """(number, samples) of each batch. The position is past a batch once the next one is asked for."""
        while True:
            number = self.next_number()
            yield number, self.ids(number)
            # Unless a restored state moved it meanwhile.
            if self.position == number:
                self.position = number + 1

    def state_dict(self) -> Dict[str, Any]:
        return {"position": self.position, "skip": [list(interval) for interval in self.skip]}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """What was skipped stays so, and what the directive says comes on top."""
        self.position = int(state["position"])
        self.skip = merged([*self.skip, *state["skip"]])
