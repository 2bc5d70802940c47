"""Samples as datasets give them: tuples, mappings or images alone, of whatever type.

An image is encoded bytes, the path of a file, a Pillow image, an array (H, W, C) or (H, W), a
tensor (C, H, W) or (H, W), or a mapping of ``bytes`` or ``path``. Pixels are uint8, uint16 or
float32, and stay what they are; of Pillow's modes, P becomes RGB or RGBA, 1 becomes L, I becomes 16
bits, and the others RGB, as Pillow converts them.
"""

from __future__ import annotations

import io
import os
from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np

from packio.errors import DecodeError
from packio.images import encodings
from packio.sample.facts import Facts
from packio.sample.record import Field, Record, image_record
from packio.sources import _files
from packio.sources.tables import tables

_BOX_NAMES = ("boxes", "bboxes", "bbox")
_BOX_LABEL_NAMES = ("box_labels", "box_label", "labels", "label")
_KEY_NAMES = ("key", "__key__", "file_name", "filename", "file_path", "path", "image_path")
_META_NAMES = ("meta", "metadata", "json")
_PIXEL_MODES = ("RGB", "L", "RGBA", "LA", "F", "I;16", "I;16L", "I;16B", "I;16N")
_MASK_MODES = ("P", "L", "1", "I", "I;16", "I;16L", "I;16B", "I;16N")


class Taken(NamedTuple):
    """What there is in one sample of a dataset."""

    record: Record[Field]
    label: Hashable
    key: str | None
    path: str | None  # of the image's file, also where its bytes are at hand


def taken(sample: Any) -> Taken:
    """Take a sample apart.

    Raises:
        DecodeError: something in it makes no sense.
        SourceError: it holds something that is no meta.
        OSError: a file cannot be read.
    """
    found = _fields(sample)
    image, mask, key = found.image, found.mask, found.key
    path = _path(image)
    if path is not None or _is_encoded(image):
        data, facts = _encoded(image), None
    else:
        data, facts = _planes(_pixels(image))
    if key is not None and (not isinstance(key, str) or not key or "\0" in key):
        raise DecodeError(f"{key!a} as key; expected text")
    boxes, box_labels = _boxes(found.boxes, found.box_labels)
    record = image_record(
        data, facts=facts, mask=None if mask is None else _encoded_mask(mask), boxes=boxes,
        box_labels=box_labels, meta=tables.meta(found.meta) if found.meta else None,
    )  # fmt: skip
    return Taken(record, _label(found.label), key, path)


class _Fields(NamedTuple):
    """Values of a sample, as they are."""

    image: Any
    label: Any
    mask: Any
    boxes: Any
    box_labels: Any
    key: Any
    meta: dict[str, Any]


def _fields(sample: Any) -> _Fields:
    """Find out what the values of a sample are."""
    if isinstance(sample, Mapping) and not _is_file(sample):
        return _of_mapping(sample)
    if not isinstance(sample, (tuple, list)):
        return _of_mapping({"image": sample})
    if not sample:
        raise DecodeError("an empty tuple; expected (image, label)")
    found: dict[str, Any] = {"image": sample[0]}
    for i, value in enumerate(sample[1:], 1):
        if isinstance(value, Mapping) and not _is_file(value):
            found = {**value, **found}
        elif _is_picture(value) and "mask" not in found:
            found["mask"] = value
        else:
            found["label" if i == 1 else str(i)] = value
    return _of_mapping(found)


def _of_mapping(sample: Mapping[Any, Any]) -> _Fields:
    left = {str(name): value for name, value in sample.items() if value is not None}

    def take(names: tuple[str, ...], *kinds: type) -> Any:
        """Take out the value that has one of the names, if it is of the kind."""
        name = tables.guess(left, names)
        if name is None or (kinds and not isinstance(left[name], kinds)):
            return None
        return left.pop(name)

    image = take(tables.IMAGE_NAMES)
    if image is None:
        raise DecodeError(f"no image among {', '.join(map(ascii, sample))}; expected 'image'")
    boxes = take(_BOX_NAMES)
    name = tables.guess(left, _BOX_LABEL_NAMES) if boxes is not None else None
    box_labels = left.pop(name) if name is not None and np.ndim(left[name]) == 1 else None
    name = tables.guess(left, tables.MASK_NAMES)
    mask = left.pop(name) if name is not None and _is_picture(left[name]) else None
    label = take(tables.LABEL_NAMES)
    if mask is None and _is_picture(label):
        mask, label = label, take(tables.LABEL_NAMES)
    key, meta = take(_KEY_NAMES, str), take(_META_NAMES, dict)
    rest = {name: value for name, value in left.items() if not name.startswith("__")}
    return _Fields(image, label, mask, boxes, box_labels, key, rest | (meta or {}))


def _is_file(value: Any) -> bool:
    """Tell whether a value is what Hugging Face's datasets have where they do not decode."""
    return isinstance(value, Mapping) and bool(value) and value.keys() <= {"bytes", "path"}


def _is_encoded(value: Any) -> bool:
    return isinstance(value, (bytes, bytearray, memoryview)) or _is_file(value)


def _is_pillow(value: Any) -> bool:
    from PIL import Image

    return isinstance(value, Image.Image)


def _is_picture(value: Any) -> bool:
    """Tell whether a value can be an image or a mask, and no label."""
    if isinstance(value, bytes) and value.strip().isdigit():  # WebDataset's .cls
        return False
    kinds = _is_encoded(value) or isinstance(value, os.PathLike) or _is_pillow(value)
    return kinds or getattr(value, "ndim", 0) >= 2


def _path(value: Any) -> str | None:
    """Path of an image that is a file."""
    value = value.get("path") if _is_file(value) else value
    return os.fsdecode(value) if isinstance(value, (str, os.PathLike)) else None


def _encoded(value: Any) -> bytes:
    """Bytes of an image that is encoded already."""
    data, path = value.get("bytes") if _is_file(value) else value, _path(value)
    if path is not None and (data is value or data is None):
        with _files.opened("/", [os.fsencode(os.path.abspath(path))[1:]]) as read:
            return read(0).image.data
    if data is None:
        raise DecodeError("neither bytes nor a path")
    return bytes(data)


def _pixels(value: Any) -> np.ndarray:
    """Pixels of an image, (H, W, C) uint8, uint16 or float32."""
    if _is_pillow(value):
        array = _pillow_pixels(value)
    elif hasattr(value, "detach"):  # a tensor
        array = _array(value)
        array = array.transpose(1, 2, 0) if array.ndim == 3 else array
    elif isinstance(value, np.ndarray):
        array = value
    else:
        raise DecodeError(f"a {type(value).__name__} as image; expected bytes, a path or pixels")
    array = array[..., None] if array.ndim == 2 else array
    if array.dtype.name not in encodings.DTYPES:
        raise DecodeError(f"pixels are {array.dtype.name}; expected uint8, uint16 or float32")
    if array.ndim != 3 or not 1 <= array.shape[2] <= 4 or not array.size:
        shape = tuple(getattr(value, "shape", array.shape))
        batch = "; a batch? Give the dataset, not its loader" if len(shape) == 4 else ""
        raise DecodeError(
            f"pixels have the shape {shape}; expected (H, W, C) of an array, (C, H, W) of a "
            f"tensor, with 1 to 4 channels{batch}"
        )
    return array


def _array(value: Any) -> np.ndarray:
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    return np.asarray(value)


def _pillow_pixels(image: Any) -> np.ndarray:
    if image.mode == "I":
        array = np.asarray(image)
        if array.min() < 0 or array.max() > np.iinfo(np.uint16).max:
            raise DecodeError("pixels are 32-bit integers; expected up to 65,535")
        return array.astype(np.uint16)
    if image.mode not in _PIXEL_MODES:
        alpha = image.mode in ("PA", "La", "RGBa") or "transparency" in image.info
        image = image.convert("L" if image.mode == "1" else "RGBA" if alpha else "RGB")
    return np.asarray(image)


def _planes(pixels: np.ndarray) -> tuple[bytes, Facts]:
    """Raw pixels, (C, H, W) little-endian."""
    height, width, channels = pixels.shape
    planes = pixels.transpose(2, 0, 1).astype(pixels.dtype.newbyteorder("<"), copy=False)
    return planes.tobytes(), encodings.raw_facts(height, width, channels, pixels.dtype.name)


def fits_png(facts: Facts) -> bool:
    """Tell whether a PNG can hold such pixels, and give them back to all decoders."""
    return facts.dtype == "uint8" or (facts.dtype == "uint16" and facts.channels == 1)


def as_png(planes: bytes, facts: Facts) -> bytes:
    """Raw pixels as a PNG."""
    dtype = np.dtype(facts.dtype).newbyteorder("<")
    pixels = np.frombuffer(planes, dtype).reshape(facts.channels, facts.height, facts.width)
    return _png(pixels[0] if facts.channels == 1 else pixels.transpose(1, 2, 0))


def _png(pixels: np.ndarray) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, "PNG")
    return file.getvalue()


def _encoded_mask(value: Any) -> bytes:
    """Class ids as a PNG of 8 or 16 bits; an encoded mask as it is."""
    if _is_encoded(value) or _path(value) is not None:
        data = _encoded(value)
        encodings.read_facts(data)
        return data
    if _is_pillow(value) and value.mode not in _MASK_MODES:
        raise DecodeError(f"a mask of mode {value.mode}; expected P, L, 1, I or 16 bits")
    ids = np.asarray(value) if _is_pillow(value) else _array(value)
    if ids.ndim == 3 and 1 in (ids.shape[0], ids.shape[2]):
        ids = ids[0] if ids.shape[0] == 1 else ids[..., 0]
    if ids.ndim != 2 or ids.dtype.kind not in "bui" or not ids.size:
        raise DecodeError(f"a mask of {ids.dtype.name} {ids.shape}; expected integers (H, W)")
    if ids.min() < 0 or ids.max() >= 1 << 16:
        raise DecodeError(f"a mask with ids {ids.min()}..{ids.max()}; expected 0..65535")
    return _png(ids.astype(np.uint8 if ids.max() < 1 << 8 else np.uint16))


def _boxes(boxes: Any, labels: Any) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Boxes (k, 4) float32 XYXY and their labels (k,) int64."""
    if boxes is None:
        return None, None
    layout = getattr(boxes, "format", None)  # of torchvision's BoundingBoxes
    if layout is not None and str(getattr(layout, "value", layout)) != "XYXY":
        raise DecodeError(f"boxes are {layout}; expected XYXY, in pixels")
    found = np.asarray(_array(boxes), np.float32)
    if found.size % 4 or (found.ndim == 2 and found.shape[1] != 4 and found.size):
        raise DecodeError(f"boxes have the shape {found.shape}; expected (k, 4), XYXY in pixels")
    found = found.reshape(-1, 4)
    if labels is None:
        return found, None
    ids = _array(labels)
    if ids.shape != (len(found),) or (ids.size and ids.dtype.kind not in "bui"):
        raise DecodeError(
            f"labels of boxes are {ids.dtype.name} {ids.shape}; expected {len(found)} integers"
        )
    return found, ids.astype(np.int64)


def _label(value: Any) -> Hashable:
    """A label as plain Python has it; lists and vectors as tuples."""
    if isinstance(value, bytes) and value.strip().isdigit():
        return int(value)
    if hasattr(value, "tolist"):  # numpy's and torch's
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        value = tuple(_label(part) for part in value)
    if value is None or isinstance(value, (bool, int, float, str, tuple)):
        return value
    raise DecodeError(f"a {type(value).__name__} as label; expected a number, a name, or a list")
