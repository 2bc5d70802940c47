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

* ``facts``: what is known of raw pixels: name of a field → values of `sample.record.Facts`.

What a sample lacks is left out.

``packio.json`` has the kinds of all fields, and the names of classes and splits::

    {"classes": ["cat"], "fields": {"image": "image", "mask": "mask"}, "splits": []}

``packio.coco.json`` is a COCO file (https://cocodataset.org/#format-data) of boxes with classes.
Sizes and boxes are those of the upright images. Ids of images, annotations and categories are the
original ones where the pack knows them and each is there once; else they count from 1. What the
metadata says of each box, as ``segmentation``, becomes a member of its annotation again, if the
metadata has the same box.

``packio.classes.txt`` has the names of the classes once more, one a line. The source `extracted`
reads all of it: ``packio pack FOLDER NEW.tar``.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from packio.errors import OptionError
from packio.images.encodings import RAW
from packio.packing.images import resizing
from packio.packs.opening import Pack
from packio.sample import levels
from packio.sample.fields import PIXELS, decode
from packio.sample.record import IMAGE

TABLE, HEAD, CLASS_NAMES = "packio.jsonl", "packio.json", "packio.classes.txt"
COCO = "packio.coco.json"
ANNOTATIONS = ("label", "split", "boxes", "meta")  # a pack has some of these
_IN_PIXELS = {"area", "keypoints", "segmentation"}  # members of an annotation
_CLOSE = 0.01  # pixels: float32 against the text of a COCO file
_COLUMNS = {"label": "label", "split": "split", "boxes": "boxes", "meta": "meta_data"}


def choose_annotations(
    pack: Pack, chosen: Callable[[], Iterator[np.ndarray]], fields: list[str] | None
) -> list[str]:
    """Which of `ANNOTATIONS` to write; if no fields are asked for, what no file says.

    The function gives the indices of the samples that are extracted, in chunks.
    """
    there = [name for name in ANNOTATIONS if _COLUMNS[name] in pack.index_file]
    if fields is None:
        others = len(levels.others(pack.fields)) > 1 or set(there) - {"label"}
        return there if others or not _folders_say_labels(pack, chosen()) else []
    for name in fields:
        if name not in pack.fields and name not in ANNOTATIONS:
            known = ", ".join([*pack.fields, *ANNOTATIONS])
            raise OptionError(f"{pack.path}: no field {name!r}; expected some of {known}")
    return [name for name in there if name in fields]


def _folders_say_labels(pack: Pack, chosen: Iterator[np.ndarray]) -> bool:
    """Tell whether each label is the first folder in its key, so that the path says the label."""
    labels, names = pack.labels, [os.fsencode(name) for name in pack.classes]
    if labels is None:
        return True
    if labels.ndim != 1 or (pack.metadata.get("source") or {}).get("kind") != "image_folder":
        return False
    return all(
        0 <= label < len(names) and pack.key_bytes(row).startswith(names[label] + b"/")
        for rows in chosen
        for row, label in zip(rows.tolist(), pack.take_labels(rows).tolist(), strict=True)
    )


class TableLines:
    """Makes the lines of ``packio.jsonl``, with some of `ANNOTATIONS`."""

    def __init__(self, pack: Pack, names: Collection[str]) -> None:
        self._pack, self._names = pack, names
        index, classes = pack.index_file, pack.classes
        labels = index.column("boxes/labels").array() if "boxes/labels" in index else None
        self._are_classes = "label" in names and _are_classes(pack.labels, classes)
        self.has_boxes_of_classes = "boxes" in names and _are_classes(labels, classes)

    def line(self, position: int, files: Mapping[str, bytes]) -> bytes:
        pack, names = self._pack, self._names
        told: dict[str, Any] = {"key": pack.key(position)}
        if "label" in names:
            label: Any = pack.label(position)
            label = label.tolist() if isinstance(label, np.ndarray) else label
            told["label"] = pack.classes[label] if self._are_classes else label
        if "split" in names:
            told["split"] = pack.split_of(position)
        if "boxes" in names:
            boxes, numbers = pack.boxes(position)
            told["boxes"] = None if boxes is None else boxes.tolist()
            if boxes is not None and numbers is not None:
                ids, are_named = numbers.tolist(), self.has_boxes_of_classes
                told["boxes/labels"] = [pack.classes[i] for i in ids] if are_named else ids
            for name, column in pack.more_of_boxes(position).items() if boxes is not None else ():
                told[f"boxes/{name}"] = column.tolist()
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


def _are_classes(labels: np.ndarray | None, classes: list[str]) -> bool:
    if labels is None or labels.ndim != 1 or not classes:
        return False
    return not len(labels) or bool(0 <= labels.min() <= labels.max() < len(classes))


def make_head(pack: Pack, fields: Collection[str]) -> bytes:
    told = {
        "classes": pack.classes,
        "fields": {name: pack.fields[name] for name in fields},
        "splits": list(pack.metadata.get("splits") or []) if "split" in pack.index_file else [],
    }
    return json.dumps(told, indent=1).encode("ascii") + b"\n"


class _Upright(NamedTuple):
    position: int
    size: tuple[int, int]  # width, height
    meta: dict[str, Any]
    boxes: list[list[float]]  # x, y, width, height


def make_coco_file(pack: Pack, chosen: Callable[[], Iterator[np.ndarray]]) -> Iterator[bytes]:
    """The bytes of ``packio.coco.json``, in pieces; the boxes have labels with names."""
    images, boxes, of_image = list[Any](), list[Any](), set[str]()
    for sample in _samples(pack, chosen):
        count = len(sample.boxes)
        lists = {n for n, v in sample.meta.items() if isinstance(v, list) and len(v) == count}
        of_image |= sample.meta.keys() - lists
        images.append(sample.meta.get("image_id"))
        boxes += sample.meta["annotation_id"] if "annotation_id" in lists else [None] * count
    ids, numbers, categories = _each_once(images), iter(_each_once(boxes)), _categories(pack)

    def image_entries() -> Iterator[dict[str, Any]]:
        for number, (position, size, meta, _) in zip(ids, _samples(pack, chosen), strict=True):
            own = {"id": number, "file_name": pack.key(position), "width": size[0]}
            others = {n: v for n, v in meta.items() if n in of_image and n != "image_id"}
            yield {**others, **own, "height": size[1]}

    def annotations() -> Iterator[dict[str, Any]]:
        for number, (position, _, meta, found) in zip(ids, _samples(pack, chosen), strict=True):
            more, labels = pack.more_of_boxes(position), pack.boxes(position)[1]
            lists = {n: v for n, v in meta.items() if n not in of_image and n != "annotation_id"}
            for i, box in enumerate(found):
                told = {n: v[i] for n, v in lists.items() if v[i] is not None}
                if not _is_near(told.get("bbox"), box):  # of another image or frame
                    told = {n: v for n, v in told.items() if n not in _IN_PIXELS} | {"bbox": box}
                told.setdefault(
                    "area", float(more["area"][i]) if "area" in more else box[2] * box[3]
                )
                told.setdefault("iscrowd", int(more["crowd"][i]) if "crowd" in more else 0)
                told |= {"id": next(numbers), "image_id": number}
                yield {**told, "category_id": categories[np.asarray(labels)[i]]}

    told = [{"id": i, "name": name} for i, name in zip(categories, pack.classes, strict=True)]
    yield f'{{"categories": {json.dumps(told)},\n"images": [\n'.encode()
    yield from _join_entries(image_entries())
    yield b'\n],\n"annotations": [\n'
    yield from _join_entries(annotations())
    yield b"\n]}\n"


def _samples(pack: Pack, chosen: Callable[[], Iterator[np.ndarray]]) -> Iterator[_Upright]:
    for position in (row for rows in chosen() for row in rows.tolist()):
        row, meta = pack.row(position), pack.meta(position) or {}
        stored, turn, found = (row.width, row.height), row.orientation, pack.boxes(position)[0]
        boxes = np.zeros((0, 4)) if found is None else found
        boxes = resizing.move_boxes(boxes, stored, stored, turn)
        boxes[:, 2:] -= boxes[:, :2]
        yield _Upright(position, stored[::-1] if turn >= 5 else stored, meta, boxes.tolist())


def _is_near(written: Any, box: list[float]) -> bool:
    """Whether a box of the metadata is the pack's, but for the rounding of float32."""
    with contextlib.suppress(TypeError, ValueError):  # no numbers
        return len(written) == 4 and np.allclose(written, box, rtol=0, atol=_CLOSE)
    return False


def _each_once(ids: list[Any]) -> list[Any]:
    is_good = None not in ids and len({repr(number) for number in ids}) == len(ids)
    return ids if is_good else [*range(1, len(ids) + 1)]


def _categories(pack: Pack) -> list[int]:
    """Id of each class."""
    index, known = pack.index_file, dict[int, int]()
    if "boxes/category_id" in index:
        columns = (index.column(f"boxes/{n}").array().tolist() for n in ("labels", "category_id"))
        known = dict(zip(*columns, strict=True))
    if len({*known.values()}) < len(known):  # of several files, which gave one id to two classes
        known = {}
    others = itertools.count(max(known.values(), default=0) + 1)
    return [known[i] if i in known else next(others) for i in range(len(pack.classes))]


def _join_entries(entries: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    before = b""
    for entry in entries:
        yield before + json.dumps(entry).encode("ascii")
        before = b",\n"
