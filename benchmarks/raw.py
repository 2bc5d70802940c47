"""Raw pixels: images a second, gathered, cropped and mirrored; beside memcpy, and FFCV.

Random pixels lie in an HDF5 pack, as 1,024 images of 224 x 224 and 40,960 of 32 x 32. In turns, in
one run, all of them go, in random order, in batches of 256 and 1,024, into one tensor that is used
again and again:

* ``memcpy``: copied from one end to the other, which is no random order; torch's ``copy_``;
* ``gather``: whole, as ``PackDataset.gather(indices, out=...)`` gives them;
* ``crop + flip``: RandomCrop(32, padding=4) and hflip=0.5, the same way;
* ``loader``: the same, by a DataLoader of two workers with ``collate_fn=packio.collate``.

FFCV, if a Python that has it is named, runs in a process of its own, by its own Loader with one
worker: it needs an older NumPy. Its images are (N, H, W, C); "contiguous" are those that its
ToTorchImage makes (N, C, H, W), as packio's always are.

All but ``loader`` run in one thread, and are timed by the clock and by the processor's time, which
tells more where a machine has other work to do; FFCV's is that of all threads of its process. An
odd round runs the candidates in the opposite order of an even one.

    python benchmarks/raw.py [--rounds 15] [--ffcv PYTHON] [--work FOLDER] [--save]
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import _results
import h5py
import numpy as np
import torch
from torch.utils.data import DataLoader

import packio

KINDS = {224: (1024, 256), 32: (40_960, 1024)}  # side → images, batch
CROP = {"crop": packio.RandomCrop(32, padding=4), "hflip": 0.5}


class Run(NamedTuple):
    """Something that is timed."""

    name: str
    images: int
    seconds: Callable[[], tuple[float, float]]  # by the clock, and of the processor


def make_pack(folder: Path, side: int) -> Path:
    """A pack of random pixels; beside it, as an array for FFCV, the same ones."""
    out, (count, _) = folder / f"raw{side}.h5", KINDS[side]
    if out.exists():
        return out
    pixels = np.random.default_rng(side).integers(0, 256, (count, 3, side, side), np.uint8)
    samples = [
        packio.Sample(i, f"{i:06d}", image.tobytes(), "raw", i % 10, side, side)
        for i, image in enumerate(pixels)
    ]
    packio.pack(samples, out)
    np.save(folder / f"raw{side}.npy", np.ascontiguousarray(pixels.transpose(0, 2, 3, 1)))
    return out


def timed(work: Callable[[], object]) -> Callable[[], tuple[float, float]]:
    """Seconds that a call takes, when called."""

    def seconds() -> tuple[float, float]:
        clock, processor = time.perf_counter(), time.process_time()
        work()
        return time.perf_counter() - clock, time.process_time() - processor

    return seconds


def batches(side: int) -> list[np.ndarray]:
    """All images, in random order, in batches."""
    count, size = KINDS[side]
    return list(np.random.default_rng(1).permutation(count).reshape(-1, size))


def packio_run(name: str, pack: Path, side: int, **options: Any) -> Run:
    """Gather all images into one tensor."""
    ds = packio.PackDataset(pack, fields="image", threads=1, seed=0, **options)
    out = torch.empty((KINDS[side][1], 3, side, side), dtype=torch.uint8)
    order = batches(side)
    check(ds, out, order[0], whole=not options)

    def work() -> None:
        for indices in order:
            ds.gather(indices, out=out)

    return Run(name, KINDS[side][0], timed(work))


def check(ds: packio.PackDataset, out: torch.Tensor, indices: np.ndarray, *, whole: bool) -> None:
    """Compare a batch with what each sample is."""
    ds.gather(indices, out=out)
    if whole and any(image.numpy().tobytes() != ds.pack[i].data
                     for i, image in zip(indices.tolist(), out, strict=True)):  # fmt: skip
        sys.exit("other pixels than were packed")
    if not torch.equal(out, torch.stack(ds.__getitems__(indices.tolist()))):
        sys.exit("other images than __getitems__ gives")


def memcpy_run(pack: Path, side: int) -> Run:
    """Copy as many bytes, the next ones each time."""
    count, size = KINDS[side]
    out = torch.empty((size, 3, side, side), dtype=torch.uint8)
    with h5py.File(pack) as file:
        source = torch.from_numpy(file["data"][()])

    def work() -> None:
        for start in range(0, count, size):
            out.copy_(source[start : start + size])

    return Run(f"memcpy {side}", count, timed(work))


def loader_run(name: str, pack: Path, side: int, **options: Any) -> Run:
    """Iterate a DataLoader whose workers are there already."""
    count, size = KINDS[side]
    loader = DataLoader(
        packio.PackDataset(pack, fields="image", seed=0, **options), batch_size=size, shuffle=True,
        num_workers=2, persistent_workers=True, collate_fn=packio.collate,
    )  # fmt: skip

    def work() -> None:
        for _ in loader:
            pass

    return Run(name, count, timed(work))


@contextlib.contextmanager
def ffcv_runs(python: str | None, folder: Path) -> Iterator[list[Run]]:
    """Candidates of a process that has FFCV; none if no Python is named."""
    if python is None:
        print("FFCV is left out: name a Python that has it with --ffcv", file=sys.stderr)
        yield []
        return
    sizes = {str(side): size for side, (_, size) in KINDS.items()}
    script = Path(__file__).with_name("raw_ffcv.py")
    command = [python, str(script), str(folder), json.dumps(sizes)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as child:
        to, answers = child.stdin, child.stdout
        if to is None or answers is None:
            sys.exit("FFCV's process has no pipes")

        def seconds(name: str) -> tuple[float, float]:
            print(name, file=to, flush=True)
            clock, processor = json.loads(answers.readline())
            return clock, processor

        named = json.loads(answers.readline())
        yield [
            Run(f"FFCV {name}", KINDS[side][0], lambda name=name: seconds(name))
            for name, side in named
        ]
        print(file=to, flush=True)  # DataLoader's workers keep the pipe open


def measure(runs: list[Run], rounds: int) -> dict[str, Any]:
    """Images a second of each candidate, in turns, after one warm-up; and shares of memcpy."""
    rates: list[dict[str, list[float]]] = [{run.name: [] for run in runs} for _ in range(2)]
    for number in range(rounds + 1):
        for run in runs if number % 2 else runs[::-1]:
            seconds = run.seconds()
            for rate, value in zip(rates, seconds, strict=True):
                if number:
                    rate[run.name].append(run.images / value)
    shares = {}
    for side in KINDS:
        pairs = zip(rates[1][f"gather {side}"], rates[1][f"memcpy {side}"], strict=True)
        shares[f"gather {side}"] = [gathered / copied for gathered, copied in pairs]
    names = [run.name for run in runs if not run.name.startswith("loader")]  # its workers count not
    return {
        "images_per_second": {
            name: _results.summary(values, 0) for name, values in rates[0].items()
        },
        "images_per_processor_second": {
            name: _results.summary(rates[1][name], 0) for name in names
        },
        "of_memcpy": {name: _results.summary(values, 2) for name, values in shares.items()},
    }


def main() -> None:
    """Measure and print; with --save into benchmarks/results/raw.json."""
    parser = _results.parser(__doc__, rounds=15)
    parser.add_argument("--ffcv", metavar="PYTHON")
    parser.add_argument("--work", metavar="FOLDER", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with contextlib.ExitStack() as stack:
        folder = given.work or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        small, large = make_pack(folder, 32), make_pack(folder, 224)
        runs = [
            memcpy_run(large, 224), packio_run("gather 224", large, 224),
            memcpy_run(small, 32), packio_run("gather 32", small, 32),
            packio_run("crop + flip 32", small, 32, **CROP),
            loader_run("loader, gather 32", small, 32),
            loader_run("loader, crop + flip 32", small, 32, **CROP),
            loader_run("loader, gather 224", large, 224),
            *stack.enter_context(ffcv_runs(given.ffcv, folder)),
        ]  # fmt: skip
        result = measure(runs, given.rounds)
    about = {
        "machine": _results.machine("numpy", "torch", load=round(os.getloadavg()[0], 1)),
        "rounds": given.rounds,
    }
    _results.finish("raw", {**about, **result}, keep=given.save)


if __name__ == "__main__":
    main()
