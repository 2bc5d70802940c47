"""Python values as named fields: an image, a mask, an array, text or bytes.

An image is encoded bytes, the path of a file, a Pillow image, an array (H, W, C) or (H, W), a
tensor (C, H, W) or (H, W), or a mapping of ``bytes`` or ``path`` as Hugging Face's datasets have.
Pixels are uint8, uint16 or float32, and keep their type. A Pillow image of mode P becomes RGB or
RGBA, mode 1 becomes L, and mode I becomes 16 bits. Modes such as CMYK become RGB, as Pillow
converts them.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from packio.errors import DecodeError
from packio.images import encodings
from packio.sample import fields
from packio.sample.record import IMAGE, MASK, Facts, Field
from packio.sources import FieldOrigins, _files

_PIXEL_MODES = ("RGB", "L", "RGBA", "LA", "F", "I;16", "I;16L", "I;16B", "I;16N")
_MASK_MODES = ("P", "L", "1", "I", "I;16", "I;16L", "I;16B", "I;16N")
_IMAGES = (*_files.EXTENSIONS, ".gif")


def field_name(text: str) -> str:
    """A field called as a column: ``depth map`` is ``depth_map``, and ``2`` is ``field_2``."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", text)
    taken = (*fields.RESERVED, IMAGE, MASK)
    return f"field_{name}" if not re.match("[A-Za-z_]", name) or name in taken else name


def is_field(value: Any) -> bool:
    """Whether a value becomes a field even if the user does not ask for the field."""
    return is_encoded(value) or is_pillow(value) or (is_array(value) and value.ndim >= 1)


def field(value: Any, kind: str | None, root: str | os.PathLike[str] = "") -> Field | None:
    """Make a field of a value; None if the value is missing.

    Blank text is a value of the kind ``text``; for any other kind it is missing. A path object, as
    ``Path("caption/1.txt")``, always names a file. A str of the kind ``text`` is the text itself,
    of another kind the path of a file; without a kind, what it ends in decides.
    """
    blank = isinstance(value, str) and not value.strip()
    if value is None or (blank and kind not in (None, "text")):
        return None
    if isinstance(value, Field):
        return value
    if isinstance(value, (str, os.PathLike)):
        text = os.fspath(value)
        kind = kind or kind_of_text(text, is_path=not isinstance(value, str))
        if kind == "text" and isinstance(value, str):
            return Field("text", value.encode("utf-8", "surrogatepass"))
        value = file_bytes(os.path.join(root, text))
    elif is_file(value) and value.get("bytes") is None:
        value = file_bytes(os.path.join(root, path_of(value) or ""))
        kind = kind or "image"
    if kind == "mask":
        return Field("mask", mask_bytes(value))
    if kind == "image" or (kind is None and (is_pillow(value) or is_file(value))):
        return _image_field(value)
    if kind == "array" and is_encoded(value):
        fields.decode_array(encode(value))
    if is_encoded(value):
        return Field(kind or "bytes", encode(value))
    return fields.encode(value, kind)


def fields_of(
    values: Mapping[str, Any], origins: FieldOrigins, root: str | os.PathLike[str] = ""
) -> dict[str, Field]:
    found: dict[str, Field] = {}
    for name, value in values.items():
        try:
            made = field(value, origins[name][1], root)
        except (DecodeError, OSError) as error:
            named = isinstance(value, (str, os.PathLike))
            path = f"{os.fspath(value)!a}: " if named else ""
            told = "" if name == IMAGE else f"field {name!r}: {path}"
            if isinstance(error, OSError):
                raise OSError(error.errno, f"{told}{error.strerror}") from error
            raise DecodeError(f"{told}{error}") from error
        if made is not None:
            found[name] = made
    return found


def files_of(
    cells: Mapping[str, Sequence[Any]], origins: FieldOrigins, root: str
) -> list[tuple[bytes, ...]]:
    """Paths of the files that each sample is read from: of the image, and of fields."""

    def path_of(value: Any, kind: str | None) -> bytes:
        if isinstance(value, bytes):
            return value
        if not isinstance(value, str) or not value.strip():
            return b""
        is_text = (kind or kind_of_text(value)) == "text"
        return b"" if is_text else os.fsencode(os.path.abspath(os.path.join(root, value)))

    named = {name: kind for name, (_, kind) in origins.items() if kind != "text"}
    columns = [[path_of(value, kind) for value in cells[name]] for name, kind in named.items()]
    return [tuple(filter(None, paths)) for paths in zip(*columns, strict=True)]


def kind_of_text(text: str, *, is_path: bool = False) -> str:
    """Kind of a field whose value is this text: a file if the text ends as files' names do."""
    if text.lower().endswith(_IMAGES):
        return "image"
    kind = fields.kind_of_file(text)
    return kind or "bytes" if is_path or kind == "array" else "text"


def _image_field(value: Any) -> Field:
    if is_encoded(value):
        return Field("image", encode(value))
    planes, facts = raw_planes(value)
    if not fits_png(facts):
        raise DecodeError(f"pixels are {facts.dtype}, {facts.channels} channels; take kind 'array'")
    return Field("image", as_png(planes, facts))


def is_file(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value) and value.keys() <= {"bytes", "path"}


def is_encoded(value: Any) -> bool:
    """Tell whether a value is bytes, or an undecoded image of Hugging Face's datasets."""
    return isinstance(value, (bytes, bytearray, memoryview)) or is_file(value)


def is_pillow(value: Any) -> bool:
    from PIL import Image

    return isinstance(value, Image.Image)


def is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or _is_tensor(value)


def _is_tensor(value: Any) -> bool:
    return callable(getattr(value, "detach", None))


def is_picture(value: Any) -> bool:
    """Tell whether a value can be an image or a mask, and no label."""
    if isinstance(value, bytes) and value.strip().isdigit():  # WebDataset's .cls
        return False
    kinds = is_encoded(value) or isinstance(value, os.PathLike) or is_pillow(value)
    return kinds or getattr(value, "ndim", 0) >= 2


def path_of(value: Any) -> str | None:
    value = value.get("path") if is_file(value) else value
    return os.fsdecode(value) if isinstance(value, (str, os.PathLike)) else None


def file_bytes(path: str) -> bytes:
    return _files.whole_file(None, os.fsencode(path))


def encode(value: Any) -> bytes:
    data, path = value.get("bytes") if is_file(value) else value, path_of(value)
    if path is not None and (data is value or data is None):
        return file_bytes(path)
    if data is None:
        raise DecodeError("neither bytes nor a path")
    return bytes(data)


def array(value: Any) -> np.ndarray:
    return np.asarray(value.detach().cpu().numpy() if _is_tensor(value) else value)


def raw_planes(value: Any) -> tuple[bytes, Facts]:
    """Raw pixels (C, H, W), little-endian."""
    pixels = _pixels(value)
    height, width, channels = pixels.shape
    planes = pixels.transpose(2, 0, 1).astype(pixels.dtype.newbyteorder("<"), copy=False)
    return planes.tobytes(), encodings.raw_facts(height, width, channels, pixels.dtype.name)


def _pixels(value: Any) -> np.ndarray:
    """Pixels of an image, (H, W, C) uint8, uint16 or float32."""
    if is_pillow(value):
        found = _pillow_pixels(value)
    elif is_array(value):
        found = array(value)
        found = found.transpose(1, 2, 0) if _is_tensor(value) and found.ndim == 3 else found
    else:
        raise DecodeError(f"a {type(value).__name__} as image; expected bytes, a path or pixels")
    found = found[..., None] if found.ndim == 2 else found
    if found.dtype.name not in encodings.DTYPES:
        raise DecodeError(f"pixels are {found.dtype.name}; expected uint8, uint16 or float32")
    if found.ndim != 3 or not 1 <= found.shape[2] <= 4 or not found.size:
        shape = tuple(getattr(value, "shape", found.shape))
        batch = "; a batch? Give the dataset, not its loader" if len(shape) == 4 else ""
        raise DecodeError(
            f"pixels have the shape {shape}; expected (H, W, C) of an array, (C, H, W) of a "
            f"tensor, with 1 to 4 channels{batch}"
        )
    return found


def _pillow_pixels(image: Any) -> np.ndarray:
    if image.mode == "I":
        found = np.asarray(image)
        if found.min() < 0 or found.max() > np.iinfo(np.uint16).max:
            raise DecodeError("pixels are 32-bit integers; expected up to 65,535")
        return found.astype(np.uint16)
    if image.mode not in _PIXEL_MODES:
        alpha = image.mode in ("PA", "La", "RGBa") or "transparency" in image.info
        image = image.convert("L" if image.mode == "1" else "RGBA" if alpha else "RGB")
    return np.asarray(image)


def fits_png(facts: Facts) -> bool:
    return facts.dtype == "uint8" or (facts.dtype == "uint16" and facts.channels == 1)


def as_png(planes: bytes, facts: Facts) -> bytes:
    dtype = np.dtype(facts.dtype).newbyteorder("<")
    pixels = np.frombuffer(planes, dtype).reshape(facts.channels, facts.height, facts.width)
    return _png(pixels[0] if facts.channels == 1 else pixels.transpose(1, 2, 0))


def _png(pixels: np.ndarray) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, "PNG")
    return file.getvalue()


def mask_bytes(value: Any) -> bytes:
    """Bytes of a mask: class ids become a PNG of 8 or 16 bits, an encoded mask stays as it is."""
    if is_encoded(value) or path_of(value) is not None:
        data = encode(value)
        encodings.read_facts(data)
        return data
    if is_pillow(value) and value.mode not in _MASK_MODES:
        raise DecodeError(f"a mask of mode {value.mode}; expected P, L, 1, I or 16 bits")
    ids = np.asarray(value) if is_pillow(value) else array(value)
    if ids.ndim == 3 and 1 in (ids.shape[0], ids.shape[2]):
        ids = ids[0] if ids.shape[0] == 1 else ids[..., 0]
    if ids.ndim != 2 or ids.dtype.kind not in "bui" or not ids.size:
        raise DecodeError(f"a mask of {ids.dtype.name} {ids.shape}; expected integers (H, W)")
    if ids.min() < 0 or ids.max() >= 1 << 16:
        raise DecodeError(f"a mask with ids {ids.min()}..{ids.max()}; expected 0..65535")
    return _png(ids.astype(np.uint8 if ids.max() < 1 << 8 else np.uint16))
