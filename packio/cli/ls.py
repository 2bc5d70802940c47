"""``packio ls``."""

from __future__ import annotations

import base64
import itertools
import json
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from packio.cli import _options as option
from packio.cli._output import escaped, say
from packio.errors import IntegrityError

if TYPE_CHECKING:
    from packio.inspecting.info import Line
    from packio.packs.opening import Pack

_COLUMNS = ("index", "key", "class", "label", "bytes", "width", "height", "encoding", "file",
            "offset")  # fmt: skip
_LINES = 1024  # written together
_WIDEST_CLASS = 24  # characters


def run(
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
        return escaped(classes[label]) if 0 <= label < len(classes) else str(label)
    if len(label) != len(classes):
        return _label_text(label)
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
    yield "\t".join(_COLUMNS) + "\n"
    for line, entry in _entries(pack, lines):
        texts = {"key": escaped(line.key), "class": _class_text(line.label, pack.classes),
                 "label": _label_text(line.label), "file": escaped(entry["file"])}  # fmt: skip
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
