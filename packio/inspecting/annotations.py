r"""The table that `extract` writes beside the files: labels, splits, boxes, metadata, texts.

``packio.jsonl`` has one JSON object a line, one line a sample, in the order of the pack::

    {"key": "cat/1.jpg", "label": "cat", "split": "train", "boxes": [[0.0, 0.0, 3.5, 4.0]],
     "boxes/labels": ["dog"], "boxes/crowd": [0], "meta": {"place": "attic"},
     "mask": "cat/1.mask.png", "caption": "two cats"}

* ``key``: path of the image, relative to the folder; bytes that are not UTF-8 are ``\udc80`` to
  ``\udcff`` (PEP 383).
* ``label``: name of the class if all labels of the samples are classes; else a number, or a list of
  numbers.
* ``split``: name of the split.
* ``boxes``: XYXY in pixels of the stored image; ``boxes/NAME``: one value a box. ``boxes/labels``
  are names of classes if all of them are classes; else numbers.
* ``meta``: a JSON object.
* Any other name is a field; its value is the text itself, or the path of the field's file, relative
  to the folder.

* ``facts``: what is known of raw pixels: name of a field → the values of `packio.sample.facts`.

What a sample lacks is left out.

``packio.json`` has the kinds of all fields, and the names of classes and splits::

    {"classes": ["cat"], "fields": {"image": "image", "mask": "mask"}, "splits": []}

``packio.classes.txt`` has the names of the classes once more, one a line. The source `extracted`
reads all of it: ``packio pack FOLDER NEW.tar``.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from packio.errors import OptionError
from packio.images.encodings import RAW
from packio.packs.opening import Pack
from packio.sample import levels
from packio.sample.fields import PIXELS, decode
from packio.sample.record import IMAGE

TABLE, HEAD, CLASS_NAMES = "packio.jsonl", "packio.json", "packio.classes.txt"
ANNOTATIONS = ("label", "split", "boxes", "meta")  # a pack has some of these
_COLUMNS = {"label": "label", "split": "split", "boxes": "boxes", "meta": "meta_data"}


def annotations_of(
    pack: Pack, chosen: Callable[[], Iterator[np.ndarray]], fields: list[str] | None
) -> list[str]:
    """Which of `ANNOTATIONS` to write.

    Args:
        pack: The pack.
        chosen: Gives the indices that are extracted, in chunks.
        fields: Names that the user asked for; None: everything that no file says.
    """
    there = [name for name in ANNOTATIONS if _COLUMNS[name] in pack.index_file]
    if fields is None:
        say_label = not _told_by_folders(pack, chosen())
        others = len(levels.others(pack.fields)) > 1 or set(there) - {"label"}
        return there if say_label or others else []
    for name in fields:
        if name not in pack.fields and name not in ANNOTATIONS:
            known = ", ".join([*pack.fields, *ANNOTATIONS])
            raise OptionError(f"{pack.path}: no field {name!r}; expected some of {known}")
    return [name for name in there if name in fields]


def _told_by_folders(pack: Pack, chosen: Iterator[np.ndarray]) -> bool:
    """Tell whether each label is the first folder in its key, so that the path says the label."""
    labels, names = pack.labels, [os.fsencode(name) for name in pack.classes]
    if labels is None:
        return True
    if labels.ndim != 1 or (pack.metadata.get("source") or {}).get("kind") != "image_folder":
        return False
    for rows in chosen:
        for row, label in zip(rows.tolist(), pack.take_labels(rows).tolist(), strict=True):
            if not 0 <= label < len(names) or not pack.key_bytes(row).startswith(
                names[label] + b"/"
            ):
                return False
    return True


class TableLines:
    """Makes the lines of ``packio.jsonl``.

    Args:
        pack: The pack.
        names: Which of `ANNOTATIONS` to tell.
    """

    def __init__(self, pack: Pack, names: Collection[str]) -> None:
        self._pack, self._names = pack, names
        index, classes = pack.index_file, pack.classes
        self._class_of: Callable[[Any], Any] = lambda label: label
        self._box_class_of = self._class_of
        self.has_boxes_of_classes = False
        if "label" in names and _are_classes(pack.labels, classes):
            self._class_of = lambda label: classes[label]
        if "boxes/labels" in index and _are_classes(index.column("boxes/labels").array(), classes):
            self._box_class_of = lambda label: classes[label]
            self.has_boxes_of_classes = "boxes" in names

    @property
    def has_classes(self) -> bool:
        """Whether lines speak of classes, so that a list of their names is needed."""
        return bool(self._pack.classes) and bool({"label", "boxes"} & set(self._names))

    def line(self, position: int, files: Mapping[str, bytes]) -> bytes:
        """The line of one sample."""
        pack, names = self._pack, self._names
        told: dict[str, Any] = {"key": pack.key(position)}
        if "label" in names:
            label = pack.label(position)
            if isinstance(label, np.ndarray):
                told["label"] = label.tolist()
            else:
                told["label"] = self._class_of(label)
        if "split" in names:
            told["split"] = pack.split_of(position)
        if "boxes" in names:
            told |= self._boxes(position)
        if "meta" in names:
            told["meta"] = pack.meta(position)
        for name, path in files.items():
            field = pack.field(name, position) if pack.fields[name] == "text" else None
            told[name] = os.fsdecode(path) if field is None else decode(field)
        facts = {name: pack.facts(name, position) for name in [IMAGE, *files]
                 if pack.fields[name] in PIXELS}  # fmt: skip
        told["facts"] = {n: f for n, f in facts.items() if f.encoding in RAW} or None
        told = {name: value for name, value in told.items() if value is not None}
        return json.dumps(told).encode("ascii") + b"\n"

    def _boxes(self, position: int) -> dict[str, Any]:
        boxes, labels = self._pack.boxes(position)
        if boxes is None:
            return {}
        found: dict[str, Any] = {"boxes": boxes.tolist()}
        if labels is not None:
            found["boxes/labels"] = [self._box_class_of(label) for label in labels.tolist()]
        more = self._pack.more_of_boxes(position)
        return found | {f"boxes/{name}": column.tolist() for name, column in more.items()}


def _are_classes(labels: np.ndarray | None, classes: list[str]) -> bool:
    if labels is None or labels.ndim != 1 or not classes:
        return False
    return not len(labels) or bool(0 <= labels.min() <= labels.max() < len(classes))


def head(pack: Pack, fields: Collection[str]) -> bytes:
    """What ``packio.json`` says of a pack."""
    told = {
        "classes": pack.classes,
        "fields": {name: pack.fields[name] for name in fields},
        "splits": list(pack.metadata.get("splits") or []) if "split" in pack.index_file else [],
    }
    return json.dumps(told, indent=1).encode("ascii") + b"\n"


def packing_command(out: Path) -> str:
    """The command that packs an extracted folder again."""
    return shlex.join(["packio", "pack", str(out), "NEW.tar"])
