"""An overview of a pack as one HTML page: classes, sizes, bytes and aspect ratios of its images.

It is made of the index alone; no image is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from packio.inspecting import pages
from packio.inspecting.info import describe
from packio.packs.opening import Pack

_BARS = 40  # classes with a bar each, at most: the largest; a list has all,
_LISTED = 20_000  # or so many
_SIZES = 8  # of images: the most frequent are listed,
_FREQUENT = 0.01  # if so large a share of the images has them


def write_overview(pack: Pack, out: str | os.PathLike[str]) -> None:
    """Write an overview of a pack into an HTML file; an earlier one is replaced."""
    path = Path(out)
    pages.check_place(path)
    summary = describe(pack)
    values = {
        "title": pages.readable(pack.path.resolve().name), "facts": list(_facts(summary)),
        **_of_classes(summary), **_of_images(pack),
    }  # fmt: skip
    pages.write_page(path, pages.make_page(Path(__file__).parent, values))


def _facts(summary: dict[str, Any]) -> Iterator[str]:
    yield _say_many(summary["samples"], "sample")
    yield f"{_say_bytes(summary['bytes'])} of images"
    yield f"format {summary['format']}"
    for name, count in summary["encodings"].items():
        yield f"{count:,} {name}"
    for name, count in (summary["splits"] or {}).items():
        yield f"split {pages.readable(name)}: {count:,}"
    yield f"digest {summary['digest'][:12]}"


def _of_classes(summary: dict[str, Any]) -> dict[str, Any]:
    """The chart of classes, and what is said of them."""
    labels, names = summary["labels"], summary["classes"]["names"]
    counts = np.asarray(labels["counts"] if labels else [], np.int64)
    order = np.argsort(-counts, kind="stable")[:_LISTED]
    told = [pages.readable(names[i]) if i < len(names) else str(i) for i in order.tolist()]
    bars = _make_bars(told, counts[order], summary["samples"])
    sizes = counts[counts > 0]
    is_many = len(bars) > _BARS
    return {
        "classes": _said_of_classes(counts, labels),
        "bars": bars[:_BARS],
        "class_sizes": pages.make_histogram(
            "Sizes of classes", "samples of a class", sizes, _say_count
        ) if is_many and len(sizes) else None,
        "listed": bars if is_many else [],
        "are_all": len(counts) <= _LISTED,
    }  # fmt: skip


def _make_bars(names: list[str], counts: np.ndarray, total: int) -> list[pages.Bar]:
    most = int(counts.max(initial=1))
    return [
        pages.Bar(name, round(100 * count / most, 3), f"{count:,} · {count / max(total, 1):.1%}")
        for name, count in zip(names, counts.tolist(), strict=True)
    ]


def _said_of_classes(counts: np.ndarray, labels: dict[str, Any] | None) -> list[str]:
    if labels is None:
        return ["No labels."]
    said = [_say_many(len(counts), "class")]
    if len(counts) > 1:
        said.append(f"{counts.min():,} to {counts.max():,} samples each")
    if empty := labels["empty_classes"]:
        said.append(f"{empty:,} without a sample")
    if outside := labels["outside_classes"]:
        said.append(f"{_say_many(outside, 'sample')} with a label that is no class")
    if labels["kind"] != "int":
        said.append("a sample may be of several classes")
    return said


def _of_images(pack: Pack) -> dict[str, Any]:
    """The histograms, the most frequent sizes, and what is said of shapes."""
    columns = ("width", "height", "orientation", "length")
    width, height, turn, lengths = (pack.index_file.column(f"image/{n}").array() for n in columns)
    sizes = np.stack([width, height], axis=1).astype(np.int64)
    sizes[turn >= 5] = sizes[turn >= 5, ::-1]  # as Exif turns them
    sizes, lengths = sizes[(sizes > 0).all(axis=1)], lengths[lengths > 0]
    charts = []
    if len(sizes):
        label = "pixels, as Exif turns the images"
        charts = [
            pages.make_histogram("Width", label, sizes[:, 0], _say_count),
            pages.make_histogram("Height", label, sizes[:, 1], _say_count),
            pages.make_histogram("Aspect ratio", "width : height", sizes[:, 0] / sizes[:, 1],
                                 _say_ratio, are_ratios=True),
        ]  # fmt: skip
    wide, high = (int((sizes[:, i] > sizes[:, 1 - i]).sum()) for i in (0, 1))
    parts = (("landscape", wide), ("square", len(sizes) - wide - high), ("portrait", high))
    shapes = ", ".join(f"{count / len(sizes):.1%} {name}" for name, count in parts if count)
    if len(lengths):
        charts.append(pages.make_histogram("Bytes", "of an image, encoded", lengths, _say_bytes))
    return {
        "charts": charts, "frequent": _frequent(sizes),
        "shapes": shapes, "unknown": len(pack) - len(sizes),
    }  # fmt: skip


def _frequent(sizes: np.ndarray) -> list[pages.Bar]:
    """The most frequent sizes."""
    # One number each: rows are compared much more slowly
    both, counts = np.unique(sizes[:, 0] << 32 | sizes[:, 1], return_counts=True)
    order = np.argsort(-counts, kind="stable")[:_SIZES]
    order = order[counts[order] >= _FREQUENT * len(sizes)]
    found = ((size >> 32, size & 0xFFFFFFFF) for size in both[order].tolist())
    names = [f"{width:,}\N{MULTIPLICATION SIGN}{height:,}" for width, height in found]
    return _make_bars(names, counts[order], len(sizes))


def _say_count(value: float) -> str:
    return f"{value:,.10g}"


def _say_bytes(count: float) -> str:
    """A number of bytes in few characters: 512 B, 52.3 kB, 2 MB."""
    if count < 1000:
        return f"{count:g} B"
    unit, name = next((u, n) for u, n in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if count >= u)
    return f"{count / unit:,.1f}".removesuffix(".0") + f" {name}"


def _say_ratio(value: float) -> str:
    return f"{value:.3g}:1" if value >= 1 else f"1:{1 / value:.3g}"


def _say_many(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 'es' if noun.endswith('s') else 's'}"
