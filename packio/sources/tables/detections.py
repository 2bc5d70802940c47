"""What the sources share that have a file of boxes for each image: YOLO and Pascal VOC."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from packio.errors import DecodeError, SourceError
from packio.sample.labelling import class_names
from packio.sample.record import Frame
from packio.sources import Context, Listing, _files, _folders
from packio.sources.tables import columns
from packio.sources.tables.records import Annotations, attach_records
from packio.system.files import check_of_file

_LARGEST = 1 << 26  # bytes of a file of annotations
OPTIONS = {name: text for name, text in _files.OPTIONS.items() if name != "label_regex"}


class Objects(NamedTuple):
    """The objects of one image: a name, a box (XYXY, as `frame` says) and flags each."""

    names: list[str]
    boxes: list[Sequence[float]]
    frame: Frame
    flags: list[dict[str, int]]
    meta: dict[str, Any] | None


def small_file(path: str | os.PathLike[str]) -> bytes:
    """Read a file of annotations; SourceError: it cannot be read, or is larger than such files."""
    try:
        if (size := os.path.getsize(path)) > _LARGEST:
            raise SourceError(f"{path}: {size:,} bytes; the limit is {_LARGEST:,}")
        return _files.whole_file(None, os.fsencode(path))
    except OSError as error:
        check_of_file(error, path)
        raise SourceError(f"{path}: {error.strerror}") from error


def objects_of(
    files: Mapping[str, str], parse: Callable[[bytes | None, str], Objects], result: Listing,
    is_annotation: Callable[[str], bool],
) -> dict[str, Objects]:  # fmt: skip
    """Parse the file of each image, None if there is none; refuse files of boxes without image.

    `parse` also gets the image's path below the root. `result` receives what cannot be taken;
    `is_annotation` tells whether a file that is no image's has boxes.
    """
    found = {}

    def refuse(path: str, reason: str) -> None:
        result.unlisted.append((os.fsencode(os.path.relpath(path, result.root)), reason))

    for image, file in files.items():
        try:
            data = small_file(file) if os.path.exists(file) else None
            found[image] = parse(data, os.path.relpath(image, result.root))
        except (DecodeError, SourceError) as error:
            refuse(image, f"{ascii(os.path.relpath(file, result.root))[1:-1]}:{error}")
    endings = {os.path.splitext(file)[1].lower() for file in files.values()}
    for folder in sorted({*map(os.path.dirname, files.values())}):
        paths = {os.path.join(folder, name) for name in _files.names_in(folder, *endings)}
        for path in filter(is_annotation, sorted(paths - {*files.values()})):
            refuse(path, "annotations of an image that is not there")
    return found


def listing_of(
    result: Listing, found: Mapping[str, Objects], context: Context, names: Iterable[str] | None,
    splits: Mapping[str, str] | None,
) -> Listing:  # fmt: skip
    """The listing of images, by their absolute paths, and their objects.

    `names` are those of all classes, None: those that objects have; `splits` those of the images,
    None: folders may say it.
    """
    seen = sorted({n for o in found.values() for n in o.names}) if names is None else [*names]
    known = seen
    if context.classes is not None:
        known = class_names(str(result.root), seen, context.classes)
    number = {name: i for i, name in enumerate(known)}
    flags = sorted({flag for o in found.values() for entry in o.flags for flag in entry})
    has_meta = any(o.meta is not None for o in found.values())

    def annotations(objects: Objects) -> Annotations:
        meta = columns.meta(objects.meta or {}) if has_meta else None
        boxes = np.array(objects.boxes, np.float64).reshape(-1, 4)
        further = {"labels": np.array([number[name] for name in objects.names], np.int64)}
        for flag in flags:
            further[flag] = np.array([entry.get(flag, 0) for entry in objects.flags], np.int64)
        return Annotations(meta, boxes, further, objects.frame)

    folder, keys = columns.relative([*found], result.root or "")
    is_split = functools.cache(lambda name: bool(_folders.splits_among([name])))
    if splits is not None:
        of_each = [splits[path] for path in found]
    else:
        parts = (os.fsdecode(key).split("/")[:-1] for key in keys)
        of_each = [next(filter(is_split, folders), "") for folders in parts]
    order = sorted({*of_each}, key=lambda name: (not name.lower().startswith("train"), name))
    sizes = _files.sizes(folder, keys)
    has_splits = "" not in order
    result = dataclasses.replace(
        result, root=folder, keys=keys, sizes=sizes, classes=known,
        splits=[order.index(split) for split in of_each] if has_splits else None,
        split_names=order if has_splits else [],
    )  # fmt: skip
    return attach_records(
        result, folder, {}, {}, [annotations(objects) for objects in found.values()]
    )
