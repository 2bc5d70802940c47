"""The tables of docs/dct.md; `readme_tables` fills them in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

Json = dict[str, Any]
_ROWS = {  # candidate of benchmarks/results/dct.json → option, pixels, who reads it, good for
    "keep": (
        "`--encode keep`, the default", "exact", "all readers of the format",
        "everything; first choice where a network or a slow disk is the limit",
    ),
    "dct": (
        "`--encode dct`", "exact", "packio",
        "the processor is the limit, and the pack lies in memory or on a fast disk",
    ),
    "levels": (
        '`--levels 2`, `fidelity="fast"`', "near to exact", "all; the levels are further files",
        "photographs much larger than the crop",
    ),
    "raw": (
        "`--encode raw --resize exact=256x256`", "of a resized image",
        "all readers of the format, as arrays",
        "small images; training that takes crops of resized images anyway",
    ),
    "torchvision": ("JPEG files, by torchvision", "within 2 grey levels", "all", ""),
}  # fmt: skip


def encodings(result: Json) -> str:
    """Make the table of all encodings: bytes and time of small and of large photographs."""
    small, large = result["sets"]["as given"], result["sets"]["12 megapixels"]
    conditions = (
        f"RandomResizedCrop(224) and a flip, one thread, packs in the page cache: time of a "
        f"processor, medians of {result['rounds']} rounds; {result['machine']['cpu']}, "
        f"load of other programs {result['machine']['load']}. "
        f"{small['images']} ImageNet-like JPEGs ({result['images']}), and {large['images']} "
        "photographs of 12 megapixels. In brackets: times the JPEG's bytes."
    )
    heads = ("", "kB an image", "µs a crop", "12 megapixels: kB", "ms a crop", "pixels",
             "who reads the images", "good for")  # fmt: skip
    lines = [conditions, "", f"| {' | '.join(heads)} |", "|---|" + "---:|" * 4 + "---|" * 3]
    for name, (option, *words) in _ROWS.items():
        cells = [option]
        for row, unit in ((small["candidates"].get(name), 1), (large["candidates"].get(name), 1e3)):
            if row is None:
                break
            cells.append(f"{row['bytes'] / 1e3:,.0f} ({row['ratio']:.2f})")
            cells.append(f"{row['gather_us']['median'] / unit:,.{0 if unit == 1 else 2}f}")
        else:
            lines.append(f"| {' | '.join([*cells, *words])} |")
    return "\n".join(lines)


def sets(result: Json) -> str:
    """Make a row for each set of JPEGs: "keep" beside "dct", and the disk that kept bytes need."""
    heads = ("JPEGs", "kB, keep", "kB, dct", "µs, keep", "µs, dct", "times as fast",
             "times as fast, by `Loader`", "stay as they are", "faster above")  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", "|---|" + "---:|" * (len(heads) - 1)]
    for name, found in result["sets"].items():
        keep, dct = (found["candidates"][n] for n in ("keep", "dct"))
        times = dct["bytes"] / found["jpeg_bytes"]
        cells = [name, f"{keep['bytes'] / 1e3:,.0f}", f"{dct['bytes'] / 1e3:,.0f} ({times:.2f})"]
        cells += [f"{row['gather_us']['median']:,.0f}" for row in (keep, dct)]
        cells += [_spread(dct[f"{way}_times_as_fast"]) for way in ("gather", "loader")]
        cells += [f"{found['not_open']} of {found['images']}",
                  f"{found['kept_are_faster_below_mb_s']['read_ahead']} MB/s"]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    keys = ("crops_compared", "crops_differ", "files_compared", "files_differ")
    totals = {key: sum(found[key] for found in result["sets"].values()) for key in keys}
    parity = (
        "Of {crops_compared:,} crops compared with those of kept JPEGs, {crops_differ} differ; of "
        "{files_compared:,} files extracted and compared with their sources, {files_differ} differ."
    )
    return "\n".join([*lines, "", parity.format(**totals)])


def rates(result: Json) -> str:
    """Make the table of packing and converting, and of a first pass from the disk."""
    lines = ["| two processes | images/s | µs of a processor an image |", "|---|---:|---:|"]
    names = {"keep": "pack, `--encode keep`", "dct": "pack, `--encode dct`",
             "back to JPEG": "convert back, `--encode file`"}  # fmt: skip
    for name, title in names.items():
        row = result["packing"][name]
        rate, micros = (_spread(row[n], ",.0f") for n in ("images_per_second", "us"))
        lines.append(f"| {title} | {rate} | {micros} |")
    heads = ("first pass, nothing in the page cache", "images/s", "MB/s from the disk",
             "kB read an image")  # fmt: skip
    lines += ["", f"| {' | '.join(heads)} |", "|---|---:|---:|---:|"]
    for name, row in result["cold"].items():
        rate, speed = (_spread(row[n], ",.0f") for n in ("images_per_second", "mb_per_second"))
        lines.append(f"| {name} | {rate} | {speed} | {row['bytes_read'] / 1e3:,.0f} |")
    return "\n".join(lines)


def _spread(values: Json, form: str = ".2f") -> str:
    return f"{values['median']:{form}} ({values['min']:{form}} to {values['max']:{form}})"


TABLES: dict[str, tuple[str, Callable[[Json], str]]] = {
    "encodings": ("dct.json", encodings),
    "open-coefficients": ("dct.json", sets),
    "open-packing": ("dct.json", rates),
}
