"""Folders of images: class folders, and files beside the images that are named fields.

Image folders, folders at URLs and archives share the rules of class folders, whose names are those
of the classes. Folders that are called train, val and test are the splits of a dataset, no classes.
The order of the images is that of torchvision: by class, then by folder, then by name, compared as
text.

A named field comes from all files whose names have an ending, as ``_depth.png`` or ``.txt``, which
may be written ``txt`` as for archives. Such a file belongs to the image in the same folder whose
name, without its suffix, is that of the file without the ending. Files of a field are no samples,
also if they are images. An image may lack the file; a warning says how many do.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

from packio.errors import OptionError, SourceError
from packio.images import encodings
from packio.sample import fields
from packio.sample.labelling import class_names, remark_on_order
from packio.sample.record import MASK
from packio.sources import Context, Listing, _files, count_names
from packio.sources.tables.records import attach_records
from packio.system.files import check_of_file

LAYOUT = "a folder of class folders of images, as cats/1.jpg, dogs/2.jpg"

_TRAIN = re.compile(r"train(ing)?([_-]?(set|data|images|split))?([_-]?\d{2,4})?", re.IGNORECASE)
_OTHER = re.compile(
    r"(val(id(at(e|ion))?)?|test(ing)?|dev|eval(uation)?)([_-]?(set|data|images|split))?"
    r"([_-]?\d{2,4})?", re.IGNORECASE,
)  # fmt: skip
_MASKS = re.compile(r"mask|label|segm|annot|ground.?truth|(^|[^a-z])(gt|seg)([^a-z]|$)").search
_LOOKED_AT = 16  # images of a folder
_USUAL = {".txt": "caption", ".caption": "caption", ".npy": "latent"}  # ending → field to suggest


def splits_among(folders: Iterable[str]) -> list[str]:
    """Folders named as splits; train comes first. None if only ``train`` is, beside ``plane``."""
    names = sorted(folders)
    train, other = ([n for n in names if of.fullmatch(n)] for of in (_TRAIN, _OTHER))
    return train + other if (train and other) or len(train + other) == len(names) else []


def find_classes(
    where: str, folders: Collection[str], context: Context, command: Callable[[str], str]
) -> list[str]:
    """The names of the classes; raise if the folders are splits. `command` packs one of them."""
    if names := splits_among(folders):
        train = names[0]
        others = [f"{command(name)} --classes-from {train}.lmdb" for name in names[1:]]
        if left := sorted(set(folders) - {*names}):
            others.append(f"which leaves out {', '.join(map(repr, left))}: of masks, say "
                          f"--source pairs --images {train} --masks {left[0]}")  # fmt: skip
        raise SourceError(
            f"{where}: its folders are splits ({', '.join(sorted(names))}), not classes; "
            f"to pack each by itself: {'; '.join([command(train), *others])}"
        )
    return class_names(where, folders, context.classes)


class Masks(NamedTuple):
    images: str
    masks: str
    told: str  # what speaks for it


def masks_among(keys: Sequence[bytes], read: Callable[[bytes], bytes]) -> Masks | None:
    """Tell whether two class folders are images and their masks.

    They are if all files of one have one channel or a palette, and the other has as many files,
    which are not like that; or if the one has the name of masks, as ``labels``.
    """
    edge = next((i for i, key in enumerate(keys) if _top(key) != _top(keys[0])), 0)
    if not edge or _top(keys[edge]) != _top(keys[-1]):
        return None
    folders = {os.fsdecode(_top(part[0])): part for part in (keys[:edge], keys[edge:])}
    for masks in sorted(folders, key=lambda name: not _MASKS(name.lower())):
        (images,) = folders.keys() - {masks}
        is_named = _MASKS(masks.lower()) and not _MASKS(images.lower())
        count, other = len(folders[masks]), len(folders[images])
        if not (is_named or count == other) or not _are_masks(folders[masks], read):
            continue
        if is_named or not _are_masks(folders[images], read):
            told = (
                f"{masks}/ has {count} images, all of one channel or with a palette, and "
                f"{images}/ has {other} images: masks of these, it seems, and no class"
            )
            return Masks(images, masks, told)
    return None


def _top(key: bytes) -> bytes:
    return key.partition(b"/")[0]


def _are_masks(keys: Sequence[bytes], read: Callable[[bytes], bytes]) -> bool:
    from PIL import Image

    chosen = keys[:: max(len(keys) // _LOOKED_AT, 1)]
    try:
        return not any(key.lower().endswith((b".jpg", b".jpeg")) for key in chosen) and all(
            encodings.has_class_ids(Image.open(io.BytesIO(read(key)))) for key in chosen
        )
    except Exception as error:  # noqa: BLE001 (whatever Pillow raises; packing tells it)
        check_of_file(error, os.fsdecode(chosen[0]))
        return False


def sort_keys(keys: Iterable[bytes], names: Sequence[str]) -> tuple[list[bytes], list[int]]:
    """Sort the keys that begin with a class folder; return the keys and their labels."""
    label_of = {name: label for label, name in enumerate(names)}

    def place(key: bytes) -> tuple[int, str, str]:
        folder, _, name = os.fsdecode(key).rpartition("/")
        return label_of[folder.partition("/")[0]], folder, name

    placed = sorted((place(key), key) for key in keys if b"/" in key)
    return [key for _, key in placed], [label for (label, _, _), _ in placed]


def warn_of_folders(
    where: str, result: Listing, folders: Collection[str], beside: Sequence[Any], context: Context,
    command: Callable[[str], str],
) -> None:  # fmt: skip
    """Warn of images beside the class folders, and of odd classes; list empty ones as bad."""
    keys, names = result.keys, result.classes
    if beside:
        told = "images beside the class folders belong to no class"
        result.warnings.append(count_names(told, beside))
    if len(names) == 1 and keys and all(key.count(b"/") > 1 for key in keys):
        result.warnings.append(
            f"all images are of one class, {names[0]!a}; to make classes of the folders in it: "
            f"{command(names[0])}"
        )
    if context.classes is None and (remark := remark_on_order(names)):
        result.warnings.append(remark)
    labels = result.labels if result.labels is not None else []
    full = {names[label] for label in set(labels)}
    full |= {os.fsdecode(_top(key)) for key, _ in result.unlisted}  # cannot be read
    if not full:
        hint = "" if result.root is None else _files.archive_hint(result.root)
        raise SourceError(f"{where}/: has no images in any class folder; {_files.EXPECTED}{hint}")
    for name in sorted(set(folders) - full):
        if context.allow_empty:
            result.warnings.append(f"class {name!a} has no images; kept as an empty class")
            continue
        reason = (
            f"a class folder that has no images; {_files.EXPECTED}; remove it, or keep it as an "
            "empty class with --on-error skip"
        )
        result.unlisted.append((os.fsencode(name) + b"/", reason))


def image_test(context: Context) -> Callable[[str], bool]:
    is_image, endings = _files.image_test(context), _endings(context)
    of_field = _files.ends_in(*endings.values())
    return lambda name: is_image(name) and not of_field(name)


def _endings(context: Context) -> dict[str, str]:
    for name, (origin, _) in context.fields.items():
        if name == MASK:
            raise OptionError(
                "field 'mask': images and masks of a folder are told apart by --image-suffix and "
                "--mask-suffix"
            )
        if "/" in origin:
            raise OptionError(
                f"field {name!r}: {origin!r} is no ending of files beside the images, as '.txt' or "
                f"'_{name}.png'"
            )
    return {
        name: origin if origin[0] in "._-" else f".{origin}"
        for name, (origin, _) in context.fields.items()
    }


def add_fields(found: Listing, context: Context) -> Listing:
    if not context.fields or not found.keys:
        return found
    root = os.fspath(found.root or "")
    cells: dict[str, list[bytes]] = {}
    origins: dict[str, tuple[str, str | None]] = {}
    for name, ending in _endings(context).items():
        there = _files.images(root, "", Listing(found.kind, root), context, _files.ends_in(ending))
        found.others.subtract(os.path.splitext(os.fsdecode(key))[1].lower() for key, _ in there)
        of_stem = {key[: -len(os.fsencode(ending))]: key for key, _ in there}
        cells[name] = [of_stem.get(_stem(key), b"") for key in found.keys]
        guess = kind_of_files(name, cells[name], ending, found)
        origins[name] = (ending, context.fields[name][1] or guess)
    for ending in [ending for ending, n in found.others.items() if n <= 0]:
        del found.others[ending]  # an ending of images was not counted
    return attach_records(found, root, origins, cells)


def kind_of_files(name: str, files: Sequence[bytes], origin: str, result: Listing) -> str:
    """The kind of a field whose files lie beside images; b"" for an image that has none."""
    missing = files.count(b"")
    if missing == len(files):
        raise OptionError(
            f"field {name!r}: no image of {result.root} has a file of its name for {origin!r}"
        )
    if missing:
        result.warnings.append(f"{missing} of {len(files)} images have no file for {name!r}")
    first = os.fsdecode(next(filter(None, files)))
    return "image" if _files.is_image(first) else fields.kind_of_file(first) or "bytes"


def _stem(key: bytes) -> bytes:
    return os.path.splitext(key)[0]


def tell_others(found: Listing) -> None:
    """Add a warning about files that are not taken, and say how to take files beside images."""
    _files.tell_others(found)
    for ending, name in _USUAL.items():
        if found.others[ending] and (file := _beside_first(found, ending)):
            kind = fields.kind_of_file(file) or "text"
            found.warnings.append(
                f"{file} lies beside an image; to pack such files as a field, say --field "
                f"{name}={ending[1:]}:{kind}"
            )


def _beside_first(found: Listing, ending: str) -> str | None:
    root = os.fspath(found.root or "")
    paths = (os.fsdecode(_stem(key)) + ending for key in found.keys[:_LOOKED_AT])
    return next((ascii(p)[1:-1] for p in paths if os.path.isfile(os.path.join(root, p))), None)
