"""A COCO annotation file: a JSON object with images and annotations, as instances_train2017.json.

Images are samples, in the order of their ids, also those without annotations. Their boxes are XYXY
in pixels, float32, in the order of the file; the labels of boxes count the categories in the order
of their ids, from 0, and `classes` are the categories' names. There are no boxes where no
annotation has one, as in files of captions.

Meta of an image has its own fields, and a list of each field that any annotation in the file has,
in the order of the boxes, null where it is missing. ``id`` becomes ``image_id`` and
``annotation_id``; a field of images that annotations have, too, gets ``image_`` in front::

    {"image_id": 9, "file_name": "000000000009.jpg", "license": 3, "height": 480, "width": 640,
     "annotation_id": [1038967], "category_id": [51], "bbox": [[1.08, 187.69, 611.59, 285.84]],
     "area": [120057.1], "iscrowd": [0], "segmentation": [[[500.49, 473.53, ...]]]}

Annotations that cannot be kept are counted in a warning: those of an image or a category that the
file does not have, and those without a box of four numbers among others with one. Boxes without
width or height are kept.

Source: COCO, "Data format", https://cocodataset.org/#format-data.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio.errors import OptionError, SourceError
from packio.sample.record import Field, Record, image_record
from packio.sources import Listing, ReadRecord, _classes, _files

OPTIONS = {"root": "folder of the images [default: looked for beside the annotations]"}

_EXPECTED = "a COCO annotation file: a JSON object with images and annotations"
_PARTS = (b"images", b"annotations")
_CHUNK = 1 << 24
_OVERLAP = 64  # bytes; enough for a key and the bracket after it
_LOOKED_FOR = 20  # images that show whether a folder is the right one
_MOST_PIXELS = 1e30  # float32 holds them

_Id = int | str


class _Row(NamedTuple):
    """What is known of an image."""

    key: bytes
    meta: bytes
    boxes: bytes | None  # (k, 4) float32
    labels: bytes | None  # (k,) int64


def recognise(path: str | Path) -> bool:
    """Tell whether the path is a JSON file that has the keys ``images`` and ``annotations``."""
    if Path(path).suffix.lower() != ".json" or not os.path.isfile(path):
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


def listing(
    path: str | Path,
    *,
    classes: Sequence[str] | None = None,
    allow_empty: bool = False,  # noqa: ARG001 (the signature of all sources; a class may be empty)
    root: str | os.PathLike[str] | None = None,
) -> Listing:
    """List the images of an annotation file.

    Args:
        path: Of the JSON file.
        classes: Names that give the labels of boxes; None takes the categories, by id.
        allow_empty: Of no meaning here.
        root: Folder that the images' file names are relative to; None looks for one beside the
            file, named after it, or ``images``.

    Raises:
        SourceError: no such file, one that is no COCO file, or a category unknown to `classes`.
        OptionError: the images are not in `root`, or cannot be found.
    """
    path = Path(path)
    data = _loaded(path)
    result = Listing("coco", None, [], [], None, [])
    images = _images(path, data, result)
    labels, names = _categories(path, data, classes, result)
    if not _any_has("category_id", data):
        labels = {}
    elif not labels:
        result.warnings.append("the file names no categories: boxes have no labels")
    boxed = _any_has("bbox", data)
    annotations = _annotations(data, images, labels, result, boxed=boxed)
    keys = _keys(images, result)
    folder = _root(path, root, keys.values())
    rows = _rows(images, keys, annotations, labels, boxed=boxed)
    return dataclasses.replace(
        result,
        root=folder,
        keys=[row.key for row in rows],
        sizes=[_size(folder, row.key) for row in rows],
        classes=names,
        rows=rows,
        version=_version(rows),
        open=functools.partial(_opened, os.path.abspath(folder)),
    )


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


def _by_id(path: Path, what: str, entries: list[dict[str, Any]], result: Listing) -> dict[_Id, Any]:
    """Entries by their ids, sorted; the first one of each id."""
    found: dict[_Id, Any] = {}
    for i, entry in enumerate(entries):
        number = entry.get("id")
        if not isinstance(number, (int, str)):
            raise SourceError(f"{path}: {what} {i} has the id {number!a}; expected a number")
        found.setdefault(number, entry)
    if twice := len(entries) - len(found):
        result.warnings.append(f"{twice} {what} have the id of an earlier one and are left out")
    return {n: found[n] for n in sorted(found, key=lambda n: (isinstance(n, str), n))}


def _images(path: Path, data: dict[str, Any], result: Listing) -> dict[_Id, Any]:
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
    """Category's id → label, and the names of the classes."""
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
    images: dict[_Id, Any],
    labels: dict[_Id, int],
    result: Listing,
    *,
    boxed: bool,
) -> dict[_Id, list[dict[str, Any]]]:
    """Image's id → its annotations, in the order of the file, without those that have no place."""
    found: dict[_Id, list[dict[str, Any]]] = {}
    problems: Counter[str] = Counter()
    ids: Counter[str] = Counter()
    for entry in data["annotations"]:
        if not _is_among(entry.get("image_id"), images):
            problems["annotations are of an image that is not in the file: left out"] += 1
        elif labels and not _is_among(entry.get("category_id"), labels):
            problems["annotations are of a category that is not in the file: left out"] += 1
        elif boxed and not _is_box(entry.get("bbox")):
            problems["annotations have no box of four numbers: left out"] += 1
        else:
            found.setdefault(entry["image_id"], []).append(entry)
            ids.update([repr(entry["id"])] if "id" in entry else [])
            if boxed and min(entry["bbox"][2:]) <= 0:
                problems["boxes have no width or no height: kept"] += 1
    if twice := ids.total() - len(ids):
        problems["annotations have the id of an earlier one: kept"] = twice
    result.warnings.extend(f"{number} {problem}" for problem, number in problems.items())
    return found


def _is_among(number: Any, known: dict[_Id, Any]) -> bool:
    return isinstance(number, (int, str)) and number in known


def _is_box(values: Any) -> bool:
    return (
        isinstance(values, list)
        and len(values) == 4
        and all(isinstance(v, (int, float)) and abs(v) < _MOST_PIXELS for v in values)
    )


def _keys(images: dict[_Id, Any], result: Listing) -> dict[_Id, bytes]:
    """Image's id → its path; without those that lead out of the folder, or are there twice."""
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
    """The folder of the images: the one given, or one with some of the first images in it."""
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
    images: dict[_Id, Any],
    keys: dict[_Id, bytes],
    annotations: dict[_Id, list[dict[str, Any]]],
    labels: dict[_Id, int],
    *,
    boxed: bool,
) -> list[_Row]:
    names = {name for entries in annotations.values() for entry in entries for name in entry}
    fields = {name: "annotation_id" if name == "id" else name for name in sorted(names)}
    fields.pop("image_id", None)
    rows = []
    for number, key in keys.items():
        entries = annotations.pop(number, [])
        boxes = [(x, y, x + w, y + h) for x, y, w, h in (e["bbox"] for e in entries if boxed)]
        numbers = [labels[e["category_id"]] for e in entries if boxed and labels]
        rows.append(
            _Row(
                key,
                _meta(images[number], entries, fields),
                np.array(boxes, np.float32).tobytes() if boxed else None,
                np.array(numbers, np.int64).tobytes() if boxed and labels else None,
            )
        )
    return rows


def _meta(
    image: dict[str, Any], entries: Sequence[dict[str, Any]], fields: dict[str, str]
) -> bytes:
    """Meta of an image, as JSON."""
    own = {"id", "image_id", *fields.values()}
    meta = {f"image_{name}" if name in own else name: value for name, value in image.items()}
    meta |= {name: [entry.get(field) for entry in entries] for field, name in fields.items()}
    text = json.dumps(meta, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def _size(folder: Path, key: bytes) -> int:
    try:
        return os.stat(os.fsencode(folder) + b"/" + key).st_size
    except OSError:  # reading it will say why
        return -1


def _version(rows: Sequence[_Row]) -> str:
    digest = hashlib.sha256()
    for row in rows:
        for part in (row.meta, row.boxes or b"", row.labels or b""):
            digest.update(b"%d:%s" % (len(part), part))
    return digest.hexdigest()


@contextlib.contextmanager
def _opened(folder: str, rows: Sequence[_Row]) -> Iterator[ReadRecord]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def read(position: int) -> Record[Field]:
        row = rows[position]
        boxes = None if row.boxes is None else np.frombuffer(row.boxes, np.float32).reshape(-1, 4)
        labels = None if row.labels is None else np.frombuffer(row.labels, np.int64)
        data = _files.whole_file(descriptor, row.key)
        return image_record(data, meta=row.meta, boxes=boxes, box_labels=labels)

    try:
        yield read
    finally:
        os.close(descriptor)
