"""FFCV .beton files, version 2; packio reads them and does not write them.

How the bytes lie on disk, numbers little-endian ::

    u16 2   u16 fields   u32 page size   u64 samples   u64 end
    descriptions of the fields   rows   zeros up to a page   pages   (end:) allocations

A description has 1041 bytes: u8 type, 16 bytes of name (ASCII, NUL), 1024 bytes of arguments. A row
has a cell for each field of a sample. Cells are aligned as a C compiler aligns them: an f64, an i64
and a ``ptr`` alone to 8 bytes, a struct with a ``ptr`` to 1 byte. Each ``ptr`` counts from the
beginning of the file.

=====  =============  ==============================================================================
type   field          cell, and what lies at ``ptr``
=====  =============  ==============================================================================
0      FloatField     f64
1      IntField       i64
2      RGBImageField  u8 mode, u16 width, u16 height, u64 ptr; mode 0: a JPEG, 1: (H, W, 3) uint8
3      BytesField     u64 ptr, u64 size
4, 6   NDArrayField,  u64 ptr; the arguments are u64 shape[32] (zeros at its end), u64 length, and
       TorchTensor    so many bytes of JSON: NumPy's ``dtype.descr``
5      JSONField      u64 ptr, u64 size; JSON and a NUL
=====  =============  ==============================================================================

An allocation is u64 sample, u64 ptr, u64 size. There is one allocation for each ``ptr`` of each
sample, in any order. Only the allocation tells the length of a JPEG. Fields of another type (255: a
type of the user's own) make rows that packio cannot read.

The image is the image field that has a usual name, as ``image``, else the first image field; packio
ignores other image fields. The label is the int or float field that has a usual name, as ``label``,
else the first int field, else the first float field. All other
fields are metadata under their names: bytes as text (surrogate-escaped if not UTF-8), arrays as
lists. packio ignores a field with a value of more than 64 KiB, and arrays that hold no numbers.
Samples have no keys.

Source: https://github.com/libffcv/ffcv, ffcv/types.py, ffcv/fields, ffcv/memory_allocator.py,
checked against files that FFCV 1.0.2 wrote.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packio.errors import IntegrityError, NotAPackError, OptionError
from packio.formats import Caps, Format, Reading, check_reading
from packio.formats.beton.file import ARRAYS, RAW, BetonField, Dataset, Type
from packio.formats.blobs.ranges import Input, opened
from packio.images import encodings
from packio.sample.record import IMAGE, Place, Record

_MOST_META = 1 << 16  # bytes of a value that is metadata
_IMAGES = ("image", "img", "x")
_LABELS = ("label", "labels", "class", "y", "target")


class Beton(Format):
    """Datasets of FFCV."""

    caps: Caps = Caps((".beton",), writes=False, keeps=frozenset(("label", "meta")))

    def scan(self, path: Path, reading: Reading) -> Iterator[Record[Place]]:
        """Yield every sample, in order."""
        check_reading(path, reading, "label")
        with opened(path) as file:
            yield from _records(file, reading.label)


FORMAT = Beton()


def _records(file: Input, wanted: str | None) -> Iterator[Record[Place]]:
    data = Dataset(file)
    image = _chosen(data.fields, _IMAGES, Type.IMAGE)
    if image is None:
        shown = ", ".join(field.name for field in data.fields)
        raise NotAPackError(f"{file.path}: no field of images: {shown}; expected an RGBImageField")
    label = _label_field(data, wanted, file)
    others = {
        field.name: values
        for field in data.fields
        if field not in (image, label) and (values := _values(data, field, file)) is not None
    }
    label_of = None if label is None else _values(data, label, file)
    pictures = data.rows[f"f{image.position}"]
    modes, widths, heights = (pictures[n].tolist() for n in ("mode", "width", "height"))
    places = zip(*(array.tolist() for array in data.places(image)), strict=True)
    for i, (offset, length) in enumerate(places):
        raw = encodings.raw_facts(heights[i], widths[i], 3, "uint8", "raw_hwc")
        facts = raw if modes[i] == RAW else None
        yield Record(
            b"%d" % i,
            {IMAGE: Place("image", file.path.name, offset, length, facts=facts)},
            None if label_of is None else label_of(i),
            meta=_meta(others, i) if others else None,
        )


def _chosen(fields: Sequence[BetonField], names: Sequence[str], *types: Type) -> BetonField | None:
    """The field of some types that has one of some names; else the first field of these types."""
    fitting = [field for kind in types for field in fields if field.type == kind]
    named = [f for name in names for f in fitting if f.name.lower() == name]
    return next(iter((*named, *fitting)), None)


def _label_field(data: Dataset, wanted: str | None, file: Input) -> BetonField | None:
    if wanted is None:
        return _chosen(data.fields, _LABELS, Type.INT, Type.FLOAT)
    found = next((field for field in data.fields if field.name == wanted), None)
    if wanted and (found is None or found.type is Type.IMAGE):
        shown = ", ".join(field.name for field in data.fields if field.type is not Type.IMAGE)
        raise OptionError(f"{file.path}: label={wanted!r} is not in it; there are: {shown}")
    return found


def _values(data: Dataset, field: BetonField, file: Input) -> Callable[[int], Any] | None:
    """Make a function that reads a sample's value of a field; None if the field is no metadata."""
    if field.type in (Type.INT, Type.FLOAT):
        found: list[Any] = data.rows[f"f{field.position}"].tolist()
        return found.__getitem__
    if field.type is Type.IMAGE or (field.type in ARRAYS and field.dtype is None):
        return None
    offsets, lengths = data.places(field)
    if lengths.max(initial=0) > _MOST_META:
        return None

    def value(i: int) -> Any:
        raw = file.read(int(lengths[i]), int(offsets[i]))
        if field.type is Type.BYTES:
            return raw.decode("utf-8", "surrogateescape")
        if field.type is not Type.JSON:
            return np.frombuffer(raw, field.dtype).reshape(field.shape).tolist()
        try:
            return json.loads(raw.partition(b"\0")[0])
        except (ValueError, RecursionError) as error:
            raise IntegrityError(
                f"{file.path}: sample {i}: {field.name!r} at {offsets[i]} is no JSON: {error}; "
                "restore the file"
            ) from error

    return value


def _meta(fields: dict[str, Callable[[int], Any]], i: int) -> bytes:
    return json.dumps({name: value(i) for name, value in fields.items()}).encode()
