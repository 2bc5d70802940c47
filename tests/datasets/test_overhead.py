"""Calls that Python makes for a sample, which are as many on every machine.

Microseconds: benchmarks/read.py.
"""

from __future__ import annotations

import collections
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

import packio

SAMPLES = 64
# Calls of Python functions and of compiled functions a sample: a fifth above Python 3.11's,
# where OpenCV is loaded.
BATCH, SINGLE, LONELY = (27, 32), (96, 70), (181, 138)


def calls(work: Callable[[], Any]) -> dict[str, float]:
    """Calls of Python functions and of compiled ones that some work makes in this thread."""
    made: collections.Counter[str] = collections.Counter()

    def count(_frame: Any, event: str, _what: Any) -> None:
        made[event] += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return {event: made[event] / SAMPLES for event in ("call", "c_call")}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> packio.PackDataset:
    folder = tmp_path_factory.mktemp("overhead")
    (folder / "images" / "noise").mkdir(parents=True)
    draw = np.random.default_rng(0)
    for i in range(SAMPLES):
        pixels = Image.fromarray(draw.integers(0, 256, (48, 40, 3), np.uint8))
        pixels.save(folder / "images" / "noise" / f"{i}.jpg")
    packio.pack(folder / "images", folder / "pack.lmdb")
    crop = packio.RandomResizedCrop(32)
    return packio.LmdbDataset(folder / "pack.lmdb", crop=crop, hflip=0.5, threads=1)


def test_a_sample_of_a_batch_takes_few_calls(dataset: packio.PackDataset) -> None:
    indices = list(range(SAMPLES))
    packio.collate(dataset.__getitems__(indices))
    found = calls(lambda: packio.collate(dataset.__getitems__(indices)))
    assert found["call"] < BATCH[0], found
    assert found["c_call"] < BATCH[1], found


def test_a_single_sample_takes_few_calls(dataset: packio.PackDataset) -> None:
    dataset[0]
    found = calls(lambda: [dataset[i] for i in range(SAMPLES)])
    assert found["call"] < SINGLE[0], found
    assert found["c_call"] < SINGLE[1], found


def test_a_batch_of_one_takes_few_calls(dataset: packio.PackDataset) -> None:
    dataset.gather([0])
    found = calls(lambda: [dataset.gather([i]) for i in range(SAMPLES)])
    assert found["call"] < LONELY[0], found
    assert found["c_call"] < LONELY[1], found
