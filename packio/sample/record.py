"""The record of one sample: what a source gives, a container holds, and the index describes.

A record has one value for each named field. On the way into a container a value is a `Field`, its
bytes; on the way out of a container's scan a value is a `Place`, the range where the bytes lie.
Everything else is the same in both directions: key, label, split, boxes and metadata.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from packio.errors import DecodeError, PackioError

if TYPE_CHECKING:
    import numpy as np

IMAGE, MASK = "image", "mask"  # the two names that older packs know; others are the user's

_NONE: Mapping[str, Any] = MappingProxyType({})


class Facts(NamedTuple):
    """What the header of an encoded image says of its pixels."""

    encoding: str  # a key of `packio.images.encodings.CODES`
    height: int  # pixels, as stored, before orientation
    width: int  # pixels, as stored, before orientation
    channels: int  # as stored, a palette expanded; 4 in a JPEG: CMYK
    dtype: str  # one of `packio.images.encodings.DTYPES`
    orientation: int = 1  # 1..8, as in Exif
    progressive: bool = False


UNKNOWN = Facts("unknown", 0, 0, 0, "uint8")


def check_mask(name: str, mask: Facts, height: int, width: int) -> None:
    """Refuse a mask whose stored height or width is not that of its stored image."""
    if mask.height and height and (mask.height, mask.width) != (height, width):
        raise DecodeError(
            f"{name}: {mask.width}x{mask.height} pixels, its image has {width}x{height}"
        )


class Field(NamedTuple):
    """The encoded bytes of one named field."""

    kind: str  # one of `packio.sample.fields.KINDS`
    data: bytes
    facts: Facts | None = None  # of an image or a mask; None: read them from the bytes
    points: bytes = b""  # of a JPEG: where decoding may begin; see `packio.images.native`

    @property
    def encoding(self) -> str:
        """Encoding of an image or a mask; "unknown" where nobody has read its facts."""
        return "unknown" if self.facts is None else self.facts.encoding


class Place(NamedTuple):
    """Where the bytes of one named field lie in a container."""

    kind: str  # one of `packio.sample.fields.KINDS`
    file: str  # relative to the shard if the shard is a directory, else to its folder
    offset: int  # bytes; -1, only of the image: no range, the format's reader reads the record
    length: int  # bytes
    split: bool = False  # the range holds raw bytes that the format's `unsplit` joins
    facts: Facts | None = None  # of raw pixels, whose bytes do not tell


class Frame(NamedTuple):
    """Where a source's boxes and masks lie: in the upright image, unless sizes or the user differ.

    A source says it with its boxes (``record_of(..., frame=Frame(width, height))``), which stay as
    its file has them. Packing knows the image and moves them (`packio.packing.images.resizing`).
    """

    width: float = 0  # of the image, pixels, as the annotations say; 0 if they do not
    height: float = 0
    fractions: bool = False  # boxes are fractions of the image's width and height, as YOLO's
    is_upright: bool | None = None  # what the user says by ``boxes_frame``; None: nothing
    rescales: bool = False  # boxes of another size of the image are scaled to the image


Value = TypeVar("Value", Field, Place)


@dataclasses.dataclass(frozen=True, slots=True)
class Record(Generic[Value]):
    """One sample."""

    key: bytes  # relative path in the source, any bytes
    fields: Mapping[str, Value]  # by name; ``"image"`` is always there
    # A source gives an int, or a (k,) float32 or int64 vector. A format's scan may also give a
    # float, a text or a list, of which `packio.packs.collecting` makes labels: hence Any.
    label: Any = None
    split: int | None = None  # position in the pack's split names
    boxes: np.ndarray | None = None  # (k, 4) float32, XYXY in pixels of the stored image, or frame
    # Name → (k,) int64 or float32, one value a box: ``"labels"``, ``"crowd"``, …
    box_columns: Mapping[str, np.ndarray] = dataclasses.field(default_factory=lambda: _NONE)
    meta: bytes | None = None  # a JSON object in UTF-8
    frame: Frame | None = None  # of a source's boxes and masks; None: the stored image, as in packs

    @property
    def image(self) -> Value:
        return self.fields[IMAGE]

    @property
    def facts(self) -> Facts:
        facts = self.image.facts
        if facts is None:
            raise PackioError(f"{self.key!r}: the facts of its image have not been read")
        return facts

    @property
    def mask(self) -> Value | None:
        return self.fields.get(MASK)

    @property
    def box_labels(self) -> np.ndarray | None:
        """(k,) int64, the column ``"labels"`` of the boxes; None if there is none."""
        return self.box_columns.get("labels")

    def with_fields(self, **fields: Value) -> Record[Value]:
        return self.replace_fields({**self.fields, **fields})

    def replace_fields(self, fields: Mapping[str, Value]) -> Record[Value]:
        return dataclasses.replace(self, fields=fields)


def image_record(data: bytes, facts: Facts | None = None) -> Record[Field]:
    """Make the record of an image alone: its listing has the key, its bytes tell the facts."""
    return Record(b"", {IMAGE: Field("image", data, facts)})
