"""The same seed is the same batches: both fidelities, every format and way to run."""

from __future__ import annotations

import hashlib
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest
from torch.utils.data import DataLoader

import packio
from packio import registry
from packio.images import regions

_FORMATS = [
    name for name in registry.names("formats") if registry.load("formats", name).caps.writes
]
_BATCH = 6
fidelities = pytest.mark.parametrize("fidelity", regions.FIDELITIES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, image_folder: pathlib.Path) -> pathlib.Path:
    """The image folder in a pack of each format, in shards where it has them."""
    root = tmp_path_factory.mktemp("determinism")
    for name in _FORMATS:
        packio.pack(image_folder, _out(root, name), shards=1 + len(name) % 2)
    return root


def _out(root: pathlib.Path, name: str) -> pathlib.Path:
    return root / f"{name}{registry.load('formats', name).caps.suffixes[0]}"


def _dataset(folder: pathlib.Path, name: str, fidelity: str, threads: int) -> packio.PackDataset:
    crop = packio.RandomResizedCrop(24, scale=(0.2, 1))
    return packio.PackDataset(
        _out(folder, name),
        crop=crop,
        hflip=0.5,
        vflip=0.1,
        seed=3,
        fidelity=fidelity,
        threads=threads,
    )


def _digests(
    ds: packio.PackDataset, workers: int = 0, *, collate: Any = packio.collate,
    sampler: packio.ShuffleSampler | None = None, epochs: int = 1, **options: Any,
) -> list[str]:  # fmt: skip
    """One digest a batch."""
    loader = DataLoader(
        ds, _BATCH, sampler=sampler or packio.ShuffleSampler(ds, seed=9), num_workers=workers,
        collate_fn=collate, **options,
    )  # fmt: skip
    return [
        hashlib.sha256(images.numpy().tobytes() + labels.numpy().tobytes()).hexdigest()
        for _ in range(epochs)
        for images, labels in loader
    ]


@fidelities
def test_workers_threads_and_collating_change_nothing(folder: pathlib.Path, fidelity: str) -> None:
    expected = _digests(_dataset(folder, "lmdb", fidelity, 1))
    assert len(set(expected)) == len(expected) == 5
    for workers in (0, 2):
        for threads in (1, 3):
            for collate in (None, packio.collate):
                ds = _dataset(folder, "lmdb", fidelity, threads)
                assert _digests(ds, workers, collate=collate) == expected, (workers, threads)


@fidelities
@pytest.mark.parametrize("name", _FORMATS)
def test_the_format_changes_nothing(folder: pathlib.Path, name: str, fidelity: str) -> None:
    expected = _digests(_dataset(folder, "lmdb", fidelity, 1), epochs=2)
    for workers, threads in ((0, 3), (1, 2)):
        ds = _dataset(folder, name, fidelity, threads)
        assert _digests(ds, workers, epochs=2) == expected
    assert _digests(ds, epochs=2) == expected  # once more
    assert expected[:5] != expected[5:]


@fidelities
def test_a_batch_is_what_its_samples_are_alone(folder: pathlib.Path, fidelity: str) -> None:
    ds = _dataset(folder, "hdf5", fidelity, 2)
    order = list(packio.ShuffleSampler(ds, seed=9))
    images, labels = ds.gather(order)
    for index, image, label in zip(order, images, labels.tolist(), strict=True):
        alone, own = ds[index]
        assert own == label
        assert alone.equal(image)


_AGAIN = """
import sys
sys.path.insert(0, sys.argv[1])
import pathlib, test_determinism as t
for fidelity in t.regions.FIDELITIES:
    print(*t._digests(t._dataset(pathlib.Path(sys.argv[2]), "tfrecord", fidelity, 2)))
"""


def test_another_process_makes_the_same(folder: pathlib.Path) -> None:
    here = str(pathlib.Path(__file__).parent)
    path = os.pathsep.join([str(pathlib.Path(here).parents[1]), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", _AGAIN, here, str(folder)], check=True, capture_output=True,
        text=True, env={**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": path},
    )  # fmt: skip
    found = [line.split() for line in done.stdout.splitlines()]
    assert found == [_digests(_dataset(folder, "lmdb", f, 1)) for f in regions.FIDELITIES]
