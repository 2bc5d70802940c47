"""Arrays of pixels as others write them: the order of axes, and which arrays are images and labels.

An array of images is (N, H, W), (N, H, W, C) or (N, C, H, W), of uint8, uint16 or float32. In an
array of four axes the last axis is C if it has 1, 3 or 4 values, else the second axis if that has.
The user can say it with ``layout``: "HWC" or "CHW", "RGB" or "BGR", or one of each with a comma.

A scan gives the range of an image's bytes if they lie as `packio.images.encodings.RAW` has them.
If not, the offset is -1, and `packio.formats.blobs.by_library` reads the image.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

import numpy as np

from packio.errors import IntegrityError, NotAPackError, OptionError
from packio.formats.blobs.columns import BlobValues, Header, columns_of, records
from packio.images import encodings
from packio.images.encodings import raw_facts
from packio.sample.labelling import check_fits
from packio.sample.record import IMAGE, Facts, Place, Record

# Usual names of images, labels, and positions in a blob; the first that is there is taken.
IMAGES = ("data", "images", "image", "x", "X")
LABELS = ("label", "labels", "target", "targets", "y", "Y")
OFFSETS = ("offsets", "offset", "indptr")
_NOT_TAKEN = ("mask", "masks", "segmentation", "segmentations", "boxes", "bbox", "bboxes")

MOST_BYTES = 1 << 30  # of an image, or of a chunk, as it is decoded
_MOST_RATIO = 2000  # decoded bytes for each one stored: deflate comes to 1,032
_FEW = 100_000  # samples that few bytes may claim to be

CHANNELS = (1, 3, 4)
_COLOURS = ("RGB", "BGR")
_ENDS = (b"\xff\xd9", b"\xaeB`\x82")  # of a JPEG and a PNG

Label = Any  # a number, or a vector: (k,) float32 or int64


class Order(NamedTuple):
    """The order of pixels, as far as the user gives it."""

    planes: bool | None = None  # (C, H, W), or (H, W, C); None: decide by the shape
    bgr: bool = False


def order_of(layout: str | None) -> Order:
    """Read the layout that the user gives: "HWC", "CHW", "RGB", "BGR", "HWC,BGR" …."""
    words = layout.upper().split(",") if layout else []
    axes, colours = [w for w in words if w in ("HWC", "CHW")], [w for w in words if w in _COLOURS]
    if len(axes) + len(colours) != len(words) or len(axes) > 1 or len(colours) > 1:
        raise OptionError(f"layout={layout!r}: expected HWC or CHW, RGB or BGR, or HWC,BGR")
    return Order(axes[0] == "CHW" if axes else None, colours == ["BGR"])


def facts_of(shape: Sequence[int], dtype: np.dtype, order: Order, where: str) -> Facts:
    """Tell the facts of an image by the shape of its array: (H, W), (H, W, C) or (C, H, W)."""
    said = f"{where} has images of the shape {tuple(shape)}, {dtype}"
    if dtype.name not in encodings.DTYPES:
        raise NotAPackError(f"{said}; expected one of {', '.join(encodings.DTYPES)}: convert them")
    if len(shape) not in (2, 3) or min(shape) < 1:
        raise NotAPackError(f"{said}; expected (H, W), (H, W, C) or (C, H, W)")
    if math.prod(shape) * dtype.itemsize > MOST_BYTES:
        raise NotAPackError(f"{said}; expected at most {MOST_BYTES} bytes an image")
    planes = order.planes
    if len(shape) == 2:
        shape, planes = (*shape, 1), False
    if planes is None and not {shape[0], shape[-1]} & set(CHANNELS):
        raise NotAPackError(f"{said}; which axis is the channels? Say layout='HWC' or 'CHW'")
    if planes is None:
        planes = shape[-1] not in CHANNELS
    channels, height, width = shape if planes else (shape[2], shape[0], shape[1])
    if channels > 255:
        raise NotAPackError(f"{said}: {channels} channels; expected at most 255")
    name = next(n for n, raw in encodings.RAW.items() if raw == (planes, order.bgr))
    return raw_facts(height, width, channels, dtype.name, name)


def size_of(facts: Facts) -> int:
    itemsize: int = np.dtype(facts.dtype).itemsize
    return facts.height * facts.width * facts.channels * itemsize


def is_as_stored(dtype: np.dtype) -> bool:
    """Tell whether values lie in the byte order that raw pixels have: little-endian."""
    return bool(dtype == dtype.newbyteorder("<"))


def image_at(
    key: bytes, file: str, offset: int, length: int, facts: Facts | None = None
) -> Record[Place]:
    """The record of an image whose bytes lie at an offset of a file; -1: a reader reads them."""
    return Record(key, {IMAGE: Place("image", file, offset, length, False, facts)})


def attach_labels(
    found: Iterable[Record[Place]], labels: Sequence[Label] | None
) -> Iterator[Record[Place]]:
    if labels is None:
        yield from found
        return
    for record, label in zip(found, labels, strict=True):
        yield dataclasses.replace(record, label=label)


def blob_of(
    offsets: np.ndarray, begin: int | None, size: int, path: Path, what: str
) -> tuple[BlobValues, Iterator[Record[Place]]]:
    """Find images that lie end to end in one blob of a file, at offsets as they were read.

    `begin` is where the blob begins in the file; None: the blob is no range of bytes.
    """
    if offsets.dtype.kind not in "iu":
        raise NotAPackError(f"{path}: {what} is {offsets.dtype}, integers are expected")
    columns = columns_of({"offsets": offsets.astype(np.int64)}, {IMAGE: size}, Header(), path)
    values = columns.values[IMAGE]
    ranges = values.ranges(begin or 0)
    if begin is None:
        ranges = ranges._replace(offset=np.full_like(ranges.offset, -1))
    return values, records(columns, (path.name,), {IMAGE: ranges})


def check_labels(shape: Sequence[int], dtype: np.dtype, count: int, where: str) -> None:
    """Check that an array can be the labels of so many images, before it is read."""
    if dtype.kind not in "biuf" or len(shape) not in (1, 2) or 0 in shape[1:]:
        raise NotAPackError(
            f"{where} is {dtype} {tuple(shape)}, which are no labels; expected numbers, one or "
            "several an image; name others with label=…, or take none with label=''"
        )
    if shape[0] != count:
        raise IntegrityError(f"{where}: {shape[0]} labels of {count} images; restore the file")


def labels_of(values: np.ndarray, where: str) -> list[Label]:
    """Labels of images: numbers as they are; several numbers an image as vectors."""
    count = len(values)
    if values.shape[1:] not in ((), (1,)):
        made = values.astype(np.float32 if values.dtype.kind == "f" else np.int64)
        for value in values[(made != values) & (np.abs(values) > 1 << 24)].tolist():
            check_fits(value, where)
        return list(made)
    if values.dtype.kind == "f":
        return values.reshape(count).tolist()  # type: ignore[no-any-return]  # floats
    if values.size and int(values.max()) >= 1 << 63:
        raise NotAPackError(f"{where} has labels up to {values.max()}, which do not fit 64 bits")
    return values.reshape(count).astype(np.int64).tolist()  # type: ignore[no-any-return]  # ints


def check_claim(count: int, size: int, chunk: int, stored: int, where: str) -> None:
    """Compare the size that compressed samples claim with the bytes that all have on the disk."""
    most = _MOST_RATIO * stored + MOST_BYTES
    if chunk > MOST_BYTES or count * size > most or count > stored + _FEW:
        raise IntegrityError(
            f"{where}: {stored} bytes claim to be {count} samples of {size}, in chunks of {chunk}; "
            f"expected no chunk over {MOST_BYTES}, and at most {_MOST_RATIO} times what is stored"
        )


def strip_padding(value: bytes) -> bytes:
    """Cut the zeros after the end of a JPEG or PNG that lies in a value of fixed length."""
    bare = value.rstrip(b"\0")
    return bare if bare.endswith(_ENDS) else value


def holds_many(shape: Sequence[int], dtype: np.dtype) -> bool:
    axes = len(shape)
    return dtype.kind in "biuf" and (axes == 4 or (axes == 3 and shape[2] not in CHANNELS))


def only(many: Mapping[str, str], where: object) -> list[str]:
    """Choose the array of images: the one that has a usual name, or the only one."""
    names = [n for n in many if n.rpartition("/")[2] in IMAGES] or list(many)
    if len(names) > 1:
        what = ", ".join(many[n] for n in names[:20])
        raise NotAPackError(f"{where}: several arrays can be the images: {what}; say image='NAME'")
    return names


def label_beside(there: Container[str], group: str, label: str | None, where: object) -> str | None:
    """The array of labels: the given one ("": none), or the only one with a usual name."""
    if label is not None:
        return label.strip("/") or None
    names = [group + name for name in LABELS if group + name in there]
    if len(names) > 1:
        shown = " and ".join(map(repr, names))
        raise NotAPackError(f"{where}: {shown} can be the labels: say which by --label-col NAME")
    return names[0] if names else None


def refuse_others(there: Container[str], group: str, image: str | None, where: object) -> None:
    """Refuse arrays of masks or boxes beside images; whoever names the images leaves them out."""
    found = [group + name for name in _NOT_TAKEN if group + name in there]
    if image is None and found:
        raise NotAPackError(
            f"{where}: {found[0]!r} lies beside the images; of arrays packio takes images and "
            f"labels: name the images, to leave the rest out: packio reindex {quote(str(where))} "
            "--image NAME"
        )
