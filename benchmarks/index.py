"""What the index of ten million samples costs: bytes, opening, looking up, and eight workers.

An index with all columns that are required and a label, of keys like those of ImageNet, is written
with `packio.index.indexfile.write`. Then, from the page cache:

* bytes a sample, keys apart;
* opening it: milliseconds;
* finding a key, where its blocks have been checked before, and where they have not;
* an epoch: 8 forked workers, as DataLoader's, share one opened index and take the rows of a random
  permutation, 256 at a time, from all columns. PSS (what a process holds, pages that are shared
  counted in parts) of parent and workers together is compared before and after. The parent has
  touched the whole file before, so its pages count from the beginning.

    python benchmarks/index.py [--samples 10000000] [--rounds 15] [--work FOLDER] [--save]
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import _results
import numpy as np

from packio.index import indexfile

WORKERS, BATCH, LOOKUPS = 8, 256, 2000
CLASSES = 1000
FIRST_CLASS, DIGITS = 1_440_764, 8
OTHERS = ("key_data", "key_offsets", "key_order",
          "file_bytes", "file_digest", "file_path_data", "file_path_offsets")  # fmt: skip
SHARD = 1 << 20  # samples


def key(row: int, count: int) -> bytes:
    """Key of a row."""
    wnid = FIRST_CLASS + 7 * (row * CLASSES // count)
    return b"n%08d/n%08d_%08d.JPEG" % (wnid, wnid, row)


def digits(numbers: np.ndarray) -> np.ndarray:
    """Numbers as rows of 8 ASCII digits."""
    powers = 10 ** np.arange(DIGITS - 1, -1, -1)
    return np.stack([(numbers // power % 10 + ord("0")).astype(np.uint8) for power in powers], 1)


def keys(count: int) -> dict[str, np.ndarray]:
    """The columns of keys."""
    width = len(key(0, count))
    data = np.empty((count, width), np.uint8)
    data[:] = np.frombuffer(key(0, count), np.uint8)
    rows = np.arange(count)
    data[:, 1:9] = data[:, 11:19] = digits(FIRST_CLASS + 7 * (rows * CLASSES // count))
    data[:, 20:28] = digits(rows)
    return {
        "key_data": data.reshape(-1),
        "key_offsets": np.arange(count + 1) * width,
        "key_order": rows.astype(np.uint32),  # a folder is listed in this order
    }


def write(path: Path, count: int) -> None:
    """The index of an image folder in shards of about a million samples."""
    random = np.random.default_rng(0)
    length = random.integers(20_000, 200_000, count)
    shards = -(-count // SHARD)
    file = (np.arange(count) // SHARD).astype(np.uint32)
    offset = np.zeros(count, np.int64)
    shard_bytes: list[int] = []
    for shard in range(shards):
        rows = slice(shard * SHARD, (shard + 1) * SHARD)
        ends = np.cumsum(length[rows])
        offset[rows] = ends - length[rows]
        shard_bytes.append(int(ends[-1]))
    paths = [b"train-%05d.tar" % shard for shard in range(shards)]
    of_images = {
        "file": file, "offset": offset, "length": length,
        "crc32c": random.integers(0, 1 << 32, count, np.uint32),
        "height": random.integers(100, 1000, count, np.uint32),
        "width": random.integers(100, 1000, count, np.uint32),
        **{n: np.ones(count, np.uint8) for n in ("encoding", "orientation")},
        "channels": np.full(count, 3, np.uint8),
        **{n: np.zeros(count, np.uint8) for n in ("dtype", "flags")},
    }  # fmt: skip
    columns = {
        **{f"image/{name}": column for name, column in of_images.items()},
        "label": np.arange(count) * CLASSES // count,
        **keys(count),
        "file_bytes": np.array(shard_bytes, np.int64),
        "file_digest": np.zeros((shards, 32), np.uint8),
        "file_path_data": np.frombuffer(b"".join(paths), np.uint8),
        "file_path_offsets": np.cumsum([0, *map(len, paths)]),
    }  # fmt: skip
    indexfile.write(path, columns, {"version": indexfile.VERSION, "format": "tar"})


def sizes(path: Path) -> dict[str, float]:
    """Bytes a sample, of the file and of its columns without keys."""
    index = indexfile.Index(path)
    columns = [index.column(n) for n in index.column_names if n not in OTHERS]
    return {
        "file_megabytes": round(path.stat().st_size / 1e6, 1),
        "bytes_a_sample": round(path.stat().st_size / len(index), 1),
        "bytes_a_sample_without_keys": sum(column.dtype.itemsize for column in columns),
    }


def open_milliseconds(path: Path, rounds: int) -> dict[str, float]:
    """How long opening takes; as `packio.open`, it also lists the files."""
    values = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        indexfile.Index(path).files()
        values.append(1e3 * (time.perf_counter() - began))
    return _results.summary(values[1:], 2)


def lookup_micros(path: Path, count: int, rounds: int) -> dict[str, Any]:
    """How long finding a key takes: the first time, when blocks are checked, and then."""
    rows = np.random.default_rng(1).integers(0, count, LOOKUPS).tolist()
    wanted = [key(row, count) for row in rows]
    index, values = indexfile.Index(path), []
    began = time.perf_counter()
    index.find(wanted[0])
    first = 1e6 * (time.perf_counter() - began)
    if [index.find(k) for k in wanted] != rows:
        raise SystemExit("wrong rows were found")
    for _ in range(rounds):
        began = time.perf_counter()
        for k in wanted:
            index.find(k)
        values.append(1e6 * (time.perf_counter() - began) / LOOKUPS)
    return {"first": round(first, 1), **_results.summary(values, 2)}


def megabytes(pid: int) -> dict[str, float]:
    """PSS of a process: all of it, and what belongs to no file."""
    found = _results.memory(pid)
    return {"pss": found["Pss"] / 1e6, "anonymous": found["Pss_Anon"] / 1e6}


def together(pids: list[int]) -> dict[str, float]:
    """PSS of processes, summed."""
    each = [megabytes(pid) for pid in pids]
    return {name: round(sum(e[name] for e in each), 1) for name in ("pss", "anonymous")}


def epoch(index: indexfile.Index, rows: np.ndarray, pipe: Connection) -> None:
    """What a worker does: says that it is there, takes its rows when told, and stays until told."""
    columns = [index.column(n) for n in index.column_names if n not in OTHERS]
    np.unique(np.arange(BATCH))  # numpy's lazy imports are over
    pipe.send(None)
    pipe.recv()
    began = time.perf_counter()
    for i in range(0, len(rows), BATCH):
        for column in columns:
            column.take(rows[i : i + BATCH])
    pipe.send(time.perf_counter() - began)
    pipe.recv()


def workers(path: Path, count: int) -> dict[str, Any]:
    """PSS of parent and workers, before an epoch and after it."""
    seen = indexfile.Index(path)
    for name in seen.column_names:
        seen.column(name).array()  # touches every page; what the workers get is opened anew
    index, context = indexfile.Index(path), multiprocessing.get_context("fork")
    shares = np.array_split(np.random.default_rng(2).permutation(count), WORKERS)
    pipes, processes = [], []
    for rows in shares:
        ours, theirs = context.Pipe()
        process = context.Process(target=epoch, args=(index, rows, theirs), daemon=True)
        process.start()
        pipes.append(ours)
        processes.append(process)
    pids = [os.getpid(), *(process.pid or 0 for process in processes)]

    def wait() -> list[float]:
        return [pipe.recv() for pipe in pipes]

    def tell() -> None:
        for pipe in pipes:
            pipe.send(None)

    wait()
    before = together(pids)
    tell()
    seconds = wait()
    after = together(pids)
    tell()
    for process in processes:
        process.join()
    grown = after["anonymous"] - before["anonymous"]
    return {
        "workers": WORKERS,
        "epoch_seconds": round(max(seconds), 2),
        "pss_megabytes_before": before["pss"],
        "pss_megabytes_after": after["pss"],
        "pss_growth_percent": round(100 * (after["pss"] / before["pss"] - 1), 2),
        "anonymous_growth_megabytes_a_worker": round(grown / WORKERS, 2),
    }


def main() -> None:
    """Measure and print; with --save into benchmarks/results/index.json."""
    parser = _results.parser(__doc__, rounds=15)
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument("--work", type=Path, help="folder to write in; default: the temporary one")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.work) as name:
        path, count = Path(name) / indexfile.INDEX_NAME, given.samples
        write(path, count)
        result = {
            "machine": _results.machine("numpy", kernel=platform.release()),
            "rounds": given.rounds,
            "samples": count,
            **sizes(path),
            "open_ms": open_milliseconds(path, given.rounds),
            "find_key_us": lookup_micros(path, count, given.rounds),
            "epoch": workers(path, count),
        }
    _results.finish("index", result, keep=given.save)


if __name__ == "__main__":
    main()
