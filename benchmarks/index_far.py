"""An index at a URL: copied whole when its pack is opened, or read by blocks.

    python benchmarks/index_far.py [--samples 10000000] [--wait 0.01] [--rounds 3] [--work FOLDER]
        [--save]

A server of this repository (_bucket.py) speaks S3's protocol and waits before each answer. The
index is that of index_scale.py, in shards that are joined to one file, as packing does; "join" says
what that takes. Each way runs in turns with the other, in a process of its own with an empty cache:
"open" is `packio.open`, imports not counted; "first_batch" are the rows of 256 random samples,
"rows" those of 10,000 in batches of 256; "keys" their keys; "find" 20 samples by their keys;
"labels" all labels; "open_again" and "rows_again" are the same in another process, with the cache
that the first one has left. Seconds, requests and bytes are those of each step alone. The line is
as fast as two processors copy; "seconds_at_1_gbit" adds what the bytes take over such a line.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _results
import index_scale
import numpy as np

HERE = Path(__file__).parent
WAYS = ("whole", "blocks")
ROWS, BATCH, FOUND = 10_000, 256, 20
LINE = 125e6  # bytes a second of 1 Gbit/s


def make(folder: Path, count: int, shard: int) -> dict[str, Any]:
    """Write a pack of shards of zeros with one index; say what joining their indexes takes."""
    from packio.index import columns, indexfile

    numbers = range(count // shard)
    tasks = [(folder, number, shard) for number in numbers]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        names = pool.starmap(index_scale.write_shard, tasks, chunksize=1)
    for name in names:
        with (folder / name).open("wb") as file:
            file.truncate(shard * index_scale.LENGTH)
    before = index_scale.resident()
    began, used = time.perf_counter(), time.process_time()
    with index_scale.Watched() as watched:
        parts = [
            indexfile.Index(folder / f"{n}.packio", is_one_of_many=True, stays_open=False)
            for n in names
        ]
        tables = [{n: p.column(n).array() for n in p.column_names} for p in parts]
        made = columns.join_tables(tables, [1] * len(names))
        path = folder / indexfile.INDEX_NAME
        indexfile.write(path, made, index_scale.metadata(names, shard))
    found = {
        "samples": count, "shards": len(names), "seconds": round(time.perf_counter() - began, 1),
        "processor_seconds": round(time.process_time() - used, 1),
        "anonymous_growth_mb": round(watched.peak - before),
        "bytes_read": sum((folder / f"{n}.packio").stat().st_size for n in names),
        "bytes_written": path.stat().st_size,
    }  # fmt: skip
    del made, tables, parts
    for name in names:
        (folder / f"{name}.packio").unlink()
    return found


def child(way: str, url: str, again: str) -> None:
    """Take the steps; print the seconds of each, and wait for a line before the next."""
    import packio
    from packio.storage import remote, stores, urls

    remote.WHOLE = sys.maxsize if way == "whole" else remote.WHOLE
    stores.open_url(urls.Url(url)).facts("")  # imports what it takes
    draw = np.random.default_rng(0)

    def step(name: str, work: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        found = work()
        seconds = time.perf_counter() - began
        print(json.dumps({"step": name, "seconds": seconds}), flush=True)
        sys.stdin.readline()
        return found

    pack = step("open" + again, lambda: packio.open(url))
    batches = [draw.integers(0, len(pack), BATCH) for _ in range(-(-ROWS // BATCH))]
    step("first_batch" + again, lambda: pack.rows(batches[0]))
    step("rows" + again, lambda: [pack.rows(batch) for batch in batches])
    if not again:
        step("keys", lambda: [_keys(pack, batch) for batch in batches])
        some = draw.integers(0, len(pack), FOUND).tolist()
        names = [index_scale.key(row) for row in some]
        if step("find", lambda: list(map(pack.find, names))) != some:
            raise SystemExit("not found")
        step("labels", lambda: int(pack.labels.sum()))


def _keys(pack: Any, batch: np.ndarray) -> list[str]:
    pack.bring("key", batch)
    return [pack.key(i) for i in batch.tolist()]


def measure(way: str, port: int, url: str) -> dict[str, Any]:
    """The steps of one way, with an empty cache and with the one that is left."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as cache:
        for again in ("", "_again"):
            _counts(port)
            env = {
                **os.environ, "AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "nothing",
                "AWS_DEFAULT_REGION": "us-east-1", "PACKIO_CACHE_DIR": cache,
                "FSSPEC_S3": json.dumps({"endpoint_url": f"http://127.0.0.1:{port}"}),
                "PYTHONPATH": str(HERE.parent),
            }  # fmt: skip
            process = subprocess.Popen(
                [sys.executable, __file__, "--child", way, url, again],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env,
            )  # fmt: skip
            for line in process.stdout or ():
                told = json.loads(line)
                found[told["step"]] = {"seconds": told["seconds"], **_counts(port)}
                print(file=process.stdin, flush=True)
            if process.wait():
                raise SystemExit(f"{way}: ended with {process.returncode}")
        found["cache_bytes"] = sum(
            512 * path.stat().st_blocks for path in Path(cache).rglob("*") if path.is_file()
        )
    return found


def _counts(port: int) -> dict[str, int]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/counts") as answer:
        found: dict[str, int] = json.load(answer)
    return found


def together(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of one way over the rounds; requests and bytes are the same in all."""
    found: dict[str, Any] = {"cache_bytes": rounds[-1]["cache_bytes"]}
    for step in (name for name in rounds[0] if name != "cache_bytes"):
        seconds = _results.summary([turn[step]["seconds"] for turn in rounds], 3)
        size = rounds[-1][step]["bytes"]
        found[step] = {
            "seconds": seconds, "requests": rounds[-1][step]["requests"], "bytes": size,
            "seconds_at_1_gbit": round(seconds["median"] + size / LINE, 2),
        }  # fmt: skip
    return found


def main() -> None:
    """Measure both ways."""
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:5])
        return
    parser = _results.parser(__doc__, rounds=3)
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument("--shard", type=int, default=1_000_000)
    parser.add_argument("--wait", type=float, default=0.01)
    parser.add_argument("--work", type=Path, help="folder to write in; default: the temporary one")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.work) as name:
        folder = Path(name, "bucket", "train")
        folder.mkdir(parents=True)
        result: dict[str, Any] = {
            "machine": _results.machine("numpy", "s3fs", "urllib3"), "wait": given.wait,
            "rounds": given.rounds, "join": make(folder, given.samples, given.shard),
        }  # fmt: skip
        print(result["join"], file=sys.stderr)
        server = subprocess.Popen(
            [sys.executable, HERE / "_bucket.py", name, str(given.wait)],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        turns: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
        try:
            port = int(next(iter(server.stdout or ())))
            for number in range(given.rounds):
                for way in WAYS[number % 2 :] + WAYS[: number % 2]:
                    turns[way].append(measure(way, port, "s3://bucket/train"))
                    print(way, turns[way][-1], file=sys.stderr, flush=True)
        finally:
            server.terminate()
            server.wait()
    result |= {way: together(turns[way]) for way in WAYS}
    result["open_and_rows_whole_to_blocks"] = [
        round(sum(one[s]["seconds"] for s in ("open", "first_batch", "rows"))
              / sum(other[s]["seconds"] for s in ("open", "first_batch", "rows")), 2)
        for one, other in zip(turns["whole"], turns["blocks"], strict=True)
    ]  # fmt: skip
    _results.finish("index_far", result, keep=given.save)


if __name__ == "__main__":
    main()
