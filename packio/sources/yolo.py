"""YOLO: images, and a text file of boxes for each image, as ultralytics reads them.

The source is a data.yaml, or a folder with one; or a folder with ``images`` and ``labels``, as
``images/train/1.jpg`` and ``labels/train/1.txt``, or ``train/images/1.jpg``; or images and text
files in one folder with a ``classes.txt``, as labelImg writes them. The labels of an image lie
where the last ``/images/`` of its path is ``/labels/``, or else beside the image.

A line is ``class cx cy w h``: centre and size, as fractions of the upright image's width and
height. A line with more numbers is a polygon, whose bounds are the box; or with ``kpt_shape`` in
data.yaml a box and its keypoints. Polygons and keypoints are kept as metadata, ``segments`` and
``keypoints``: the numbers of the file, a list for each box.

``train``, ``val`` and ``test`` of data.yaml are splits. Paths in it are relative to its ``path``,
which is relative to the file; where that leads nowhere, to the file, and without ``../`` in front
(as Roboflow writes them).

Source: https://docs.ultralytics.com/datasets/detect/, /segment/, /pose/; ``ultralytics.data.utils``
(``img2label_paths``, ``verify_image_label``, ``check_det_dataset``).
"""

from __future__ import annotations

import functools
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio import registry
from packio.errors import DecodeError, PackioError, SourceError
from packio.sample.record import Frame
from packio.sources import Context, Listing, Source, _files, _folders, count_names
from packio.sources.tables.detections import OPTIONS, Objects, listing_of, objects_of, small_file

_EXPECTED = "a data.yaml, or a folder with images/ and labels/"
_SUFFIXES = (".yaml", ".yml")
_NAMES = ("classes.txt", "obj.names", "_darknet.labels")
_SLACK = 1e-4  # by which rounding takes a fraction out of 0 to 1
_MESSAGES = {
    "missing": "images have no label file: taken as images without objects",
    "repeated": "lines repeat a line of their file: left out",
    "mixed": "label files have lines of 5 numbers beside polygons: taken as boxes, where "
    "ultralytics takes them as polygons of two points",
}


class _Config(NamedTuple):
    where: Path
    names: list[str] | None
    parts: list[tuple[str, Path]]  # split, folder or list of images
    points: int = 0  # numbers of a line after those of its box
    warnings: Sequence[str] = ()


class Yolo(Source):
    priority = -1  # before flat_folder, which takes each folder of images
    options = OPTIONS

    def recognise(self, path: Path) -> bool:
        if not _files.is_plain_folder(path):
            return path.suffix.lower() in _SUFFIXES and _is_config(path)
        try:
            folders = [path / n for n in _files.names_in(path) if _folders.splits_among([n])]
            labels = [f / "labels" for f in (path, *folders) if (f / "images").is_dir()]
            if any(map(_holds_boxes, labels)) or _configs(path):
                return True
            flat = any((path / name).is_file() for name in _NAMES)
            beside = (path, *path.glob("obj_*_data"))  # as CVAT writes Darknet's
            return flat and any(_holds_boxes(folder, alone=False) for folder in beside)
        except (OSError, PackioError):  # the source that lists the folder says why
            return False

    def listing(self, source: Any, context: Context) -> Listing:
        config = _config(Path(source))
        where, told = config.where, dict[str, list[str]]()
        root = os.path.abspath(where if where.is_dir() else where.parent)
        result = Listing(self.name, root, warnings=[*config.warnings])
        splits: dict[str, str] = {}  # path of an image → its split
        for split, part in config.parts:
            for path in _images(part, result, context):
                if splits.setdefault(path, split) != split:
                    reason = f"in {splits[path]} and in {split}; a sample has one split"
                    result.unlisted.append((os.fsencode(os.path.relpath(path, root)), reason))
        files = {path: _label_file(path) for path in splits}
        if not any(map(os.path.exists, files.values())):
            what = f"none of {len(files)} images has a label file" if files else "no images"
            first = next(iter(files.values()), _files.EXPECTED)
            raise SourceError(f"{where}: {what}; expected {ascii(first)[1:-1]}")
        names = config.names or _listed_names(root, files.values()) or context.classes
        parse = functools.partial(_objects, names=names, points=config.points, told=told)
        whole = all(part.is_dir() for _, part in config.parts)  # no lists, which leave images out
        found = objects_of(files, parse, result, lambda file: whole and bool(_has_boxes(file)))
        result.warnings.extend(count_names(_MESSAGES[n], told[n]) for n in _MESSAGES if n in told)
        if names is None:
            result.warnings.append("no data.yaml, no classes.txt: classes are called by numbers")
            seen = {int(name) for objects in found.values() for name in objects.names}
            names = [str(i) for i in range(1 + max(seen, default=-1))]
        return listing_of(result, found, context, names, splits if config.parts[0][0] else None)


SOURCE = Yolo()


def _is_config(file: Path) -> bool:
    try:
        text = small_file(file)
    except PackioError:
        return False
    keys = (rb"^(names|nc)\s*:", rb"^(train|val)\s*:")
    return all(re.search(key, text, re.MULTILINE) for key in keys)


def _configs(folder: Path) -> list[Path]:
    return [file for n in _files.names_in(folder, *_SUFFIXES) if _is_config(file := folder / n)]


def _holds_boxes(folder: Path, *, alone: bool = True) -> bool:
    """Tell whether the first text file with text has boxes; alone: and is not among images."""
    for top, _, names in os.walk(folder):
        if alone and any(map(_files.is_image, names)):
            return False
        texts = (name for name in names if name.endswith(".txt") and name not in _NAMES)
        found = (_has_boxes(os.path.join(top, name)) for name in texts)
        if (first := next((has for has in found if has is not None), None)) is not None:
            return first
    return False


def _has_boxes(file: str) -> bool | None:
    """Whether the first line of a text file is numbers, as of a box; None if there is no text."""
    try:
        words = re.split(r"[\s,]+", _text(small_file(file)).strip().partition("\n")[0].strip())
        return len([float(word) for word in words[1:]]) >= 4 if words[0] else None
    except ValueError:
        return False


def _config(path: Path) -> _Config:
    if not path.is_dir() and path.suffix.lower() in _SUFFIXES:
        return _of_yaml(path)
    _files.entries(path, _EXPECTED)
    found = _configs(path)
    if len(found) > 1:
        commands = " or ".join(f"packio pack {shlex.quote(str(file))} …" for file in found)
        raise SourceError(f"{path}/: {len(found)} files say what is in it; name one: {commands}")
    return _of_yaml(found[0]) if found else _Config(path, None, [("", path)])


def _of_yaml(file: Path) -> _Config:
    yaml = registry.require("yaml", "yolo")
    try:  # by the plainest loader, which keeps text as it is written: `no` is a name
        data = yaml.load(small_file(file), Loader=yaml.BaseLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SourceError(f"{file}: no YAML: {error}; expected {_EXPECTED}") from error
    if not isinstance(data, dict):
        raise SourceError(f"{file}: no names and values; expected {_EXPECTED}")
    bases = [file.parent / str(data.get("path", "")), file.parent]
    parts: list[tuple[str, Path]] = []
    warnings = []
    for split in ("train", "val", "test"):
        given = data.get(split) or []
        for text in given if isinstance(given, list) else [str(given)]:
            if (found := _part(str(text), bases)) is not None:
                parts.append((split, found))
            elif split == "test":  # Roboflow names it also where there is none
                warnings.append(f"{file.name}: test: {text} is not there: no such split")
            else:
                places = " or ".join(dict.fromkeys(map(str, bases)))
                raise SourceError(f"{file}: {split}: no {text!a} in {places}; correct the file")
    shape = data.get("kpt_shape") or []
    if not parts or not all(str(n).isdecimal() for n in shape):
        raise SourceError(
            f"{file}: expected train, val or test, and as kpt_shape, if there, two numbers"
        )
    points = int(np.prod([int(n) for n in shape])) if shape else 0
    return _Config(file, _yaml_names(file, data), parts, points, warnings)


def _part(text: str, bases: Sequence[Path]) -> Path | None:
    """The folder or the list that data.yaml names; None if there is none."""
    plain = text.replace("\\", "/")
    tried = (base / name for base in bases for name in (text, plain, plain.removeprefix("../")))
    return next((path for path in tried if path.exists()), None)


def _yaml_names(file: Path, data: dict[str, Any]) -> list[str]:
    names, count = data.get("names") or [], str(data.get("nc") or "")
    if isinstance(names, dict):
        names = [names.get(str(i)) for i in range(len(names))]
    if not names and count.isdecimal():
        return [f"class_{i}" for i in range(int(count))]
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names) or not names:
        raise SourceError(f"{file}: names: expected a list, or the numbers 0, 1, 2, … and names")
    if count not in ("", str(len(names))) or len({*names}) < len(names):
        raise SourceError(
            f"{file}: {len(names)} names, {len({*names})} different ones, and nc: {count}; correct "
            "the file"
        )
    return names


def _listed_names(root: str, files: Iterable[str]) -> list[str] | None:
    """Names of classes, a line each, of a file in the folder or beside the labels."""
    folders = dict.fromkeys([root, os.path.join(root, "labels"), *map(os.path.dirname, files)])
    tried = (os.path.join(folder, name) for name in _NAMES for folder in folders)
    file = next(filter(os.path.isfile, tried), None)
    if file is None:
        return None
    names = [line.strip() for line in _text(small_file(file)).rstrip().splitlines()]
    if "" in names or len({*names}) < len(names):
        raise SourceError(f"{file}: a blank line, or a name twice; expected names of classes")
    return names


def _text(data: bytes) -> str:
    return data.decode("utf-8-sig", "surrogateescape")


def _images(part: Path, result: Listing, context: Context) -> Iterator[str]:
    if not part.is_file():
        folder = os.path.abspath(part)
        found = _files.images(folder, "", result, context, _files.image_test(context))
        yield from (os.path.join(folder, os.fsdecode(key)) for key, _ in found)
        return
    for line in filter(None, map(str.strip, _text(small_file(part)).splitlines())):
        yield os.path.abspath(_part(line, [part.parent]) or part.parent / line)


def _label_file(image: str) -> str:
    beside = f"{os.path.splitext(image)[0]}.txt"
    before, sep, after = beside.rpartition("/images/")
    usual = f"{before}/labels/{after}" if sep else beside
    return beside if not os.path.exists(usual) and os.path.exists(beside) else usual


def _objects(
    data: bytes | None, image: str, names: Sequence[str] | None, points: int,
    told: dict[str, list[str]],
) -> Objects:  # fmt: skip
    """The boxes of a label file, each line once; `told` receives the image of what is odd."""

    def tell(what: str) -> None:
        told.setdefault(what, []).append(image)

    if data is None:
        tell("missing")
    lines: dict[tuple[float, ...], tuple[str, Sequence[float], list[float]]] = {}
    for number, words in enumerate(map(str.split, _text(data or b"").splitlines()), 1):
        try:
            if words:
                values = tuple(map(float, words))
                if values in lines:
                    tell("repeated")
                lines[values] = _line(values, names, points)
        except ValueError as error:
            raise DecodeError(f"{number}: {error}") from None
    more = [rest or None for _, _, rest in lines.values()]
    if not points and None in more and any(more):
        tell("mixed")
    meta = {"keypoints" if points else "segments": more} if any(more) else None
    of_class, boxes = [n for n, _, _ in lines.values()], [box for _, box, _ in lines.values()]
    return Objects(of_class, boxes, Frame(fractions=True), [], meta)


def _line(
    values: tuple[float, ...], names: Sequence[str] | None, points: int
) -> tuple[str, Sequence[float], list[float]]:
    """Class, box, and polygon or keypoints; ValueError says what is wrong with a line."""
    label, numbers = values[0], [*values[1:]]
    polygon = not points and len(values) >= 7 and len(values) % 2 == 1
    if not polygon and len(values) != 5 + points:
        why = " (the last one a confidence?)" if len(values) % 2 == 0 else ""
        more = f", and {points} of keypoints" if points else ", or a polygon"
        raise ValueError(
            f"{len(values)} numbers{why}; expected 5, class, centre x and y, width, height{more}"
        )
    if label not in range(1 << 31 if names is None else len(names)):
        known = "" if names is None else f" below {len(names)}, as there are so many names"
        raise ValueError(f"class {label:g}; expected a whole number{known}")
    numbers, rest = (numbers, numbers) if polygon else (numbers[:4], numbers[4:])
    wrong = [value for value in numbers if not -_SLACK <= value <= 1 + _SLACK]
    if wrong or not np.isfinite(rest).all():
        raise ValueError(f"{[*wrong, *rest][0]:g}; expected fractions of the image, from 0 to 1")
    name = str(int(label)) if names is None else names[int(label)]
    if polygon:
        xs, ys = numbers[::2], numbers[1::2]
        return name, (min(xs), min(ys), max(xs), max(ys)), rest
    x, y, w, h = numbers
    return name, (x - w / 2, y - h / 2, x + w / 2, y + h / 2), rest
