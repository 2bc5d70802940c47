"""What queries over ten million samples cost, beside DuckDB alone on the exported Parquet file.

A pack is made whose index has keys like those of ImageNet, labels, sizes and metadata; its samples
are holes of sparse files. `packio.export` writes its Parquet file. Then each expression is asked in
turns, round by round: by ``ds.where(…)`` over the index, and by DuckDB over the file. Both find the
same samples, or the benchmark fails. Seconds are of the clock; "cpu" is processor time of all
threads, which other programs on the machine change less. "first" is a new process's first query: it
loads DuckDB, opens the pack, and checks the checksums of the columns.

"selection" is what `save_selection` of the last expression's samples takes, and opening it: the
first time, when its index is made, and the second.

    python benchmarks/queries.py [--samples 10000000] [--rounds 5] [--work FOLDER] [--save]
"""

from __future__ import annotations

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
CITIES = (b"Ulm", b"Bonn", b"Kiel", b"Hof")
# Expression for where → the same over the file, where ``label`` is the number.
EXPRESSIONS = {
    "width >= 512 AND label = 'class 7'": "width >= 512 AND class = 'class 7'",
    "width >= 512 AND height >= 512": "",
    "label IN (3, 5, 7)": "",
    "key LIKE '%/n0144%7.JPEG'": "",
    "bytes > 190000 OR width = height": "",
    "city = 'Ulm'": "",
    "city = 'Ulm' AND n > 500": "",
}


def metadata(count: int) -> dict[str, np.ndarray]:
    """The columns of the samples' metadata: a city and a number of three digits."""
    rows = np.arange(count)
    texts = [b'{"city":"%b","n":%d}' % (CITIES[i % 4], 100 + i % 900) for i in range(3600)]
    lengths = np.array([len(text) for text in texts])[rows % 3600]
    ends = np.zeros(count + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    whole = np.frombuffer(b"".join(texts), np.uint8)
    return {"meta_data": np.resize(whole, int(ends[-1])), "meta_offsets": ends}


def write(folder: Path, count: int) -> Path:
    """Make the pack: its index, and sparse files of the right sizes."""
    pack = folder / "pack"
    pack.mkdir()
    index.write(folder / "plain.packio", count)
    plain = indexfile.Index(folder / "plain.packio")
    columns = {name: plain.column(name).array() for name in plain.column_names}
    for name, size, _ in plain.files():
        with (pack / name).open("wb") as file:
            file.truncate(size)
    counts = np.bincount(columns["image/file"]).tolist()
    said = {
        "version": indexfile.VERSION, "format": "tar", "access": "range",
        "fields": {"image": "image"}, "classes": [f"class {i}" for i in range(CLASSES)],
        "shards": [{"name": name, "samples": n}
                   for (name, _, _), n in zip(plain.files(), counts, strict=True)],
    }  # fmt: skip
    indexfile.write(pack / indexfile.INDEX_NAME, {**columns, **metadata(count)}, said)
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
        result[expression] = {"found": len(where)} | {
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
    pack, parquet = write(folder, count), folder / "x.parquet"
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
        "first": first(pack, rounds),
        "selection": selection(ds, folder),
    }  # fmt: skip


def main() -> None:
    """Measure, print, and save where it is asked for."""
    parser = _results.parser(__doc__, rounds=5)
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument("--work", type=Path, help="folder for the pack: 2 GB")
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
