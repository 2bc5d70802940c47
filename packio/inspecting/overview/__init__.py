"""An overview of a pack as one HTML page: classes, sizes, bytes and aspect ratios of its images.

It is made of the index alone; no image is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from packio.inspecting.info import describe
from packio.inspecting.pages import check_place, make_page, readable, write_page
from packio.inspecting.pages.charts import Histogram, Row, Scale, Tick, brief, histogram
from packio.packs.opening import Pack

_BARS = 40  # classes with a bar each; of more classes, the largest and the smallest have one
_ENDS = 10  # of each of them
_LISTED = 20_000  # classes in a page, at most: the largest
_ROOM = 1.05  # of an axis beyond the longest bar
_SIZES = 8  # of images: the most frequent are listed,
_FREQUENT = 0.01  # if so large a share of the images has them
# Aspect ratios that an axis may name, the best first
RATIOS = {
    1.0: "1:1", 3 / 2: "3:2", 2 / 3: "2:3", 4 / 3: "4:3", 3 / 4: "3:4", 2.0: "2:1", 1 / 2: "1:2",
    3.0: "3:1", 1 / 3: "1:3", 4.0: "4:1", 1 / 4: "1:4", 8.0: "8:1", 1 / 8: "1:8", 16.0: "16:1",
    1 / 16: "1:16",
}  # fmt: skip


def write_overview(pack: Pack, out: str | os.PathLike[str]) -> None:
    """Write an overview of a pack.

    Args:
        pack: An open pack.
        out: The HTML file; an earlier one is replaced.
    """
    path = Path(out)
    check_place(path)
    summary = describe(pack)
    values = {
        "title": readable(pack.path.resolve().name), "facts": list(_facts(summary)),
        **_of_classes(summary), **_of_images(pack),
    }  # fmt: skip
    write_page(path, make_page(Path(__file__).parent, values).encode())


def shapes(pack: Pack) -> np.ndarray:
    """Widths and heights of all images as Exif turns them: (n, 2) int64; those of no size are left.

    Args:
        pack: An open pack.
    """
    columns = ("image/width", "image/height", "image/orientation")
    width, height, orientation = (pack.index_file.column(name).array() for name in columns)
    sizes = np.stack([width, height], axis=1).astype(np.int64)
    sizes[orientation >= 5] = sizes[orientation >= 5, ::-1]
    return sizes[(sizes > 0).all(axis=1)]


def _facts(summary: dict[str, Any]) -> Iterator[str]:
    """What is said of the pack as a whole."""
    yield _counted(summary["samples"], "sample")
    yield f"{as_bytes(summary['bytes'])} of images"
    yield f"format {summary['format']}"
    for name, count in summary["encodings"].items():
        yield f"{count:,} {name}"
    for name, count in (summary["splits"] or {}).items():
        yield f"split {readable(name)}: {count:,}"
    yield f"digest {summary['digest'][:12]}"


def _of_classes(summary: dict[str, Any]) -> dict[str, Any]:
    """The chart of classes, and what is said of them."""
    labels, names = summary["labels"], summary["classes"]["names"]
    counts = np.asarray(labels["counts"] if labels else [], np.int64)
    order = np.argsort(-counts, kind="stable")
    parts = {"": order}
    if is_many := len(order) > _BARS:
        some = order[counts[order] > 0]
        parts = {"The largest": some[:_ENDS], "The smallest with a sample": some[-_ENDS:]}
    sizes = counts[counts > 0]
    scale = _scale(counts)

    def rows(classes: np.ndarray) -> list[Row]:
        told = [readable(names[i]) if i < len(names) else str(i) for i in classes.tolist()]
        return _rows(told, counts[classes], scale, summary["samples"])

    return {
        "classes": _said_of_classes(counts, labels),
        "parts": [(title, rows(classes)) for title, classes in parts.items()],
        "class_ticks": scale.ticks(brief, 4),
        "class_sizes": histogram("Sizes of classes", "samples of a class", sizes, brief)
        if is_many and len(sizes) else None,
        "listed": rows(order[:_LISTED]) if is_many else [],
        "are_all": len(order) <= _LISTED,
    }  # fmt: skip


def _scale(counts: np.ndarray) -> Scale:
    """Of bars of counts."""
    return Scale(0, _ROOM * max(1, int(counts.max(initial=0))))


def _rows(names: list[str], counts: np.ndarray, scale: Scale, total: int) -> list[Row]:
    """A bar for each name."""
    return [
        Row(name, scale.at(count), f"{count:,} · {count / max(total, 1):.1%}")
        for name, count in zip(names, counts.tolist(), strict=True)
    ]


def _said_of_classes(counts: np.ndarray, labels: dict[str, Any] | None) -> list[str]:
    if labels is None:
        return ["No labels."]
    said = [_counted(len(counts), "class")]
    if len(counts) > 1:
        said.append(f"{counts.min():,} to {counts.max():,} samples each")
    if empty := labels["empty_classes"]:
        said.append(f"{empty:,} without a sample")
    if outside := labels["outside_classes"]:
        said.append(f"{_counted(outside, 'sample')} with a label that is no class")
    if labels["kind"] != "int":
        said.append("a sample may be of several classes")
    return said


def _of_images(pack: Pack) -> dict[str, Any]:
    """The histograms, the most frequent sizes, and what is said of shapes."""
    sizes = shapes(pack)
    lengths = pack.index_file.column("image/length").array()
    lengths = lengths[lengths > 0]
    charts = list[Histogram]()
    if len(sizes):
        for name, values in (("Width", sizes[:, 0]), ("Height", sizes[:, 1])):
            charts.append(
                histogram(name, "pixels, as Exif turns the images", values, lambda v: f"{v:,.10g}")
            )
        ratio = sizes[:, 0] / sizes[:, 1]
        charts.append(histogram("Aspect ratio", "width : height", ratio, _as_ratio, list(RATIOS)))
    if len(lengths):
        charts.append(histogram("Bytes", "of an image, encoded", lengths, as_bytes))
    frequent, ticks = _frequent(sizes)
    return {
        "charts": charts, "frequent": frequent, "size_ticks": ticks,
        "shapes": _shapes_said(sizes), "unknown": len(pack) - len(sizes),
    }  # fmt: skip


def _frequent(sizes: np.ndarray) -> tuple[list[Row], list[Tick]]:
    """The most frequent sizes, and the ticks of their axis."""
    # One number each: rows are compared much more slowly
    both, counts = np.unique(sizes[:, 0] << 32 | sizes[:, 1], return_counts=True)
    order = np.argsort(-counts, kind="stable")[:_SIZES]
    order = order[counts[order] >= _FREQUENT * len(sizes)]
    found = ((size >> 32, size & 0xFFFFFFFF) for size in both[order].tolist())
    names = [f"{width:,}\N{MULTIPLICATION SIGN}{height:,}" for width, height in found]
    scale = _scale(counts)
    return _rows(names, counts[order], scale, len(sizes)), scale.ticks(brief, 4)


def _shapes_said(sizes: np.ndarray) -> str:
    wide, high = (int((sizes[:, i] > sizes[:, 1 - i]).sum()) for i in (0, 1))
    parts = (("landscape", wide), ("square", len(sizes) - wide - high), ("portrait", high))
    return ", ".join(f"{count / len(sizes):.1%} {name}" for name, count in parts if count)


def as_bytes(count: float) -> str:
    """Say a number of bytes in few characters: 512 B, 52.3 kB, 2 MB.

    >>> as_bytes(512), as_bytes(52_345), as_bytes(2_000_000)
    ('512 B', '52.3 kB', '2 MB')
    """
    if count < 1000:
        return f"{count:g} B"
    unit, name = next((u, n) for u, n in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if count >= u)
    return f"{count / unit:,.1f}".removesuffix(".0") + f" {name}"


def _as_ratio(value: float) -> str:
    return RATIOS.get(value, f"{value:.3g}")


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 'es' if noun.endswith('s') else 's'}"
