"""Images and their masks: two files that share a stem, and perhaps further files with that stem.

The stem is the path below the folder of the images, or of the masks, without the suffix. A suffix
is ``.jpg``, or a longer end of the name, as ``_leftImg8bit.png``. Images and masks may lie in one
folder. Keys are the images' paths, sorted bytewise unless a list orders them. A line of a list has
a stem, as Pascal VOC's lists have; or the paths of an image and its mask, relative to the source,
with white space or a tab between them.

Two folders of which one seems to hold the masks of the other are recognised, too, so that these are
not packed as two classes: listing them names the options. A named field comes from a folder in the
source, as ``depth``, or from a suffix beside the images, as ``_depth.png``.

Source: Pascal VOC 2012 development kit, section 4.2; cityscapesScripts, README.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from packio.errors import OptionError, SourceError
from packio.sources import Context, Listing, Source, _files, _folders, command
from packio.sources.tables.records import attach_records
from packio.system.files import is_hidden

_OPTIONS = {
    "images": "folder of the images in the source",
    "masks": "folder of the masks in the source",
    "image_suffix": "what names of images end in, as _leftImg8bit.png (default: any ending)",
    "mask_suffix": "what names of masks end in, as _gtFine_labelIds.png (default: any ending)",
    "list": "file of the pairs to take: a stem a line, or an image and its mask",
    **_files.HIDDEN,
}
_LAYOUTS = (
    ("JPEGImages", "SegmentationClass"),
    ("leftImg8bit", "gtFine"),
    *(("images", masks) for masks in ("masks", "labels", "annotations")),
)
_SUFFIXES = {
    "leftImg8bit": "_leftImg8bit.png", "gtFine": "_gtFine_labelIds.png",
    "gtCoarse": "_gtCoarse_labelIds.png",
}  # fmt: skip
_VOC_LISTS = "ImageSets/Segmentation"
_EXPECTED = "a folder of images and masks, as images/1.jpg, masks/1.png"
_FIELD_ENDINGS = (*_files.EXTENSIONS, ".npy", ".txt", ".json", ".bin")

_Sized = tuple[bytes, int]  # path, bytes of the file
_ByStem = dict[bytes, _Sized]


class _Side(NamedTuple):
    """The folder and the suffix of the images, of the masks, or of the files of a field."""

    folder: str  # in the source; "" is the source itself
    suffix: bytes  # b"": any ending of an image

    def stem(self, key: bytes) -> bytes | None:
        """The part of a path that partners share; None if the file is not of this side."""
        name = key[len(os.fsencode(self.folder)) + 1 :] if self.folder else key
        if not self.suffix:
            return name.rpartition(b".")[0]
        return name[: -len(self.suffix)] if name.lower().endswith(self.suffix.lower()) else None

    def leaves(self, key: bytes, other: _Side) -> bool:
        """Tell whether a file in this side's folder belongs to the other side."""
        if self.folder != other.folder:
            inside = not self.folder or other.folder.startswith(f"{self.folder}/")
            return inside and key.startswith(os.fsencode(other.folder) + b"/")
        return len(other.suffix) > len(self.suffix) and other.stem(key) is not None


class Pairs(Source):
    options = _OPTIONS
    takes_fields = True

    def recognise(self, path: Path) -> bool:
        return _files.is_plain_folder(path) and (
            any(all(_has_images(os.path.join(path, folder)) for folder in layout)
                for layout in _LAYOUTS)
            or bool(_seeming_masks(path))
        )  # fmt: skip

    def listing(self, source: Any, context: Context) -> Listing:
        path, file = Path(source), context.option("list")
        _files.entries(path, _EXPECTED)
        sides = _sides(path, context)
        result = Listing(self.name, path, classes=[*(context.classes or ())])
        if sides is None and file is None:
            raise SourceError(
                _seeming_masks(path)
                or f"{path}/: no folders of images and masks that are known; say --images and "
                "--masks, or --image-suffix and --mask-suffix if both are in one folder"
            )
        boxes = ""
        if any(path.glob("Annotations/*.xml")):
            boxes = "Annotations/ has boxes, too: for them, say --source voc"
            result.warnings.append(f"took the masks; {boxes}")
        if sides is not None and file is None:
            _refuse_splits(path, *sides, boxes)
        images = sides[0] if sides is not None else _Side("", b"")
        further = {n: _field_side(path, images, n, o) for n, (o, _) in context.fields.items()}
        found: list[_ByStem] = [
            _by_stem(path, side, [other, *further.values()], result, context)
            for side, other in zip(sides or (), (sides or ())[::-1], strict=True)
        ] or [{}, {}]
        if file is None:
            pairs = _matched(found[0], found[1], result)
        else:
            pairs = _listed(path, Path(file), found[0], found[1], result)
        if not pairs and not result.unlisted:
            hint = _files.archive_hint(path)
            raise SourceError(f"{path}/: no images; expected {_EXPECTED}; {_files.EXPECTED}{hint}")
        _files.tell_others(result)
        keys = [image for (image, _), _ in pairs]
        cells: dict[str, list[Any]] = {"mask": [mask for _, (mask, _) in pairs]}
        origins: dict[str, tuple[str, str | None]] = {"mask": ("mask", "mask")}
        for name, side in further.items():
            origin, kind = context.fields[name]
            there = _by_stem(path, side, [], Listing(self.name, path), context, _FIELD_ENDINGS)
            cells[name] = [there.get(images.stem(key) or b"", (b"", 0))[0] for key in keys]
            guess = _folders.kind_of_files(name, cells[name], origin, result)
            origins[name] = (origin, kind or guess)
        cells["mask size"] = [size for _, (_, size) in pairs]
        result = dataclasses.replace(result, keys=keys, sizes=[size for (_, size), _ in pairs])
        return attach_records(result, path, origins, cells)


SOURCE = Pairs()


def _by_stem(
    path: Path, side: _Side, others: list[_Side], result: Listing, context: Context,
    endings: tuple[str, ...] = _files.EXTENSIONS,
) -> _ByStem:  # fmt: skip
    """Stem → file, of all files of a side."""
    _files.entries(path / side.folder, _EXPECTED)
    found: _ByStem = {}
    wanted = _files.ends_in(*([os.fsdecode(side.suffix)] if side.suffix else endings))
    noted = dataclasses.replace(result, others=Counter())
    for key, size in _files.images(path, side.folder, noted, context, wanted):
        stem = None if any(side.leaves(key, other) for other in others) else side.stem(key)
        if stem is not None and found.setdefault(stem, (key, size))[0] != key:
            result.unlisted.append((key, f"has the stem of {found[stem][0]!a}"))
    if not side.suffix:
        result.others.update(noted.others)
    return found


def _field_side(path: Path, images: _Side, name: str, origin: str) -> _Side:
    if name == "mask":
        raise OptionError("field 'mask': say --masks or --mask-suffix instead")
    if os.path.isdir(path / origin):
        return _side(origin, None)
    if origin.startswith(("_", ".", "-")):
        return _Side(images.folder, os.fsencode(origin))
    raise OptionError(
        f"field {name!r}: {origin!r} is no folder in {path}, and no suffix as '_{origin}.png'"
    )


def _has_images(folder: str) -> bool:
    if not os.path.isdir(folder):
        return False
    nowhere = Listing("pairs", folder)
    return any(files for _, files in _files.walk(folder, "", nowhere, Context()))


def _seeming_masks(path: Path) -> str:
    """Say how to pack a folder whose two folders seem to be images and masks; "" for others."""
    folders = [f for f, is_folder in _files.entries(path, "") if is_folder and not is_hidden(f)]
    if len(folders) != 2:
        return ""
    nowhere = Listing("pairs", path)
    files = [_files.images(path, folder, nowhere, Context()) for folder in folders]
    found = _folders.masks_among([key for part in files for key, _ in part], _files.reader(path))
    if found is None:
        return ""
    names = {
        folder: [os.fsdecode(key)[len(folder) + 1 :] for key, _ in part]
        for folder, part in zip(folders, files, strict=True)
    }
    image_end, mask_end = _endings(names[found.images], names[found.masks])
    options = ["--images", found.images, "--masks", found.masks]
    options += [f"--image-suffix={image_end}"] if image_end else []
    options += [f"--mask-suffix={mask_end}"] if mask_end else []
    as_pairs, as_classes = (
        command(path, path.absolute().name, "--source", *words)
        for words in (("pairs", *options), ("image_folder",))
    )
    return f"{path}/: {found.told}; to pack pairs: {as_pairs}; to pack two classes: {as_classes}"


def _endings(images: list[str], masks: list[str]) -> tuple[str, str]:
    """The ends of names by which most images and masks have a stem in common; "": any ending."""

    def ends(names: list[str]) -> list[str]:
        first = names[0]
        tails = (first[found.start() :] for found in re.finditer(r"[._-]", first))
        return ["", *(tail for tail in tails if all(name.endswith(tail) for name in names))]

    def stems(names: list[str], end: str) -> set[str]:
        return {n[: -len(end)] if end else n.rpartition(".")[0] for n in names}

    each = itertools.product(ends(images), ends(masks))
    return max(each, key=lambda e: len(stems(images, e[0]) & stems(masks, e[1])))


def _sides(path: Path, context: Context) -> tuple[_Side, _Side] | None:
    """Folders and suffixes of images and masks; None if neither options nor names tell."""
    folders = context.option("images"), context.option("masks")
    suffixes = context.option("image_suffix"), context.option("mask_suffix")
    tried = [tuple(given or usual for given, usual in zip(folders, known, strict=True))
             for known in _LAYOUTS]  # fmt: skip
    chosen = next((t for t in tried if all(os.path.isdir(path / folder) for folder in t)), None)
    if all(folders):
        chosen = tried[0]
    elif chosen is None and not any(folders) and all(suffixes):
        chosen = (".", ".")
    if chosen is None:
        return None
    images, masks = map(_side, chosen, suffixes)
    if os.path.isabs(images.folder) or images.folder.startswith(".."):
        raise OptionError(f"images={images.folder!r}: expected a folder in {path}")
    if images == masks or (images.folder == masks.folder and not (images.suffix and masks.suffix)):
        raise OptionError(
            f"{path / images.folder}/: images and masks are in one folder; tell them apart by "
            "--image-suffix and --mask-suffix"
        )
    return images, masks


def _side(folder: str, suffix: str | None) -> _Side:
    folder = os.path.normpath(folder)
    usual = next((s for name, s in _SUFFIXES.items() if name in Path(folder).parts), "")
    return _Side("" if folder == "." else folder, os.fsencode(suffix or usual))


def _refuse_splits(path: Path, images: _Side, masks: _Side, boxes: str) -> None:
    commands = []
    lists = path / _VOC_LISTS
    if images.folder == _LAYOUTS[0][0] and lists.is_dir():
        more = [] if masks.folder == _LAYOUTS[0][1] else ["--masks", masks.folder]
        commands = [
            command(path, file.stem, "--list", str(file), *more)
            for file in sorted(lists.glob("*.txt"))
        ]
    entries = _files.entries(path / images.folder, _EXPECTED)
    folders = _folders.splits_among(name for name, is_folder in entries if is_folder)
    if not commands:
        commands = [
            command(path, name, "--images", os.path.join(images.folder, name),
                    "--masks", os.path.join(masks.folder, name))
            for name in folders
        ]  # fmt: skip
    if commands:
        raise SourceError(
            f"{path}/: several splits of a dataset; pack each by itself: "
            f"{'; '.join(filter(None, [*commands, boxes]))}"
        )


def _matched(images: _ByStem, masks: _ByStem, result: Listing) -> list[tuple[_Sized, _Sized]]:
    result.unlisted.extend(
        (image, "no mask has its stem") for stem, (image, _) in images.items() if stem not in masks
    )
    result.unlisted.extend(
        (mask, "a mask without image") for stem, (mask, _) in masks.items() if stem not in images
    )
    return sorted((images[stem], masks[stem]) for stem in images if stem in masks)


def _listed(
    path: Path, file: Path, images: _ByStem, masks: _ByStem, result: Listing
) -> list[tuple[_Sized, _Sized]]:
    file = file if os.path.exists(file) else path / file
    pairs: dict[bytes, tuple[_Sized, _Sized]] = {}
    for line in _files.lines_of(file):
        fields = line.split(b"\t" if b"\t" in line else None)
        if line in images and line in masks:
            pair = (images[line], masks[line])
        elif line not in images and line not in masks and len(fields) == 2:
            pair = (_sized(path, fields[0]), _sized(path, fields[1]))
        else:
            missing = "mask" if line in images else "image"
            result.unlisted.append((line, f"in {file.name}, and no {missing} has this stem"))
            continue
        image = pair[0][0]
        if image.startswith(b"../"):
            result.unlisted.append((image, "leads out of the source"))
        elif pairs.setdefault(image, pair) is not pair:
            result.unlisted.append((image, f"twice in {file.name}"))
    return [*pairs.values()]


def _sized(path: Path, name: bytes) -> _Sized:
    """Path and bytes of a file that a list names relative to the source, also as ``/a.jpg``."""
    name = os.path.normpath(name.strip().lstrip(b"/"))
    try:
        return name, os.stat(os.path.join(os.fsencode(path), name)).st_size
    except OSError:  # an error comes when the file is read
        return name, -1
