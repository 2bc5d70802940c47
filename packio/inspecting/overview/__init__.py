"""An overview of a pack as one HTML page: classes, sizes, bytes and aspect ratios of its images.

It is made of the index alone; no image is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio.inspecting import pages
from packio.inspecting.info import describe
from packio.packs.opening import Pack
from packio.system.quantities import as_size, pluralize

_CLASSES = 20_000  # with a bar each, at most: the largest
_SIZES = 8  # of images: the most frequent are listed,
_FREQUENT = 0.01  # if so large a share of the images has them


class _Section(NamedTuple):
    title: str
    said: str  # in words, above the bars
    bars: list[pages.Bar]
    label: str  # what the bars count


def write_overview(pack: Pack, out: str | os.PathLike[str]) -> None:
    """Write an overview of a pack into an HTML file; an earlier one is replaced."""
    path = Path(out)
    pages.check_place(path)
    summary = describe(pack)
    values = {
        "title": pages.readable(pack.path.resolve().name), "facts": list(_facts(summary)),
        "sections": [_describe_classes(summary), *_describe_images(pack)],
    }  # fmt: skip
    pages.write_page(path, pages.make_page(Path(__file__).parent, values))


def _facts(summary: dict[str, Any]) -> Iterator[str]:
    yield pluralize(summary["samples"], "sample")
    yield f"{as_size(summary['bytes'])} of images"
    yield f"format {summary['format']}"
    for name, count in summary["encodings"].items():
        yield f"{count:,} {name}"
    for name, count in (summary["splits"] or {}).items():
        yield f"split {pages.readable(name)}: {count:,}"
    yield f"digest {summary['digest'][:12]}"


def _describe_classes(summary: dict[str, Any]) -> _Section:
    labels, names = summary["labels"], summary["classes"]["names"]
    if labels is None:
        return _Section("Classes", "No labels.", [], "")
    counts = np.asarray(labels["counts"], np.int64)
    said = [pluralize(len(counts), "class")]
    if len(counts) > 1:
        said.append(f"{counts.min():,} to {counts.max():,} samples each")
    if empty := labels["empty_classes"]:
        said.append(f"{empty:,} without a sample")
    if outside := labels["outside_classes"]:
        said.append(f"{pluralize(outside, 'sample')} with a label that is no class")
    if labels["kind"] != "int":
        said.append("a sample may be of several classes")
    order = np.argsort(-counts, kind="stable")[:_CLASSES]
    told = [pages.readable(names[i]) if i < len(names) else str(i) for i in order.tolist()]
    bars = _make_bars(told, counts[order], summary["samples"])
    return _Section(
        "Classes", " · ".join(said), bars, "samples of a class; percents of all samples"
    )


def _make_bars(names: list[str], counts: np.ndarray, total: int) -> list[pages.Bar]:
    most = int(counts.max(initial=1))
    return [
        pages.Bar(name, round(100 * count / most, 3), f"{count:,} · {count / max(total, 1):.1%}")
        for name, count in zip(names, counts.tolist(), strict=True)
    ]


def _describe_images(pack: Pack) -> Iterator[_Section]:
    columns = ("width", "height", "orientation", "length")
    width, height, turn, lengths = (pack.index_file.column(f"image/{n}").array() for n in columns)
    sizes = np.stack([width, height], axis=1).astype(np.int64)
    sizes[turn >= 5] = sizes[turn >= 5, ::-1]  # as Exif turns them
    sizes, lengths = sizes[(sizes > 0).all(axis=1)], lengths[lengths > 0]
    if len(sizes):
        unknown = len(pack) - len(sizes)
        label = "images, by pixels, as Exif turns them"
        label += f"; {pluralize(unknown, 'image')} of an unknown size" if unknown else ""
        for side, title in enumerate(("Width", "Height")):
            yield _Section(title, *pages.make_histogram(sizes[:, side], "{:,.10g}".format), label)
        wide, high = (int((sizes[:, i] > sizes[:, 1 - i]).sum()) for i in (0, 1))
        parts = (("landscape", wide), ("square", len(sizes) - wide - high), ("portrait", high))
        shapes = ", ".join(f"{count / len(sizes):.1%} {name}" for name, count in parts if count)
        ratios = pages.make_histogram(sizes[:, 0] / sizes[:, 1], _say_ratio, are_ratios=True)
        yield _Section("Aspect ratio", shapes, ratios[1], "images, by width : height")
    if len(lengths):
        yield _Section("Bytes", *pages.make_histogram(lengths, as_size), "images, as encoded")
    if frequent := _list_frequent(sizes):
        yield _Section("The most frequent sizes", "", frequent, "images")


def _list_frequent(sizes: np.ndarray) -> list[pages.Bar]:
    # One number each: rows are compared much more slowly
    both, counts = np.unique(sizes[:, 0] << 32 | sizes[:, 1], return_counts=True)
    order = np.argsort(-counts, kind="stable")[:_SIZES]
    order = order[counts[order] >= _FREQUENT * len(sizes)]
    found = ((size >> 32, size & 0xFFFFFFFF) for size in both[order].tolist())
    names = [f"{width:,}\N{MULTIPLICATION SIGN}{height:,}" for width, height in found]
    return _make_bars(names, counts[order], len(sizes))


def _say_ratio(value: float) -> str:
    return f"{value:.3g}:1" if value >= 1 else f"1:{1 / value:.3g}"
