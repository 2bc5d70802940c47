"""Pascal VOC: images, and an XML file of boxes for each image.

The XML file of an image lies where ``JPEGImages`` or ``images`` of its path is ``Annotations`` or
``annotations``, or in such a folder beside the image, or beside the image itself. ``<filename>`` is
not asked, as tools write anything there. A file without objects says that there are none.

Pascal VOC counts pixels from 1, and xmax is within the box: a box from 1 to 40 is 40 pixels wide.
So 1 is taken from xmin and ymin, as by detectron2. A coordinate below 1 shows that a tool counted
from 0; then the user says which it is, by ``first_pixel``.

``difficult``, ``truncated`` and ``occluded``, 0 or 1, are columns of the boxes if any object has
them. All else becomes metadata, as text. Boxes of parts are no boxes of objects.

The lists train.txt, val.txt and test.txt in ``ImageSets/Main`` are splits; images of trainval.txt
that are in none of them are a split of this name, and other images are left out.

Source: Pascal VOC 2012 development kit, section 5; ``detectron2.data.datasets.pascal_voc``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from xml.parsers import expat

import numpy as np

from packio.errors import DecodeError, OptionError, SourceError
from packio.sample.record import Frame
from packio.sources import Context, Listing, Source, _files, _folders, check_choice, command
from packio.sources.tables.detections import OPTIONS, Objects, listing_of, objects_of, small_file

_OPTIONS = {
    **OPTIONS,
    "first_pixel": "number of an image's first pixel in XML files, 1 or 0 (default: 1, as in VOC)",
}
_EXPECTED = "a folder with Annotations/1.xml and JPEGImages/1.jpg, or with 1.xml beside 1.jpg"
_XML, _IMAGES = ("Annotations", "annotations"), ("JPEGImages", "images")
_MASKS = "SegmentationClass"
_LISTS = ("train", "val", "test", "trainval")
_FLAGS = ("difficult", "truncated", "occluded")
_TRUTHS = {"0": 0, "1": 1, "false": 0, "true": 1, "no": 0, "yes": 1, "unspecified": 0, "": 0}
_CORNERS = ("xmin", "ymin", "xmax", "ymax")
_DEEPEST = 20  # elements in each other


class Voc(Source):
    priority = -1  # before flat_folder, which takes each folder of images
    options = _OPTIONS

    def recognise(self, path: Path) -> bool:
        if not _files.is_plain_folder(path) or _has_masks(path):
            return False
        splits = [name for name in _files.names_in(path) if _folders.splits_among([name])]
        tried = [path, *(path / name for name in (*_XML, *splits))]
        return any(map(_has_annotation, tried)) or bool(_inner(path))

    def listing(self, source: Any, context: Context) -> Listing:
        path, first = Path(source), str(context.option("first_pixel", ""))
        _files.entries(path, _EXPECTED)
        check_choice("first_pixel", first or None, "0", "1")
        inner = [] if any(_has_annotation(path / name) for name in _XML) else _inner(path)
        if inner:
            each = "; ".join(command(f"{path}/{name}", name) for name in inner)
            raise SourceError(f"{path}/: datasets in it; pack each by itself: {each}")
        root = os.path.abspath(path)
        result = Listing(self.name, root)
        if _has_masks(path):
            result.warnings.append("took the boxes; for the masks, say --source pairs")
        top = next((name for name in _IMAGES if (path / name).is_dir()), "")
        keys = _files.images(root, top, result, context, _files.image_test(context))
        images = [os.path.join(root, os.fsdecode(key)) for key, _ in keys]
        if not images:
            raise SourceError(f"{path}/: no images; {_files.EXPECTED}; expected {_EXPECTED}")
        splits = _listed(path, os.path.join(root, top), images, result)
        files = {image: _xml_file(image) for image in images}
        files, own = {i: files[i] for i in splits or files}, {*files.values()}
        found = objects_of(
            files, _objects, result, lambda file: file not in own and _is_annotation(file)
        )
        early = [n for n, o in found.items() if min(map(min, o.boxes), default=1) < 1]
        if early and not first:
            raise OptionError(
                f"{files[early[0]]}: a box begins before 1, as in {len(early)} of {len(found)} "
                "files, but Pascal VOC counts pixels from 1; say --first-pixel 0 if the files "
                "count from 0, or else --first-pixel 1"
            )
        shift = 0 if first == "0" else 1
        found = {
            image: o._replace(boxes=[(x - shift, y - shift, *end) for x, y, *end in o.boxes])
            for image, o in found.items()
        }
        return listing_of(result, found, context, None, splits)


SOURCE = Voc()


def _has_masks(path: Path) -> bool:
    return any(map(_files.is_image, _files.names_in(path / _MASKS)))


def _is_annotation(file: str | os.PathLike[str]) -> bool:
    try:
        with open(file, "rb") as opened:
            return b"<annotation" in opened.read(4096)
    except OSError:
        return False


def _has_annotation(folder: Path) -> bool:
    """Tell whether the first XML file is one of boxes; in a folder of its own at any depth."""
    for top, _, names in os.walk(folder):
        if folder.name in _XML and any(map(_files.is_image, names)):
            return False
        for name in sorted(n for n in names if n.lower().endswith(".xml")):
            return _is_annotation(os.path.join(top, name))
        if folder.name not in _XML:
            break
    return False


def _inner(path: Path) -> list[str]:
    """Folders that are datasets of their own, as VOC2007 and VOC2012 in VOCdevkit."""
    try:
        folders = sorted(n for n, is_folder in _files.entries(path, _EXPECTED) if is_folder)
    except SourceError:  # the source that lists the folder says why
        return []
    return [n for n in folders if any(_has_annotation(path / n / xml) for xml in _XML)]


def _xml_file(image: str) -> str:
    stem = os.path.splitext(image)[0]
    folder, name = os.path.split(stem)
    tried = [before + f"/{xml}/" + after for images in _IMAGES for xml in _XML
             for before, sep, after in [stem.rpartition(f"/{images}/")] if sep]  # fmt: skip
    tried += [stem, *(os.path.join(folder, xml, name) for xml in _XML)]
    return next((f"{t}.xml" for t in tried if os.path.exists(f"{t}.xml")), f"{tried[0]}.xml")


def _listed(path: Path, top: str, images: list[str], result: Listing) -> dict[str, str] | None:
    """Image → split, of the images in lists; None if there are no lists."""
    lists = [path / "ImageSets" / "Main" / f"{name}.txt" for name in _LISTS]
    if not any(map(Path.is_file, lists)):
        return None
    of_stem = {os.path.splitext(os.path.relpath(image, top))[0]: image for image in images}
    splits: dict[str, str] = {}
    for file in filter(Path.is_file, lists):
        for i, line in enumerate(os.fsdecode(small_file(file)).splitlines(), 1):
            stem = line.strip()
            image = of_stem.get(stem) or of_stem.get(os.path.splitext(stem)[0])
            if image is None and stem:
                reason = f"{file.name}:{i} names it, and there is no image with this stem"
                result.unlisted.append((os.fsencode(stem), reason))
            elif image and splits.setdefault(image, file.stem) != file.stem != "trainval":
                reason = f"in {splits[image]}.txt and in {file.name}; a sample has one split"
                result.unlisted.append((os.fsencode(stem), reason))
    left = [os.fsencode(os.path.relpath(i, result.root)) for i in images if i not in splits]
    result.dropped.extend((key, "in no list of ImageSets/Main") for key in left)
    return splits


def _objects(data: bytes | None, _: str) -> Objects:
    """The objects in an XML file; DecodeError says what is wrong with it."""
    if data is None:
        raise DecodeError(" not there; a file without <object> says that there are none")
    (tree,) = _tree(data).get("annotation") or [None]
    if not isinstance(tree, dict):
        raise DecodeError(" no <annotation> with members; expected an XML file of Pascal VOC")
    objects = tree.get("object", [])
    tree["object"] = objects = objects if isinstance(objects, list) else [objects]
    size = tree.get("size")
    width, height = (_number(size.get(side)) if isinstance(size, dict) else 0
                     for side in ("width", "height"))  # fmt: skip
    frame = Frame(width, height) if width > 0 and height > 0 else Frame()
    found = Objects([], [], frame, [], tree)
    for i, entry in enumerate(objects, 1):
        members = entry if isinstance(entry, dict) else {}
        name, box = members.pop("name", ""), members.pop("bndbox", None)
        corners = [_number(box.get(n)) if isinstance(box, dict) else np.nan for n in _CORNERS]
        flags = {flag: _TRUTHS.get(str(members.pop(flag)).lower(), -1) for flag in _FLAGS
                 if flag in members}  # fmt: skip
        if not name or not isinstance(name, str):
            raise DecodeError(f" object {i} has no name")
        if not all(map(np.isfinite, corners)) or corners[0] > corners[2] or corners[1] > corners[3]:
            given = ascii(box)[:80] if box else f"no bndbox, but {', '.join(members)}"
            raise DecodeError(f" object {i}, {name!a}: {given}; expected the corners of a box")
        if -1 in flags.values():
            raise DecodeError(f" object {i}, {name!a}: expected {', '.join(flags)} to be 0 or 1")
        found.names.append(name)
        found.boxes.append(corners)
        found.flags.append(flags)
    return found


def _number(text: Any) -> float:
    try:
        return float(text)
    except (TypeError, ValueError):
        return float("nan")


def _tree(data: bytes) -> dict[str, Any]:
    """Elements as text or dicts; several of one name are a list. No entity is ever resolved."""
    elements: list[tuple[dict[str, list[Any]], list[str]]] = [({}, [])]

    def refuse(*_: Any) -> None:
        raise DecodeError(" a DOCTYPE, which may define entities; expected none")

    def start(name: str, _: Any) -> None:
        if len(elements) > _DEEPEST:
            raise DecodeError(f" <{name}> lies more than {_DEEPEST} elements deep")
        elements.append(({}, []))

    def end(name: str) -> None:
        members, texts = elements.pop()
        plain = {n: found[0] if len(found) == 1 else found for n, found in members.items()}
        elements[-1][0].setdefault(name, []).append(plain or "".join(texts).strip())

    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler = lambda text: elements[-1][1].append(text)  # noqa: PLW0108 (late)
    try:
        parser.Parse(data.strip(), True)
    except (expat.ExpatError, ValueError, LookupError) as error:
        raise DecodeError(f" no XML, {error}; text of another encoding? Save as UTF-8") from error
    return elements[0][0]
