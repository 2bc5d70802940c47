"""How the index grows: building, opening and random rows, from 10^5 to 10^10 samples.

Each measurement runs in a process of its own. "peak_mb" is the peak of its resident memory, pages
of files included; "anonymous" leaves those out, and is looked at 20 times a second. Samples are
tiny: 16 zero bytes in a sparse file, a key like those of ImageNet (28 bytes), facts of a JPEG, and
a label.

* build: records go through `IndexBuilder` into one index file; seconds and peak memory by number of
  samples, and the slopes of both between the two largest numbers.
* build_shards: the same in shards, in as many processes as `--workers` says, then joined to one
  index as packing publishes it. All processes together: the peaks of the workers, and what is
  anonymous of the one that joins; the pages of the indexes that it reads come on top, and can be
  dropped at any time.
* one: the joined index of `--one` samples over sparse shards. `packio.open`: milliseconds, and the
  growth of memory. Random rows, once all blocks that they touch have been checked: microseconds of
  processor time a row (other programs do not count) by ``pack.row(i)``, by ``pack.rows(256
  indices)``, ``pack[i]`` (the bytes too), ``pack.key(i)`` and ``pack.label(i)``; a key, and a key
  that is nowhere; and memory again.

    python benchmarks/index_scale.py [--build 100000,300000,1000000] [--sharded 4000000]
        [--one 10000000] [--shard 1000000] [--workers 2] [--rows 20000] [--work FOLDER] [--save]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _results
import numpy as np

import packio
from packio.errors import KeyNotFoundError
from packio.index import columns, indexfile
from packio.index.building import IndexBuilder, Ranges
from packio.sample.record import Facts, Field, Record

LENGTH = 16  # bytes of a sample
BATCH = 256
SECONDS = 0.05  # between two looks at the memory
FACTS = Facts("jpeg", 375, 500, 3, "uint8", 1, progressive=False)
DATA = b"\0" * LENGTH


def numbers(text: str) -> list[int]:
    """Numbers with commas between."""
    return [int(number) for number in text.split(",") if number]


def key(row: int) -> bytes:
    """Key of a row; neighbours are far apart in the order of the keys."""
    folder = row * 2_654_435_761 % 1000
    return b"n%08d/n%08d_%08d" % (folder, folder, row)


def table(
    first: int, count: int, name: str, key: Callable[[int], bytes] = key
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The columns of an index of some rows, and its fields."""
    builder = IndexBuilder()
    for row in range(first, first + count):
        fields = {"image": Field("image", DATA, FACTS)}
        builder.add(Record(key(row), fields, row % 1000))
    places = Ranges(
        np.zeros(count, np.uint32), np.arange(count, dtype=np.int64) * LENGTH,
        np.full(count, LENGTH, np.int64),
    )  # fmt: skip
    return builder.columns({"image": places}) | of_files([name], count), builder.fields


def of_files(names: list[str], count: int) -> dict[str, np.ndarray]:
    """A table of files of as many samples each."""
    data, starts = columns.join_values([os.fsencode(name) for name in names])
    return {
        "file_bytes": np.full(len(names), count * LENGTH, np.int64),
        "file_digest": np.zeros((len(names), 32), np.uint8),
        "file_path_data": data, "file_path_offsets": starts,
    }  # fmt: skip


def metadata(names: list[str], count: int, **more: Any) -> dict[str, Any]:
    """Metadata of an index."""
    return {
        "version": indexfile.VERSION, "format": "tar", "fields": {"image": "image"},
        "shards": [{"name": name, "samples": count} for name in names], **more,
    }  # fmt: skip


def write_shard(folder: Path, number: int, count: int, key: Callable[[int], bytes] = key) -> str:
    """Write the index of a shard; return its name."""
    name = f"train-{number:05d}.tar"
    table_, _ = table(number * count, count, name, key)
    indexfile.write(folder / f"{name}.packio", table_, metadata([name], count))
    return name


def peak() -> float:
    """Peak of resident memory of this process, or of the largest of its children, in MB."""
    return max(
        resource.getrusage(who).ru_maxrss / 1e3
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )


class Watched:
    """Looks at the memory of this process that belongs to no file, while it works."""

    def __init__(self) -> None:
        self.peak = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        status, has_ended = Path("/proc/self/status"), False
        while not has_ended:
            has_ended = self._stop.wait(SECONDS)
            found = re.search(r"RssAnon:\s+(\d+)", status.read_text())
            self.peak = max(self.peak, int(found[1]) / 1e3 if found else 0.0)


def resident() -> float:
    """Memory of this process that belongs to no file, in MB."""
    return _results.memory(os.getpid())["Pss_Anon"] / 1e6


def build(folder: Path, count: int, _: argparse.Namespace) -> dict[str, Any]:
    """One index of all samples."""
    before, began = peak(), time.perf_counter()
    made, _fields = table(0, count, "train.tar")
    added = time.perf_counter() - began
    indexfile.write(folder / "index", made, metadata(["train.tar"], count))
    seconds = time.perf_counter() - began
    size = (folder / "index").stat().st_size
    return {
        "samples": count,
        "seconds": round(seconds, 2),
        "columns_seconds": round(added, 2),
        "peak_mb": round(peak()),
        "peak_growth_mb": round(peak() - before),
        "bytes_a_sample": round(size / count, 1),
        "bytes_a_sample_without_keys": round((size - len(made["key_data"])) / count, 1),
    }


def build_shards(folder: Path, count: int, given: argparse.Namespace) -> dict[str, Any]:
    """Indexes of shards, made in several processes, and joined to one."""
    before, began = peak(), time.perf_counter()
    tasks = [(folder, number, given.shard) for number in range(count // given.shard)]
    with multiprocessing.get_context("spawn").Pool(given.workers, maxtasksperchild=None) as pool:
        names = pool.starmap(write_shard, tasks, chunksize=1)
        pool.close()
        pool.join()
    of_worker = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3
    seconds = time.perf_counter() - began
    joined = join(folder, names, given.shard)
    return {
        "samples": count,
        "shards": len(names),
        "workers": given.workers,
        "seconds": round(seconds, 1),
        "peak_mb_of_a_worker": round(of_worker),
        "peak_mb_before": round(before),
        **joined,
        "bytes_a_sample": round((folder / indexfile.INDEX_NAME).stat().st_size / count, 1),
    }


def join(folder: Path, names: list[str], count: int) -> dict[str, Any]:
    """Join the indexes of shards into one index; find all of some keys in it."""
    before, began = resident(), time.perf_counter()
    with Watched() as watched:
        parts = [
            indexfile.Index(folder / f"{n}.packio", is_one_of_many=True, stays_open=False)
            for n in names
        ]
        tables = [{n: p.column(n).array() for n in p.column_names} for p in parts]
        made = columns.join_tables(tables, [1] * len(names))
        made |= of_files(names, count)
        indexfile.write(folder / indexfile.INDEX_NAME, made, metadata(names, count))
    seconds = time.perf_counter() - began
    index, total = indexfile.Index(folder / indexfile.INDEX_NAME), count * len(names)
    for row in range(0, total, max(total // 1000, 1)):
        if index.find(key(row)) != row:
            raise SystemExit(f"row {row} is not found")
    return {
        "joined_seconds": round(seconds, 1),
        "joined_anonymous_growth_mb": round(watched.peak - before),
    }


def one(folder: Path, count: int, given: argparse.Namespace) -> dict[str, Any]:
    """Opening a pack with one index, random rows of it, and keys."""
    names = [write_shard(folder, number, given.shard) for number in range(count // given.shard)]
    for name in names:
        with (folder / name).open("wb") as file:
            file.truncate(given.shard * LENGTH)
    result = {"samples": count, "shards": len(names), **join(folder, names, given.shard)}
    for step in (opening, rows, find):
        result |= step(folder, count, given)
    return result


def opening(folder: Path, count: int, given: argparse.Namespace) -> dict[str, Any]:
    """Opening the pack, six times."""
    del given
    before, values, used = resident(), [], []
    for _ in range(6):
        began, processor = time.perf_counter(), time.process_time()
        pack = packio.open(folder)
        values.append(1e3 * (time.perf_counter() - began))
        used.append(1e3 * (time.process_time() - processor))
    if len(pack) != count:
        raise SystemExit(f"{len(pack)} samples, expected {count}")
    return {
        "open_ms": round(values[0], 2),
        "open_again_ms": _results.summary(values[1:], 2)["median"],
        "open_again_processor_ms": _results.summary(used[1:], 2)["median"],
        "open_growth_mb": round(resident() - before, 2),
        "index_mb": round((folder / indexfile.INDEX_NAME).stat().st_size / 1e6, 2),
    }


def rows(folder: Path, count: int, given: argparse.Namespace) -> dict[str, Any]:
    """Random rows: once to check all blocks, then again."""
    before, pack = resident(), packio.open(folder)
    opened = resident()
    draw = np.random.default_rng(0)
    first, again = (draw.integers(0, count, given.rows) for _ in range(2))
    batches = [draw.integers(0, count, BATCH) for _ in range(max(given.rows // BATCH, 1))]
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    result: dict[str, Any] = {"rows": given.rows, "descriptors": descriptors}

    def per_row(work: Callable[[int], object], wanted: list[int]) -> float:
        began = time.process_time()
        for i in wanted:
            work(i)
        return round(1e6 * (time.process_time() - began) / len(wanted), 2)

    ways: dict[str, Callable[[int], object]] = {
        "row": pack.row, "key": pack.key, "label": pack.label, "sample": pack.__getitem__,
    }  # fmt: skip
    for name, work in ways.items():
        result[f"{name}_us_cold"] = per_row(work, first.tolist())
        per_row(work, again.tolist())
        result[f"{name}_us"] = per_row(work, again[::-1].tolist())
    for _ in range(2):
        began = time.process_time()
        for batch in batches:
            pack.rows(batch)
        seconds = time.process_time() - began
    result["rows_of_256_us_a_row"] = round(1e6 * seconds / (BATCH * len(batches)), 2)
    result["growth_mb"] = round(resident() - opened, 1)
    result["growth_with_opening_mb"] = round(resident() - before, 1)
    return result


def find(folder: Path, count: int, given: argparse.Namespace) -> dict[str, Any]:
    """Microseconds to find the last key, and a key that is nowhere."""
    del given
    index, wanted = indexfile.Index(folder / indexfile.INDEX_NAME), key(count - 1)

    def nowhere() -> None:
        try:
            index.find(b"nowhere")
        except KeyNotFoundError:
            return

    result: dict[str, Any] = {}
    for name, work in (("last_key", lambda: index.find(wanted)), ("no_key", nowhere)):
        values = []
        for _ in range(6):
            began = time.process_time()
            work()
            values.append(1e6 * (time.process_time() - began))
        result |= {f"{name}_us_cold": round(values[0]), f"{name}_us": round(min(values[1:]))}
    return result


STEPS = {"build": build, "build_shards": build_shards, "one": one}


def in_process(step: str, folder: Path, count: int, given: argparse.Namespace) -> dict[str, Any]:
    """Run a step in a new process."""
    folder.mkdir(exist_ok=True)
    arguments = ["--shard", given.shard, "--workers", given.workers, "--rows", given.rows]
    done = subprocess.run(
        [sys.executable, __file__, "--step", step, "--at", folder, "--samples", str(count),
         *map(str, arguments)],
        check=True, stdout=subprocess.PIPE,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    print(step, count, found, file=sys.stderr)
    return found


def slopes(found: list[dict[str, Any]]) -> dict[str, float]:
    """Bytes of memory and microseconds for each further sample."""
    if len(found) < 2:
        return {}
    small, large = found[-2:]
    more = large["samples"] - small["samples"]
    return {
        "peak_bytes_a_sample": round(1e6 * (large["peak_mb"] - small["peak_mb"]) / more, 1),
        "us_a_sample": round(1e6 * (large["seconds"] - small["seconds"]) / more, 2),
    }


def main() -> None:
    """Measure and print; with --save into benchmarks/results/index_scale.json."""
    parser = _results.parser(__doc__)
    parser.add_argument("--build", type=numbers, default=[100_000, 300_000, 1_000_000])
    parser.add_argument("--sharded", type=numbers, default=[4_000_000])
    parser.add_argument("--one", type=numbers, default=[10**7])
    parser.add_argument("--shard", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--work", type=Path, help="folder to write in; default: the temporary one")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--at", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--samples", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.step:
        print(json.dumps(STEPS[given.step](given.at, given.samples, given)))
        return
    result: dict[str, Any] = {"machine": _results.machine("numpy", kernel=platform.release())}
    with tempfile.TemporaryDirectory(dir=given.work) as name:
        work = Path(name)
        result["build"] = [in_process("build", work / "one", n, given) for n in given.build]
        result["build_slopes"] = slopes(result["build"])
        for step, sizes in (("build_shards", given.sharded), ("one", given.one)):
            result[step] = []
            for n in sizes:
                result[step].append(in_process(step, work / f"{step}-{n}", n, given))
                subprocess.run(["rm", "-r", work / f"{step}-{n}"], check=True)
    _results.finish("index_scale", result, keep=given.save)


if __name__ == "__main__":
    main()
