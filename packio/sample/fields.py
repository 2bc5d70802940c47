"""Named fields: their kinds, and what their bytes mean.

A field's kind says how its bytes are read: ``image`` (decoded, cropped, resized), ``mask`` (class
ids, to the nearest pixel), ``array`` (a NumPy array in the .npy format), ``text`` (UTF-8) and
``bytes`` (as they are).

Source of .npy: numpy, ``numpy.lib.format``, versions 1.0 to 3.0,
https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import functools
import io
import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from packio.errors import DecodeError, OptionError
from packio.sample import levels
from packio.sample.record import Field

if TYPE_CHECKING:
    import numpy as np

KINDS = ("image", "mask", "array", "text", "bytes")
PIXELS = ("image", "mask")  # kinds that are cropped, resized and turned with their sample

# What `fields=` of a dataset means already, and what is part of a column's name.
RESERVED = ("label", "boxes", "box_labels", "key", "index", "split", "meta")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")

# Ending of a file's name → kind; all other endings are of images or bytes.
_ENDINGS = {".npy": "array", ".txt": "text", ".text": "text", ".caption": "text"}


def check_name(name: str) -> str:
    if levels.divisor_of(name):
        raise OptionError(f"{name!r} cannot name a field: it names a level, which --levels makes")
    if not _NAME.fullmatch(name) or name in RESERVED:
        raise OptionError(
            f"{name!r} cannot name a field: expected a letter or _, then letters, digits, _ or -, "
            f"and none of {', '.join(RESERVED)}"
        )
    return name


def check_kind(kind: str) -> str:
    if kind not in KINDS:
        raise OptionError(f"{kind!r} is no kind of field; expected one of {', '.join(KINDS)}")
    return kind


def parse_options(texts: list[str]) -> dict[str, tuple[str, str | None]]:
    """Parse ``NAME=FROM:KIND`` texts of ``--field``: name → (column or suffix, kind or None)."""
    found: dict[str, tuple[str, str | None]] = {}
    for text in texts:
        name, equals, rest = text.partition("=")
        origin, colon, kind = rest.rpartition(":") if ":" in rest else (rest, "", "")
        if not equals or not origin:
            raise OptionError(
                f"--field {text}: expected NAME=COLUMN:KIND, as depth=depth_path:image"
            )
        found[check_name(name)] = (origin, check_kind(kind) if colon else None)
    return found


def kind_of_file(name: str | bytes) -> str | None:
    """Kind of a field whose values are files of this name; None where the ending does not say."""
    return _ENDINGS.get(os.path.splitext(os.fsdecode(name))[1].lower())


def encode(value: Any, kind: str | None = None) -> Field:
    """Make a field of text, bytes, an array, a tensor or a number; its type says the kind."""
    if isinstance(value, str):
        field = Field("text", value.encode("utf-8", "surrogatepass"))
    elif isinstance(value, (bytes, bytearray, memoryview)):
        field = Field(kind or "bytes", bytes(value))
    else:
        field = Field("array", encode_array(value))
    if kind not in (None, field.kind):
        raise DecodeError(f"a {type(value).__name__} in a field of kind {kind}")
    return field


def decode(field: Field) -> Any:
    """The Python value of a field: text, a NumPy array, or bytes; an image stays encoded.

    Text has no byte order mark, and its lines end in LF.
    """
    if field.kind != "text":
        return decode_array(field.data) if field.kind == "array" else field.data
    try:
        text = bytes(field.data).decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise DecodeError(
            f"text that is not UTF-8 ({error.reason} at byte {error.start})"
        ) from error
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


def encode_array(value: Any) -> bytes:
    """Bytes of an array in the .npy format, version 1.0; a tensor is copied to the processor."""
    import numpy as np

    try:
        if callable(getattr(value, "detach", None)):
            value = value.detach().cpu().numpy()
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # as of bfloat16, or of ragged lists
        kind = getattr(value, "dtype", type(value).__name__)
        advice = "; give value.half() or value.float()" if "bfloat16" in str(kind) else ""
        raise DecodeError(f"{kind}: no array that NumPy can hold: {error}{advice}") from error
    if array.dtype.hasobject or array.dtype.kind == "U":
        raise DecodeError(f"an array of {array.dtype}; expected numbers")
    if np.ma.is_masked(value):
        raise DecodeError("an array with masked items; fill them: value.filled(0)")
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array, order="C"), (1, 0), allow_pickle=False)
    return file.getvalue()


def decode_array(data: bytes) -> np.ndarray:
    """Array of the bytes of a field of kind ``array``: a copy that may be written to."""
    import numpy as np

    try:
        start, shape, fortran, dtype, count = array_header(data)
        flat = np.frombuffer(data, dtype, count, start)
        array: np.ndarray = flat.reshape(shape, order="F" if fortran else "C").copy()
    except DecodeError:
        raise
    except (ValueError, TypeError, OverflowError) as error:
        raise DecodeError(f"no array in the .npy format: {error}") from error
    return array


class ArrayHeader(NamedTuple):
    """What the header of an array in the .npy format says."""

    start: int  # bytes of the header
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype
    items: int


def array_header(data: bytes) -> ArrayHeader:
    """Read the header of an array in the .npy format, and check that all items are there."""
    wide = data[6:7] != b"\x01"  # of version 2 and 3 the length of the header has four bytes
    at = 12 if wide else 10
    found = _array_header(bytes(data[: at + int.from_bytes(data[8:at], "little")]))
    if len(data) - found.start != found.items * found.dtype.itemsize:
        raise DecodeError(
            f"no array in the .npy format: {len(data) - found.start} bytes for {found.shape} of "
            f"{found.dtype}"
        )
    return found


@functools.lru_cache(maxsize=64)  # numpy parses the text of a header in 20 µs
def _array_header(header: bytes) -> ArrayHeader:
    import numpy as np

    file = io.BytesIO(header)
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else (
            np.lib.format.read_array_header_2_0)  # fmt: skip
        shape, fortran, dtype = read(file)
        if dtype.hasobject:
            raise ValueError(f"items of {dtype}")
        count = int(np.prod(shape, dtype=object)) if shape else 1
        return ArrayHeader(file.tell(), shape, fortran, dtype, count)
    except (ValueError, TypeError, OverflowError, SyntaxError) as error:
        raise DecodeError(f"no array in the .npy format: {error}") from error
