"""The features of an Example, and what they say of a sample; see `packio.formats.tfrecord`."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence

import numpy as np

from packio.errors import IntegrityError, NotAPackError, OptionError
from packio.formats import Entry
from packio.formats.tfrecord.framing import Frame
from packio.formats.wire import Malformed
from packio.formats.wire.protobuf import BYTES, FLOAT, INT64, Example, Range, varint
from packio.sample.record import Field, Record

Feature = tuple[bytes, int, bytes]  # key, kind, content
_Boxes = tuple[tuple[float, float, float, float], ...]

IMAGE, MASK = b"image/encoded", b"image/segmentation/class/encoded"
_LABEL, _BOXES, _BOX_LABELS = b"image/class/label", b"packio/boxes", b"image/object/class/label"
_BOX_SIDES = tuple(b"image/object/bbox/" + side for side in (b"xmin", b"ymin", b"xmax", b"ymax"))
_SIZE = (b"image/width", b"image/height")
_KEY, _META = b"packio/key", b"packio/meta"
_FORMATS = {"unknown": b""}  # the others: as they are called, in capitals

# By these names others have an image, a label, a path; the first that a record has is taken.
_IMAGES = (
    IMAGE, b"image", b"image_raw", b"image/raw", b"image_bytes", b"jpeg", b"jpg", b"png", b"img",
    b"encoded", b"data",
)  # fmt: skip
_LABELS = (_LABEL, b"label", b"labels", b"class", b"target", b"y")
_KEYS = (
    _KEY, b"image/filename", b"filename", b"file_name", b"image/path", b"path", b"key",
)  # fmt: skip


def entry(
    frame: Frame,
    file: str,
    where: str,
    image_name: str | None = None,
    label_name: str | None = None,
) -> Entry:
    """Find out what a record says of its sample.

    Args:
        frame: The record.
        file: That it is in.
        where: It is, for messages.
        image_name: The feature that is the image.
        label_name: The feature that is the label; "" takes none.

    Raises:
        Malformed: it is no Example.
        NotAPackError: there is no image in it.
        OptionError: there is no feature of a name given.
        IntegrityError: its boxes contradict each other.
    """
    example = Example(frame.data)
    for option, name in (("image", image_name), ("label", label_name)):
        if name and os.fsencode(name) not in example.features:
            raise OptionError(
                f"{where}: {option}={name!r} is not in it; there are: {_features(example)}"
            )
    images = _IMAGES if image_name is None else (os.fsencode(image_name),)
    labels = _LABELS if label_name is None else (os.fsencode(label_name),)
    image = _first(example, images)
    if image is None:
        raise NotAPackError(_no_image(example, images, where))
    label = _label(example, labels)
    if label is None and label_name:
        raise NotAPackError(f"{where}: label={label_name!r} has no numbers; name another")
    mask, meta = _first(example, (MASK,)), _first(example, (_META,))
    boxes, box_labels = _boxes(example, where)
    data, at = frame.data, frame.offset
    return Entry(
        b"%d" % frame.number,
        file,
        at + image[0],
        image[1] - image[0],
        label,
        _key(example),
        mask and (file, at + mask[0], mask[1] - mask[0]),
        meta and data[meta[0] : meta[1]],
        boxes,
        box_labels,
    )


def _first(example: Example, names: Sequence[bytes]) -> Range | None:
    """Where the value of the first of some features lies that has one value of bytes."""
    for name in names:
        if name in example.features:
            found = example.single(name)
            if found is not None:
                return found
    return None


def _key(example: Example) -> bytes | None:
    """Our own key as it is; others' if not empty: some converters fill in what they do not have."""
    for name in _KEYS:
        found = _first(example, (name,))
        if found is not None and (found[0] < found[1] or name == _KEY):
            return example.data[found[0] : found[1]]
    return None


def _no_image(example: Example, images: Sequence[bytes], where: str) -> str:
    what = "a SequenceExample" if example.is_sequence else "an Example without an encoded image"
    names = ", ".join(name.decode() for name in images)
    return (
        f"{where}: {what}; its features are: {_features(example)}; expected one value of bytes as "
        f"one of {names}; say which with image=…"
    )


def _features(example: Example) -> str:
    keys = sorted(key.decode("utf-8", "backslashreplace") for key in example.features)
    return (", ".join(keys[:20]) + (" …" if len(keys) > 20 else "")) or "none"


def _label(example: Example, names: Sequence[bytes]) -> int | tuple[float, ...] | None:
    for name in names:
        numbers = example.numbers(name) if name in example.features else None
        if numbers:
            number = numbers[0]
            if len(numbers) == 1 and isinstance(number, int):
                return number
            return tuple(map(float, numbers))
    return None


def _boxes(example: Example, where: str) -> tuple[_Boxes | None, tuple[int, ...] | None]:
    if _BOXES in example.features:
        boxes = _stored(example)
    elif all(name in example.features for name in (*_BOX_SIDES, *_SIZE)):
        boxes = _scaled(example, where)
    else:
        return None, None
    labels = example.numbers(_BOX_LABELS)
    if labels is not None and len(labels) != len(boxes):
        raise IntegrityError(f"{where}: {len(boxes)} boxes, {len(labels)} labels of boxes")
    return boxes, None if labels is None else tuple(map(int, labels))


def _stored(example: Example) -> _Boxes:
    start, stop = example.single(_BOXES) or (0, 1)
    if (stop - start) % 16:
        raise Malformed(f"{_BOXES.decode()} has {stop - start} bytes, expected 16 a box")
    return tuple(struct.iter_unpack("<4f", example.data[start:stop]))


def _scaled(example: Example, where: str) -> _Boxes:
    """Boxes from fractions of width and height."""
    width, height = (example.numbers(name) or [0] for name in _SIZE)
    sides = [example.numbers(name) or [] for name in _BOX_SIDES]
    if len({len(side) for side in sides}) > 1:
        raise IntegrityError(f"{where}: boxes have {[len(side) for side in sides]} sides")
    w, h = width[0], height[0]
    return tuple((a * w, b * h, c * w, d * h) for a, b, c, d in zip(*sides, strict=True))


def features(record: Record[Field], texts: Sequence[bytes]) -> Iterator[Feature]:
    """Yield the features of a record, in the order of their keys."""
    yield b"image/channels", INT64, varint(record.facts.channels)
    yield from _label_features(record.label, texts)
    yield IMAGE, BYTES, record.image.data
    yield b"image/filename", BYTES, record.key.decode("utf-8", "replace").encode()
    yield (
        b"image/format",
        BYTES,
        _FORMATS.get(record.facts.encoding, record.facts.encoding.upper().encode()),
    )
    yield b"image/height", INT64, varint(record.facts.height)
    if record.boxes is not None:
        yield from _box_features(record.boxes, record)
    if record.mask is not None:
        yield MASK, BYTES, record.mask.data
        name = "" if record.mask.encoding == "unknown" else record.mask.encoding
        yield b"image/segmentation/class/format", BYTES, name.encode()
    yield b"image/width", INT64, varint(record.facts.width)
    if record.boxes is not None:
        yield _BOXES, BYTES, np.asarray(record.boxes, "<f4").tobytes()
    yield _KEY, BYTES, record.key
    if record.meta is not None:
        yield _META, BYTES, record.meta


def _label_features(label: int | np.ndarray | None, texts: Sequence[bytes]) -> Iterator[Feature]:
    if isinstance(label, np.ndarray):
        yield _LABEL, FLOAT, label.astype("<f4").tobytes()
    elif label is not None:
        yield _LABEL, INT64, varint(int(label))
        yield b"image/class/text", BYTES, texts[label] if 0 <= label < len(texts) else b""


def _box_features(boxes: np.ndarray, record: Record[Field]) -> Iterator[Feature]:
    scale = np.array([record.facts.width, record.facts.height] * 2, np.float64).clip(1)
    sides = (boxes / scale).astype("<f4").T
    for i in (2, 0, 3, 1):  # in the order of their names
        yield _BOX_SIDES[i], FLOAT, sides[i].tobytes()
    if record.box_labels is not None:
        yield _BOX_LABELS, INT64, b"".join(map(varint, record.box_labels.tolist()))
