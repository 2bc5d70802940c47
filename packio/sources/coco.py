"""A COCO annotation file: a JSON object with images and annotations, as instances_train2017.json.

Images are samples, in the order of their ids; images without annotations too. Boxes are XYXY in
pixels, float32, in the order of the file. Labels of boxes count the categories in the order of
their ids, from 0; `classes` are the names of the categories. ``iscrowd`` and ``area`` of the
annotations are the columns ``crowd`` (int64) and ``area`` (float32, square pixels) of the boxes, so
that they follow a box that a crop drops. There are no boxes if no annotation has one, as in files
of captions.

Metadata of an image has the image's own members, and a list of each member that any annotation in
the file has, in the order of the boxes, with null for a missing one. ``id`` becomes ``image_id``
and ``annotation_id``. A member of images that annotations have too gets ``image_`` in front::

    {"image_id": 9, "file_name": "000000000009.jpg", "license": 3, "height": 480, "width": 640,
     "annotation_id": [1038967], "category_id": [51], "bbox": [[1.08, 187.69, 611.59, 285.84]],
     "area": [120057.1], "iscrowd": [0], "segmentation": [[[500.49, 473.53, ...]]]}

Ids are compared as numbers: 1, 1.0 and "1" are one id. Annotations that cannot be kept are counted
in a warning: those of an image or a category that the file does not have, and those without a box
of four numbers if others have boxes. Boxes without width or height are kept.

A named field comes from a member of the image: the path of a file, relative to the folder of the
images, or text.

Source: COCO, "Data format", https://cocodataset.org/#format-data.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packio.errors import OptionError, SourceError
from packio.sample.record import Field, Record, image_record
from packio.sources import Context, Listing, ReadRecord, Source, _classes, _files, _values
from packio.sources._rows import Columns

_OPTIONS = {"root": "folder of the images [default: looked for beside the annotations]"}
_EXPECTED = "a COCO annotation file: a JSON object with images and annotations"
_PARTS = (b"images", b"annotations")
_CHUNK = 1 << 24
_OVERLAP = 64  # bytes; enough for a key and the bracket after it
_LOOKED_FOR = 20  # images that show whether a folder is the right one
_MOST_PIXELS = 1e30  # float32 holds them

_Id = int | str
_Entry = dict[str, Any]  # one image, annotation or category of the file
_Wanted = Mapping[str, tuple[str, "str | None"]]  # as `Context.fields`


class Coco(Source):
    """A COCO annotation file."""

    options = _OPTIONS
    takes_fields = True

    def recognise(self, path: Path) -> bool:
        """Tell whether the path is a JSON file with the keys ``images`` and ``annotations``."""
        if path.suffix.lower() != ".json" or not os.path.isfile(path):
            return False
        missing, end = set(_PARTS), b""
        try:
            with open(path, "rb") as file:
                while missing and (chunk := file.read(_CHUNK)):
                    end += chunk
                    missing = {p for p in missing if not re.search(rb'"%s"\s*:\s*\[' % p, end)}
                    end = end[-_OVERLAP:]
        except OSError:
            return False
        return not missing

    def listing(self, source: Any, context: Context) -> Listing:
        """List the images of an annotation file.

        The option ``root`` names the folder that the images' file names are relative to. Without
        it, a folder beside the file is taken: one named after the file, or ``images``.

        Raises:
            SourceError: there is no such file, it is no COCO file, or it has a category that is
                unknown to `Context.classes`.
            OptionError: the images are not in ``root``, or cannot be found.
        """
        path = Path(source)
        data = _loaded(path)
        result = Listing(self.name, None, [], [], None, [])
        images = _images(path, data, result)
        labels, names = _categories(path, data, context.classes, result)
        if not _any_has("category_id", data):
            labels = {}
        elif not labels:
            result.warnings.append("the file names no categories: boxes have no labels")
        boxed = _any_has("bbox", data)
        annotations = _annotations(data, images, labels, result, boxed=boxed)
        keys = _keys(images, result)
        folder = _root(path, context.option("root"), keys.values())
        rows = _rows(images, keys, annotations, labels, context.fields, boxed=boxed)
        with _files.folder_opened(folder) as descriptor:
            sizes = _files.sizes(descriptor, [*keys.values()])
        return Listing(
            self.name, folder, [*keys.values()], sizes, None, names, result.unlisted,
            warnings=result.warnings, rows=rows, files=_paths(rows, folder, context.fields),
            open=functools.partial(_opened, os.path.abspath(folder), context.fields),
        )  # fmt: skip


SOURCE = Coco()


def _loaded(path: Path) -> dict[str, Any]:
    """The JSON object; NaN and infinity become null."""
    try:
        data = json.loads(path.read_bytes(), parse_constant=lambda _: None)
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}; expected {_EXPECTED}") from error
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path}: no JSON ({error}); expected {_EXPECTED}") from error
    if not isinstance(data, dict):
        raise SourceError(f"{path}: no JSON object; expected {_EXPECTED}")
    for part in ("images", "annotations", "categories"):
        entries = data.get(part, [] if part == "categories" else None)
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise SourceError(f"{path}: {part!r} is no list of objects; expected {_EXPECTED}")
    return data


def _any_has(field: str, data: dict[str, Any]) -> bool:
    return not data["annotations"] or any(field in entry for entry in data["annotations"])


def _id(value: Any) -> _Id | None:
    """An id as a number where it is one: of 1, 1.0 and "1"; None if the value is no id."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and re.fullmatch(r"0|-?[1-9]\d{0,17}", value, re.ASCII):
        return int(value)
    return value if isinstance(value, (int, str)) else None


def _by_id(path: Path, what: str, entries: list[_Entry], result: Listing) -> dict[_Id, _Entry]:
    """Entries by their ids, sorted; the first one of each id."""
    found: dict[_Id, _Entry] = {}
    for i, entry in enumerate(entries):
        number = _id(entry.get("id"))
        if number is None:
            given = ascii(entry.get("id"))
            raise SourceError(f"{path}: {what} {i} has the id {given}; expected a number")
        if found.setdefault(number, entry) is not entry and what == "images":
            name = str(entry.get("file_name")).encode("utf-8", "surrogateescape")
            if entry.get("file_name") != found[number].get("file_name"):
                result.unlisted.append((name, f"has the id {number!a} of an earlier image"))
    if twice := len(entries) - len(found):
        result.warnings.append(f"{twice} {what} have the id of an earlier one and are left out")
    return {n: found[n] for n in sorted(found, key=lambda n: (isinstance(n, str), n))}


def _images(path: Path, data: dict[str, Any], result: Listing) -> dict[_Id, _Entry]:
    images = _by_id(path, "images", data["images"], result)
    if not images:
        raise SourceError(f"{path}: no images in it; expected {_EXPECTED}")
    for number, image in images.items():
        if not isinstance(image.get("file_name"), str):
            raise SourceError(f"{path}: the image {number!a} has no file_name; expected one")
    return images


def _categories(
    path: Path, data: dict[str, Any], classes: Sequence[str] | None, result: Listing
) -> tuple[dict[_Id, int], list[str]]:
    """Id of a category → label, and the names of the classes."""
    categories = _by_id(path, "categories", data.get("categories", []), result)
    names = [str(category.get("name", number)) for number, category in categories.items()]
    count = Counter(names)
    names = [f"{name} ({number})" if count[name] > 1 else name
             for name, number in zip(names, categories, strict=True)]  # fmt: skip
    if classes is None:
        return {number: label for label, number in enumerate(categories)}, names
    known = _classes.names(str(path), names, classes)
    position = {name: label for label, name in enumerate(known)}
    return {n: position[name] for n, name in zip(categories, names, strict=True)}, known


def _annotations(
    data: dict[str, Any],
    images: dict[_Id, _Entry],
    labels: dict[_Id, int],
    result: Listing,
    *,
    boxed: bool,
) -> dict[_Id, list[_Entry]]:
    """Id of an image → its annotations that can be kept, in the order of the file."""
    found: dict[_Id, list[_Entry]] = {}
    problems: Counter[str] = Counter()
    ids: Counter[str] = Counter()
    for entry in data["annotations"]:
        image = _id(entry.get("image_id"))
        if image not in images:
            problems["annotations are of an image that is not in the file: left out"] += 1
        elif labels and _id(entry.get("category_id")) not in labels:
            problems["annotations are of a category that is not in the file: left out"] += 1
        elif boxed and not _is_box(entry.get("bbox")):
            problems["annotations have no box of four numbers: left out"] += 1
        else:
            found.setdefault(image, []).append(entry)
            ids.update([repr(entry["id"])] if "id" in entry else [])
            if boxed and min(entry["bbox"][2:]) <= 0:
                problems["boxes have no width or no height: kept"] += 1
    if twice := ids.total() - len(ids):
        problems["annotations have the id of an earlier one: kept"] = twice
    result.warnings.extend(f"{number} {problem}" for problem, number in problems.items())
    return found


def _is_box(values: Any) -> bool:
    return isinstance(values, list) and len(values) == 4 and all(map(_is_number, values))


def _keys(images: dict[_Id, _Entry], result: Listing) -> dict[_Id, bytes]:
    """Id of an image → its path, without paths that lead out of the folder or are there twice."""
    keys: dict[_Id, bytes] = {}
    taken = set()
    for number, image in images.items():
        name = os.path.normpath(image["file_name"])
        key = name.encode("utf-8", "surrogatepass")
        with contextlib.suppress(UnicodeEncodeError):  # half of a pair of surrogates: in no name
            key = name.encode("utf-8", "surrogateescape")
        if name.startswith(("/", "../")) or name in (".", "..") or "\0" in name:
            result.unlisted.append((key, "leads out of the folder of the images"))
        elif key in taken:
            result.unlisted.append((key, "there twice, with another id"))
        else:
            taken.add(key)
            keys[number] = key
    return keys


def _root(path: Path, given: str | os.PathLike[str] | None, keys: Collection[bytes]) -> Path:
    """The folder of the images: the one given, or one that has one of the first images."""
    if given is not None:
        tried = [Path(given)]
    else:
        near = Path(os.path.abspath(path)).parent
        beside, name = (near.parent, near), path.stem.partition("_")[2] or path.stem
        tried = [p / folder for folder in (name, f"images/{name}", "images", "") for p in beside]
    some = list(itertools.islice(keys, _LOOKED_FOR))
    for folder in tried:
        if not some or any(os.path.exists(os.fsencode(folder) + b"/" + key) for key in some):
            return folder
    raise OptionError(
        f"{path}: its images, as {some[0]!a}, are not in {', '.join(map(str, tried))}; name their "
        "folder by --root"
    )


def _rows(
    images: dict[_Id, _Entry],
    keys: dict[_Id, bytes],
    annotations: dict[_Id, list[_Entry]],
    labels: dict[_Id, int],
    wanted: _Wanted,
    *,
    boxed: bool,
) -> Columns:
    """Key, metadata, boxes with their columns, and fields of each image."""
    present = {name for entries in annotations.values() for entry in entries for name in entry}
    members = {name: "annotation_id" if name == "id" else name for name in sorted(present)}
    members.pop("image_id", None)
    columns: dict[str, list[Any]] = {"key": [*keys.values()], "meta": [], "boxes": [], "fields": []}
    for number in keys:
        entries, image = annotations.pop(number, []), dict(images[number])
        values = [image.pop(column, None) for column, _ in wanted.values()]
        columns["fields"].append(tuple(values))
        columns["meta"].append(_meta(image, entries, members))
        columns["boxes"].append(_boxes(entries, labels, present) if boxed else {})
    return Columns(columns)


def _boxes(
    entries: list[_Entry], labels: dict[_Id, int], present: Collection[str]
) -> dict[str, np.ndarray]:
    """Boxes of an image (k, 4) float32 under "", and their columns by name."""
    corners = [(x, y, x + w, y + h) for x, y, w, h in (entry["bbox"] for entry in entries)]
    found = {"": np.array(corners, np.float32).reshape(-1, 4)}
    if labels:
        ids = [_id(entry.get("category_id")) for entry in entries]
        numbers = [labels[number] for number in ids if number is not None]
        found["labels"] = np.array(numbers, np.int64)
    if "iscrowd" in present:
        crowd = [entry.get("iscrowd") in (1, True) for entry in entries]
        found["crowd"] = np.array(crowd, np.int64)
    if "area" in present:
        areas = [entry.get("area") for entry in entries]
        found["area"] = np.array([a if _is_number(a) else np.nan for a in areas], np.float32)
    return found


def _paths(rows: Columns, folder: Path, wanted: _Wanted) -> list[tuple[bytes, ...]] | None:
    """Paths of the files that each sample is read from; None: of the image alone."""
    if not wanted:
        return None
    kinds = [kind for _, kind in wanted.values()]
    columns = zip(rows.columns["key"], rows.columns["fields"], strict=True)
    return [(key, *_values.files_of(cells, kinds, folder)) for key, cells in columns]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and abs(value) < _MOST_PIXELS


def _meta(image: _Entry, entries: Sequence[_Entry], members: dict[str, str]) -> bytes:
    """Metadata of an image, as JSON."""
    own = {"id", "image_id", *members.values()}
    meta = {f"image_{name}" if name in own else name: value for name, value in image.items()}
    meta |= {name: [entry.get(field) for entry in entries] for field, name in members.items()}
    text = json.dumps(meta, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


@contextlib.contextmanager
def _opened(folder: str, wanted: _Wanted, rows: Columns) -> Iterator[ReadRecord]:
    keys, metas, boxes, cells = rows.columns.values()
    with _files.folder_opened(folder) as descriptor:

        def read(position: int) -> Record[Field]:
            data = _files.whole_file(descriptor, keys[position])
            columns = dict(boxes[position])
            own = columns.pop("", None)
            record = image_record(data, boxes=own, meta=metas[position])
            values = dict(zip(wanted, cells[position], strict=True))
            fields = {**record.fields, **_values.fields_of(values, wanted, folder)}
            return dataclasses.replace(record, box_columns=columns, fields=fields)

        yield read
