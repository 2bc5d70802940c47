"""Contact sheets: the samples of a pack to look through, in one HTML file without any other file.

A tile shows an image with its boxes; enlarged, a sample shows its masks, other fields and metadata.
Everything from the pack is in the page as JSON, and is shown as text, never as markup.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from packio.datasets.selection import iterate_selected
from packio.errors import OptionError, PackioError
from packio.images import encodings
from packio.images.dct import as_file
from packio.images.decoders import Decoder
from packio.images.encodings import RAW, open_image
from packio.inspecting import pages
from packio.packing.images import resizing
from packio.packs import opening
from packio.packs.table import Row
from packio.sample import levels
from packio.sample.fields import PIXELS, decode
from packio.sample.record import IMAGE, Facts
from packio.system.progress import ProgressCallback
from packio.system.quantities import pluralize

ORIGINALS = 20_000_000  # bytes of images, as they are, in a page
_SHOWN_BOXES = 1000  # of a sample
_DENSITY = 2  # pixels of a thumbnail for one pixel of the page, for fine screens and enlarging
_QUALITY = 80  # of the JPEG
_BOX_COLOUR = (255, 64, 64)
_SHOWN_TEXT = 2000  # characters of a text or of metadata that are shown
# Encodings that browsers show → their media types
MEDIA = {
    "jpeg": "image/jpeg", "png": "image/png", "webp": "image/webp", "gif": "image/gif",
    "bmp": "image/bmp", "avif": "image/avif", "dct": "image/jpeg",
}  # fmt: skip
# Those of them that browsers turn as Exif says; Chromium turns no WebP, older ones no PNG
_TURNED = ("jpeg", "dct", "avif")


@dataclasses.dataclass(frozen=True, slots=True)
class SheetReport:
    """What a contact sheet shows."""

    out: Path
    shown: int  # samples
    samples: int  # to choose from: of the pack, or of the classes asked for
    broken: int  # samples that could not be read or decoded; the sheet shows their errors
    bytes: int  # of the file


def write_contact_sheet(
    pack: opening.Pack | str | os.PathLike[str], out: str | os.PathLike[str], *,
    classes: Iterable[str] | None = None, split: str | None = None, limit: int = 500,
    size: int = 128, originals: int = ORIGINALS, progress: ProgressCallback | None = None,
) -> SheetReport:  # fmt: skip
    """Write a contact sheet of a pack, an HTML file; an earlier one is replaced.

    At most ``limit`` samples are shown, spread evenly over the pack; ``size`` is the longer edge of
    a thumbnail, in pixels on the page. The page has so many bytes of images as they are, the
    smallest first: enlarged, such an ``original`` has its own pixels.
    """
    if isinstance(pack, (str, os.PathLike)):
        with opening.open(pack) as opened:
            return write_contact_sheet(
                opened, out, classes=classes, split=split, limit=limit, size=size,
                originals=originals, progress=progress,
            )  # fmt: skip
    if limit < 1 or size < 1:
        raise OptionError(f"limit={limit}, size={size}: expected at least 1")
    path = Path(out)
    pages.check_place(path)
    indices = concatenate(iterate_selected(pack, classes, split))
    chosen = indices[np.linspace(0, len(indices) - 1, min(limit, len(indices))).astype(np.int64)]
    lengths = pack.index_file.column("image/length").take(chosen)
    smallest = np.argsort(lengths, kind="stable")
    fits = np.cumsum(lengths[smallest], dtype=np.int64) <= originals
    whole = set(chosen[smallest[fits]].tolist())
    entries = pages.make_entries(
        lambda index: make_entry(pack, index, size, original=index in whole),
        chosen.tolist(), progress, int(lengths.sum()),
    )  # fmt: skip
    said = pluralize(len(indices), "sample")
    if len(entries) < len(indices):
        said = f"{len(entries):,} of {said}, spread evenly"
    values = make_values(pack, said, size, samples=entries)
    written = pages.write_page(path, pages.make_page(Path(__file__).parent, values))
    broken = sum(entry["error"] is not None for entry in entries)
    return SheetReport(path, len(entries), len(indices), broken, written)


def concatenate(chunks: Iterable[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.int64), *chunks])


def media_of(row: Row) -> str | None:
    """Media type of an image that browsers show upright, as it is; None of any other."""
    turns = row.orientation <= 1 or row.encoding in _TURNED
    return MEDIA.get(row.encoding) if turns else None


def make_values(pack: opening.Pack, shown: str, size: int, **data: Any) -> dict[str, Any]:
    """Values for the templates of the page; its script gets the data, beside classes and splits."""
    facts = [
        shown, pluralize(len(pack.classes), "class"), str(pack.metadata["format"]),
        f"digest {pack.digest[:12]}",
    ]  # fmt: skip
    names = {
        "classes": [pages.readable(name) for name in pack.classes],
        "splits": [pages.readable(name) for name in pack.metadata.get("splits", [])],
    }
    return {
        "title": pages.readable(pack.path.resolve().name), "facts": facts, "size": size,
        "data": {**names, **data},
    }  # fmt: skip


def make_entry(
    pack: opening.Pack, index: int, size: int, *, original: bool = False
) -> dict[str, Any]:
    """Everything that a page shows of a sample; what cannot be read or decoded is its error.

    The size is the longer edge of a thumbnail, in pixels of the page. An original is the image
    itself, if a browser can show it.
    """
    (row,) = pack.rows([index])
    boxes, _ = pack.boxes(index)
    thumbnail, error = _try(lambda: make_thumbnail(pack.read(row), size * _DENSITY, row, boxes))
    media = media_of(row)
    data = None
    if original and media is not None:
        data = _try(lambda: as_file(pack.read(row), row.encoding))[0]
    label, split = pack.label(index), pack.split_of(index)
    classes = [] if label is None else [label]
    if isinstance(label, np.ndarray):
        classes = np.flatnonzero(label > 0).tolist()
    return {
        "index": index, "key": pages.readable(pack.key_bytes(index)), "classes": classes,
        "labelled": label is not None, "split": None if split is None else pages.readable(split),
        "width": row.width, "height": row.height,
        "upright": [row.height, row.width] if row.orientation >= 5 else [row.width, row.height],
        "bytes": row.length, "encoding": row.encoding, "orientation": row.orientation,
        "offset": row.offset,
        "thumbnail": None if thumbnail is None else pages.as_base64(thumbnail),
        "image": None if data is None else f"data:{media};base64,{pages.as_base64(data)}",
        "original": media is not None, "boxes": _boxes(pack, index, row),
        "error": error, "more": list(_more(pack, index, size)),
    }  # fmt: skip


def _boxes(pack: opening.Pack, index: int, row: Row) -> list[dict[str, Any]]:
    """The boxes of a sample in its upright image, in pixels; a box with NaN is nowhere."""
    boxes, labels = pack.boxes(index)
    if boxes is None:
        return []
    size = max(row.width, 1), max(row.height, 1)
    near = near_boxes(boxes[:_SHOWN_BOXES], *size)
    corners = resizing.move_boxes(near, size, size, row.orientation)
    names = [""] * len(near) if labels is None else [class_name(pack, i) for i in labels.tolist()]
    return [
        {"x": left, "y": top, "width": right - left, "height": bottom - top, "name": name}
        for (left, top, right, bottom), name in zip(corners.tolist(), names, strict=False)
        if not math.isnan(left + top + right + bottom)
    ]


def class_name(pack: opening.Pack, number: int) -> str:
    names = pack.classes
    return pages.readable(names[number]) if 0 <= number < len(names) else str(number)


def _try(make: Callable[[], Any]) -> tuple[Any, str | None]:
    """Call a function; return its result and None, or None and the text of the error."""
    try:
        return make(), None
    except PackioError as error:
        told = str(error)
    except Exception as error:  # noqa: BLE001 (Pillow's plugins raise whatever their parsers meet)
        told = f"{type(error).__name__}: {error}"
    return None, pages.readable(told)


def _more(pack: opening.Pack, index: int, size: int) -> Iterator[dict[str, Any]]:
    """Everything of a sample but its image and label: each with a name, and a picture or a text."""
    if (split := pack.split_of(index)) is not None:
        yield {"name": "split", "text": split}
    boxes, labels = pack.boxes(index)
    if boxes is not None and len(boxes):
        ids = [] if labels is None else labels.tolist()
        told = ", ".join(class_name(pack, number) for number in ids[:_SHOWN_BOXES])
        nowhere = int(np.isnan(boxes).any(axis=1).sum())
        count = f"{len(boxes)}, {nowhere} of them with NaN" if nowhere else str(len(boxes))
        yield {"name": "boxes", "text": f"{count}: {told}"[:_SHOWN_TEXT] if told else count}
    if (meta := pack.meta(index)) is not None:
        yield {"name": "metadata", "text": json.dumps(meta)[:_SHOWN_TEXT]}
    for name in levels.others(pack.fields):
        if name != IMAGE:
            shown, error = _try(functools.partial(_field, pack, name, index, size * _DENSITY))
            if error is not None or shown is not None:
                yield {"name": pages.readable(name), **(shown or {"text": error})}


def _field(pack: opening.Pack, name: str, index: int, edge: int) -> dict[str, str | None] | None:
    """A field as an image or a text; None if the sample has no such field."""
    field = pack.field(name, index)
    if field is None:
        return None
    if field.kind in PIXELS and (facts := field.facts) is not None:
        if field.kind == "mask":
            return {"mask": pages.as_base64(make_mask_thumbnail(field.data, edge, facts))}
        return {"jpeg": pages.as_base64(make_thumbnail(field.data, edge, facts))}
    value = decode(field)
    if isinstance(value, str):
        return {"text": value[:_SHOWN_TEXT]}
    if isinstance(value, np.ndarray):
        shape = " x ".join(map(str, value.shape)) or "a number"
        return {"text": f"array of {value.dtype}, {shape}"}
    return {"text": f"{len(field.data):,} bytes"}


def make_thumbnail(
    data: bytes, edge: int, row: Row | Facts, boxes: np.ndarray | None = None
) -> bytes:
    """Make an upright JPEG of at most ``edge`` pixels a side; boxes are of the stored image."""
    with _open(data, row) as image:
        small: Image.Image = image
        width, height = image.size
        if image.mode[0] in "IF":
            small = _from_array(np.asarray(image))
        # thumbnail() decodes less of the other JPEGs
        elif image.format != "JPEG" or not encodings.has_dct(data):
            small = image.convert("RGB")
        small.thumbnail((edge, edge))
        small = small.convert("RGB")
    if boxes is not None:
        scale = np.array([small.width / width, small.height / height] * 2)
        draw = ImageDraw.Draw(small)
        for box in near_boxes(boxes[:_SHOWN_BOXES], width, height) * scale:
            if not np.isnan(box).any():
                draw.rectangle(tuple(box.tolist()), outline=_BOX_COLOUR, width=2)
    return _encode(resizing.upright(small, max(row.orientation, 1)), "JPEG")


def near_boxes(boxes: np.ndarray, width: int, height: int) -> np.ndarray:
    """Boxes for drawing: (k, 4) float64, left, top, right and bottom in pixels; NaN stays NaN.

    An edge that is far outside the image is moved to a place outside that is near: Pillow goes
    through all pixels of an edge, and JSON has no infinity. Corners may be in any order.
    """
    corners = np.sort(np.asarray(boxes, np.float64).reshape(-1, 2, 2), axis=1).reshape(-1, 4)
    size = np.array([width, height] * 2, np.float64)
    near: np.ndarray = np.clip(corners, -size, 2 * size)
    return near


def make_pixels_thumbnail(pixels: np.ndarray, edge: int) -> bytes:
    """Make a JPEG of (C, H, W) pixels of any type, of at most ``edge`` pixels a side."""
    image = _from_array(pixels.transpose(1, 2, 0))
    image.thumbnail((edge, edge))
    return _encode(image, "JPEG")


def make_mask_thumbnail(data: bytes, edge: int, facts: Facts) -> bytes:
    """Make an upright PNG of a mask, of at most ``edge`` pixels a side.

    Each class id has a colour of its own, as far as 8 bits allow; 0 is transparent.
    """
    with _open(data, facts) as image:
        ids = np.asarray(image)
    ids = ids[..., 0] if ids.ndim == 3 else ids
    step = -(-max(ids.shape) // edge)
    ids = ids[::step, ::step].astype(np.int64)
    shown = np.where(ids == 0, 0, 255)
    colours = np.stack([*(ids * prime % 256 for prime in (53, 151, 199)), shown], axis=-1)
    small = Image.fromarray(colours.astype(np.uint8))
    return _encode(resizing.upright(small, max(facts.orientation, 1)), "PNG")


def _encode(image: Image.Image, encoding: str) -> bytes:
    file = io.BytesIO()
    image.save(file, encoding, **({"quality": _QUALITY} if encoding == "JPEG" else {}))
    return file.getvalue()


def _open(data: bytes, row: Row | Facts) -> Image.Image:
    if row.encoding not in RAW:
        return open_image(data)
    return _from_array(Decoder(mode="UNCHANGED")(data, row))


def _from_array(pixels: np.ndarray) -> Image.Image:
    """An image of (H, W) or (H, W, C) pixels; of more than 8 bits, the least becomes black."""
    if pixels.ndim == 3:
        pixels = pixels[..., :3] if pixels.shape[2] >= 3 else pixels[..., 0]
    if pixels.dtype != np.uint8:
        values = np.nan_to_num(np.asarray(pixels, np.float64))
        low, high = float(values.min()), float(values.max())
        pixels = ((values - low) * (255 / ((high - low) or 1))).astype(np.uint8)
    return Image.fromarray(np.ascontiguousarray(pixels))
