"""Counts and epochs of many parts of a dataset: in little memory, and each with its own part."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import long
import made
import numpy as np
import pytest
from PIL import Image
from torch.utils.data import DataLoader

import packio
from packio.datasets.shared_state import Tally

BAD, SAMPLES = 5, 12


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack one of whose samples is damaged."""
    folder = tmp_path_factory.mktemp("tallies")
    (folder / "images" / "class").mkdir(parents=True)
    for i in range(SAMPLES):
        Image.new("RGB", (16, 16), (i, 0, 0)).save(folder / "images" / "class" / f"{i:02}.png")
    packio.pack(folder / "images", folder / "pack.lmdb")
    made.damage(folder / "pack.lmdb", BAD)
    return folder / "pack.lmdb"


def open_dataset(pack: Path) -> packio.PackDataset:
    return packio.LmdbDataset(pack, on_error="skip", crop=packio.CenterCrop(8))


def count_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_thousands_of_parts_hold_few_descriptors(damaged: Path) -> None:
    ds = open_dataset(damaged)
    before = count_descriptors()
    parts = [ds.subset([i % SAMPLES]) for i in range(2000)]
    assert count_descriptors() - before < 40
    for number, part in enumerate(parts):
        part.set_epoch(number)
    assert [part.epoch for part in parts] == [*range(2000)]
    del parts, part
    assert count_descriptors() - before < 2


@pytest.mark.filterwarnings("ignore:.*record 5")
@pytest.mark.parametrize("method", long.after(2, ("fork", "spawn", "forkserver")))
def test_what_workers_count_reaches_the_part_that_they_read(damaged: Path, method: str) -> None:
    ds = open_dataset(damaged)
    firsts = [i % (SAMPLES - 1) for i in range(300)]  # a forkserver takes 256 descriptors
    parts = [ds.subset([i, i + 1]) for i in firsts]
    whole = packio.ConcatPacks(parts)
    loader = DataLoader(whole, batch_size=2, num_workers=2, multiprocessing_context=method)
    assert sum(len(images) for images, _ in loader) == len(whole)
    assert [part.replaced for part in parts] == [int(i in (BAD - 1, BAD)) for i in firsts]
    assert ds.replaced == 0


def test_a_forked_process_makes_parts_of_its_own() -> None:
    before, child = Tally(3), os.fork()
    if not child:
        signal.alarm(60)  # fails, and does not wait, where torch's threads are waited for
        for tally in [Tally(7) for _ in range(600)]:  # large blocks: torch would take threads
            tally.count(1)
        os._exit(0)
    mine = [Tally(4) for _ in range(20)]
    assert os.waitpid(child, 0)[1] == 0
    assert before.epoch == 3
    assert [(tally.epoch, tally.totals[0]) for tally in mine] == [(4, 0)] * 20


@pytest.mark.parametrize("make", [copy.deepcopy, lambda tally: pickle.loads(pickle.dumps(tally))])
def test_a_copy_counts_by_itself(make: Callable[[Tally], Tally]) -> None:
    tally = Tally(3)
    tally.count(2)
    other = make(tally)
    other.count(5)
    other.epoch = 4
    assert (tally.epoch, tally.totals[0]) == (3, 2)
    assert (other.epoch, other.totals[0]) == (4, 7)
    assert len(pickle.dumps(tally)) < 20_000


def test_no_two_hold_the_same_cells() -> None:
    tallies = [Tally(i) for i in range(600)]
    del tallies[::2]
    tallies += [Tally(i) for i in range(600, 900)]
    for tally in tallies:
        tally.count(1)
    assert np.all([tally.totals[0] == 1 for tally in tallies])


_INFERENCE = """
import sys, torch, packio
how = dict(crop=packio.RandomResizedCrop(8), fields="index")
with torch.inference_mode():
    first = packio.PackDataset(sys.argv[1], **how)
    first[0], first.seed, list(packio.Loader(first, 4))
for ds in (first, packio.PackDataset(sys.argv[1], **how)):
    ds.set_epoch(2)
    ds[0], ds.gather([0, 1]), list(packio.Loader(ds, 4))
print("done", ds.epoch)
"""


def test_inference_mode_leaves_no_state_that_cannot_change(damaged: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _INFERENCE, damaged], capture_output=True, text=True, check=False
    )
    assert done.stdout == "done 2\n", done.stderr
