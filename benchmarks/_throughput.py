"""Bytes of packs; rates of packing, converting back, and of a pass over packs that are not cached.

Rates are of many copies of the images less those of one copy, which leaves out what starting two
processes takes.
"""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _results

import packio

COPIES = 6
Json = dict[str, Any]


def size_of(path: Path) -> int:
    """Bytes of a pack's images, levels and seek points."""
    with packio.open(path) as pack:
        index = pack.index_file
        lengths = [name for name in index.column_names if name.endswith("/length")]
        points = index.column("seek_data").array().nbytes if "seek_data" in index else 0
        return points + sum(int(index.column(name).array().sum()) for name in lengths)


def cost(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds of the clock, and of processors, those of processes that it started included."""
    began, before = time.perf_counter(), sum(os.times()[:4])
    work()
    return time.perf_counter() - began, sum(os.times()[:4]) - before


def open_keys(path: Path) -> list[str]:
    """Keys of the images whose coefficients are open in a pack."""
    with packio.open(path) as pack:
        return [sample.key for sample in pack if sample.encoding == "dct"]


def packing(images: list[Path], folder: Path, rounds: int) -> Json:
    """Images a second, and µs of a processor an image, by two processes that write two shards.

    All images are such as can be stored open.
    """
    for number, image in itertools.product(range(COPIES), images):
        to = folder / "many" / str(number) / image.parent.name / image.name
        to.parent.mkdir(parents=True, exist_ok=True)
        to.symlink_to(image.resolve())
    sources = [folder / "many" / "0", folder / "many"]
    opens = [packio.pack(s, folder / f"{s.name}.tar", encode="dct").out for s in sources]
    works = {"keep": (packio.pack, sources, "keep"), "dct": (packio.pack, sources, "dct"),
             "back to JPEG": (packio.convert, opens, "file")}  # fmt: skip
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    out, more = folder / "out.tar", (COPIES - 1) * len(images)
    for _ in range(rounds):
        for name, (make, given, encode) in works.items():
            turns = []
            for source in given:
                turns += [cost(lambda m=make, s=source, e=encode:
                               m(s, out, encode=e, num_workers=2, shards=2))]  # fmt: skip
                shutil.rmtree(out)
            taken[name].append((turns[1][0] - turns[0][0], turns[1][1] - turns[0][1]))
    return {
        name: {
            "images_per_second": _results.summary([more / wall for wall, _ in pairs], 0),
            "us": _results.summary([1e6 * cpu / more for _, cpu in pairs], 0),
        }
        for name, pairs in taken.items()
    }


def from_disk() -> int:
    """Bytes that this process had read from disks so far. Source: proc_pid_io(5)."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["read_bytes"])


def forget(pack: Path) -> None:
    """Take a pack of one file, and its index, out of the page cache."""
    for path in (pack, pack.with_name(f"{pack.name}.packio")):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cold(*packs: Path, rounds: int) -> Json:
    """A pass by packio.Loader, two threads, over a pack of which nothing is in the page cache."""
    taken: dict[str, list[tuple[float, int]]] = {pack.stem: [] for pack in packs}
    for number in range(rounds):
        for pack in packs:
            forget(pack)
            dataset = packio.PackDataset(pack, seed=number, crop=packio.RandomResizedCrop(224))
            loader, before = packio.Loader(dataset, 50, shuffle=True, threads=2), from_disk()
            wall, _ = cost(lambda loader=loader: all(True for _ in loader))
            taken[pack.stem].append((wall, from_disk() - before))
    return {
        name: {
            "images_per_second": _results.summary([len(dataset) / wall for wall, _ in pairs], 0),
            "mb_per_second": _results.summary([size / wall / 1e6 for wall, size in pairs], 0),
            "bytes_read": round(sum(size for _, size in pairs) / len(pairs) / len(dataset)),
        }
        for name, pairs in taken.items()
    }


def speeds(rows: Json) -> Json:
    """MB/s for each processor below which kept bytes are faster, as reading overlaps or not."""
    keep, dct = rows["keep"], rows["dct"]
    more, less = dct["bytes"] - keep["bytes"], keep["gather_us"]["median"]
    return {
        "read_ahead": round(dct["bytes"] / less),
        "one_after_the_other": round(more / (less - dct["gather_us"]["median"])),
    }
