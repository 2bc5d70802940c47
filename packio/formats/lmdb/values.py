"""LMDB values that hold an image and its label: where the image lies, and which label it has.

* **msgpack** (tensorpack, older folder2lmdb): each value begins with one byte, its type. The type
  says whether a length follows; then comes the content. Numbers are big-endian. A sample is
  ``[{"data": image}, label]`` or ``[image, label]``.

Source: https://github.com/msgpack/msgpack/blob/master/spec.md.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from packio import registry
from packio.errors import NotAPackError
from packio.formats.wire import ByteSpan, Malformed
from packio.images.encodings import is_image
from packio.sample.facts import Facts

_LISTS = (*(bytes([byte]) for byte in range(0x80, 0xA0)), b"\xdc", b"\xdd", b"\xde", b"\xdf")
_LONGEST_TEXT = 1024  # bytes
_DEEPEST = 8

_IMAGE_NAMES = ("data", "image", "img", "jpeg", "jpg", "png", "bytes", b"data", b"image", b"img")
_LABEL_NAMES = ("label", "target", "class", "y", b"label", b"target")


class FoundImage(NamedTuple):
    """An image within a value, and its label."""

    start: int  # of the image, in bytes
    stop: int
    label: Any
    facts: Facts | None = None  # of pixels


def sample(value: Any, data: bytes, label: str | None = None) -> FoundImage:
    """Find the image and its label in a value.

    Args:
        value: Plain values: lists, dicts, numbers, text; bytes are a `ByteSpan` of ``data``.
        data: The value as it is stored.
        label: Position of the label in the list, or its name in the dict; "": take none; None: the
            int that has a usual name, or the only int.
    """
    image, named, others = _image(value, data, 0)
    if label:
        items = dict(enumerate(value)) if isinstance(value, (list, tuple)) else value
        found = {
            str(key): item for key, item in items.items() if _is_label(item) or type(item) is str
        }
        if label not in found:
            raise NotAPackError(f"label={label!r} is not in the values; there are: {found}")
        return FoundImage(image.start, image.stop, found[label])
    if label is None and named is None and len(others) > 1:
        raise NotAPackError(
            f"values with several ints, as {others[:5]}, and which of them is the label is not "
            "clear; say label='2' for the third item of the list, or label='' for no label"
        )
    labels = [] if label == "" else others if named is None else [named]
    return FoundImage(image.start, image.stop, labels[0] if labels else None)


def _image(value: Any, data: bytes, depth: int) -> tuple[ByteSpan, int | None, list[int]]:
    """Find the image, the int that is named a label, and the other ints beside the image."""
    if isinstance(value, ByteSpan):
        return value, None, []
    if isinstance(value, dict) and depth < _DEEPEST:
        images = [value[name] for name in _IMAGE_NAMES if name in value]
        labels = [value[name] for name in _LABEL_NAMES if _is_label(value.get(name))]
        if images:
            image, named, others = _image(images[0], data, depth + 1)
            return image, labels[0] if labels else named, others
    if isinstance(value, (list, tuple)) and depth < _DEEPEST:
        spans = [v for v in value if isinstance(v, ByteSpan)]
        encoded = [v for v in spans if is_image(data[v.start : min(v.stop, v.start + 16)])]
        within = [v for v in value if isinstance(v, (dict, list, tuple))]
        found: Any = next(iter([*encoded, *spans, *within]), None)
        if found is not None:
            image, named, others = _image(found, data, depth + 1)
            return image, named, [*others, *filter(_is_label, value)]
    raise Malformed("no image in it")


def _is_label(value: Any) -> bool:
    return type(value) is int and -(1 << 63) <= value < 1 << 63


def msgpack(data: bytes) -> Any:
    """Read msgpack; bytes come as a `ByteSpan` of ``data``."""
    if data[:1] not in _LISTS:
        raise Malformed("no list or dict of msgpack")
    package = registry.require("msgpack", "msgpack")
    try:
        value = package.unpackb(data, unicode_errors="surrogateescape", strict_map_key=False)
    except (ValueError, TypeError, package.exceptions.UnpackException) as error:
        raise Malformed(f"msgpack that makes no sense: {error}") from error
    return _spans(value, data, 0)


def _spans(value: Any, data: bytes, depth: int) -> Any:
    """The value with a `ByteSpan` of ``data`` in place of bytes."""
    if depth > _DEEPEST:
        raise Malformed("msgpack that is deeper than a sample")
    if isinstance(value, list):
        return [_spans(item, data, depth + 1) for item in value]
    if isinstance(value, dict):
        return {key: _spans(item, data, depth + 1) for key, item in value.items()}
    if isinstance(value, str):  # early msgpack had no type for bytes: writers stored them as text
        content = value.encode("utf-8", "surrogateescape")
        if len(content) <= _LONGEST_TEXT and not is_image(content):
            return value
        value = content
    if not isinstance(value, bytes):
        return value
    start = data.find(value)  # equal bytes at another position would be as good
    return ByteSpan(start, start + len(value))
