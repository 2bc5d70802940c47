"""A folder that ``packio extract`` wrote: files beside ``packio.jsonl`` and ``packio.json``.

`packio.inspecting.annotations` says what these two files hold. Everything comes back: named fields,
labels, splits, boxes with their columns, metadata, and what is known of raw pixels.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from packio.errors import DecodeError, SourceError
from packio.sample.facts import Facts
from packio.sample.fields import check_kind, check_name
from packio.sample.record import IMAGE, Field, Record
from packio.sources import Context, Listing, ReadRecord, Source, _files
from packio.sources._rows import Columns

TABLE, HEAD = "packio.jsonl", "packio.json"


class Extracted(Source):
    """A folder that ``packio extract`` wrote."""

    priority = -1  # an image folder, and a list of images, would be content with less

    def recognise(self, path: Path) -> bool:
        """Tell whether the path is such a folder, or the table in it."""
        folder = path.parent if path.name == TABLE else path
        return all(os.path.isfile(folder / name) for name in (TABLE, HEAD))

    def listing(self, source: Any, context: Context) -> Listing:
        """List the samples of the folder, in the order of the table.

        Raises:
            SourceError: the table does not parse, or a class is unknown to `Context.classes`.
        """
        path = Path(source)
        folder = path.parent if path.name == TABLE else path
        head, lines = _parsed(folder)
        given = context.classes
        classes = list(given if given is not None else head["classes"])
        if unknown := sorted(set(head["classes"]) - set(classes)):
            raise SourceError(
                f"{folder}/: classes that --classes-from does not name: {unknown[:5]}"
            )
        keys = [os.fsencode(line["key"]) for line in lines]
        with _files.folder_opened(folder) as opened:
            sizes = _files.sizes(opened, keys)
        splits = None
        if head["splits"]:
            splits = [head["splits"].index(line["split"]) for line in lines]
        kinds: dict[str, str] = head["fields"]
        others = [n for n, kind in kinds.items() if n != IMAGE and kind != "text"]
        files = [
            (k, *(os.fsencode(line[n]) for n in others if n in line))
            for k, line in zip(keys, lines, strict=True)
        ]
        return Listing(
            self.name, os.path.abspath(folder), keys, sizes, _labels(lines, classes, folder),
            classes, splits=splits, split_names=head["splits"] if splits is not None else [],
            files=files, rows=Columns({"line": [json.dumps(line) for line in lines]}),
            open=functools.partial(_opened, os.path.abspath(folder), kinds, classes),
        )  # fmt: skip


SOURCE = Extracted()


def _parsed(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What ``packio.json`` says, and the lines of the table."""
    try:
        head = json.loads((folder / HEAD).read_text("utf-8"))
        for name, kind in head["fields"].items():
            check_kind(kind)
            if name != IMAGE:
                check_name(name)
        for name in ("classes", "splits"):
            if not all(isinstance(text, str) for text in head[name]):
                raise ValueError(f"{name} are no texts")
        with (folder / TABLE).open(encoding="ascii") as file:
            lines = [json.loads(line) for line in file]
        if not all(isinstance(line["key"], str) for line in lines):
            raise ValueError("a key is no text")
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
            return np.array(found, np.float32).reshape(len(found), -1)
        return [_position(label, classes) for label in found]
    except (ValueError, TypeError) as error:
        raise SourceError(f"{folder / TABLE}: labels of different kinds ({error})") from error


def _position(label: Any, classes: list[str]) -> int:
    return classes.index(label) if isinstance(label, str) else int(label)


@contextlib.contextmanager
def _opened(
    root: str, kinds: Mapping[str, str], classes: list[str], rows: Columns
) -> Iterator[ReadRecord]:
    lines = rows.columns["line"]
    with _files.folder_opened(root) as folder:

        def read(position: int) -> Record[Field]:
            line = json.loads(lines[position])
            facts = line.get("facts", {})
            fields = {IMAGE: _field(folder, "image", line["key"], facts.get(IMAGE))}
            for name, kind in kinds.items():
                if name == IMAGE or name not in line:
                    continue
                value = line[name]
                if kind == "text":
                    fields[name] = Field("text", str(value).encode("utf-8", "surrogatepass"))
                else:
                    fields[name] = _field(folder, kind, value, facts.get(name))
            boxes, columns = _boxes(line, classes)
            meta = line.get("meta")
            text = None if meta is None else json.dumps(
                meta, sort_keys=True, separators=(",", ":"), ensure_ascii=False
            ).encode("utf-8", "surrogatepass")  # fmt: skip
            return Record(b"", fields, boxes=boxes, box_columns=columns, meta=text)

        yield read


def _field(folder: int, kind: str, path: str, facts: list[Any] | None) -> Field:
    data = _files.whole_file(folder, os.fsencode(path))
    return Field(kind, data, None if facts is None else Facts(*facts))


def _boxes(
    line: Mapping[str, Any], classes: list[str]
) -> tuple[np.ndarray | None, dict[str, np.ndarray]]:
    if "boxes" not in line:
        return None, {}
    try:
        boxes = np.array(line["boxes"], np.float32).reshape(-1, 4)
        columns: dict[str, np.ndarray] = {}
        for name, values in line.items():
            if name == "boxes/labels":
                columns["labels"] = np.array([_position(v, classes) for v in values], np.int64)
            elif name.startswith("boxes/"):
                is_float = any(isinstance(v, float) for v in values)
                columns[name[6:]] = np.array(values, np.float32 if is_float else np.int64)
    except (ValueError, TypeError) as error:
        raise DecodeError(f"boxes that make no sense: {error}") from error
    return boxes, columns
