"""What an order of 10^10 samples costs, and how far the order of a window is from a whole shuffle.

The samplers and `packio.Loader` get a dataset that has a length and no samples:

* first: milliseconds from making the sampler to its first index; the loader's first batch of 256;
* resumed: the same, where a state of a random position is loaded before;
* index: microseconds of each further index, of one rank of 1 and of one rank of 1,024;
* peak: megabytes that Python and NumPy took for all this, by tracemalloc, in a run of its own.

Times are the processor's, which tell more where a machine has other work to do; "by the clock" are
the others.

Chi-square, of fixed seeds: all orders of 5 samples (119 degrees of freedom); the first 200,000
indices of 10^10, in 100 bins of equal size (99 degrees).

Then 160,000 samples lie in 128 shards, sorted by class, in 100 classes. For windows of 2, 8 and 32
shards and for a whole shuffle, over an epoch in batches of 256:

* displacement: mean distance between a sample's place in the dataset and its place in the epoch, as
  a share of all; 1/3 if both are independent;
* neighbours: mean distance in the dataset between a sample and the next one of the epoch, as a
  share of all; 1/3 if both are independent;
* classes: of a batch, on average;
* imbalance: half the sum, over all classes, of the differences between a class's share of a batch
  and its share of all samples, on average; 1 if a batch misses nearly all of them;
* shards: of a batch, on average.

    python benchmarks/orders.py [--rounds 15] [--save]
"""

from __future__ import annotations

import itertools
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import _results
import numpy as np
from torch.utils.data import Dataset

import packio
from packio.loading.permuting import permute

SAMPLES, BATCH, RANKS = 10**10, 256, 1024
FEW, FEWER = 20_480, 2560  # further indices, of one rank of 1 and of 1,024
ORDERS, DRAWN, BINS = 24_000, 200_000, 100
SHARDS, SHARD, CLASSES = 128, 1250, 100


class Long(Dataset[int]):
    """A dataset that has a length."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        return int(index)


class Sharded:
    """A dataset that has shards."""

    shard_lengths = (SHARD,) * SHARDS

    def __len__(self) -> int:
        return SHARDS * SHARD


Made = Callable[[dict[str, Any]], Any]
KINDS: dict[str, Made] = {
    "ShuffleSampler": lambda ranks: packio.ShuffleSampler(SAMPLES, 1, **ranks),
    "MixedSampler": lambda ranks: packio.MixedSampler(
        [SAMPLES // 2, SAMPLES // 2 - 1000, 1000], [3, 2, 1], 1, samples_per_epoch=SAMPLES, **ranks
    ),
    "RepeatAugSampler": lambda ranks: packio.RepeatAugSampler(SAMPLES, 3, 1, **ranks),
    "Loader": lambda ranks: packio.Loader(
        Long(), BATCH, sampler=packio.ShuffleSampler(SAMPLES, 1, **ranks)
    ),
}  # fmt: skip
ONE, MANY = {"rank": 0, "world_size": 1}, {"rank": RANKS // 2, "world_size": RANKS}


def state_at(made: Any, position: int) -> dict[str, Any]:
    """A state of a position, as a checkpoint has it."""
    state: dict[str, Any] = made.state_dict()
    return {**state, "consumed": position}


class Watch:
    """Milliseconds since it was made."""

    def __init__(self) -> None:
        self._clock, self._processor = time.perf_counter(), time.process_time()

    def processor(self) -> float:
        """Of the processor."""
        return 1e3 * (time.process_time() - self._processor)

    def both(self) -> tuple[float, float]:
        """Of the processor, and by the clock."""
        return self.processor(), 1e3 * (time.perf_counter() - self._clock)


def begun(make: Made, ranks: dict[str, Any], state: dict[str, Any] | None) -> Iterator[Any]:
    """Make a sampler, from a state if there is one, and take its first index."""
    made = make(ranks)
    if state is not None:
        made.load_state_dict(state)
    indices = iter(made)
    next(indices)
    return indices


def micros(indices: Iterator[Any], count: int, each: int) -> float:
    """Microseconds an index, of those that follow; an item has ``each`` of them."""
    watch = Watch()
    for _ in itertools.islice(indices, count // each):
        pass
    return 1e3 * watch.processor() / count


def figures(kind: str, position: int) -> dict[str, float]:
    """What a kind costs, once."""
    make, each = KINDS[kind], BATCH if kind == "Loader" else 1
    found, state = {}, state_at(make(ONE), position)
    for name, given in (("first_ms", None), ("resumed_ms", state)):
        watch = Watch()
        indices = begun(make, ONE, given)
        found[name], found[f"{name}_by_the_clock"] = watch.both()
    found["index_us"] = micros(indices, FEW, each)
    found["index_of_1024_ranks_us"] = micros(begun(make, MANY, None), FEWER, each)
    return found


def costs(rounds: int) -> dict[str, Any]:
    """What each kind costs: all kinds in turns, after one warm-up."""
    random = np.random.default_rng(3)
    values = [
        {kind: figures(kind, int(random.integers(SAMPLES))) for kind in KINDS}
        for _ in range(rounds + 1)
    ]
    return {
        kind: {
            name: _results.summary([each[kind][name] for each in values[1:]], 2)
            for name in values[0][kind]
        }
        | {"peak_mb": peak(KINDS[kind])}
        for kind in KINDS
    }


def peak(make: Made) -> float:
    """Megabytes that making, resuming and some indices take at most."""
    state = state_at(make(ONE), SAMPLES // 3)
    tracemalloc.start()
    for each in (None, state):
        for _ in itertools.islice(begun(make, ONE, each), FEW):
            pass
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return round(taken / 1e6, 2)


def chi_square(counts: np.ndarray) -> dict[str, float]:
    """Chi-square of counts that should be equal."""
    expected = counts.mean()
    value = float(((counts - expected) ** 2 / expected).sum())
    return {"chi_square": round(value, 1), "degrees_of_freedom": len(counts) - 1}


def uniformity() -> dict[str, Any]:
    """Chi-square of small orders, and of a part of a large one."""
    weights = 5 ** np.arange(5)
    codes = [int(permute(np.arange(5), 5, key) @ weights) for key in range(ORDERS)]
    orders = np.unique(codes, return_counts=True)[1]
    indices = np.fromiter(packio.ShuffleSampler(SAMPLES, 1), np.int64, DRAWN)
    bins = np.bincount(indices // (SAMPLES // BINS), minlength=BINS)
    return {"orders_of_5": chi_square(orders), "bins_of_10^10": chi_square(bins)}


def quality(window: int | None) -> dict[str, float]:
    """How the order of an epoch differs from independent draws."""
    count = SHARDS * SHARD
    order = np.fromiter(packio.ShuffleSampler(Sharded(), 1, window=window), np.int64, count)
    batches = order[: count // BATCH * BATCH].reshape(-1, BATCH)
    tables = [np.bincount(b * CLASSES // count, minlength=CLASSES) / BATCH for b in batches]
    shares = np.array(tables)
    return {
        "displacement": round(float(np.abs(order - np.arange(count)).mean() / count), 3),
        "neighbours": round(float(np.abs(np.diff(order)).mean() / count), 3),
        "classes": round(float((shares > 0).sum(1).mean()), 1),
        "imbalance": round(float(np.abs(shares - 1 / CLASSES).sum(1).mean() / 2), 3),
        "shards": round(float(np.mean([len(np.unique(b // SHARD)) for b in batches])), 1),
    }


def main() -> None:
    """Measure and print; with --save into benchmarks/results/orders.json."""
    given = _results.parser(__doc__, rounds=15).parse_args()
    windows = {str(w): quality(w) for w in (2, 8, 32)} | {"whole shuffle": quality(None)}
    result = {
        "machine": _results.machine("numpy", "torch"),
        "rounds": given.rounds,
        "samples": SAMPLES,
        "costs": costs(given.rounds),
        "uniformity": uniformity(),
        "windows_of_128_shards": windows,
    }
    _results.finish("orders", result, keep=given.save)


if __name__ == "__main__":
    main()
