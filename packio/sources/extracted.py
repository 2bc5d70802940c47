"""A folder that ``packio extract`` wrote: files beside ``packio.jsonl`` and ``packio.json``.

`packio.inspecting.annotations` describes these two files. Everything comes back: named fields,
labels, splits, boxes with their columns, metadata, and the shape and type of raw pixels.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from packio.errors import OptionError, SourceError
from packio.sample.fields import check_kind, check_name
from packio.sample.labelling import class_names, labels_of_meta
from packio.sample.levels import divisor_of
from packio.sample.record import IMAGE, Facts
from packio.sources import Context, Listing, Source, _files
from packio.sources.tables import columns
from packio.sources.tables.records import Annotations, attach_records

TABLE, HEAD = "packio.jsonl", "packio.json"


class ExtractedSource(Source):
    options = MappingProxyType({"label_col": "member of the metadata that is the label"})
    priority = -1  # the folder is an image folder too, and the table is a list of images

    def recognise(self, path: Path) -> bool:
        folder = path.parent if path.name == TABLE else path
        return all(os.path.isfile(folder / name) for name in (TABLE, HEAD))

    def listing(self, source: Any, context: Context) -> Listing:
        path = Path(source)
        folder = path.parent if path.name == TABLE else path
        head, lines = _parsed(folder)
        classes, label_col = head["classes"], context.option("label_col")
        if context.classes is not None and label_col is None:
            classes = class_names(f"{folder}/", classes, context.classes)
        keys = [os.fsencode(line["key"]) for line in lines]
        splits = head["splits"] or None
        origins = {name: (name, kind) for name, kind in head["fields"].items() if name != IMAGE}
        cells = {name: [line.get(name) for line in lines] for name in origins}
        result = Listing(
            self.name, os.path.abspath(folder), keys, _files.sizes(folder, keys),
            _labels(lines, classes, folder) if label_col is None else None, classes,
            splits=splits and [splits.index(line["split"]) for line in lines],
            split_names=splits or [],
        )  # fmt: skip
        own = [_annotations(line, classes, f"{folder / TABLE}:{i}")
               for i, line in enumerate(lines, 1)]  # fmt: skip
        result = attach_records(result, folder, origins, cells, own)
        if label_col is None:
            return result
        if classes and any("boxes/labels" in line for line in lines):
            raise OptionError(f"{folder}: label_col={label_col!r}: its boxes have classes already")
        table, metas = str(folder / TABLE), (line.get("meta") for line in lines)
        return result.with_labels(labels_of_meta(
            metas, label_col, lambda i: table if i is None else f"{table}:{i + 1}", context.classes
        ))  # fmt: skip


SOURCE = ExtractedSource()


def _parsed(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
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


def _annotations(line: dict[str, Any], classes: list[str], where: str) -> Annotations:
    meta, boxes, further = line.get("meta"), None, dict[str, np.ndarray]()
    try:
        if "boxes" in line:
            boxes = np.array(line["boxes"], np.float32).reshape(-1, 4)
        for name, values in line.items():
            if name == "boxes/labels":
                further["labels"] = np.array([_position(v, classes) for v in values], np.int64)
            elif name.startswith("boxes/"):
                is_float = any(isinstance(value, float) for value in values)
                further[name[6:]] = np.array(values, np.float32 if is_float else np.int64)
        facts = {name: Facts(*given) for name, given in line.get("facts", {}).items()}
    except (ValueError, TypeError) as error:
        raise SourceError(f"{where}: {error}; extract the pack again") from error
    text = None if meta is None else columns.meta(meta)
    return Annotations(text, boxes, further, None, facts)
