"""One sample: its encoded bytes and what belongs to them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from packio.errors import DecodeError

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

    from packio.sample.record import Field


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """One sample of a pack.

    Attributes:
        index: Position in the pack, 0..N-1.
        key: Relative path in the source; bytes that are not UTF-8 are surrogate-escaped.
        data: The encoded image, byte for byte as it was packed; of encoding "dct", with its
            coefficients open: see `as_file`.
        encoding: "jpeg", "dct", "png", …
        label: An int, a float32 vector, or None.
        height, width: Pixels as stored, before orientation.
        orientation: 1..8 as in Exif.
        channels, dtype: Of the pixels, where nothing is converted.
        mask: An encoded image of class ids, byte for byte as it was packed, or None.
        boxes, box_labels: (k, 4) float32 XYXY in pixels and (k,) int64, or None.
        meta: What else belongs to the sample, or None.
        split: Name of its split, or None.
        box_columns: Columns of the boxes beside their labels: name → (k,) int64 or float32.
        fields: Further named fields: name → `Field`, its kind and its bytes.
    """

    index: int
    key: str
    data: bytes
    encoding: str
    label: int | np.ndarray | None
    height: int
    width: int
    orientation: int = 1
    channels: int = 3
    dtype: str = "uint8"
    mask: bytes | None = None
    boxes: np.ndarray | None = None
    box_labels: np.ndarray | None = None
    meta: dict[str, Any] | None = None
    split: str | None = None
    box_columns: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    fields: Mapping[str, Field] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        absent = [n for n, v in values.items() if v is None or (isinstance(v, Mapping) and not v)]
        for name in absent:
            del values[name]
        return f"Sample({', '.join(f'{name}={_brief(v)}' for name, v in values.items())})"

    def decode(
        self, mode: str = "RGB", *, decoder: str = "auto", exif_orientation: bool = True
    ) -> np.ndarray:
        """Decode the image.

        Returns:
            (H, W, C) uint8, C-contiguous; RGB order; uint16 or float32 only under "UNCHANGED".

        Raises:
            DecodeError: the bytes are damaged, or do not fit the mode.
        """
        from packio.images.decoders import Decoder
        from packio.images.frames import orient

        try:
            pixels = Decoder(decoder, mode)(self.data, self)
        except DecodeError as error:
            raise type(error)(f"sample {self.index} ({self.key!r}): {error}") from error
        return orient(pixels, self.orientation) if exif_orientation else pixels

    def as_file(self) -> bytes:
        """The image as other programs read it: ``data``, or of encoding "dct" its JPEG, as it was.

        Raises:
            DecodeError: the bytes are damaged.
        """
        from packio.images.dct import as_file

        return as_file(self.data, self.encoding)

    def pil(self) -> Image.Image:
        """Decode to a Pillow image in RGB, upright.

        Raises:
            DecodeError: the bytes are damaged, or do not fit RGB.
        """
        from PIL import Image

        return Image.fromarray(self.decode("RGB"))


def _brief(value: Any) -> str:
    """A value as `repr` of a sample shows it: bytes and arrays as what they are."""
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    if hasattr(value, "shape"):
        return f"<{value.dtype} {value.shape}>" if len(value) > 8 or value.ndim > 1 else repr(value)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name!r}: {_brief(each)}' for name, each in value.items())}}}"
    if hasattr(value, "kind"):  # a field
        return f"<{value.kind}, {len(value.data)} bytes>"
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


_Draft = dataclasses.make_dataclass(
    "_Draft", [field.name for field in dataclasses.fields(Sample)], slots=True
)


def build_sample(*values: Any) -> Sample:
    """Make a sample of all its fields' values, in order: 0.5 µs.

    ``Sample(*values)`` takes 3 µs, as a frozen dataclass sets each field by a call. What is filled
    here is a class of the same layout that is not frozen yet.
    """
    sample: Sample = _Draft(*values)
    sample.__class__ = Sample
    return sample
