"""Threads and forks on one dataset: every child that is forked beside busy threads reads rightly.

    python tests/faults/stress.py --json stress.json            # the short form, of tests
    python tests/faults/stress.py --long --json stress.json

A round opens a pack of 96 shards, more than stay open at a time, and reads from it in several
threads. Meanwhile it forks children that read as well, by `os.fork` and as workers of a DataLoader.
Each value is compared with what the source was written with. A child that hangs prints the stacks
of all its threads after two minutes, and ends.
"""

from __future__ import annotations

import argparse
import faulthandler
import io
import json
import os
import platform
import random
import struct
import sys
import tempfile
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import processes
import torch
from PIL import Image

import packio

SHARDS = 96
_SAMPLES, _HEIGHT, _WIDTH, _CLASSES = 4 * SHARDS, 18, 26, 3
_THREADS, _READS = 4, 24  # of the parent; samples that a child reads
_FORKED, _WORKERS = 8, 2  # children in a round: by os.fork, as workers of a DataLoader
_SHORT, _LONG = 20, 200  # children of each kind of pack
_HANGS = 120  # seconds; a child needs less than one


class Written(NamedTuple):
    """A sample as it was written."""

    key: str
    pixels: bytes  # (3, height, width) uint8
    label: int


class Kind(NamedTuple):
    """A way to read a pack.

    Attributes:
        make: Writes the pack; takes an empty folder, returns the path and the samples.
        options: Of the dataset.
        dataset: Its class.
    """

    make: Callable[[Path], tuple[Path, list[Written]]]
    options: dict[str, Any]
    dataset: type[packio.PackDataset] = packio.PackDataset


def _png(rows: bytes) -> bytes:
    """An RGB image of (height, width, 3) uint8 as a PNG without filters."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        whole = kind + body
        return struct.pack(">I", len(body)) + whole + struct.pack(">I", zlib.crc32(whole))

    line = 3 * _WIDTH
    lines = b"".join(b"\0" + rows[i : i + line] for i in range(0, len(rows), line))
    header = struct.pack(">IIBBBBB", _WIDTH, _HEIGHT, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines))
        + chunk(b"IEND", b"")
    )  # fmt: skip


def _planes(rows: bytes) -> bytes:
    return rows[0::3] + rows[1::3] + rows[2::3]


def write_source(root: Path) -> list[Written]:
    """Write an image folder, every second image as JPEG; return its samples in order."""
    draw, written = random.Random(5), []
    for number in range(_SAMPLES):
        name, label = f"{number:04d}", number * _CLASSES // _SAMPLES
        rows = draw.randbytes(_HEIGHT * _WIDTH * 3)
        path = root / f"class{label}" / f"{name}.{'jpg' if number % 2 else 'png'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if number % 2:
            held = io.BytesIO()
            Image.frombytes("RGB", (_WIDTH, _HEIGHT), rows).save(held, "JPEG")
            path.write_bytes(held.getvalue())
            rows = Image.open(held).convert("RGB").tobytes()
        else:
            path.write_bytes(_png(rows))
        written.append(Written(str(path.relative_to(root)), _planes(rows), label))
    return written


def _packed(suffix: str, **options: Any) -> Callable[[Path], tuple[Path, list[Written]]]:
    def make(folder: Path) -> tuple[Path, list[Written]]:
        written, out = write_source(folder / "source"), folder / f"x{suffix}"
        packio.pack(folder / "source", out, shards=SHARDS, num_workers=1, **options)
        return out, written

    return make


def _compressed(folder: Path) -> tuple[Path, list[Written]]:
    """Write an HDF5 file that only its library can read."""
    draw, path = random.Random(6), folder / "x.h5"
    arrays = np.frombuffer(draw.randbytes(_SAMPLES * _HEIGHT * _WIDTH * 3), np.uint8)
    arrays = arrays.reshape(_SAMPLES, _HEIGHT, _WIDTH, 3)
    labels = [number % _CLASSES for number in range(_SAMPLES)]
    with h5py.File(path, "w") as file:
        file.create_dataset("images", data=arrays, chunks=(4, *arrays.shape[1:]), compression=1)
        file.create_dataset("labels", data=np.array(labels))
    with packio.open(path) as pack:
        keys = list(pack.keys())
    pixels = [_planes(array.tobytes()) for array in arrays]
    return path, [Written(*sample) for sample in zip(keys, pixels, labels, strict=True)]


def _as_it_is(folder: Path) -> tuple[Path, list[Written]]:
    return folder / "source", write_source(folder / "source")


_ALL = packio.CenterCrop((_HEIGHT, _WIDTH))  # of the image: the native core makes it, in slices
KINDS = {
    "tar": Kind(_packed(".tar"), {}),
    "tar, by slices": Kind(_packed(".tar"), {"crop": _ALL}),
    "folder, by slices": Kind(_as_it_is, {"crop": _ALL}, packio.FolderDataset),
    "lmdb by its library": Kind(_packed(".lmdb"), {"access": "lmdb"}),
    "raw lmdb": Kind(_packed(".lmdb", encode="raw"), {}),
    "compressed hdf5": Kind(_compressed, {}),
}


def read(ds: packio.PackDataset, written: list[Written], draw: random.Random, reads: int) -> None:
    """Read samples one by one, in batches and by key; compare each of them.

    Raises:
        FaultError: a sample is not what was written.
    """
    done = 0
    while done < reads:
        some = [draw.randrange(len(written)) for _ in range(8)]
        how = draw.randrange(4)
        if how == 0:
            found = [ds[i] for i in some]
        elif how == 1:
            found = list(ds.__getitems__(some))
        elif how == 2:
            images, labels, keys = ds.gather(some)
            found = list(zip(images, labels.tolist(), keys, strict=True))
        else:
            found = [ds.by_key(written[i].key) for i in some]
        for i, (image, label, key) in zip(some, found, strict=True):
            _compare(written[i], Written(key, image.numpy().tobytes(), int(label)))
        done += len(some)


def _compare(expected: Written, found: Written) -> None:
    if found != expected:
        raise processes.FaultError(
            f"{expected.key}, label {expected.label}: found {found.key}, label {found.label}, "
            f"pixels {'equal' if found.pixels == expected.pixels else 'differ'}"
        )


class _InWorkers(torch.utils.data.Dataset[int]):
    """The comparison of each sample, made where a worker reads it."""

    def __init__(self, ds: packio.PackDataset, written: list[Written]) -> None:
        self._ds, self._written = ds, written

    def __len__(self) -> int:
        return len(self._written)

    def __getitems__(self, indices: list[int]) -> list[int]:
        for i, (image, label, key) in zip(indices, self._ds.__getitems__(indices), strict=True):
            _compare(self._written[i], Written(key, image.numpy().tobytes(), int(label)))
        return indices


def _watch(_: int = 0) -> None:
    """End this process with the stacks of its threads, should it hang."""
    faulthandler.dump_traceback_later(_HANGS, exit=True)


@contextmanager
def _busy(ds: packio.PackDataset, written: list[Written], seed: int) -> Iterator[list[str]]:
    """Threads that read as long as the block lasts; what they found wrong."""
    over, wrong = threading.Event(), list[str]()

    def run(number: int) -> None:
        draw = random.Random(f"{seed} {number}")
        try:
            while not over.is_set():
                read(ds, written, draw, 8)
        except Exception:  # noqa: BLE001 (it is told where the threads are waited for)
            wrong.append(traceback.format_exc())

    threads = [threading.Thread(target=run, args=(number,)) for number in range(_THREADS)]
    for thread in threads:
        thread.start()
    try:
        yield wrong
    finally:
        over.set()
        for thread in threads:
            thread.join()


def one_round(path: Path, kind: Kind, written: list[Written], seed: int, log: Path) -> list[str]:
    """Fork children beside threads that have just begun; return what went wrong."""
    ds = kind.dataset(path, fields=("image", "label", "key"), threads=2, **kind.options)
    failures: list[str] = []
    logs = [log.with_name(f"{log.name}-{number}") for number in range(_FORKED)]

    def child(number: int) -> int:
        _watch()
        read(ds, written, random.Random(f"{seed} child {number}"), _READS)
        return 0

    with _busy(ds, written, seed) as wrong:
        children = [
            processes.started(lambda n=number: child(n), each)  # type: ignore[misc]  # mypy #15459
            for number, each in enumerate(logs)
        ]
        loader = torch.utils.data.DataLoader(
            _InWorkers(ds, written), 8, num_workers=_WORKERS, multiprocessing_context="fork",
            sampler=random.Random(seed).sample(range(len(written)), _WORKERS * _READS),
            collate_fn=list, worker_init_fn=_watch,
        )  # fmt: skip
        try:
            if sum(map(len, loader)) != _WORKERS * _READS:
                failures.append("a DataLoader gave another number of samples")
        except (RuntimeError, processes.FaultError):
            failures.append(traceback.format_exc())
        for pid, each in zip(children, logs, strict=True):
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if code:
                failures.append(f"a child ended with {code}: {each.read_text()}")
    ds.pack.close()
    return failures + wrong


def try_out(name: str, folder: Path, children: int, seed: int) -> dict[str, Any]:
    """All rounds with a kind of pack; what came of them."""
    kind, began, failures = KINDS[name], time.monotonic(), []
    folder.mkdir()
    path, written = kind.make(folder)
    rounds = -(-children // (_FORKED + _WORKERS))
    for number in range(rounds):
        failures += one_round(path, kind, written, seed + number, folder / "log")
    return {
        "children": rounds * (_FORKED + _WORKERS), "threads": _THREADS, "failures": failures,
        "seconds": round(time.monotonic() - began, 1),
    }  # fmt: skip


def main() -> None:
    """Run what is asked for; end with 1 where a child or a thread failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--long", action="store_true", help="many children")
    parser.add_argument("--kind", action="append", choices=KINDS, help="of pack; repeatable")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file of results")
    arguments = parser.parse_args()
    faulthandler.enable()
    card: dict[str, Any] = {"versions": {
        "packio": packio.__version__, "python": platform.python_version(),
        "torch": torch.__version__, "linux": platform.release(),
    }, "kinds": {}}  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="stress-") as folder:
        os.environ["PACKIO_CACHE_DIR"] = os.path.join(folder, "cache")
        for number, name in enumerate(arguments.kind or KINDS):
            children = _LONG if arguments.long else _SHORT
            result = try_out(name, Path(folder, str(number)), children, arguments.seed)
            card["kinds"][name] = result
            print(name, json.dumps(result), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(card, indent=1) + "\n")
    sys.exit(any(result["failures"] for result in card["kinds"].values()))


if __name__ == "__main__":
    main()
