"""What queries over ten million samples cost, beside DuckDB alone on the exported Parquet file.

A pack is made whose index has keys like those of ImageNet, labels, sizes and metadata; its samples
are holes of sparse files. `packio.export` writes its Parquet file. Then each expression is asked in
turns, round by round: by ``ds.where(…)`` over the index, and by DuckDB over the file. Both find the
same samples, or the benchmark fails. Seconds are of the clock; "cpu" is processor time of all
threads, which other programs on the machine change less. "once" is the first time that a name in
the metadata is asked for: packio looks up of which type its values are. "first" is a new process's
first query: it loads DuckDB, opens the pack, and checks the checksums of the columns.

"wide" is a second pack with metadata of eight names and 240 bytes a sample, whose queries find what
plain Python finds in the same objects.

"selection" is what `save_selection` of the last expression's samples takes, and opening it: the
first time, when its index is made, and the second.

    python benchmarks/queries.py [--samples 10000000] [--rounds 5] [--work FOLDER] [--save]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _results
import index
import numpy as np

import packio
from packio.index import indexfile

CLASSES = 1000
CITIES = ("Ulm", "Bonn", "Kiel", "Hof")
# Expression for where → the same over the file, where it differs.
EXPRESSIONS = {
    "width >= 512 AND class = 'class 7'": "",
    "width >= 512 AND height >= 512": "",
    "label IN (3, 5, 7)": "",
    "key LIKE '%/n0144%7.JPEG'": "",
    "bytes > 190000 OR width = height": "",
    "city = 'Ulm'": "",
    "city = 'Ulm' AND n > 500": "",
}


WIDE = {  # expression → what plain Python says of an object
    "city = 'Ulm'": lambda meta: meta["city"] == "Ulm",
    "city = 'Ulm' AND n > 500": lambda meta: meta["city"] == "Ulm" and meta["n"] > 500,
    "score > 9 OR license <> 'CC-BY-4.0' OR seen AND n < 300":
        lambda meta: meta["score"] > 9 or (meta["seen"] and meta["n"] < 300),
}  # fmt: skip
DISTINCT = 3600  # objects, which take turns


def narrow_object(i: int) -> dict[str, Any]:
    """The metadata of a sample: a city and a number of three digits."""
    return {"city": CITIES[i % 4], "n": 100 + i % 900}


def wide_object(i: int) -> dict[str, Any]:
    """Metadata as of photographs from the web."""
    return {
        "url": f"https://images.example.org/photos/{i * 7919:08d}/original.jpg",
        "caption": f"a photograph of number {i} in a street of the old town, taken in the evening",
        "license": "CC-BY-4.0", "score": round(i * 0.37 % 10, 3), **narrow_object(i),
        "taken": f"2024-0{1 + i % 9}-1{i % 10}", "seen": i % 3 == 0,
    }  # fmt: skip


def metadata(count: int, of: Callable[[int], dict[str, Any]]) -> dict[str, np.ndarray]:
    """The columns of the samples' metadata."""
    rows = np.arange(count)
    texts = [json.dumps(of(i), separators=(",", ":")).encode() for i in range(DISTINCT)]
    lengths = np.array([len(text) for text in texts])[rows % DISTINCT]
    ends = np.zeros(count + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    whole = np.frombuffer(b"".join(texts), np.uint8)
    return {"meta_data": np.resize(whole, int(ends[-1])), "meta_offsets": ends}


def write(folder: Path, count: int, name: str, of: Callable[[int], dict[str, Any]]) -> Path:
    """Make the pack: its index, and sparse files of the right sizes."""
    pack = folder / name
    pack.mkdir()
    index.write(folder / "plain.packio", count)
    plain = indexfile.Index(folder / "plain.packio")
    columns = {name: plain.column(name).array() for name in plain.column_names}
    for file_name, size, _ in plain.files():
        with (pack / file_name).open("wb") as file:
            file.truncate(size)
    counts = np.bincount(columns["image/file"]).tolist()
    said = {
        "version": indexfile.VERSION, "format": "tar", "access": "range",
        "fields": {"image": "image"}, "classes": [f"class {i}" for i in range(CLASSES)],
        "shards": [{"name": name, "samples": n}
                   for (name, _, _), n in zip(plain.files(), counts, strict=True)],
    }  # fmt: skip
    indexfile.write(pack / indexfile.INDEX_NAME, {**columns, **metadata(count, of)}, said)
    (folder / "plain.packio").unlink()
    return pack


def timed(work: Callable[[], Any]) -> tuple[dict[str, float], Any]:
    """Seconds by the clock and of all threads that a call takes, and what it returns."""
    clock, cpu = time.perf_counter(), time.process_time()
    found = work()
    took = {"seconds": time.perf_counter() - clock, "cpu": time.process_time() - cpu}
    return took, found


def compared(
    ds: packio.PackDataset, connection: Any, parquet: Path, rounds: int
) -> dict[str, Any]:  # fmt: skip
    """Each expression, asked in turns."""
    result = {}
    for expression, other in EXPRESSIONS.items():
        sql = f"SELECT \"index\" FROM '{parquet}' WHERE {other or expression}"  # noqa: S608 (ours)
        ours: list[dict[str, float]] = []
        theirs: list[dict[str, float]] = []
        for _ in range(rounds + 1):
            took, part = timed(lambda e=expression: ds.where(e))
            ours.append(took)
            took, table = timed(lambda s=sql: connection.execute(s).fetchnumpy())
            theirs.append(took)
        where = np.sort(np.asarray(table["index"]))
        if not np.array_equal(positions(part), where):
            raise SystemExit(f"{expression}: not what DuckDB finds")
        result[expression] = {"found": len(where), "once": rounded(ours[0])} | {
            name: {
                kind: _results.summary([one[kind] for one in each[1:]], 3)
                for kind in ("seconds", "cpu")
            }
            for name, each in (("where", ours), ("duckdb", theirs))
        }
        pairs = zip(ours[1:], theirs[1:], strict=True)
        quotients = [a["seconds"] / b["seconds"] for a, b in pairs]
        result[expression]["where/duckdb"] = _results.summary(quotients, 2)
        print(expression, result[expression], file=sys.stderr, flush=True)
    return result


def rounded(took: dict[str, float]) -> dict[str, float]:
    """Seconds to the millisecond."""
    return {name: round(value, 3) for name, value in took.items()}


def wide(pack: Path, rounds: int) -> dict[str, Any]:
    """Queries on the metadata of the second pack."""
    ds, result = packio.PackDataset(pack), {}
    objects = [wide_object(i) for i in range(DISTINCT)]
    for expression, test in WIDE.items():
        took = []
        for _ in range(rounds + 1):
            one, part = timed(lambda e=expression: ds.where(e))
            took.append(one)
        true = np.resize(np.array([bool(test(one)) for one in objects]), len(ds))
        if not np.array_equal(positions(part), np.flatnonzero(true)):
            raise SystemExit(f"{expression}: not what Python finds")
        result[expression] = {"found": len(part), "once": rounded(took[0])} | {
            kind: _results.summary([one[kind] for one in took[1:]], 3)
            for kind in ("seconds", "cpu")
        }
        print("wide", expression, result[expression], file=sys.stderr, flush=True)
    return result


def positions(part: packio.PackDataset) -> np.ndarray:
    """Positions of a dataset's samples in its pack."""
    found = part.with_options(fields="index", crop=None)
    return np.asarray(vars(found)["_chosen"].array)


EXPORT = """
import sys, threading, time
import packio

def anonymous():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))

peak, ended = [0], threading.Event()
def look():
    while not ended.wait(0.05):
        peak[0] = max(peak[0], anonymous())

with packio.open(sys.argv[1]) as pack:
    before = anonymous()
    threading.Thread(target=look).start()
    began, cpu = time.perf_counter(), time.process_time()
    report = packio.export(pack, sys.argv[2])
    took = time.perf_counter() - began, time.process_time() - cpu
    ended.set()
print(*took, report.bytes / 1e6, (peak[0] - before) / 1e3)
"""
FIRST = """
import sys, time
began = time.perf_counter()
import packio
ds = packio.PackDataset(sys.argv[1])
opened = time.perf_counter()
ds.where(sys.argv[2])
print(opened - began, time.perf_counter() - opened)
"""


def exported(pack: Path, parquet: Path) -> dict[str, float]:
    """What exporting takes in a process of its own; memory without the pages of files."""
    command = [sys.executable, "-c", EXPORT, str(pack), str(parquet)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    names = ("seconds", "cpu", "megabytes", "peak_anonymous_megabytes")
    return {name: round(float(word), 1) for name, word in zip(names, said, strict=True)}


def first(pack: Path, rounds: int) -> dict[str, Any]:
    """The first query of a new process."""
    found: list[list[float]] = []
    for _ in range(rounds):
        command = [sys.executable, "-c", FIRST, str(pack), next(iter(EXPRESSIONS))]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found.append([float(word) for word in said.split()])
    opening, query = zip(*found, strict=True)
    return {
        "import_and_open": _results.summary(list(opening), 2),
        "query": _results.summary(list(query), 2),
    }


def selection(ds: packio.PackDataset, folder: Path) -> dict[str, float]:
    """Saving a selection, and opening it twice."""
    part, out = ds.where(list(EXPRESSIONS)[-1]), folder / "x.selection"
    saved, _ = timed(lambda: part.save_selection(out))
    once, _ = timed(lambda: packio.open(out))
    again, _ = timed(lambda: packio.open(out))
    return {
        "samples": len(part), "megabytes": round(out.stat().st_size / 1e6, 1),
        **{name: round(took["seconds"], 3)
           for name, took in (("save", saved), ("open_first", once), ("open_again", again))},
    }  # fmt: skip


def plot(result: dict[str, Any], path: Path) -> None:
    """Draw the seconds of each expression."""
    from matplotlib import pyplot as plt

    names = list(result["expressions"])
    figure, axes = plt.subplots(figsize=(8, 4))
    for shift, who, label in (
        (-0.2, "where", "ds.where over the index"),
        (0.2, "duckdb", "DuckDB over the exported Parquet"),
    ):
        values = [result["expressions"][name][who]["seconds"] for name in names]
        middle = [value["median"] for value in values]
        low = [value["median"] - value["min"] for value in values]
        high = [value["max"] - value["median"] for value in values]
        places = np.arange(len(names)) + shift
        axes.barh(places, middle, 0.38, xerr=[low, high], label=label)
    axes.set_yticks(np.arange(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel(f"seconds over {result['samples']:,} samples, median, least and most")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)


def measured(folder: Path, count: int, rounds: int) -> dict[str, Any]:
    """All measurements."""
    import duckdb

    os.environ["PACKIO_CACHE_DIR"] = str(folder / "cache")
    pack, parquet = write(folder, count, "pack", narrow_object), folder / "x.parquet"
    export = exported(pack, parquet)
    ds = packio.PackDataset(pack)
    threads = len(os.sched_getaffinity(0))
    with duckdb.connect(":memory:", config={"threads": str(threads)}) as connection:
        expressions = compared(ds, connection, parquet, rounds)
    return {
        "samples": count,
        "index_megabytes": round((pack / indexfile.INDEX_NAME).stat().st_size / 1e6, 1),
        "export": export,
        "expressions": expressions,
        "wide": wide(write(folder, count, "wide", wide_object), rounds),
        "first": first(pack, rounds),
        "selection": selection(ds, folder),
    }  # fmt: skip


def main() -> None:
    """Measure, print, and save where it is asked for."""
    parser = _results.parser(__doc__, rounds=5)
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument("--work", type=Path, help="folder for the packs: 5 GB")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(dir=given.work) as name:
        found = measured(Path(name), given.samples, given.rounds)
    result = {
        "machine": _results.machine("duckdb", "pyarrow", "numpy", load=round(load, 1)), **found,
    }  # fmt: skip
    _results.finish("queries", result, keep=given.save)
    if given.save:
        plot(result, _results.FOLDER / "queries.svg")


if __name__ == "__main__":
    main()
