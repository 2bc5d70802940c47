"""Images and their masks: two files that share a stem.

The stem is the path below the folder of the images, or of the masks, without the suffix; a suffix
is ``.jpg``, or more of the name, as ``_leftImg8bit.png``. Both folders may be one. A list takes
some of the pairs, in its order: a stem a line, as Pascal VOC's; or an image and its mask, relative
to the source, white space or a tab between them.

Recognised are folders with images in both of

* ``JPEGImages`` and ``SegmentationClass`` (Pascal VOC; lists in ``ImageSets/Segmentation``);
* ``leftImg8bit`` and ``gtFine`` (Cityscapes; masks are ``_gtFine_labelIds.png``);
* ``images`` and one of ``masks``, ``labels``, ``annotations`` (as ADE20K).

Keys are the images' paths, sorted bytewise unless a list orders them. What has no partner cannot be
packed, and neither can a pair of different sizes; sizes are compared as stored.

Source: Pascal VOC 2012 development kit, section 4.2; cityscapesScripts, README.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from packio.errors import DecodeError, OptionError, SourceError
from packio.images.encodings import read_facts
from packio.sample.facts import Facts
from packio.sample.record import Field, Record, image_record
from packio.sources import Listing, ReadRecord, _classes, _files

OPTIONS = {
    "images": "folder of the images in the source",
    "masks": "folder of the masks in the source",
    "image_suffix": "what the names of images end in, as _leftImg8bit.png [default: any ending]",
    "mask_suffix": "what the names of masks end in, as _gtFine_labelIds.png [default: any ending]",
    "list": "file of the pairs to take: a stem a line, or an image and its mask",
}

_LAYOUTS = (
    ("JPEGImages", "SegmentationClass"),
    ("leftImg8bit", "gtFine"),
    *(("images", masks) for masks in ("masks", "labels", "annotations")),
)
_SUFFIXES = {
    "leftImg8bit": "_leftImg8bit.png",
    "gtFine": "_gtFine_labelIds.png",
    "gtCoarse": "_gtCoarse_labelIds.png",
}
_VOC_LISTS = "ImageSets/Segmentation"
_EXPECTED = "a folder of images and masks, as images/1.jpg, masks/1.png"


class _Side(NamedTuple):
    """The images, or the masks."""

    folder: str  # in the source; "" is the source itself
    suffix: bytes  # b"": any ending of an image

    def stem(self, key: bytes) -> bytes | None:
        """What a file shares with its partner; None where it is no file of this side."""
        name = key[len(os.fsencode(self.folder)) + 1 :] if self.folder else key
        if not self.suffix:
            return name.rpartition(b".")[0]
        return name[: -len(self.suffix)] if name.lower().endswith(self.suffix.lower()) else None

    def leaves(self, key: bytes, other: _Side) -> bool:
        """Tell whether a file is the other side's, though it lies in this one's folder."""
        if self.folder != other.folder:
            inside = not self.folder or other.folder.startswith(f"{self.folder}/")
            return inside and key.startswith(os.fsencode(other.folder) + b"/")
        return len(other.suffix) > len(self.suffix) and other.stem(key) is not None


class _Pair(NamedTuple):
    """Paths relative to the source."""

    image: bytes
    mask: bytes


_Sized = tuple[bytes, int]  # path, bytes of the file


def recognise(path: str | Path) -> bool:
    """Tell whether the path is a folder with images in two folders of well-known names."""
    return _files.is_plain_folder(path) and any(
        all(_has_images(os.path.join(path, folder)) for folder in layout) for layout in _LAYOUTS
    )


def _has_images(folder: str) -> bool:
    if not os.path.isdir(folder):
        return False
    nowhere = Listing("pairs", folder, [], [], None, [])
    return any(files for _, files in _files.walk(folder, "", nowhere))


def listing(
    path: str | Path,
    *,
    classes: Sequence[str] | None = None,
    allow_empty: bool = False,  # noqa: ARG001 (the signature of all sources)
    images: str | None = None,
    masks: str | None = None,
    image_suffix: str | None = None,
    mask_suffix: str | None = None,
    list: str | os.PathLike[str] | None = None,  # noqa: A002 (the public name)
) -> Listing:
    """List pairs of an image and a mask.

    Args:
        path: The folder that both are in.
        classes: Names of the classes, for the record.
        allow_empty: Of no meaning here.
        images: Folder of the images, relative to the source; None: as in a layout that is known.
        masks: Folder of the masks.
        image_suffix: What names of images end in, in any case; None: any ending of an image.
        mask_suffix: What names of masks end in.
        list: File of the pairs to take, relative to the working folder or to the source.

    Raises:
        SourceError: no folder, no pairs in it, or several splits of a dataset.
        OptionError: folders or suffixes that do not tell images and masks apart.
    """
    path = Path(path)
    _files.entries(path, _EXPECTED)
    sides = _sides(path, (images, masks), (image_suffix, mask_suffix))
    result = Listing("pairs", path, [], [], None, [*(classes or ())])
    if sides is None and list is None:
        raise SourceError(
            f"{path}/: no folders of images and masks that are known; say --images and --masks, or "
            "--image-suffix and --mask-suffix if both are in one folder"
        )
    if sides is not None and list is None:
        _refuse_splits(path, *sides)
    found = ({}, {}) if sides is None else _found(path, *sides, result)
    if list is None:
        pairs = _matched(*found, result)
    else:
        pairs = _listed(path, _located(path, list), *found, result)
    if not pairs and not result.unlisted:
        raise SourceError(f"{path}/: no images; expected {_EXPECTED}; {_files.EXPECTED}")
    _files.tell_others(result)
    version = hashlib.sha256(repr([(mask, size) for _, (mask, size) in pairs]).encode())
    return dataclasses.replace(
        result,
        keys=[key for (key, _), _ in pairs],
        sizes=[size for (_, size), _ in pairs],
        files=[(image, mask) for (image, _), (mask, _) in pairs],
        rows=[_Pair(image, mask) for (image, _), (mask, _) in pairs],
        version=version.hexdigest(),
        open=functools.partial(_opened, os.path.abspath(path)),
    )


def _sides(
    path: Path, folders: tuple[str | None, str | None], suffixes: tuple[str | None, str | None]
) -> tuple[_Side, _Side] | None:
    """Where images and masks are; None if neither the options nor the folder say so."""
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


def _refuse_splits(path: Path, images: _Side, masks: _Side) -> None:
    """Raise where the source is a dataset of several splits."""
    source, commands = shlex.quote(str(path)), []
    lists = path / _VOC_LISTS
    if images.folder == _LAYOUTS[0][0] and lists.is_dir():
        more = "" if masks.folder == _LAYOUTS[0][1] else f" --masks {shlex.quote(masks.folder)}"
        commands = [
            f"packio pack {source} {file.stem}.lmdb --list {shlex.quote(str(file))}{more}"
            for file in sorted(lists.glob("*.txt"))
        ]
    entries = _files.entries(path / images.folder, _EXPECTED)
    folders = sorted(name for name, is_folder in entries if is_folder)
    if not commands and _classes.are_splits(folders):
        commands = [
            f"packio pack {source} {name}.lmdb"
            f" --images {shlex.quote(os.path.join(images.folder, name))}"
            f" --masks {shlex.quote(os.path.join(masks.folder, name))}"
            for name in folders
        ]
    if commands:
        raise SourceError(
            f"{path}/: several splits of a dataset; pack each by itself: {'; '.join(commands)}"
        )


def _found(
    path: Path, images: _Side, masks: _Side, result: Listing
) -> tuple[dict[bytes, _Sized], dict[bytes, _Sized]]:
    """Stem → file, of images and of masks."""
    found: tuple[dict[bytes, _Sized], dict[bytes, _Sized]] = ({}, {})
    for files, side, other in zip(found, (images, masks), (masks, images), strict=True):
        _files.entries(path / side.folder, _EXPECTED)
        endings = (os.fsdecode(side.suffix).lower(),) if side.suffix else _files.EXTENSIONS
        noted = dataclasses.replace(result, others=type(result.others)())
        for key, size in _files.images(path, side.folder, noted, endings=endings):
            stem = None if side.leaves(key, other) else side.stem(key)
            if stem is not None and files.setdefault(stem, (key, size))[0] != key:
                result.unlisted.append((key, f"has the stem of {files[stem][0]!a}"))
        if not side.suffix:
            result.others.update(noted.others)
    return found


def _matched(
    images: dict[bytes, _Sized], masks: dict[bytes, _Sized], result: Listing
) -> list[tuple[_Sized, _Sized]]:
    """Pairs by stem."""
    result.unlisted.extend(
        (image, "no mask has its stem") for stem, (image, _) in images.items() if stem not in masks
    )
    result.unlisted.extend(
        (mask, "a mask without image") for stem, (mask, _) in masks.items() if stem not in images
    )
    return sorted((images[stem], masks[stem]) for stem in images if stem in masks)


def _located(path: Path, file: str | os.PathLike[str]) -> Path:
    return Path(file) if os.path.exists(file) else path / file


def _listed(
    path: Path, file: Path, images: dict[bytes, _Sized], masks: dict[bytes, _Sized], result: Listing
) -> list[tuple[_Sized, _Sized]]:
    """Pairs that a list names, in its order."""
    try:
        lines = file.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as error:
        raise SourceError(f"{file}: {error.strerror}; expected a list of stems") from error
    pairs: dict[bytes, tuple[_Sized, _Sized]] = {}
    for line in (stripped for line in lines if (stripped := line.strip())):
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
    """A file that a list names relative to the source, also where it begins with a slash."""
    name = os.path.normpath(name.strip().lstrip(b"/"))
    try:
        return name, os.stat(os.path.join(os.fsencode(path), name)).st_size
    except OSError:  # reading it will say why
        return name, -1


@contextlib.contextmanager
def _opened(root: str, rows: Sequence[_Pair]) -> Iterator[ReadRecord]:
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def read(position: int) -> Record[Field]:
        image, mask = rows[position]
        data = _files.whole_file(descriptor, image)
        facts = read_facts(data)
        try:
            mask_data = _files.whole_file(descriptor, mask)
            mask_facts = read_facts(mask_data)
        except OSError as error:
            raise OSError(error.errno, f"mask {mask!a}: {error.strerror}") from error
        except DecodeError as error:
            raise DecodeError(f"mask {mask!a}: {error}") from error
        _check_sizes(facts, mask_facts, mask)
        return image_record(data, mask=mask_data)

    try:
        yield read
    finally:
        os.close(descriptor)


def _check_sizes(image: Facts, mask: Facts, name: bytes) -> None:
    if (image.height, image.width) != (mask.height, mask.width):
        raise DecodeError(
            f"{image.width}x{image.height} pixels, its mask {name!a} {mask.width}x{mask.height}"
        )
