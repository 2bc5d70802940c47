"""A COCO annotation file: a JSON object with images and annotations, as instances_train2017.json.

Each image is a sample, also an image without annotations. The order is that of the ids. Labels of
boxes count the categories in the order of their ids, from 0. ``category_id``, ``iscrowd`` and
``area`` of the annotations are the columns ``category_id`` (int64), ``crowd`` (int64) and ``area``
(float32, square pixels) of the boxes, so that they follow a box that a crop drops. There are no
boxes if no annotation has one, as in files of captions; if annotations have a category and neither
boxes nor shapes, as iNaturalist's, the category is the label of the image.

Metadata of an image has the image's own members, and a list of each member that any annotation in
the file has, in the order of the boxes, with null if an annotation lacks the member. ``id`` becomes
``image_id`` and ``annotation_id``. A member of images that annotations have too gets ``image_`` in
front::

    {"image_id": 9, "file_name": "000000000009.jpg", "license": 3, "height": 480, "width": 640,
     "annotation_id": [1038967], "category_id": [51], "bbox": [[1.08, 187.69, 611.59, 285.84]],
     "area": [120057.1], "iscrowd": [0], "segmentation": [[[500.49, 473.53, ...]]]}

Ids are compared as numbers: 1, 1.0 and "1" are the same id. A named field comes from a member of
the image: the path of a file, relative to the folder of the images, or text.

Source: COCO, "Data format", https://cocodataset.org/#format-data.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packio.errors import OptionError, SourceError
from packio.sample.labelling import Labels, class_names, is_number
from packio.sample.record import Frame
from packio.sources import Context, Listing, Source, _files, check_choice, command
from packio.sources.tables import columns
from packio.sources.tables.records import Annotations, attach_records, resolve_kinds

_OPTIONS = {
    "root": "folder of the images (default: looked for beside the annotations)",
    "crowd": "'drop' leaves out the boxes of crowds, which have iscrowd=1 (default: keep)",
}
_EXPECTED = "a COCO annotation file: a JSON object with images and annotations"
_CHUNK, _OVERLAP = 1 << 24, 64  # bytes; the overlap has room for a key and the bracket after it
_LOOKED_FOR = 20  # images that show whether a folder is the right one
_SHAPES = {"bbox", "segmentation", "keypoints"}
_MOST_FILES = 16  # JSON files of a folder that are looked into
_MOST_PIXELS = 1e30  # float32 holds them

_Id = int | str
_Member = dict[str, Any]  # one image, annotation or category of the file


class Coco(Source):
    priority = -0.5  # before the folders of images
    options = _OPTIONS
    takes_fields = True

    def recognise(self, path: Path) -> bool:
        if _files.is_plain_folder(path):
            return bool(_in_folder(path))
        return path.suffix.lower() == ".json" and _has_keys(path, b"images", b"annotations")

    def listing(self, source: Any, context: Context) -> Listing:
        path = _file(Path(source))
        data = _loaded(path)
        result = Listing(self.name, None)
        images = _by_id(path, "images", data)
        if not images:
            raise SourceError(f"{path}: no images in it; expected {_EXPECTED}")
        if check_choice("crowd", context.option("crowd"), "keep", "drop") == "drop":
            kept = [e for e in data["annotations"] if e.get("iscrowd") not in (1, True)]
            count = len(data["annotations"]) - len(kept)
            result.warnings.append(
                f"{count} annotations of crowds are left out, as crowd='drop' asks"
            )
            data["annotations"] = kept
        numbers, names = _categories(path, data, context.classes)
        members = {name for entry in data["annotations"] for name in entry}
        boxed = "bbox" in members or not data["annotations"]
        if "category_id" not in members and data["annotations"]:
            numbers = {}
        elif not numbers:
            result.warnings.append("the file names no categories: boxes have no labels")
        elif not boxed and members & _SHAPES:
            result.warnings.append("no annotation has a bbox: packed without boxes, as metadata")
        annotations, bad = _annotations(data, images, numbers, boxed=boxed)
        folder, keys = _files_of(path, context.option("root"), images, result)
        result.unlisted.extend((keys.pop(n, b"image_id %a" % n), why) for n, why in bad.items())
        for name, (member, _) in context.fields.items():
            if not any(member in image for image in images.values()):
                raise OptionError(f"{path}: field {name!r}: no image has the member {member!r}")
        asked = {member for member, _ in context.fields.values()}
        entries = {n: annotations.get(n, []) for n in keys}
        present = {name for found in annotations.values() for entry in found for name in entry}
        own = []
        for n, found in entries.items():
            corners, further = _boxes(found, numbers, present) if boxed else (None, {})
            meta = _meta(images[n], found, present, asked)
            own.append(Annotations(meta, corners, further, Frame(*_size(images[n]))))
        cells = {name: [images[n].get(member) for n in keys]
                 for name, (member, _) in context.fields.items()}  # fmt: skip
        paths = [*keys.values()]
        sizes = _files.sizes(folder, paths)
        result = dataclasses.replace(result, root=folder, keys=paths, sizes=sizes, classes=names)
        result = attach_records(result, folder, resolve_kinds(context.fields, cells), cells, own)
        if not numbers or members & _SHAPES or not data["annotations"]:
            return result
        return _labelled(result, [*entries.values()], numbers)


SOURCE = Coco()


def _has_keys(path: Path, *names: bytes) -> bool:
    missing, end = {*names}, b""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        while missing and (chunk := file.read(_CHUNK)):
            end += chunk
            missing = {p for p in missing if not re.search(rb'"%s"\s*:\s*\[' % p, end)}
            end = end[-_OVERLAP:]
    return not missing


def _in_folder(folder: Path) -> list[Path]:
    """Annotation files in a folder or in its folder ``annotations``; or the first of LabelMe's."""
    for inner in (folder, folder / "annotations"):
        files = [inner / name for name in _files.names_in(inner, ".json") if name[0] != "."]
        if len(files) > _MOST_FILES:
            files = files[:1] + [f for f in files[1:] if f.name.endswith(".coco.json")]
        if found := [file for file in files if _has_keys(file, b"images", b"annotations")]:
            return found
        if files and _has_keys(files[0], b"shapes"):
            return files[:1]
    return []


def _file(path: Path) -> Path:
    found = _in_folder(path) if _files.is_plain_folder(path) else []
    alone = "; for the images alone, say --source flat_folder or image_folder"
    if found and _has_keys(found[0], b"shapes"):
        raise SourceError(
            f"{found[0]}: of LabelMe, which packio does not read; convert the files to COCO, as by "
            f"labelme's labelme2coco.py{alone}"
        )
    if len(found) > 1:
        each = "; ".join(command(file, file.stem) for file in found)
        raise SourceError(f"{path}/: {len(found)} annotation files; pack each: {each}{alone}")
    return found[0] if found else path


def _labelled(
    result: Listing, entries: Sequence[list[_Member]], numbers: dict[_Id, int]
) -> Listing:
    each = [{numbers[_id(entry["category_id"]) or 0] for entry in found} for found in entries]
    missing = {i: f"no label: {len(found)} categories without boxes; expected one"
               for i, found in enumerate(each) if len(found) != 1}  # fmt: skip
    values = [label for found in each if len(found) == 1 for label in found]
    return result.with_labels(Labels(values or None, result.classes, missing))


def _loaded(path: Path) -> dict[str, Any]:
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


def _by_id(path: Path, what: str, data: dict[str, Any]) -> dict[_Id, _Member]:
    """Images or categories by their ids, sorted."""
    found: dict[_Id, _Member] = {}
    for i, entry in enumerate(data[what]):
        if (number := _id(entry.get("id"))) is None:
            given = ascii(entry.get("id"))
            raise SourceError(f"{path}: {what} {i} has the id {given}; expected a number")
        if (first := found.setdefault(number, entry)) is not entry:
            name = "file_name" if what == "images" else "name"
            raise SourceError(
                f"{path}: {what}: {first.get(name)!a} and {entry.get(name)!a} have the same id, "
                f"{number!a}; expected each id once"
            )
    return {n: found[n] for n in sorted(found, key=lambda n: (isinstance(n, str), n))}


def _categories(
    path: Path, data: dict[str, Any], classes: Sequence[str] | None
) -> tuple[dict[_Id, int], list[str]]:
    """Id of a category → label, and the names of the classes."""
    categories = _by_id(path, "categories", data)
    names = [str(category.get("name", number)) for number, category in categories.items()]
    count = Counter(names)
    names = [f"{name} ({number})" if count[name] > 1 else name
             for name, number in zip(names, categories, strict=True)]  # fmt: skip
    known = names if classes is None else class_names(str(path), names, classes)
    return {n: known.index(name) for n, name in zip(categories, names, strict=True)}, known


def _annotations(
    data: dict[str, Any], images: Collection[_Id], labels: Collection[_Id], *, boxed: bool
) -> tuple[dict[_Id, list[_Member]], dict[_Id, str]]:
    """Id of an image → its annotations, in the order of the file; → what is wrong with them."""
    found: dict[_Id, list[_Member]] = {}
    bad: dict[_Id, list[str]] = {}
    for i, entry in enumerate(data["annotations"]):
        image, box, wrong = _id(entry.get("image_id")), entry.get("bbox"), ""
        is_box = isinstance(box, list) and len(box) == 4 and all(map(_is_number, box))
        if image is None or image not in images:
            wrong = "is of an image that is not in the file"
        elif labels and _id(entry.get("category_id")) not in labels:
            wrong = f"has the category_id {entry.get('category_id')!a}, which no category has"
        elif boxed and not is_box:
            wrong = f"has the bbox {ascii(box)[:60]}; expected four numbers"
        if image is None or wrong:
            of = str(entry.get("image_id")) if image is None else image
            own = ascii(entry["id"]) if "id" in entry else f"number {i}"
            bad.setdefault(of, []).append(f"annotation {own} {wrong}")
        else:
            found.setdefault(image, []).append(entry)
    more = "; {:,} annotations of this image are bad"
    told = {n: why[0] + (more.format(len(why)) if why[1:] else "") for n, why in bad.items()}
    return found, told


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and abs(value) < _MOST_PIXELS


def _keys(
    path: Path, images: dict[_Id, _Member], root: str | None, *, is_windows: bool
) -> tuple[dict[_Id, bytes], list[tuple[bytes, str]]]:
    """Id of an image → its path; paths that lead out of the folder or are there twice."""
    keys: dict[_Id, bytes] = {}
    unlisted: list[tuple[bytes, str]] = []
    taken = set()
    for number, image in images.items():
        name = image.get("file_name")
        if not isinstance(name, str):
            raise SourceError(f"{path}: the image {number!a} has no file_name; expected one")
        name = os.path.normpath(name.replace("\\", "/") if is_windows else name)
        if root is not None and os.path.isabs(name):
            name = os.path.relpath(name, root)
        key = name.encode("utf-8", "surrogatepass")
        with contextlib.suppress(UnicodeEncodeError):  # half of a pair of surrogates: in no name
            key = name.encode("utf-8", "surrogateescape")
        if name.startswith(("/", "../")) or name in (".", "..") or "\0" in name:
            unlisted.append((key, "leads out of the folder of the images"))
        elif key in taken:
            unlisted.append((key, "there twice, with another id"))
        else:
            taken.add(key)
            keys[number] = key
    return keys, unlisted


def _files_of(
    path: Path, given: str | os.PathLike[str] | None, images: dict[_Id, _Member], result: Listing
) -> tuple[Path, dict[_Id, bytes]]:
    """The folder of the images, the given one or one that has some of the first; and their keys."""
    if given is not None:
        tried = [Path(given)]
    else:
        near = Path(os.path.abspath(path)).parent
        beside, name = (near.parent, near), path.stem.partition("_")[2] or path.stem
        tried = [
            p / folder for folder in (name, f"images/{name}", "images", "data", "") for p in beside
        ]
    for is_windows in (False, True):
        root = None if given is None else os.path.abspath(given)
        keys, unlisted = _keys(path, images, root, is_windows=is_windows)
        some = list(itertools.islice(keys.values(), _LOOKED_FOR))
        for folder in tried:
            if any(os.path.exists(os.fsencode(folder) + b"/" + key) for key in some):
                result.unlisted.extend(unlisted)
                if is_windows:
                    result.warnings.append("back-slashes in file_name are taken as /")
                return folder, keys
    first = ascii(next(iter(images.values()))["file_name"])
    raise OptionError(
        f"{path}: its images, as {first}, are not in {', '.join(map(str, tried))}; name their "
        "folder by --root"
    )


def _meta(
    image: _Member, entries: Sequence[_Member], present: Collection[str], asked: Collection[str]
) -> bytes:
    """Metadata of an image without members that are fields; lists of what annotations have."""
    named = {n: "annotation_id" if n == "id" else n for n in present if n != "image_id"}
    clashing = {"id", "image_id", *named.values()}
    meta = {f"image_{name}" if name in clashing else name: value
            for name, value in image.items() if name not in asked}  # fmt: skip
    meta |= {name: [entry.get(member) for entry in entries] for member, name in named.items()}
    return columns.compact(meta)


def _boxes(
    entries: list[_Member], labels: dict[_Id, int], present: Collection[str]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    def column(member: str, dtype: type, value: Callable[[Any], Any]) -> np.ndarray:
        return np.array([value(entry.get(member)) for entry in entries], dtype)

    corners = [(x, y, x + w, y + h) for x, y, w, h in (entry["bbox"] for entry in entries)]
    found = {}
    if labels:
        found["labels"] = column("category_id", np.int64, lambda v: labels[_id(v) or 0])
        if all(isinstance(number, int) for number in labels):
            found["category_id"] = column("category_id", np.int64, _id)
    if "iscrowd" in present:
        found["crowd"] = column("iscrowd", np.int64, lambda v: v in (1, True))
    if "area" in present:
        found["area"] = column("area", np.float32, lambda v: v if _is_number(v) else np.nan)
    return np.array(corners, np.float32).reshape(-1, 4), found


def _size(image: _Member) -> tuple[float, float]:
    width, height = (
        json.loads(side) if isinstance(side, str) and is_number(side) else side
        for side in (image.get("width", 0), image.get("height", 0))
    )
    return (width, height) if _is_number(width) and _is_number(height) else (0, 0)
