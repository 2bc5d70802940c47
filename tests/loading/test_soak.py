"""Loaders for long: opened and left, and for many epochs.

PACKIO_LONG=1 is the long form: 1,000 loaders, 20 minutes of epochs.
"""

from __future__ import annotations

import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
from typing import Any

import leftovers
import pytest

import packio

LONG = bool(os.environ.get("PACKIO_LONG"))
pytestmark = pytest.mark.timeout(4000 if LONG else 900)


def _dataset(pack: pathlib.Path) -> packio.PackDataset:
    return packio.PackDataset(pack, crop=packio.RandomResizedCrop(32), hflip=0.5, seed=3, threads=2)


def test_loaders_left_midway_hold_nothing(pack: pathlib.Path) -> None:
    draw = random.Random(1)
    loader: Any = None
    for number in range(1000 if LONG else 40):
        workers = 1 if number % 10 == 9 else 0  # a tenth with processes
        loader = packio.Loader(_dataset(pack), 4, shuffle=True, num_workers=workers)
        taken = iter(loader)
        for _ in range(draw.randrange(7)):
            next(taken)
        if number == 9:
            del taken, loader
            before = leftovers.held()  # torch's own helpers are there by now
    del taken, loader
    after = leftovers.held()
    print(before, after)
    before["descriptors"] += 1  # of a block of numbers, which 64 datasets have together
    assert {name: n for name, n in after.items() if n > before[name]} == {}


_EPOCHS = """
import gc, json, os, sys, packio
ds = packio.PackDataset(sys.argv[1], crop=packio.RandomResizedCrop(64), hflip=0.5, threads=2)
loader = packio.Loader(ds, 4, shuffle=True, num_workers=int(sys.argv[2]),
                       persistent_workers=sys.argv[2] != "0", device="cpu",
                       normalize=([0.5] * 3, [0.5] * 3))
page, found = os.sysconf("SC_PAGESIZE"), []
for _ in range(int(sys.argv[3])):
    for batch in loader:
        del batch
    gc.collect()
    found.append(int(open("/proc/self/statm").read().split()[1]) * page)
print(json.dumps(found))
"""


@pytest.mark.long
@pytest.mark.parametrize("workers", ["0", "2"])
def test_epoch_after_epoch_memory_stays(workers: str, pack: pathlib.Path) -> None:
    epochs = 6000 if LONG else 60
    done = subprocess.run(
        [sys.executable, "-c", _EPOCHS, pack, workers, str(epochs)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    third = len(found) // 3
    first, last = (statistics.median(part) for part in (found[third : 2 * third], found[-third:]))
    print(f"{workers} workers, {len(found)} epochs: {first / 1e6:.1f} MB, then {last / 1e6:.1f}")
    assert last - first < (2e6 if LONG else 8e6)
