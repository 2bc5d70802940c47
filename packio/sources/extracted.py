"""A folder that ``packio extract`` wrote: files beside ``packio.jsonl`` and ``packio.json``.

`packio.inspecting.annotations` describes these two files. Everything comes back: named fields,
labels, splits, boxes with their columns, metadata, and the shape and type of raw pixels.
"""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from packio.errors import DecodeError, OptionError, SourceError
from packio.sample.facts import Facts
from packio.sample.fields import check_kind, check_name
from packio.sample.labelling import class_names, labels_of_meta
from packio.sample.levels import divisor_of
from packio.sample.record import IMAGE, Field, Record
from packio.sources import Context, FieldOrigins, Listing, Source, _files, _values
from packio.sources._records import record_of
from packio.sources._rows import ListedRows, each
from packio.sources.tables import columns

TABLE, HEAD = "packio.jsonl", "packio.json"


_OPTIONS = {"label_col": "member of the metadata that is the label"}


class Extracted(Source):
    """A folder that ``packio extract`` wrote."""

    options = _OPTIONS
    priority = -1  # the folder is an image folder too, and the table is a list of images

    def recognise(self, path: Path) -> bool:
        """Tell whether the path is such a folder, or the table in it."""
        folder = path.parent if path.name == TABLE else path
        return all(os.path.isfile(folder / name) for name in (TABLE, HEAD))

    def listing(self, source: Any, context: Context) -> Listing:
        """List the samples of the folder, in the order of the table."""
        path = Path(source)
        folder = path.parent if path.name == TABLE else path
        head, lines = _parsed(folder)
        classes, label_col = head["classes"], context.option("label_col")
        if context.classes is not None and label_col is None:
            classes = class_names(f"{folder}/", classes, context.classes)
        keys = [os.fsencode(line["key"]) for line in lines]
        with _files.folder_opened(folder) as opened:
            sizes = _files.sizes(opened, keys)
        splits = head["splits"] or None
        origins = {name: (name, kind) for name, kind in head["fields"].items() if name != IMAGE}
        cells = {name: [line.get(name) for line in lines] for name in origins}
        root = os.path.abspath(folder)
        labels = _labels(lines, classes, folder) if label_col is None else None
        result = Listing(
            self.name, root, keys, sizes, labels, classes,
            splits=splits and [splits.index(line["split"]) for line in lines],
            split_names=splits or [], files=_values.files_of(keys, cells, origins, root),
            rows=ListedRows({"line": [json.dumps(line) for line in lines]}),
            open=functools.partial(each, _read, root, origins, classes),
        )  # fmt: skip
        if label_col is None:
            return result
        if classes and any("boxes/labels" in line for line in lines):
            raise OptionError(f"{folder}: label_col={label_col!r}: its boxes have classes already")
        metas = (line.get("meta") for line in lines)
        place = functools.partial(_place, folder / TABLE)
        return result.labelled(labels_of_meta(metas, label_col, place, context.classes))


SOURCE = Extracted()


def _place(table: Path, position: int | None) -> str:
    return f"{table}" + ("" if position is None else f":{position + 1}")


def _parsed(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The object in ``packio.json``, and the lines of the table."""
    try:
        head = json.loads((folder / HEAD).read_text("utf-8"))
        for name, kind in head["fields"].items():
            check_kind(kind)
            if name != IMAGE and divisor_of(name) is None:
                check_name(name)
        for name in ("classes", "splits"):
            if not all(isinstance(text, str) for text in head[name]):
                raise ValueError(f"{name} are no texts")
        with (folder / TABLE).open(encoding="ascii") as file:
            lines = [json.loads(line) for line in file]
        if not all(isinstance(line["key"], str) for line in lines):
            raise ValueError("a key is no text")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SourceError(
            f"{folder}: {TABLE} and {HEAD} are not there; expected what packio extract wrote"
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceError(
            f"{folder}/: {TABLE} and {HEAD} do not parse ({error}); extract the pack again"
        ) from error
    if not lines:
        raise SourceError(f"{folder / TABLE}: no line in it")
    return head, lines


def _labels(
    lines: list[dict[str, Any]], classes: list[str], folder: Path
) -> list[int] | np.ndarray | None:
    found = [line.get("label") for line in lines]
    if all(label is None for label in found):
        return None
    try:
        if isinstance(found[0], list):
            is_real = any(isinstance(n, float) for label in found for n in label or ())
            vectors = np.array(found, np.float32 if is_real else np.int64)
            return vectors.reshape(len(found), -1)
        return [_position(label, classes) for label in found]
    except (ValueError, TypeError) as error:
        raise SourceError(f"{folder / TABLE}: labels of different kinds ({error})") from error


def _position(label: Any, classes: list[str]) -> int:
    return classes.index(label) if isinstance(label, str) else int(label)


def _read(
    root: str, origins: FieldOrigins, classes: list[str], rows: ListedRows, position: int
) -> Record[Field]:
    line = json.loads(rows.columns["line"][position])
    origins = {IMAGE: ("key", "image"), **origins}
    values = {name: line.get(column) for name, (column, _) in origins.items()}
    boxes = _boxes(line, classes)
    meta = columns.meta(line["meta"]) if line.get("meta") is not None else None
    record = record_of(values, origins, root, meta, boxes.pop("", None), boxes, None)
    facts = {name: Facts(*given) for name, given in line.get("facts", {}).items()}
    known = {n: f._replace(facts=facts[n]) for n, f in record.fields.items() if n in facts}
    return record.with_fields(**known) if known else record


def _boxes(line: dict[str, Any], classes: list[str]) -> dict[str, np.ndarray]:
    """Boxes (k, 4) float32 under "", and their columns by name; empty if there are none."""
    found: dict[str, np.ndarray] = {}
    try:
        if "boxes" in line:
            found[""] = np.array(line["boxes"], np.float32).reshape(-1, 4)
        for name, values in line.items():
            if name == "boxes/labels":
                found["labels"] = np.array([_position(v, classes) for v in values], np.int64)
            elif name.startswith("boxes/"):
                is_float = any(isinstance(value, float) for value in values)
                found[name[6:]] = np.array(values, np.float32 if is_float else np.int64)
    except (ValueError, TypeError) as error:
        raise DecodeError(f"boxes that make no sense: {error}") from error
    return found
