"""``packio ls``: the samples of a pack, one line each."""

from __future__ import annotations

import base64
import itertools
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from packio.cli._output import escaped, until_reader_leaves
from packio.datasets.selection import selected

if TYPE_CHECKING:
    import numpy as np

    from packio.packs.packs import Pack, Row

_COLUMNS = ("index", "key", "class", "label", "bytes", "width", "height", "encoding", "file",
            "offset")  # fmt: skip
_LINES = 1024  # written together
_WIDEST_CLASS = 24  # characters


class Line(NamedTuple):
    """What is listed of one sample."""

    row: Row
    key: bytes
    label: Any  # int, list of float, or None


def run(
    pack: Annotated[Path, typer.Argument(metavar="PACK", help="The pack to list.")],
    class_name: Annotated[
        str | None, typer.Option("--class", metavar="NAME", help="Only samples of this class.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Stop after N samples.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line. Keys are surrogate-escaped.")
    ] = False,
    as_tsv: Annotated[
        bool, typer.Option("--tsv", help="Tab-separated values, with a line of headings.")
    ] = False,
) -> None:
    r"""List the samples of a pack: index, class, bytes, pixels, encoding, offset and key.

    In keys, a backslash and whatever cannot be printed is shown as \\, \n, \t, \r or \xNN
    (a byte), so every key is one line and no two look the same.

    Example: packio ls photos.lmdb --class cats --limit 10

    Example: packio ls photos.lmdb --json | jq -r 'select(.width < 64) | .key'
    """
    import packio

    if as_json and as_tsv:
        raise typer.BadParameter("--json and --tsv exclude each other")
    with packio.open(pack) as opened, until_reader_leaves():
        lines = itertools.islice(_lines(opened, class_name), limit)
        text = _json(opened, lines) if as_json else (_tsv if as_tsv else _aligned)(opened, lines)
        while block := "".join(itertools.islice(text, _LINES)):
            sys.stdout.write(block)


def _lines(pack: Pack, class_name: str | None) -> Iterator[Line]:
    for indices in selected(pack, None if class_name is None else [class_name]):
        unlabelled: list[Any] = [None] * len(indices)
        labels = pack.take_labels(indices).tolist() if "label" in pack.index_file else unlabelled
        columns = (pack.rows(indices), _keys(pack, indices), labels)
        yield from map(Line._make, zip(*columns, strict=True))


def _keys(pack: Pack, indices: np.ndarray) -> list[bytes]:
    """Keys of ascending indices that lie close together, read at once."""
    first, last = int(indices[0]), int(indices[-1])
    offsets = pack.index_file.column("key_offsets").span(first, last + 2).tolist()
    data = pack.index_file.column("key_data").span(offsets[0], offsets[-1]).tobytes()
    starts = [o - offsets[0] for o in offsets]
    return [data[starts[i - first] : starts[i - first + 1]] for i in indices.tolist()]


def _class_text(label: Any, classes: list[str]) -> str:
    """Name of a label, all names of a vector's, or numbers where there are no names."""
    if label is None:
        return "-"
    if isinstance(label, int):
        return escaped(classes[label]) if 0 <= label < len(classes) else str(label)
    if len(label) != len(classes):
        return ",".join(f"{value:g}" for value in label)
    names = (escaped(c) for c, value in zip(classes, label, strict=True) if value > 0)
    return ",".join(names) or "-"


def _label_text(label: Any) -> str:
    if label is None:
        return ""
    return str(label) if isinstance(label, int) else ",".join(f"{value:g}" for value in label)


def _aligned(pack: Pack, lines: Iterator[Line]) -> Iterator[str]:
    from rich.cells import cell_len

    classes = pack.classes
    digits = max(len(str(len(pack) - 1)), 5)
    room = min(max((cell_len(escaped(c)) for c in classes), default=1), _WIDEST_CLASS)
    layout = f"{{:>{digits}}}  {{}}  {{:>9}}  {{:>11}}  {{:<8}}  {{:>12}}  {{}}\n"
    if sys.stdout.isatty():
        heading = "class".ljust(room)
        yield layout.format("index", heading, "bytes", "pixels", "encoding", "offset", "key")
    for row, key, label in lines:
        size = f"{row.width}x{row.height}"
        name = _class_text(label, classes)
        name += " " * (max(room, 5) - cell_len(name))  # East Asian characters take two cells
        yield layout.format(
            row.position, name, row.length, size, row.encoding, row.offset, escaped(key)
        )


def _tsv(pack: Pack, lines: Iterator[Line]) -> Iterator[str]:
    classes = pack.classes
    files = [escaped(name) for name, _, _ in pack.index_file.files()]
    yield "\t".join(_COLUMNS) + "\n"
    for row, key, label in lines:
        values = (row.position, escaped(key), _class_text(label, classes), _label_text(label),
                  row.length, row.width, row.height, row.encoding, files[row.file],
                  row.offset)  # fmt: skip
        yield "\t".join(map(str, values)) + "\n"


def _json(pack: Pack, lines: Iterator[Line]) -> Iterator[str]:
    classes = pack.classes
    files = [name for name, _, _ in pack.index_file.files()]
    for row, key, label in lines:
        named = isinstance(label, int) and 0 <= label < len(classes)
        values = (row.position, os.fsdecode(key), classes[label] if named else None, label,
                  row.length, row.width, row.height, row.encoding, files[row.file],
                  row.offset)  # fmt: skip
        entry = dict(zip(_COLUMNS, values, strict=True))
        if not _is_utf8(key):
            entry["key_base64"] = base64.b64encode(key).decode("ascii")
        yield json.dumps(entry) + "\n"


def _is_utf8(key: bytes) -> bool:
    try:
        key.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
