"""A COCO annotation file: a JSON object with images and annotations, as instances_train2017.json.

Each image is a sample, also an image without annotations. The order is that of the ids. Boxes are
XYXY in pixels, float32, in the order of the file. Labels of boxes count the categories in the order
of their ids, from 0; `classes` are the names of the categories. ``category_id``, ``iscrowd`` and
``area`` of the annotations are the columns ``category_id`` (int64), ``crowd`` (int64) and ``area``
(float32, square pixels) of the boxes, so that they follow a box that a crop drops. There are no
boxes if no annotation has one, as in files of captions.

Metadata of an image has the image's own members, and a list of each member that any annotation in
the file has, in the order of the boxes, with null if an annotation lacks the member. ``id`` becomes
``image_id`` and ``annotation_id``. A member of images that annotations have too gets ``image_`` in
front::

    {"image_id": 9, "file_name": "000000000009.jpg", "license": 3, "height": 480, "width": 640,
     "annotation_id": [1038967], "category_id": [51], "bbox": [[1.08, 187.69, 611.59, 285.84]],
     "area": [120057.1], "iscrowd": [0], "segmentation": [[[500.49, 473.53, ...]]]}

Ids are compared as numbers: 1, 1.0 and "1" are the same id. A warning counts the annotations that
cannot be kept: annotations of an image or a category that the file does not have, and annotations
without a box of four numbers in a file with boxes. Boxes without width or height are kept.

A named field comes from a member of the image: the path of a file, relative to the folder of the
images, or text.

Source: COCO, "Data format", https://cocodataset.org/#format-data.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packio.errors import OptionError, SourceError
from packio.sample.labelling import class_names
from packio.sample.record import Field, Frame, Record
from packio.sources import Context, FieldOrigins, Listing, Source, _files, _values
from packio.sources._records import record_of, resolved
from packio.sources._rows import ListedRows, each

_OPTIONS = {
    "root": "folder of the images (default: looked for beside the annotations)",
    "crowd": "'drop' leaves out the boxes of crowds, which have iscrowd=1 (default: keep)",
}
_EXPECTED = "a COCO annotation file: a JSON object with images and annotations"
_CHUNK, _OVERLAP = 1 << 24, 64  # bytes; the overlap has room for a key and the bracket after it
_LOOKED_FOR = 20  # images that show whether a folder is the right one
_MOST_PIXELS = 1e30  # float32 holds them

_Id = int | str
_Member = dict[str, Any]  # one image, annotation or category of the file


class Coco(Source):
    """A COCO annotation file."""

    options = _OPTIONS
    takes_fields = True

    def recognise(self, path: Path) -> bool:
        """Tell whether the path is a JSON file with the keys ``images`` and ``annotations``."""
        if path.suffix.lower() != ".json" or not os.path.isfile(path):
            return False
        missing, end = {b"images", b"annotations"}, b""
        with contextlib.suppress(OSError), open(path, "rb") as file:
            while missing and (chunk := file.read(_CHUNK)):
                end += chunk
                missing = {p for p in missing if not re.search(rb'"%s"\s*:\s*\[' % p, end)}
                end = end[-_OVERLAP:]
        return not missing

    def listing(self, source: Any, context: Context) -> Listing:
        """List the images of an annotation file.

        The option ``root`` names the folder that the images' file names are relative to. Without
        it, packio takes a folder beside the file: one named after the file, or ``images``.
        """
        path = Path(source)
        data = _loaded(path)
        result = Listing(self.name, None, [], [], None, [])
        images = _by_id(path, "images", data["images"], result)
        if not images:
            raise SourceError(f"{path}: no images in it; expected {_EXPECTED}")
        if context.option("crowd", "keep") not in ("keep", "drop"):
            raise OptionError(f"crowd={context.option('crowd')!r}: expected 'keep' or 'drop'")
        if context.option("crowd") == "drop":
            _drop_crowds(data, result)
        labels, names = _categories(path, data, context.classes, result)
        members = {name for entry in data["annotations"] for name in entry}
        boxed = "bbox" in members or not data["annotations"]
        if "category_id" not in members and data["annotations"]:
            labels = {}
        elif not labels:
            result.warnings.append("the file names no categories: boxes have no labels")
        annotations = _annotations(data, images, labels, result, boxed=boxed)
        keys = _keys(path, images, result)
        folder = _root(path, context.option("root"), keys.values())
        asked = [member for member, _ in context.fields.values()]
        for name, (member, _) in context.fields.items():
            if not any(member in image for image in images.values()):
                raise OptionError(f"{path}: field {name!r}: no image has the member {member!r}")
        described = _described(annotations)
        metas = [_meta(images[n], annotations.get(n, []), described, asked) for n in keys]
        boxes = [_boxes(annotations.get(n, []), labels, described) if boxed else {} for n in keys]
        said = {"size of image": [_size(images[n]) for n in keys]}
        cells = {name: [images[n].get(member) for n in keys]
                 for name, (member, _) in context.fields.items()}  # fmt: skip
        fields = resolved(context.fields, cells)
        paths = [*keys.values()]
        with _files.folder_opened(folder) as descriptor:
            sizes = _files.sizes(descriptor, paths)
        return Listing(
            self.name, folder, paths, sizes, None, names, result.unlisted, warnings=result.warnings,
            rows=ListedRows({"image": paths, "meta": metas, "boxes": boxes, **said, **cells}),
            files=_values.files_of(paths, cells, fields, folder) if fields else None,
            open=functools.partial(each, _read, os.path.abspath(folder), fields),
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
    data.setdefault("categories", [])
    for part in ("images", "annotations", "categories"):
        entries = data.get(part)
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise SourceError(f"{path}: {part!r} is no list of objects; expected {_EXPECTED}")
    return data


def _id(value: Any) -> _Id | None:
    """An id as a number if possible: of 1, 1.0 and "1"; None if the value is no id."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and re.fullmatch(r"0|-?[1-9]\d{0,17}", value, re.ASCII):
        return int(value)
    return value if isinstance(value, (int, str)) else None


def _by_id(path: Path, what: str, entries: list[_Member], result: Listing) -> dict[_Id, _Member]:
    """Images or categories by their ids, sorted. Of several with one id, the first counts."""
    found: dict[_Id, _Member] = {}
    for i, entry in enumerate(entries):
        number, name = _id(entry.get("id")), entry.get("file_name")
        if number is None:
            given = ascii(entry.get("id"))
            raise SourceError(f"{path}: {what} {i} has the id {given}; expected a number")
        first = found.setdefault(number, entry)
        if what == "images" and name != first.get("file_name"):
            key = str(name).encode("utf-8", "surrogateescape")
            result.unlisted.append((key, f"has the id {number!a} of an earlier image"))
    if twice := len(entries) - len(found):
        result.warnings.append(f"{twice} {what} have the id of an earlier one and are left out")
    return {n: found[n] for n in sorted(found, key=lambda n: (isinstance(n, str), n))}


def _categories(
    path: Path, data: dict[str, Any], classes: Sequence[str] | None, result: Listing
) -> tuple[dict[_Id, int], list[str]]:
    """Id of a category → label, and the names of the classes."""
    categories = _by_id(path, "categories", data["categories"], result)
    names = [str(category.get("name", number)) for number, category in categories.items()]
    count = Counter(names)
    names = [f"{name} ({number})" if count[name] > 1 else name
             for name, number in zip(names, categories, strict=True)]  # fmt: skip
    known = names if classes is None else class_names(str(path), names, classes)
    return {n: known.index(name) for n, name in zip(categories, names, strict=True)}, known


def _drop_crowds(data: dict[str, Any], result: Listing) -> None:
    """Take the annotations of crowds out of the data."""
    kept = [entry for entry in data["annotations"] if entry.get("iscrowd") not in (1, True)]
    dropped = len(data["annotations"]) - len(kept)
    result.warnings.append(f"{dropped} annotations of crowds are left out, as crowd='drop' asks")
    data["annotations"] = kept


def _annotations(
    data: dict[str, Any], images: Collection[_Id], labels: Collection[_Id], result: Listing,
    *, boxed: bool,
) -> dict[_Id, list[_Member]]:  # fmt: skip
    """Id of an image → its annotations that can be kept, in the order of the file."""
    found: dict[_Id, list[_Member]] = {}
    problems: Counter[str] = Counter()
    ids: Counter[str] = Counter()
    for entry in data["annotations"]:
        image = _id(entry.get("image_id"))
        if image is None or image not in images:
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


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and abs(value) < _MOST_PIXELS


def _is_box(values: Any) -> bool:
    return isinstance(values, list) and len(values) == 4 and all(map(_is_number, values))


def _keys(path: Path, images: dict[_Id, _Member], result: Listing) -> dict[_Id, bytes]:
    """Id of an image → its path, without paths that lead out of the folder or are there twice."""
    keys: dict[_Id, bytes] = {}
    taken = set()
    for number, image in images.items():
        if not isinstance(image.get("file_name"), str):
            raise SourceError(f"{path}: the image {number!a} has no file_name; expected one")
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
    """The folder of the images: the given folder, or a folder that has one of the first images."""
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


def _described(annotations: Mapping[_Id, list[_Member]]) -> dict[str, str]:
    """Member of annotations → name in the metadata, sorted."""
    present = {name for entries in annotations.values() for entry in entries for name in entry}
    named = {name: "annotation_id" if name == "id" else name for name in sorted(present)}
    named.pop("image_id", None)
    return named


def _meta(
    image: _Member, entries: Sequence[_Member], described: dict[str, str], asked: Collection[str]
) -> bytes:
    """Metadata of an image, as JSON, without the members that become fields."""
    clashing = {"id", "image_id", *described.values()}
    meta = {f"image_{name}" if name in clashing else name: value
            for name, value in image.items() if name not in asked}  # fmt: skip
    meta |= {name: [entry.get(member) for entry in entries] for member, name in described.items()}
    text = json.dumps(meta, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def _boxes(
    entries: list[_Member], labels: dict[_Id, int], described: Collection[str]
) -> dict[str, np.ndarray]:
    """Boxes of an image (k, 4) float32 under "", and their columns by name."""

    def column(member: str, dtype: type, value: Callable[[Any], Any]) -> np.ndarray:
        return np.array([value(entry.get(member)) for entry in entries], dtype)

    corners = [(x, y, x + w, y + h) for x, y, w, h in (entry["bbox"] for entry in entries)]
    found = {"": np.array(corners, np.float32).reshape(-1, 4)}
    if labels:
        found["labels"] = column("category_id", np.int64, lambda v: labels[_id(v) or 0])
        if all(isinstance(number, int) for number in labels):
            found["category_id"] = column("category_id", np.int64, _id)
    if "iscrowd" in described:
        found["crowd"] = column("iscrowd", np.int64, lambda v: v in (1, True))
    if "area" in described:
        found["area"] = column("area", np.float32, lambda v: v if _is_number(v) else np.nan)
    return found


def _size(image: _Member) -> tuple[float, float]:
    """Width and height that the file says; (0, 0) if it does not say both."""
    width, height = image.get("width", 0), image.get("height", 0)
    return (width, height) if _is_number(width) and _is_number(height) else (0, 0)


def _read(folder: str, fields: FieldOrigins, rows: ListedRows, position: int) -> Record[Field]:
    """Read an image and the files of its fields."""
    origins = {"image": ("file_name", "image"), **fields}
    values = {name: rows.columns[name][position] for name in origins}
    values["image"] = os.fsdecode(values["image"])
    columns = dict(rows.columns["boxes"][position])
    own = columns.pop("", None)
    frame = Frame(*rows.columns["size of image"][position])
    return record_of(values, origins, folder, rows.columns["meta"][position], own, columns, frame)
