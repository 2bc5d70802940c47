"""What a GPU adds: images a second by who decodes, how much of copying is hidden, memory formats.

Packs 8,192 JPEGs of 500 x 375 pixels and about 110 KB, made here, into a TFRecord,
and measures in seven processes, each of which may fail or take too long
without harm to the others; what went wrong is then in the JSON in place of numbers:

* ``loaders``: RandomResizedCrop(224), hflip, normalised bfloat16 batches on the device, in turns:
  ``packio.Loader`` with the native core, exact and fast, and with simplejpeg, in threads, and with
  nvJPEG on the device; and torchvision's call alone, which nvJPEG spends its time in. Ratios are
  to the native core, exact, round by round.
* ``dali``: the same by ``packio.DaliLoader``, with its default
  ``hw_decoder_load`` and with 0; beside the native core again.
* ``scaling``: uint8 batches in memory by the number of threads or workers: ``packio.Loader`` in
  threads, the same dataset in a DataLoader, and torchvision's ImageFolder in a DataLoader.
* ``training``: ResNet-50 and ResNet-18, bfloat16, channels_last: images a second with batches that
  are on the device, and with each loader. 1 - ratio is how long the device waits.
* ``pixels``: by how much nvJPEG's differ from Pillow's; and whether batches stay the same, bit for
  bit, when they are made while kernels wait in the queue that read and free earlier ones.
* ``copying``: a training step of a small network with images that are on the device, that come
  through ``packio.DevicePrefetcher``, or are copied before the step and waited for. Hidden is
  1 - (prefetched - resident) / (copied - resident): 1 if copying costs nothing.
* ``memory_format``: `packio bench-memory-format` on the device.

Needs packio with what is to be measured: ``pip install '.[nvjpeg,dali]'``. On a GPU it
takes 6 to 10 minutes. Without one, what can does run on the processor, briefly, to try this script.
`tools/gpu/run.sh` runs it on a machine without a network.

    python benchmarks/gpu.py [--save] [--folder FOLDER] [--only loaders --only training …]
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import _results
import numpy as np
import simplejpeg
import torch

import packio
from packio.measuring.bench import decode, memory_format

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
IMAGES, BATCH, SECONDS, ROUNDS = (8192, 256, 2.0, 3) if GPU else (96, 16, 0.5, 2)
STEPS, SIDE = (30, 224) if GPU else (2, 32)  # of a network: timed at once, and its images
LIMITS = {  # seconds
    "loaders": 100, "dali": 70, "scaling": 130, "training": 200, "pixels": 60, "copying": 60,
    "memory_format": 75,
}  # fmt: skip
CORES = len(os.sched_getaffinity(0))
COUNTS = [n for n in (1, 2, 4, 8, 16, 32) if n <= CORES]  # of threads and workers
SCALE = {"normalize": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]), "dtype": torch.bfloat16}
CROP: dict[str, Any] = {"crop": packio.RandomResizedCrop(224), "hflip": 0.5}
PACKAGES = (
    "torch",
    "torchvision",
    "nvidia-dali-cuda120",
    "nvidia-dali-cuda130",
    "simplejpeg",
    "numpy",
    "opencv-python-headless",
)

Result = dict[str, Any]


def make_packs(folder: Path) -> None:
    """A pack of waves under noise."""
    r = np.random.default_rng(0)
    images = folder / "images" / "class"
    images.mkdir(parents=True)
    y, x = np.mgrid[:375, :500]
    noise = r.normal(0, 24, (375, 500, 3))

    def write(i: int) -> None:
        wave = 128 + 60 * np.sin(x / (10 + i % 53)) + 50 * np.cos(y / (10 + i % 47))
        pixels = wave[..., None] + np.roll(noise, (i * 7, i * 11), (0, 1))
        data = simplejpeg.encode_jpeg(
            pixels.clip(0, 255).astype(np.uint8), 90, colorsubsampling="420"
        )
        (images / f"{i:05d}.jpg").write_bytes(data)

    with ThreadPoolExecutor() as pool:
        list(pool.map(write, range(IMAGES)))
    packio.pack(folder / "images", folder / "plain.tfrecord")


def wait() -> None:
    """Until the device has nothing left to do."""
    if GPU:
        torch.cuda.synchronize()


def tried(work: Callable[[], Any]) -> Any:
    """What it gives, or what went wrong."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001 (whatever it is, the rest is measured)
        return {"error": f"{type(error).__name__}: {error}"}


# ---- loaders ----


def endless(loader: Any) -> Iterator[int]:
    """Numbers of images, epoch after epoch."""
    while True:
        for batch in loader:
            yield len(batch[0])


def packed(folder: Path, **options: Any) -> packio.PackDataset:
    """The pack, cropped and mirrored."""
    return packio.PackDataset(folder / "plain.tfrecord", seed=0, **CROP, **options)


def loaded(folder: Path, layout: Any = None, **options: Any) -> packio.Loader:
    """Make packio's Loader, to the device."""
    ds = packed(folder, **options)
    return packio.Loader(
        ds, BATCH, shuffle=True, drop_last=True, device=DEVICE, memory_format=layout, **SCALE
    )


def by_dali(folder: Path, layout: Any = None, **options: Any) -> packio.DaliLoader:
    """Make packio's DaliLoader, to the device."""
    return packio.DaliLoader(
        folder / "plain.tfrecord", BATCH, **CROP, device="gpu" if GPU else "cpu", shuffle=True,
        drop_last=True, seed=0, memory_format=layout, **SCALE, **options,
    )  # fmt: skip


def image_folder(folder: Path) -> Any:
    """Make torchvision's ImageFolder of the same files and the same recipe, as uint8."""
    from torchvision import datasets
    from torchvision.transforms import v2

    steps = [v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), v2.PILToTensor()]
    return datasets.ImageFolder(str(folder / "images"), v2.Compose(steps))


def by_workers(dataset: Any, batch_size: int, workers: int) -> torch.utils.data.DataLoader[Any]:
    """Make torch's DataLoader, as people set it."""
    return torch.utils.data.DataLoader(
        dataset, batch_size, shuffle=True, drop_last=True, num_workers=workers, pin_memory=GPU,
        persistent_workers=True,
    )  # fmt: skip


def by_torchvision(folder: Path) -> Iterator[int]:
    """Whole images decoded by torchvision on the device, and nothing else."""
    from torchvision.io import ImageReadMode, decode_jpeg

    pack = packio.open(folder / "plain.tfrecord")
    encoded = [torch.frombuffer(bytearray(pack[i].data), dtype=torch.uint8) for i in range(BATCH)]
    while True:
        yield len(decode_jpeg(encoded, mode=ImageReadMode.RGB, device=DEVICE))


def rate(batches: Iterator[int], waiting: int) -> float:
    """Images a second; what waited in the loader's queue is not counted."""
    for _ in range(waiting):
        next(batches)
    wait()
    began, images = time.perf_counter(), 0
    while time.perf_counter() - began < SECONDS:
        images += next(batches)
    wait()
    return images / (time.perf_counter() - began)


def rates(ways: dict[str, Callable[[], Iterator[int]]], waiting: int = 6) -> Iterator[Result]:
    """Images a second of each way, in turns; the first is what the others are compared with."""
    made = {name: tried(way) for name, way in ways.items()}
    failed = {name: found for name, found in made.items() if isinstance(found, dict)}
    found: dict[str, list[float]] = {name: [] for name in made if name not in failed}
    for number in range(ROUNDS):
        for name in sorted(found, reverse=bool(number % 2)):
            one = tried(functools.partial(rate, made[name], waiting))
            if isinstance(one, dict):
                failed[name] = one
                del found[name]
            else:
                found[name].append(one)
        first = found.get(next(iter(ways)), [])
        yield {
            name: failed.get(name)
            or {
                "images_per_second": _results.summary(found[name], 0),
                **(
                    {"ratio": _results.summary(_results.ratios(found[name], first), 3)}
                    if first
                    else {}
                ),
            }
            for name in ways
        }


def loaders(folder: Path) -> Iterator[Result]:
    """`packio.Loader`, by who decodes."""

    def way(**options: Any) -> Callable[[], Iterator[int]]:
        return lambda: endless(loaded(folder, **options))

    yield from rates({
        "native core": way(),
        "native core, fast": way(fidelity="fast"),
        "simplejpeg": way(decoder="simplejpeg"),
        "nvjpeg": way(decoder="nvjpeg"),
        "torchvision's call alone, whole images": functools.partial(by_torchvision, folder),
    })  # fmt: skip


def dali(folder: Path) -> Iterator[Result]:
    """`packio.DaliLoader`."""
    ways: dict[str, Callable[[], Iterator[int]]] = {
        "native core": lambda: endless(loaded(folder)),
        "DALI": lambda: endless(by_dali(folder)),
    }
    if GPU:
        ways["DALI, hw_decoder_load=0"] = lambda: endless(by_dali(folder, hw_decoder_load=0.0))
    yield from rates(ways)


def scaling(folder: Path) -> Iterator[Result]:
    """uint8 batches in memory, by the number of threads or workers."""
    result: Result = {}
    for n in COUNTS:
        ways: dict[str, Callable[[], Iterator[int]]] = {
            "ImageFolder, workers": lambda n=n: endless(by_workers(image_folder(folder), 64, n)),
            "packio, workers": lambda n=n: endless(by_workers(packed(folder), 64, n)),
            "packio.Loader, threads": lambda n=n: endless(
                packio.Loader(packed(folder), 64, shuffle=True, threads=n)
            ),
        }
        *_, result[str(n)] = rates(ways, waiting=4 + 2 * n)
        yield result


# ---- training ----


def training(folder: Path) -> Iterator[Result]:
    """Steps of two networks, by where their batches come from."""
    result: Result = {}
    for name in ("resnet50", "resnet18"):
        found = tried(lambda name=name: list(trained(folder, name))[-1])
        result[name] = found
        yield result


def trained(folder: Path, name: str) -> Iterator[Result]:
    """Images a second that a network is trained with."""
    from torchvision import models

    last = torch.channels_last
    model = getattr(models, name)(num_classes=10).to(DEVICE, memory_format=last)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    resident = torch.randn(BATCH, 3, 224, 224, device=DEVICE, dtype=torch.bfloat16)
    resident = resident.to(memory_format=last)
    labels = torch.arange(BATCH, device=DEVICE) % 10

    def steps(batches: Any) -> Iterator[int]:
        while True:
            for images, *_ in batches:
                with torch.autocast(DEVICE, dtype=torch.bfloat16):
                    loss = torch.nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                yield len(images)

    def folders() -> Any:
        workers = by_workers(image_folder(folder), BATCH, CORES)
        return packio.DevicePrefetcher(workers, DEVICE, memory_format=last, **SCALE)

    sources: dict[str, Callable[[], Any]] = {
        "batches on the device": lambda: [(resident,)],
        "packio.Loader": lambda: loaded(folder, last),
        "packio.Loader, nvjpeg": lambda: loaded(folder, last, decoder="nvjpeg"),
        "packio.DaliLoader": lambda: by_dali(folder, last),
        "ImageFolder, workers": folders,
    }
    ways = {name: lambda make=make: steps(make()) for name, make in sources.items()}
    yield from rates(ways, waiting=24 if GPU else 1)


# ---- pixels ----


def sums(folder: Path, *, busy: bool) -> list[int]:
    """A checksum of each batch of an epoch; busy: behind kernels that are slow."""
    ds = packio.PackDataset(folder / "plain.tfrecord", seed=0, decoder="nvjpeg", **CROP)
    weights = torch.arange(3 * 224 * 224, device=DEVICE).view(3, 224, 224) % 8191
    slow = torch.rand(4096, 4096, device=DEVICE)
    made = []
    for images, _ in packio.Loader(ds, BATCH, shuffle=True, device=DEVICE):
        for _ in range(20 * busy):
            slow = (slow @ slow).clamp_(0, 1)
        made.append((images.long() * weights).sum())  # then freed, with this still in the queue
        del images
    return [int(one) for one in made]


def pixels(folder: Path) -> Iterator[Result]:
    """Whether nvJPEG's are Pillow's, and stay what they are."""

    def parity() -> Result:
        found = decode.measure(
            folder / "plain.tfrecord", decoders=["nvjpeg"], threads=[1], rounds=1, limit=200
        )
        return {"refused": found.rows[0].refused, **vars(found.rows[0].difference)}

    def stable() -> Result:
        quiet = sums(folder, busy=False)
        same = [sums(folder, busy=True) == quiet for _ in range(3)]
        return {"batches": len(quiet), "runs": len(same), "runs_that_are_equal": sum(same)}

    result = {"nvjpeg against Pillow, grey levels": tried(parity)}
    yield result
    yield {**result, "nvjpeg behind slow kernels": tried(stable)}


# ---- copying ----


def network() -> torch.nn.Module:
    """A small network of convolutions."""
    layers: list[torch.nn.Module] = []
    for before, after in ((3, 64), (64, 128), (128, 256), (256, 512)):
        layers += [torch.nn.Conv2d(before, after, 3, 2, 1), torch.nn.BatchNorm2d(after)]
        layers += [torch.nn.ReLU(inplace=True)]
    layers += [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(512, 10)]
    return torch.nn.Sequential(*layers).to(DEVICE)


def hidden(dtype: torch.dtype) -> Iterator[Result]:
    """Milliseconds of a step, with images of one type that are here, prefetched, or copied."""
    model, labels = network(), torch.arange(BATCH, device=DEVICE) % 10
    batch = torch.randint(0, 256, (BATCH, 3, SIDE, SIDE), dtype=torch.uint8).to(dtype)
    batch = batch.div_(255) if dtype.is_floating_point else batch
    batch, resident = batch.pin_memory() if GPU else batch, batch.to(DEVICE)
    prepare = functools.partial(
        packio.DevicePrefetcher, device=DEVICE, normalize=SCALE["normalize"]
    )

    def step(images: torch.Tensor) -> None:
        model.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(model(images), labels).backward()

    def copied() -> Iterator[torch.Tensor]:
        for _ in range(STEPS):
            yield batch.to(DEVICE)

    ways: dict[str, Callable[[], Any]] = {
        "resident": lambda: prepare([resident] * STEPS),
        "prefetched": lambda: prepare([batch] * STEPS),
        "copied": lambda: prepare(copied()),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(2 * ROUNDS + 1):
        for name in sorted(ways, reverse=bool(number % 2)):
            wait()
            began = time.perf_counter()
            for images in ways[name]():
                step(images)
            wait()
            if number:  # the first is for cuDNN, and the allocator
                found[name].append(1e3 * (time.perf_counter() - began) / STEPS)
    result: Result = {f"{name}_ms": _results.summary(ms, 3) for name, ms in found.items()}
    if GPU:
        rounds = zip(found["resident"], found["prefetched"], found["copied"], strict=True)
        result["hidden"] = _results.summary([1 - (b - a) / (c - a) for a, b, c in rounds], 3)
    yield result


def copying(_: Path) -> Iterator[Result]:
    """Steps with uint8 and with float32 images."""
    result: Result = {}
    for dtype in (torch.uint8, torch.float32):
        found = tried(lambda dtype=dtype: next(hidden(dtype)))
        result[str(dtype).removeprefix("torch.")] = found
        yield result


def memory_formats(_: Path) -> Iterator[Result]:
    """Every layout, here."""
    small = {} if GPU else {"batch_size": 2, "size": 64, "rounds": 1}
    yield memory_format.measure(device=DEVICE, **small).as_dict()


PARTS = {
    "loaders": loaders,
    "scaling": scaling,
    "training": training,
    "dali": dali,
    "pixels": pixels,
    "copying": copying,
    "memory_format": memory_formats,
}


def measured(part: str, folder: Path) -> Any:
    """What another process finds out: its last line, if it had not ended in time."""
    command = [sys.executable, __file__, "--part", part, "--folder", str(folder)]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as said:
        try:
            code = subprocess.run(
                command, check=False, stdout=out, stderr=said, timeout=LIMITS[part]
            ).returncode
        except subprocess.TimeoutExpired:
            code = f"not done after {LIMITS[part]} seconds"
        out.seek(0)
        said.seek(0)
        lines, errors = out.read().splitlines(), said.read().splitlines()
    found = tried(lambda: json.loads(lines[-1])) if lines else {}
    return found if code == 0 else {**found, "error": f"{code}: {' | '.join(errors[-3:])}"}


def main() -> None:
    """Measure and print; with --save into benchmarks/results/gpu.json."""
    parser = _results.parser(__doc__)
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help="where images and pack are, or are made")
    parser.add_argument("--only", choices=PARTS, action="append", help="this part; repeatable")
    parser.add_argument("--out", type=Path, help="JSON to write as results come, and to add to")
    given = parser.parse_args()
    if given.part:
        for result in PARTS[given.part](given.folder):
            print(json.dumps(result), flush=True)
        os._exit(0)  # whatever threads a library has left
    name = torch.cuda.get_device_name() if GPU else "cpu (no GPU on this machine)"
    result: Result = {"machine": _results.machine(*PACKAGES, device=name)}
    with tempfile.TemporaryDirectory() as made:
        folder = given.folder or Path(made)
        if not (folder / "plain.tfrecord").exists():
            make_packs(folder)
        index = packio.open(folder / "plain.tfrecord").index_file
        sizes = index.column("image/length").array()
        result["data"] = {"images": IMAGES, "bytes": round(float(sizes.mean())), "batch": BATCH}
        if given.out and given.out.exists():
            result = {**json.loads(given.out.read_text()), **result}
        for part in given.only or PARTS:
            began = time.perf_counter()
            result[part] = measured(part, folder)
            print(f"{part}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
            if given.out:
                given.out.write_text(_results.text(result) + "\n")
    _results.finish("gpu", result, keep=given.save)


if __name__ == "__main__":
    main()
