"""What the gallery's page knows of a sample: its facts, pictures, boxes and all other fields."""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from packio.errors import PackioError
from packio.images import frames
from packio.images.decoders import MAX_PIXELS
from packio.inspecting.gallery.thumbnails import (
    SHOWN_BOXES,
    make_mask_thumbnail,
    make_thumbnail,
    near_boxes,
)
from packio.inspecting.pages import readable
from packio.packs import opening
from packio.packs.rows import Row
from packio.sample import levels
from packio.sample.fields import PIXELS, decode
from packio.sample.record import IMAGE

DENSITY = 2  # pixels of a thumbnail for one pixel of the page, for fine screens and enlarging
_SHOWN_TEXT = 2000  # characters of a text or of metadata that are shown
# Encodings that browsers show → their media types
MEDIA = {
    "jpeg": "image/jpeg", "png": "image/png", "webp": "image/webp", "gif": "image/gif",
    "bmp": "image/bmp", "avif": "image/avif",
}  # fmt: skip
# Those of them that browsers turn as Exif says; Chromium turns no WebP, older ones no PNG
_TURNED = ("jpeg", "avif")


def media_of(row: Row) -> str | None:
    """Media type of an image that browsers show upright, as it is; None of any other."""
    turns = row.orientation <= 1 or row.encoding in _TURNED
    return MEDIA.get(row.encoding) if turns else None


def values_of(pack: opening.Pack, shown: str, size: int, **data: Any) -> dict[str, Any]:
    """Values for the templates of the page.

    Args:
        pack: The pack.
        shown: What is said of the number of samples.
        size: Longer edge of a thumbnail, pixels on the page.
        data: What the page's script has beside the names of classes and splits.
    """
    count = len(pack.classes)
    facts = [
        shown, "1 class" if count == 1 else f"{count:,} classes",
        str(pack.metadata["format"]), f"digest {pack.digest[:12]}",
    ]  # fmt: skip
    names = {
        "classes": [readable(name) for name in pack.classes],
        "splits": [readable(name) for name in pack.metadata.get("splits", [])],
    }
    return {
        "title": readable(pack.path.resolve().name), "facts": facts, "size": size,
        "data": {**names, **data},
    }  # fmt: skip


def entry_of(
    pack: opening.Pack, index: int, size: int, *, original: bool = False
) -> dict[str, Any]:
    """Everything that the page shows of a sample; what cannot be read or decoded is its error.

    Args:
        pack: The pack.
        index: Of the sample.
        size: Longer edge of a thumbnail, pixels on the page.
        original: Put the image itself into the entry, if a browser can show it.
    """
    (row,) = pack.rows([index])
    boxes, _ = pack.boxes(index)
    thumbnail, error = _tried(lambda: make_thumbnail(_image(pack, row), size * DENSITY, row, boxes))
    media = media_of(row)
    data = _tried(lambda: pack.read(row))[0] if original and media is not None else None
    label, split = pack.label(index), pack.split_of(index)
    swapped = bool(row.orientation >= 5)
    return {
        "index": index,
        "key": readable(pack.key_bytes(index)),
        "classes": _classes(label),
        "labelled": label is not None,
        "split": None if split is None else readable(split),
        "width": row.width,
        "height": row.height,
        "upright": [row.height, row.width] if swapped else [row.width, row.height],
        "bytes": row.length,
        "encoding": row.encoding,
        "orientation": row.orientation,
        "offset": row.offset,
        "thumbnail": _text_of(thumbnail),
        "image": None if data is None else f"data:{media};base64,{_text_of(data)}",
        "original": media is not None,
        "boxes": _boxes(pack, index, row),
        "error": error,
        "more": list(_more(pack, index, size)),
    }


def _boxes(pack: opening.Pack, index: int, row: Row) -> list[dict[str, Any]]:
    """The boxes of a sample in its upright image: x, y, width and height in pixels, and a name.

    A box with NaN is nowhere, and left out; the facts of the sample count it.
    """
    boxes, labels = pack.boxes(index)
    if boxes is None:
        return []
    found = []
    shown = near_boxes(boxes[:SHOWN_BOXES], row.width, row.height)
    for i in np.flatnonzero(~np.isnan(shown).any(axis=1)).tolist():
        left, top, right, bottom = shown[i].tolist()
        x, y, width, height = _upright((left, top, right - left, bottom - top), row)
        name = "" if labels is None else _class_name(pack, int(labels[i]))
        found.append({"x": x, "y": y, "width": width, "height": height, "name": name})
    return found


def _upright(box: tuple[float, float, float, float], row: Row) -> tuple[float, float, float, float]:
    """Turn a box (left, top, width, height) as its image is turned."""
    left, top, wide, high = box
    width, height = row.width, row.height
    swapped, across, upside_down = frames.turns(row.orientation)
    if swapped:
        left, top, wide, high, width, height = top, left, high, wide, height, width
    left = width - left - wide if across else left
    top = height - top - high if upside_down else top
    return left, top, wide, high


def _class_name(pack: opening.Pack, number: int) -> str:
    names = pack.classes
    return readable(names[number]) if 0 <= number < len(names) else str(number)


def _image(pack: opening.Pack, row: Row) -> bytes:
    if row.height * row.width > MAX_PIXELS:
        raise PackioError(f"{row.width}x{row.height} pixels: too many to decode")
    return pack.read(row)


def _tried(make: Callable[[], Any]) -> tuple[Any, str | None]:
    """Call a function; return its result and None, or None and the text of the error."""
    try:
        return make(), None
    except PackioError as error:
        told = str(error)
    except Exception as error:  # noqa: BLE001 (Pillow's plugins raise whatever their parsers meet)
        told = f"{type(error).__name__}: {error}"
    return None, readable(told)


def _text_of(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode("ascii")


def _more(pack: opening.Pack, index: int, size: int) -> Iterator[dict[str, Any]]:
    """Everything of a sample but its image and label: each with a name, and a picture or a text."""
    if (split := pack.split_of(index)) is not None:
        yield {"name": "split", "text": split}
    boxes, labels = pack.boxes(index)
    if boxes is not None and len(boxes):
        ids = [] if labels is None else labels.tolist()
        told = ", ".join(_class_name(pack, number) for number in ids[:SHOWN_BOXES])
        nowhere = int(np.isnan(boxes).any(axis=1).sum())
        count = f"{len(boxes)}, {nowhere} of them with NaN" if nowhere else str(len(boxes))
        yield {"name": "boxes", "text": f"{count}: {told}"[:_SHOWN_TEXT] if told else count}
    if (meta := pack.meta(index)) is not None:
        yield {"name": "metadata", "text": json.dumps(meta)[:_SHOWN_TEXT]}
    for name in levels.others(pack.fields):
        if name != IMAGE:
            shown, error = _tried(functools.partial(_field, pack, name, index, size * DENSITY))
            if error is not None or shown is not None:
                yield {"name": readable(name), **(shown or {"text": error})}


def _field(pack: opening.Pack, name: str, index: int, edge: int) -> dict[str, str | None] | None:
    """A field as an image or a text; None if the sample has no such field."""
    field = pack.field(name, index)
    if field is None:
        return None
    if field.kind in PIXELS and field.facts is not None:
        if field.facts.height * field.facts.width > MAX_PIXELS:
            raise PackioError("too many pixels to decode")
        if field.kind == "mask":
            return {"mask": _text_of(make_mask_thumbnail(field.data, edge, field.facts))}
        return {"jpeg": _text_of(make_thumbnail(field.data, edge, field.facts))}
    value = decode(field)
    if isinstance(value, str):
        return {"text": value[:_SHOWN_TEXT]}
    if isinstance(value, np.ndarray):
        return {
            "text": f"array of {value.dtype}, {' x '.join(map(str, value.shape)) or 'a number'}"
        }
    return {"text": f"{len(field.data):,} bytes"}


def _classes(label: int | np.ndarray | None) -> list[int]:
    if isinstance(label, np.ndarray):
        positive: list[int] = np.flatnonzero(label > 0).tolist()
        return positive
    return [] if label is None else [label]
