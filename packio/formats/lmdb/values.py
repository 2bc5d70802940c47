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
        label: Position of the label in the list, or its name in the dict; "": take none; None: what
            has a usual name, or the only int, or the only other value if it is a float or a bool.
    """
    image, named, others = _image(value, data, 0)
    if label:
        items = dict(enumerate(value)) if isinstance(value, (list, tuple)) else value
        texts = {str(key): _text(item, data) for key, item in items.items()}
        found = {key: item for key, item in texts.items() if _is_scalar(item)}
        if label not in found:
            raise NotAPackError(f"label={label!r} is not in the values; there are: {found}")
        return FoundImage(image.start, image.stop, found[label])
    if label is None and named:
        return FoundImage(image.start, image.stop, _named(named[0], data))
    ints = [item for item in others if _is_label(item)]
    if label is None and len(ints) > 1:
        raise NotAPackError(
            f"values with several ints, as {ints[:5]}, and which of them is the label is not "
            "clear; say label='2' for the third item of the list, or label='' for no label"
        )
    if label is None and not ints and others:
        if len(others) > 1 or type(others[0]) not in (bool, float):
            raise NotAPackError(
                f"values with {others[0]!r:.80} beside the image, and whether that is the label is "
                "not clear; say label='1' (--label-col 1) for the second item of the list, or "
                "label='' (--label-col '') for no label"
            )
        ints = others
    return FoundImage(image.start, image.stop, ints[0] if ints and label is None else None)


def _image(value: Any, data: bytes, depth: int) -> tuple[ByteSpan, list[Any], list[Any]]:
    """Find the image, what is named a label, and the other values beside the image in lists."""
    if isinstance(value, ByteSpan):
        return value, [], []
    if isinstance(value, dict) and depth < _DEEPEST:
        images = [value[name] for name in _IMAGE_NAMES if name in value]
        labels = [value[name] for name in _LABEL_NAMES if value.get(name) is not None]
        if images:
            image, named, others = _image(images[0], data, depth + 1)
            return image, labels or named, others
    if isinstance(value, (list, tuple)) and depth < _DEEPEST:
        spans = [v for v in value if isinstance(v, ByteSpan)]
        encoded = [v for v in spans if is_image(data[v.start : min(v.stop, v.start + 16)])]
        within = [v for v in value if isinstance(v, (dict, list, tuple))]
        found: Any = next(iter([*encoded, *spans, *within]), None)
        if found is not None:
            image, named, others = _image(found, data, depth + 1)
            beside = [_text(v, data) for v in value if v is not found and v is not None]
            return image, named, [*others, *(v for v in beside if not isinstance(v, ByteSpan))]
    raise Malformed("no image in it")


def _named(value: Any, data: bytes) -> Any:
    """The label under a name of labels."""
    label = _text(value, data)
    if not _is_scalar(label):
        raise NotAPackError(
            f"the label {label!r:.80}, which packio does not take; say label='' (--label-col '') "
            "for none"
        )
    return label


def _text(value: Any, data: bytes) -> Any:
    """Text, of bytes that are short and no image; other values as they are."""
    if not isinstance(value, ByteSpan) or value.stop - value.start > _LONGEST_TEXT:
        return value
    content = data[value.start : value.stop]
    return value if is_image(content) else content.decode("utf-8", "backslashreplace")


def _is_scalar(value: Any) -> bool:
    return _is_label(value) or type(value) in (bool, float, str)


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
