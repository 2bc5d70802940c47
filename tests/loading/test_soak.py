"""Loaders for long: opened and left, killed and resumed, for many epochs.

PACKIO_LONG=1 is the long form: 1,000 loaders, 20 kills, 20 minutes of epochs.
"""

from __future__ import annotations

import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
from typing import Any

import leftovers
import pytest

import packio

LONG = bool(os.environ.get("PACKIO_LONG"))
pytestmark = pytest.mark.timeout(4000 if LONG else 900)


@pytest.fixture(scope="module")
def pack(image_folder: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """25 photographs."""
    return packio.pack(image_folder, tmp_path_factory.mktemp("soak") / "x.lmdb").out


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
    assert {name: n for name, n in after.items() if n > before[name]} == {}


_TRAINING = """
import hashlib, os, sys, torch, packio
pack, out, workers, foreign = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "foreign"
torch.manual_seed(5 if not os.path.exists(out) else 77)
ds = packio.PackDataset(pack, crop=packio.RandomResizedCrop(32), hflip=0.5, seed=3)
sampler = torch.utils.data.RandomSampler(ds) if foreign else packio.ShuffleSampler(ds, 3)
loader = packio.Loader(ds, 2, sampler=sampler, num_workers=workers)
seen = []
if os.path.exists(out):
    saved = torch.load(out, weights_only=True)
    seen = saved["seen"]
    loader.load_state_dict(saved["loader"])
    torch.set_rng_state(saved["torch"])
while loader.epoch < 2:
    for images, labels in loader:
        digest = hashlib.sha256(images.numpy().tobytes() + labels.numpy().tobytes())
        seen.append(digest.hexdigest())
        state = {"seen": seen, "loader": loader.state_dict(), "torch": torch.get_rng_state()}
        torch.save(state, out + ".new")
        os.replace(out + ".new", out)
        print(len(seen), flush=True)
"""


def _train(pack: pathlib.Path, out: pathlib.Path, how: list[str], stop: int | None) -> int:
    """Train, and be killed after some batches; return how many batches there have been."""
    child = subprocess.Popen(
        [sys.executable, "-c", _TRAINING, pack, out, *how], stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert child.stdout is not None
    count = 0
    for line in child.stdout:
        count = int(line)
        if stop is not None and count >= stop:
            os.killpg(child.pid, signal.SIGKILL)
    child.stdout.close()
    assert child.wait() == (0 if stop is None else -signal.SIGKILL)
    return count


@pytest.mark.long
@pytest.mark.parametrize("how", [["0", "ours"], ["2", "ours"], ["0", "foreign"], ["2", "foreign"]])
def test_killed_and_resumed_gives_the_undisturbed_batches(
    how: list[str], pack: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    import torch

    whole = tmp_path / "whole"
    assert _train(pack, whole, how, None) == 26
    expected = torch.load(whole, weights_only=True)["seen"]
    assert len(set(expected)) == 26
    draw = random.Random(int(how[0]) + len(how[1]))
    kills, runs = (20 if LONG else 1), 0
    while kills:
        out, reached = tmp_path / f"killed-{runs}", 0
        runs += 1
        while kills and reached < 24:
            reached = _train(pack, out, how, draw.randrange(reached + 1, 26))
            kills -= 1
        _train(pack, out, how, None)
        assert torch.load(out, weights_only=True)["seen"] == expected


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
