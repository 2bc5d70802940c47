"""What is known of an image before it is decoded: its encoding, its size, how to turn it."""

from __future__ import annotations

from typing import NamedTuple

from packio.errors import DecodeError


class Facts(NamedTuple):
    """What the header of an encoded image says of its pixels."""

    encoding: str  # a key of `packio.images.encodings.CODES`
    height: int  # pixels, as stored, before orientation
    width: int  # pixels, as stored, before orientation
    channels: int  # as stored, a palette expanded; 4 in a JPEG: CMYK
    dtype: str  # one of `packio.images.encodings.DTYPES`
    orientation: int  # 1..8, as in Exif
    progressive: bool


UNKNOWN = Facts("unknown", 0, 0, 0, "uint8", 1, progressive=False)


def check_mask(name: str, mask: Facts, height: int, width: int) -> None:
    """Refuse a mask whose stored height or width is not that of its stored image."""
    if mask.height and height and (mask.height, mask.width) != (height, width):
        raise DecodeError(
            f"{name}: {mask.width}x{mask.height} pixels, its image has {width}x{height}"
        )
