"""The features of an Example, and what they say of a sample; see `packio.formats.tfrecord`."""

from __future__ import annotations

import contextlib
import operator
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from packio.errors import IntegrityError, NotAPackError, OptionError
from packio.formats import Reading
from packio.formats.wire import MalformedError
from packio.formats.wire.protobuf import BYTES, FLOAT, INT64, Example, Range, varint
from packio.images.encodings import read_facts
from packio.sample.fields import KINDS
from packio.sample.record import IMAGE, MASK, Field, Place, Record

Feature = tuple[bytes, int, bytes]  # key, kind, content

_ENCODED = {IMAGE: b"image/encoded", MASK: b"image/segmentation/class/encoded"}
_LABEL, _BOXES = b"image/class/label", b"packio/boxes"
_OBJECT = b"image/object/"  # a column of the boxes
_COLUMNS = {"labels": b"class/label", "crowd": b"is_crowd"}  # the others: as they are called
_BOX_SIDES = tuple(b"image/object/bbox/" + side for side in (b"xmin", b"ymin", b"xmax", b"ymax"))
_FLAT_BOXES = b"objects/bbox"  # of TensorFlow Datasets: ymin, xmin, ymax, xmax of box after box
_FLAT = b"objects/"  # its columns
_FLAT_NAMES = {"label": "labels", "is_crowd": "crowd"}  # the others: as they are called
_SIZE = (b"image/width", b"image/height")
_KEY, _META = b"packio/key", b"packio/meta"
_FORMATS = {"array": b"NPY", "text": b"TEXT", "bytes": b"BYTES"}  # kind of a field → its format

# By these names others have an image, a label, a path; the first that a record has is taken.
_IMAGES = (
    _ENCODED[IMAGE], b"image", b"image_raw", b"image/raw", b"image_bytes", b"jpeg", b"jpg",
    b"png", b"img", b"encoded", b"data",
)  # fmt: skip
_LABELS = (_LABEL, b"label", b"labels", b"class", b"target", b"y")
_KEYS = (
    _KEY, b"image/filename", b"filename", b"file_name", b"image/path", b"path", b"key",
)  # fmt: skip


def key_of(name: str) -> bytes:
    return _ENCODED.get(name) or b"%s/encoded" % name.encode()


def record_of(
    data: bytes, offset: int, number: int, file: str, where: str, reading: Reading
) -> Record[Place]:
    """Find out what a record, whose data lie at an offset of a file, says of its sample."""
    example = Example(data)
    for option, name in (("image", reading.image), ("label", reading.label)):
        if name and os.fsencode(name) not in example.features:
            raise OptionError(
                f"{where}: {option}={name!r} is not in it; there are: {_features(example)}"
            )
    images = _IMAGES if reading.image is None else (os.fsencode(reading.image),)
    labels = _LABELS if reading.label is None else (os.fsencode(reading.label),)
    image = _first(example, images)
    if image is None:
        raise NotAPackError(_no_image(example, images, where))
    label = _label(example, labels)
    if label is None and reading.label:
        raise NotAPackError(f"{where}: label={reading.label!r} has no value; name another")
    fields = {
        name: Place(kind, file, offset + start, stop - start)
        for name, kind, (start, stop) in _fields(example, image)
    }
    meta, key = _first(example, (_META,)), _key(example)
    boxes, columns = _boxes(example, image, where)
    return Record(
        b"%d" % number if key is None else key, fields, label, None, boxes, columns,
        meta and data[meta[0] : meta[1]],
    )  # fmt: skip


def _fields(example: Example, image: Range) -> Iterator[tuple[str, str, Range]]:
    yield IMAGE, "image", image
    if (mask := _first(example, (_ENCODED[MASK],))) is not None:
        yield MASK, "mask", mask
    for key in example.features:
        name, slash, last = key.rpartition(b"/")
        if not slash or last != b"kind" or b"/" in name:
            continue
        kind, value = _first(example, (key,)), _first(example, (name + b"/encoded",))
        if kind is None or value is None:
            continue
        said = example.data[kind[0] : kind[1]].decode("ascii", "replace")
        if said in KINDS and name.decode("utf-8", "replace") not in (IMAGE, MASK):
            yield name.decode("utf-8", "replace"), said, value


def _first(example: Example, names: Sequence[bytes]) -> Range | None:
    """Where the value of the first of some features lies that has one value of bytes."""
    for name in names:
        if name in example.features:
            found = example.single(name)
            if found is not None:
                return found
    return None


def _key(example: Example) -> bytes | None:
    """The key of packio, or a key of others that is not empty: some converters write empty keys."""
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


def _label(example: Example, names: Sequence[bytes]) -> Any:
    for name in names:
        if name in example.features and (text := example.single(name)) is not None:
            with contextlib.suppress(UnicodeDecodeError):
                return example.data[text[0] : text[1]].decode()
        numbers = example.numbers(name) if name in example.features else None
        if numbers:
            number = numbers[0]
            if len(numbers) == 1 and isinstance(number, int):
                return number
            return np.array(numbers, np.int64 if isinstance(number, int) else np.float32)
    return None


def _boxes(
    example: Example, image: Range, where: str
) -> tuple[np.ndarray | None, dict[str, np.ndarray]]:
    """The boxes and their columns, as packio, the Object Detection API, or TFDS wrote them."""
    names = {_OBJECT + _COLUMNS["labels"]: "labels"}
    if _BOXES in example.features:
        boxes = _stored(example)
        for key in example.features:
            last = key[len(_OBJECT) :]
            if key.startswith(_OBJECT) and b"/" not in last:
                usual = (name for name, known in _COLUMNS.items() if known == last)
                names[key] = next(usual, last.decode("utf-8", "replace"))
    elif all(name in example.features for name in (*_BOX_SIDES, *_SIZE)):
        boxes = _scaled(example, where)
    elif _FLAT_BOXES in example.features:
        boxes = _flat(example, image, where)
        names = _flat_names(example, len(boxes))
    else:
        return None, {}
    columns = {}
    for key, name in names.items():
        kind, _ = example.lists(key)
        numbers = example.numbers(key)
        if numbers is None:
            continue
        if len(numbers) != len(boxes):
            raise IntegrityError(f"{where}: {len(boxes)} boxes, {len(numbers)} {name} of boxes")
        is_real = kind == FLOAT and name != "labels"
        columns[name] = np.array(numbers).astype(np.float32 if is_real else np.int64)
    return boxes, columns


def _stored(example: Example) -> np.ndarray:
    start, stop = example.single(_BOXES) or (0, 1)
    if (stop - start) % 16:
        raise MalformedError(f"{_BOXES.decode()} has {stop - start} bytes, expected 16 a box")
    return np.frombuffer(example.data[start:stop], "<f4").reshape(-1, 4)


def _scaled(example: Example, where: str) -> np.ndarray:
    width, height = (example.numbers(name) or [0] for name in _SIZE)
    sides = [example.numbers(name) or [] for name in _BOX_SIDES]
    if len({len(side) for side in sides}) > 1:
        raise IntegrityError(f"{where}: boxes have {[len(side) for side in sides]} sides")
    scale = np.array([width[0], height[0]] * 2, np.float64)
    boxes: np.ndarray = (np.array(sides, np.float64).T * scale).astype(np.float32)
    return boxes


def _flat(example: Example, image: Range, where: str) -> np.ndarray:
    """Boxes from fractions of the image's sides, which its header tells.

    Source: TensorFlow Datasets 4.9, ``features.BBoxFeature``.
    """
    fractions = np.array(example.numbers(_FLAT_BOXES) or [], np.float64)
    if len(fractions) % 4:
        raise IntegrityError(f"{where}: bbox has {len(fractions)} numbers, expected 4 a box")
    facts = read_facts(example.data[image[0] : image[1]])
    scale = np.array([facts.width, facts.height] * 2, np.float64)
    boxes: np.ndarray = (fractions.reshape(-1, 4)[:, [1, 0, 3, 2]] * scale).astype(np.float32)
    return boxes


def _flat_names(example: Example, count: int) -> dict[bytes, str]:
    """Features that have one number a box, and the columns that they become."""
    names = {}
    for key in example.features:
        last = key[len(_FLAT) :]
        if not key.startswith(_FLAT) or key == _FLAT_BOXES or b"/" in last:
            continue
        numbers = example.numbers(key)
        if numbers is not None and len(numbers) == count:
            name = last.decode("utf-8", "replace")
            names[key] = _FLAT_NAMES.get(name, name)
    return names


def features(record: Record[Field], texts: Sequence[bytes]) -> list[Feature]:
    return sorted(_unsorted(record, texts), key=operator.itemgetter(0))


def _unsorted(record: Record[Field], texts: Sequence[bytes]) -> Iterator[Feature]:
    if IMAGE in record.fields:
        facts = record.facts
        yield b"image/channels", INT64, varint(facts.channels)
        yield b"image/height", INT64, varint(facts.height)
        yield b"image/width", INT64, varint(facts.width)
    yield b"image/filename", BYTES, record.key.decode("utf-8", "replace").encode()
    yield from _label_features(record.label, texts)
    for name, field in record.fields.items():
        key = key_of(name)
        yield key, BYTES, field.data
        encoding = b"" if field.encoding == "unknown" else field.encoding.upper().encode()
        if name == MASK:
            encoding = encoding.lower()
        yield key.replace(b"encoded", b"format"), BYTES, _FORMATS.get(field.kind, encoding)
        if name not in _ENCODED:
            yield b"%s/kind" % name.encode(), BYTES, field.kind.encode()
    if record.boxes is not None:
        yield from _box_features(record.boxes, record)
    yield _KEY, BYTES, record.key
    if record.meta is not None:
        yield _META, BYTES, record.meta


def _label_features(label: int | np.ndarray | None, texts: Sequence[bytes]) -> Iterator[Feature]:
    if isinstance(label, np.ndarray) and label.dtype.kind != "f":
        yield _LABEL, INT64, b"".join(map(varint, label.tolist()))
    elif isinstance(label, np.ndarray):
        yield _LABEL, FLOAT, label.astype("<f4").tobytes()
    elif label is not None:
        yield _LABEL, INT64, varint(int(label))
        yield b"image/class/text", BYTES, texts[label] if 0 <= label < len(texts) else b""


def _box_features(boxes: np.ndarray, record: Record[Field]) -> Iterator[Feature]:
    scale = np.array([record.facts.width, record.facts.height] * 2, np.float64).clip(1)
    sides = (boxes / scale).astype("<f4").T
    for i in (2, 0, 3, 1):  # in the order of their names
        yield _BOX_SIDES[i], FLOAT, sides[i].tobytes()
    yield _BOXES, BYTES, np.asarray(boxes, "<f4").tobytes()
    for name, values in record.box_columns.items():
        key, column = _OBJECT + _COLUMNS.get(name, name.encode()), np.asarray(values)
        if column.dtype.kind == "f":
            yield key, FLOAT, column.astype("<f4").tobytes()
        else:
            yield key, INT64, b"".join(map(varint, column.tolist()))
