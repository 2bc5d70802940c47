"""The tables of docs/at-scale.md; `readme_tables` fills them in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

Json = dict[str, Any]
_READERS = {  # of benchmarks/results/remote.json → how they are called, and what they read
    "packio": ("packio, full shuffle", "all from the bucket, a request an image"),
    "packio, torch's loader": (
        "packio in torch's DataLoader", "all from the bucket, a request an image"
    ),
    "packio, half on disk": ("packio, cache of half the data", "half from the bucket"),
    "packio, all on disk": ("packio, cache of all the data", "none: all samples are on the disk"),
    "webdataset": ("WebDataset", "all from the bucket, whole shards"),
    "litdata": ("LitData", "none: all chunks are on the disk"),
    "streaming": ("Streaming", "none: all shards are on the disk"),
}  # fmt: skip


def index(result: Json) -> str:
    """Make the table of what an index takes from what ``benchmarks/index_scale.py`` wrote."""
    built, sharded = result["build"][-1], result["build_shards"][-1]
    one = result["one"][-1]
    whole, bare = built["bytes_a_sample"], built["bytes_a_sample_without_keys"]
    in_all = f"{sharded['samples']:,} samples in {sharded['shards']:,} shards"
    rows = {
        "bytes of the index": f"{bare:.0f} a sample, and the key (here {whole - bare:.0f})",
        "memory to build an index in one process":
            f"about {result['build_slopes']['peak_bytes_a_sample']:.0f} bytes a sample of a shard",
        f"{in_all}, {sharded['workers']} processes":
            f"{sharded['peak_mb_of_a_worker']:,} MB a process; time grows linearly",
        "their indexes joined into one": f"{sharded['joined_seconds']:.0f} s, "
            f"{sharded['joined_anonymous_growth_mb']} MB of memory",
        f"opening {one['samples']:,} samples":
            f"{one['open_ms']:.0f} ms, {one['open_growth_mb']:.0f} MB",
        "a random row of those, warm": f"{one['row_us']:.1f} µs",
        "each of 256 random rows": f"{one['rows_of_256_us_a_row']:.1f} µs",
        "a random sample of those, bytes and all": f"{one['sample_us']:.0f} µs",
        "a sample by its key": _time(one["last_key_us"]),
    }  # fmt: skip
    return "\n".join(["| | |", "|---|---|", *(f"| {k} | {v} |" for k, v in rows.items())])


def far(result: Json) -> str:
    """Make the table of an index at a URL from what ``benchmarks/index_far.py`` wrote."""
    names = {
        "open": "opening", "first_batch": "the rows of a first batch of 256, drawn at random",
        "rows": "10,000 random rows", "keys": "their keys", "find": "20 samples by key",
        "labels": "all labels", "open_again": "opening in another process",
    }  # fmt: skip
    lines = ["| | copied whole | by blocks |", "|---|---:|---:|"]
    for step, name in names.items():
        cells = [
            f"{result[way][step]['seconds']['median']:.2g} s, "
            f"{result[way][step]['bytes'] / 1e6:,.3g} MB" for way in ("whole", "blocks")
        ]  # fmt: skip
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def remote(result: Json) -> str:
    """Make the table of readers of a bucket from what ``benchmarks/remote.py`` wrote."""
    waits = result["waits"]
    columns = [(epoch, wait) for epoch in (0, 1) for wait in waits]
    titles = [f"{('first', 'second')[epoch]} epoch, {wait}" for epoch, wait in columns]
    lines = [f"| | {' | '.join(titles)} | the second epoch reads |"]
    lines.append("|---|" + "---:|" * len(columns) + "---|")
    for reader, (name, reads) in _READERS.items():
        if any(reader not in waits[wait] for wait in waits):  # it failed in all rounds
            continue
        rates = [waits[w][reader][e]["images_per_second"]["median"] for e, w in columns]
        lines.append(f"| {name} | {' | '.join(f'{rate:,.0f}' for rate in rates)} | {reads} |")
    return "\n".join(lines)


def resumed(result: Json) -> str:
    """Make the table of readers that go on from what ``benchmarks/remote.py --resume`` wrote."""
    waits = result["waits"]
    columns = [(state, wait) for state in (0, 1) for wait in waits]
    titles = [f"{('with', 'without')[state]} what was kept, {wait}" for state, wait in columns]
    lines = [f"| | {' | '.join(titles)} |", "|---|" + "---:|" * len(columns)]
    for reader, (name, _) in _READERS.items():
        if any(reader not in waits[wait] for wait in waits):
            continue
        firsts = [waits[w][reader][s]["seconds_to_first_batch"]["median"] for s, w in columns]
        lines.append(f"| {name} | {' | '.join(f'{first:.1f} s' for first in firsts)} |")
    return "\n".join(lines)


def _time(microseconds: float) -> str:
    if microseconds < 1000:
        return f"{microseconds:.0f} µs"
    return f"{microseconds / 1000:.0f} ms"


TABLES: dict[str, tuple[str, Callable[[Json], str]]] = {
    "index": ("index_scale.json", index),
    "far": ("index_far.json", far),
    "remote": ("remote.json", remote),
    "resumed": ("remote_resume.json", resumed),
}
