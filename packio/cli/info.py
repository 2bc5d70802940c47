"""``packio info``: what a pack holds."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import numpy as np

    from packio.packs.packs import Pack

_CLASSES_SHOWN = 5


def run(
    pack: Annotated[Path, typer.Argument(metavar="PACK", help="The pack to describe.")],
    stats: Annotated[
        int | None,
        typer.Option(metavar="N", help="Measure mean and std of N images' channels; 0: of all."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw sizes and class counts into this file, .png or .svg."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Say what a pack holds: samples, classes, sizes, encodings, and how it was made.

    Example: packio info photos.lmdb

    Example: packio info photos.lmdb --json | jq .classes.count
    """
    import packio

    with packio.open(pack) as opened:
        summary = _summary(opened)
        if stats is not None:
            from packio.packs import pixel_statistics

            summary["statistics"] = pixel_statistics.measure(opened, stats or None)
        if plot is not None:
            from packio.measuring.bench._plots import plot_pack

            plot_pack(opened, plot)
    if as_json:
        print(json.dumps(summary, indent=2))
    elif sys.stdout.isatty():
        _print_rich(summary)
    else:
        for title, entries in _sections(summary):
            print("\n".join([title, *(f"  {name:<13} {text}" for name, text in entries)]))


def _summary(pack: Pack) -> dict[str, Any]:
    metadata, index = pack.metadata, pack.index_file
    length = index.column("length").array()
    index_bytes = index.path.stat().st_size
    per_sample = round(index_bytes / max(len(pack), 1), 1)
    return {
        "path": str(pack.path),
        "format": metadata["format"],
        "access": metadata.get("access", "range"),
        "samples": len(pack),
        "bytes": int(length.sum()),
        "counts": metadata.get("counts", {}),
        "files": [{"path": name, "bytes": size} for name, size, _ in index.files()],
        "index": {"bytes": index_bytes, "bytes_per_sample": per_sample},
        "classes": {"count": len(pack.classes), "names": pack.classes},
        "labels": _labels(pack.labels, len(pack.classes)),
        "sizes": {
            "height": _spread(index.column("height").array()),
            "width": _spread(index.column("width").array()),
            "bytes": _spread(length),
        },
        **_kinds(pack),
        "splits": _splits(pack),
        "statistics": metadata.get("statistics"),
        "source": metadata.get("source"),
        "options": metadata.get("options"),
        "versions": {"index": metadata["version"], **metadata.get("versions", {})},
        "digest": pack.digest,
    }  # fmt: skip


def _spread(values: np.ndarray) -> dict[str, float] | None:
    import numpy as np

    if not len(values):
        return None
    middle = float(np.median(values))
    return {
        "min": int(values.min()),
        "median": int(middle) if middle.is_integer() else middle,
        "max": int(values.max()),
    }


def _kinds(pack: Pack) -> dict[str, Any]:
    """How many samples are of each encoding, pixel type and orientation."""
    import numpy as np

    from packio.images import encodings
    from packio.index.indexfile import PROGRESSIVE, SEEKABLE

    columns = ("encoding", "channels", "dtype", "orientation")
    counts = {
        name: np.bincount(pack.index_file.column(name).array(), minlength=1) for name in columns
    }
    flags = pack.index_file.column("flags").array()
    return {
        "encodings": _named(counts["encoding"], encodings.NAMES),
        "channels": _named(counts["channels"], {}),
        "dtypes": _named(counts["dtype"], dict(enumerate(encodings.DTYPES))),
        "oriented": int(len(pack) - counts["orientation"][:2].sum()),  # 1 is upright, 0 is unset
        "progressive": int(np.count_nonzero(flags & PROGRESSIVE)),
        "seekable": int(np.count_nonzero(flags & SEEKABLE)),
    }


def _splits(pack: Pack) -> dict[str, int] | None:
    """How many samples each split has."""
    import numpy as np

    names = pack.metadata.get("splits")
    if names is None or "split" not in pack.index_file:
        return None
    counts = np.bincount(pack.index_file.column("split").array(), minlength=len(names))
    return dict(zip(names, counts.tolist(), strict=False))


def _named(counts: np.ndarray, names: dict[int, str]) -> dict[str, int]:
    found = [(names.get(i, str(i)), n) for i, n in enumerate(counts.tolist()) if n]
    return dict(sorted(found, key=lambda entry: -entry[1]))


def _labels(labels: np.ndarray | None, classes: int) -> dict[str, Any] | None:
    """How many samples the classes have."""
    import numpy as np

    if labels is None:
        return None
    if labels.ndim == 2:
        per_class = (labels > 0).sum(axis=0)
        kind, outside = f"float32 vector of {labels.shape[1]}", 0
    else:
        inside = (labels >= 0) & (labels < classes) if classes else labels >= 0
        per_class = np.bincount(labels[inside], minlength=classes)
        kind, outside = "int", int(len(labels) - np.count_nonzero(inside))
    return {
        "kind": kind,
        "samples_per_class": _spread(per_class),
        "counts": per_class.tolist(),
        "empty_classes": int(np.count_nonzero(per_class == 0)),
        "outside_classes": outside,
    }


def _sections(summary: dict[str, Any]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    from packio.cli._output import escaped

    yield escaped(summary["path"]), list(_what(summary))
    yield "Images", list(_images(summary))
    yield "Classes", list(_classes(summary))
    yield "Made from", list(_origin(summary))


def _what(summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    counts, files = summary["counts"], summary["files"]
    held = sum(file["bytes"] for file in files)
    yield "format", f"{summary['format']} (access: {summary['access']})"
    yield "samples", f"{summary['samples']:,}"
    if counts:
        yield "accounted", ", ".join(f"{n:,} {what}" for what, n in counts.items())
    yield "bytes", f"{_size(summary['bytes'])} of images in {_size(held)}"
    yield "files", f"{len(files):,}"
    index = summary["index"]
    yield "index", f"{_size(index['bytes'])}, {index['bytes_per_sample']:,} bytes a sample"
    yield "digest", summary["digest"]


def _images(summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, spread in summary["sizes"].items():
        if spread:
            values = (f"{what} {value:,}" for what, value in spread.items())
            yield name, ", ".join(values) + (" pixels" if name != "bytes" else "")
    for name in ("encodings", "channels", "dtypes"):
        yield name, ", ".join(f"{what}: {n:,}" for what, n in summary[name].items()) or "-"
    yield "oriented", f"{summary['oriented']:,} with an Exif orientation other than 1"
    yield "progressive", f"{summary['progressive']:,}"
    yield "seekable", f"{summary['seekable']:,}"
    if summary["splits"]:
        yield "splits", ", ".join(f"{name}: {n:,}" for name, n in summary["splits"].items())
    if (found := summary["statistics"]) is not None:
        for name in ("mean", "std"):
            channels = ", ".join(f"{value:.4f}" for value in found[name])
            yield name, f"({channels}) of {found['images']:,} images, values 0..1, R, G, B"


def _classes(summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    from packio.cli._output import escaped

    names, labels = summary["classes"]["names"], summary["labels"]
    shown = ", ".join(escaped(n) for n in names[:_CLASSES_SHOWN])
    more = f", … {len(names) - _CLASSES_SHOWN:,} more" if len(names) > _CLASSES_SHOWN else ""
    yield "count", f"{len(names):,}"
    if names:
        yield "names", shown + more
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


def _origin(summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name in ("source", "options", "versions"):
        value = summary[name] or {}
        entries = value.items() if isinstance(value, dict) else [("", value)]
        yield name, ", ".join(f"{k} {v}".strip() for k, v in entries) or "-"


def _size(count: int) -> str:
    if count < 10_000:
        return f"{count:,} bytes"
    unit, name = next((u, n) for u, n in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if count >= u)
    return f"{count / unit:,.1f} {name}"


def _print_rich(summary: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    for title, entries in _sections(summary):
        console.print(Text(title, "bold"))
        table = Table.grid(padding=(0, 2))
        for name, text in entries:
            table.add_row(Text(f"  {name}", "cyan"), Text(text))
        console.print(table)
        console.print()
