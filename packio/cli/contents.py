"""``packio info`` and ``packio ls``."""

from __future__ import annotations

import base64
import itertools
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from packio.cli import _options as option
from packio.cli._output import OPEN, escape, print_json, say, say_title
from packio.errors import IntegrityError
from packio.system.quantities import as_size, pluralize

if TYPE_CHECKING:
    from packio.inspecting.info import Line
    from packio.packs.opening import Pack


_CLASSES_SHOWN = 5
_Lines = Iterator[tuple[str, str]]


def _page(plot: Path | None) -> Path | None:
    if plot is not None and plot.suffix.lower() not in (".html", ".htm"):
        raise typer.BadParameter(f"{plot}: a page is written, as info.html")
    return option.on_disk(plot)


def info(
    pack: Annotated[Path | None, typer.Argument(metavar="PACK",
        help="The pack: a file, or a folder of shards.")] = None,
    stats: Annotated[int | None, typer.Option(min=0, metavar="N",
        help="Measure mean and std of the channels on N images; 0: on all.")] = None,
    buckets: Annotated[str | None, typer.Option(metavar="SIZES", help="Say what aspect-ratio "
        "buckets get, and what their crops cut away: area=1048576,step=64, or heights and widths "
        "as 1024x1024,896x1152.")] = None,
    index: option.Index = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", callback=_page,
        help="Write a page that shows classes, sizes, bytes and aspect ratios, as "
        "info.html.")] = None,
    system: Annotated[bool, typer.Option("--system",
        help="Say what runs on this machine: the native core, decoders.")] = False,
    as_json: option.Json = False,
) -> None:  # fmt: skip
    """Say what a pack holds: samples, classes, sizes, encodings, and how the pack was made.

    Example: packio info photos.lmdb

    Example: packio info photos.lmdb --json | jq .classes.count

    Example: packio info photos.lmdb --plot photos.html

    Example: packio info photos.lmdb --buckets area=1048576,step=64

    Example: packio info 's3://theirs/train-{000..127}.tar' --index train.packio

    Example: packio info --system
    """
    import packio
    from packio.inspecting import info as inspecting
    from packio.inspecting.overview import write_overview
    from packio.inspecting.pages import check_place

    if system:
        found = inspecting.system()
        lines = (f"{name:<20} {escape(text)}" for name, text in found.items())
        print_json(found) if as_json else say(*lines)
        return
    if pack is None:
        raise typer.BadParameter("name a pack, or ask for --system")
    if plot is not None:
        check_place(plot)
    with packio.open(pack, index=index) as opened:
        summary = inspecting.describe(opened)
        if stats is not None:
            from packio.packs import pixel_statistics

            summary["statistics"] = pixel_statistics.measure(opened, stats or None)
        if buckets is not None:
            summary["buckets"] = inspecting.summarize_buckets(opened, buckets)
        if plot is not None:
            write_overview(opened, plot)
    if as_json:
        print_json(summary)
    else:
        for title, entries in _sections(summary):
            say_title(title)
            say("".join(f"  {name:<13} {text}\n" for name, text in entries), end="")


def _sections(summary: dict[str, Any]) -> Iterator[tuple[str, _Lines]]:
    yield escape(summary["path"]), _pack(summary)
    yield "Images", _images(summary)
    yield "Fields", _fields(summary)
    yield "Classes", _classes(summary)
    if "buckets" in summary:
        yield "Buckets, height x width", _buckets(summary["buckets"])
    yield "Made from", _origin(summary)


def _pack(summary: dict[str, Any]) -> _Lines:
    files, index = summary["files"], summary["index"]
    held = sum(file["bytes"] for file in files)
    yield "format", f"{summary['format']} (access: {summary['access']})"
    yield "samples", f"{summary['samples']:,}"
    if chosen := summary["selection"]:
        said = f": {escape(chosen['expression'])}" if chosen.get("expression") else ""
        yield "selected of", f"{chosen['samples']:,} of {escape(chosen['pack'])}{said}"
    if summary["counts"]:
        yield "accounted", ", ".join(f"{n:,} {what}" for what, n in summary["counts"].items())
    yield "bytes", f"{as_size(summary['bytes'])} of images in {as_size(held)}"
    yield "files", f"{len(files):,}"
    yield "index", f"{as_size(index['bytes'])}, {index['bytes_per_sample']:,} bytes a sample"
    yield "digest", summary["digest"]


def _images(summary: dict[str, Any]) -> _Lines:
    for name, spread in summary["sizes"].items():
        if spread:
            values = (f"{what} {value:,}" for what, value in spread.items())
            yield name, ", ".join(values) + (" pixels" if name != "bytes" else "")
    for name in ("encodings", "channels", "dtypes"):
        yield name, ", ".join(f"{what}: {n:,}" for what, n in summary[name].items()) or "-"
        if name == "encodings" and "dct" in summary[name]:
            yield "", OPEN
    yield "oriented", f"{summary['oriented']:,} with an Exif orientation other than 1"
    yield "progressive", f"{summary['progressive']:,}"
    yield "seek points", f"{summary['seek_points']:,}"
    if (found := summary["statistics"]) is not None:
        for name in ("mean", "std"):
            channels = ", ".join(f"{value:.4f}" for value in found[name])
            yield (
                name,
                f"({channels}) of {pluralize(found['images'], 'image')}, values 0..1, R, G, B",
            )


def _fields(summary: dict[str, Any]) -> _Lines:
    for name, field in summary["fields"].items():
        lacking = f", lacking in {field['lacking']:,}" if field["lacking"] else ""
        encodings = "".join(f", {what}: {n:,}" for what, n in field.get("encodings", {}).items())
        yield escape(name), f"{field['kind']}, {as_size(field['bytes'])}{encodings}{lacking}"
    found = dict.fromkeys(("boxes", "metadata", "splits"), "none")
    if (boxes := summary["boxes"]) is not None:
        columns = f", with {', '.join(map(escape, boxes['columns']))}" if boxes["columns"] else ""
        found["boxes"] = f"{boxes['count']:,} in {pluralize(boxes['samples'], 'sample')}{columns}"
    if (meta := summary["metadata"]) is not None:
        found["metadata"] = f"of {pluralize(meta['samples'], 'sample')}, {as_size(meta['bytes'])}"
    if summary["splits"]:
        found["splits"] = ", ".join(f"{name}: {n:,}" for name, n in summary["splits"].items())
    yield from found.items()


def _buckets(found: dict[str, Any]) -> _Lines:
    every = [*found["sizes"], {"size": "all", **found["all"]}]
    for bucket in every:
        if bucket["images"]:
            size = bucket["size"] if bucket["size"] == "all" else "x".join(map(str, bucket["size"]))
            images, lost = pluralize(bucket["images"], "image"), bucket["lost_mean"]
            text = f"{images}, lost {lost:.2%} of the pixels, at worst {bucket['lost_worst']:.2%}"
            yield size, f"{text}; enlarged: {bucket['enlarged']:,}"
    empty = sum(not bucket["images"] for bucket in found["sizes"])
    if empty:
        yield "empty", f"{pluralize(empty, 'size')} without an image"


def _classes(summary: dict[str, Any]) -> _Lines:
    names, labels = summary["classes"]["names"], summary["labels"]
    yield "count", f"{len(names):,}"
    if names:
        more = f", … {len(names) - _CLASSES_SHOWN:,} more" if len(names) > _CLASSES_SHOWN else ""
        yield "names", ", ".join(escape(n) for n in names[:_CLASSES_SHOWN]) + more
    if labels is None:
        yield "labels", "none"
        return
    yield "labels", labels["kind"]
    if labels["samples_per_class"]:
        values = (f"{what} {n:,}" for what, n in labels["samples_per_class"].items())
        yield "samples each", ", ".join(values)
    yield "empty", f"{labels['empty_classes']:,}"
    if labels["outside_classes"]:
        yield "unlabelled", f"{labels['outside_classes']:,} with a label that is no class"


def _origin(summary: dict[str, Any]) -> _Lines:
    for name in ("source", "recipe", "versions"):
        value = summary[name] or {}
        entries = value.items() if isinstance(value, dict) else [("", value)]
        yield name, ", ".join(f"{k} {v}".strip() for k, v in entries) or "-"


_COLUMNS = ("index", "key", "class", "label", "bytes", "width", "height", "encoding", "file",
            "offset")  # fmt: skip
_LINES = 1024  # written together
_WIDEST_CLASS = 24  # characters


def ls(
    pack: option.Pack,
    classes: option.Classes = None,
    split: option.Split = None,
    limit: Annotated[int | None, typer.Option(min=0, metavar="N",
        help="Stop after N samples.")] = None,
    index: option.Index = None,
    as_json: Annotated[bool, typer.Option("--json",
        help="One JSON object a line. Keys are surrogate-escaped.")] = False,
    as_tsv: Annotated[bool, typer.Option("--tsv",
        help="Tab-separated values, below a line of headings.")] = False,
) -> None:  # fmt: skip
    r"""List the samples of a pack: index, class, bytes, pixels, encoding, offset and key.

    In a key, a backslash and each character that cannot be printed is shown as \\, \n, \t, \r or
    \xNN (a byte). So each key is one line, and no two keys look the same.

    Example: packio ls photos.lmdb --class cats --limit 10

    Example: packio ls photos.lmdb --json | jq -r 'select(.width < 64) | .key'
    """
    import packio
    from packio.inspecting.info import list_samples

    if as_json and as_tsv:
        raise typer.BadParameter("--json and --tsv exclude each other")
    with packio.open(pack, index=index) as opened:
        lines = itertools.islice(list_samples(opened, classes or None, split), limit)
        text = (_json if as_json else _tsv if as_tsv else _aligned)(opened, lines)
        while block := "".join(itertools.islice(text, _LINES)):
            say(block, end="")


def _class_text(label: Any, classes: list[str]) -> str:
    """Name the class of a label, or all classes of a vector; numbers without names."""
    if label is None:
        return "-"
    if isinstance(label, int):
        return escape(classes[label]) if 0 <= label < len(classes) else str(label)
    if len(label) != len(classes):
        return _label_text(label)
    names = (escape(c) for c, value in zip(classes, label, strict=True) if value > 0)
    return ",".join(names) or "-"


def _label_text(label: Any) -> str:
    if label is None:
        return ""
    return str(label) if isinstance(label, int) else ",".join(f"{value:g}" for value in label)


def _aligned(pack: Pack, lines: Iterator[Line]) -> Iterator[str]:
    from rich.cells import cell_len

    classes = pack.classes
    digits = max(len(str(len(pack) - 1)), 5)
    room = min(max((cell_len(escape(c)) for c in classes), default=1), _WIDEST_CLASS)
    layout = f"{{:>{digits}}}  {{}}  {{:>9}}  {{:>11}}  {{:<8}}  {{:>12}}  {{}}\n"
    if sys.stdout.isatty():
        heading = "class".ljust(room)
        yield layout.format("index", heading, "bytes", "pixels", "encoding", "offset", "key")
    for row, key, label in lines:
        size = f"{row.width}x{row.height}"
        name = _class_text(label, classes)
        name += " " * (max(room, 5) - cell_len(name))  # East Asian characters take two cells
        yield layout.format(
            row.position, name, row.length, size, row.encoding, row.offset, escape(key)
        )


def _tsv(pack: Pack, lines: Iterator[Line]) -> Iterator[str]:
    yield "\t".join(_COLUMNS) + "\n"
    for line, entry in _entries(pack, lines):
        texts = {"key": escape(line.key), "class": _class_text(line.label, pack.classes),
                 "label": _label_text(line.label), "file": escape(entry["file"])}  # fmt: skip
        yield "\t".join(map(str, (entry | texts).values())) + "\n"


def _json(pack: Pack, lines: Iterator[Line]) -> Iterator[str]:
    for line, entry in _entries(pack, lines):
        if line.key.decode("utf-8", "replace").encode() != line.key:  # not UTF-8
            entry["key_base64"] = base64.b64encode(line.key).decode("ascii")
        yield json.dumps(entry) + "\n"


def _entries(pack: Pack, lines: Iterator[Line]) -> Iterator[tuple[Line, dict[str, Any]]]:
    """Each sample with the values of all columns, as JSON takes them."""
    classes, files = pack.classes, [name for name, _, _ in pack.index_file.files()]
    for line in lines:
        row, key, label = line
        if row.file >= len(files):
            raise IntegrityError(
                f"{pack.index_file.path}: sample {row.position} lies in file {row.file}, of "
                f"{len(files)}; restore the index, or make it anew: packio reindex"
            )
        named = isinstance(label, int) and 0 <= label < len(classes)
        values = (row.position, os.fsdecode(key), classes[label] if named else None, label,
                  row.length, row.width, row.height, row.encoding, files[row.file],
                  row.offset)  # fmt: skip
        yield line, dict(zip(_COLUMNS, values, strict=True))
