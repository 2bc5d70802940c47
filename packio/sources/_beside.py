"""Named fields of files beside the images of a folder, as ``1.txt`` beside ``1.jpg``.

A field comes from all files whose names have an ending, as ``_depth.png`` or ``.txt``, which may be
written ``txt`` as for archives. Such a file belongs to the image in the same folder whose name,
without its suffix, is that of the file without the ending. Files of a field are no samples, also if
they are images. An image may lack the file; a warning says how many do.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence

from packio.errors import OptionError
from packio.sample import fields
from packio.sample.record import MASK
from packio.sources import Context, Listing, _files
from packio.sources._records import attach_records

_USUAL = {".txt": "caption", ".caption": "caption", ".npy": "latent"}  # ending → field to suggest
_MASK = re.compile(rb"_(mask|gt|seg|segmentation|labelIds)\.[^./]+$")
_LOOKED_AT = 16  # images


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


def with_fields(found: Listing, context: Context) -> Listing:
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
    for counted in [ending for ending, n in found.others.items() if n <= 0]:
        del found.others[counted]  # an ending of images was not counted
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


def told_masks(found: Listing) -> Iterator[str]:
    """Say how to pack pairs, if one of the first files is named as the mask of another."""
    keys = [] if found.root is None or found.files is not None else found.keys[:_LOOKED_AT]
    images = {_stem(key): key for key in keys}
    for key in keys:
        if (end := _MASK.search(key)) and (image := images.get(key[: end.start()])):
            name, of, ending = (ascii(os.fsdecode(part))[1:-1] for part in (key, image, end[0]))
            suffix = os.path.splitext(of)[1]
            yield (
                f"{name} is named as the mask of {of}, and is packed as an image; to pack pairs, "
                f"say --source pairs --images . --masks . --image-suffix {suffix} --mask-suffix "
                f"{ending}"
            )
            return


def _beside_first(found: Listing, ending: str) -> str | None:
    root = os.fspath(found.root or "")
    paths = (os.fsdecode(_stem(key)) + ending for key in found.keys[:_LOOKED_AT])
    return next((ascii(p)[1:-1] for p in paths if os.path.isfile(os.path.join(root, p))), None)
