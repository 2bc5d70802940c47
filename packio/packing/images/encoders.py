"""Encoders: pixels become JPEG, PNG, WebP, BMP or raw bytes, with Exif and colour profile."""

from __future__ import annotations

import io
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from PIL import Image

HOLDS = {  # encoding → modes of Pillow that it holds
    "jpeg": frozenset({"L", "RGB"}),
    "png": frozenset({"L", "LA", "RGB", "RGBA", "I;16"}),
    "webp": frozenset({"RGB", "RGBA"}),
    "bmp": frozenset({"L", "RGB"}),
}
RAW_HOLDS = {  # mode of raw pixels → modes of Pillow
    "RGB": frozenset({"RGB"}),
    "GRAY": frozenset({"L"}),
    "RGB_ALPHA": frozenset({"RGBA"}),
    "UNCHANGED": frozenset({"L", "LA", "RGB", "RGBA", "I;16", "F"}),
}
SUBSAMPLINGS = ("4:2:0", "4:2:2", "4:4:4")

_EXIF = b"Exif\0\0"
_SEGMENT = 65533  # bytes that fit into a JPEG's segment, after its length field
_ORIENTATION_TAG = 0x0112


class Metadata(NamedTuple):
    exif: bytes = b""  # a TIFF structure, without "Exif\0\0"
    icc: bytes = b""


def metadata_of(image: Image.Image) -> Metadata:
    exif = image.info.get("exif") or b""
    return Metadata(exif.removeprefix(_EXIF), image.info.get("icc_profile") or b"")


def fitting_profile(icc: bytes, image: Image.Image) -> bytes:
    """The profile, or b"" if it is not for such pixels. Source: ICC.1:2022, 7.2.6."""
    space = b"GRAY" if image.mode in ("1", "L", "LA", "I;16") else b"RGB "
    return icc if icc[16:20] == space else b""


def exif_of(orientation: int) -> bytes:
    """Exif with an orientation alone; b"" for orientation 1."""
    if orientation == 1:
        return b""
    return b"II*\0" + struct.pack("<IHHHIHHI", 8, 1, _ORIENTATION_TAG, 3, 1, orientation, 0, 0)


def upright_exif(exif: bytes) -> bytes:
    """The same Exif with orientation 1. Source: TIFF 6.0, section 2."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif[:4])
    if order is None:
        return b""
    try:
        (directory,) = struct.unpack_from(f"{order}I", exif, 4)
        (count,) = struct.unpack_from(f"{order}H", exif, directory)
        for entry in range(directory + 2, directory + 2 + 12 * count, 12):
            if struct.unpack_from(f"{order}H", exif, entry)[0] == _ORIENTATION_TAG:
                one = struct.pack(f"{order}HIHH", 3, 1, 1, 0)  # one SHORT, left-aligned
                return exif[: entry + 2] + one + exif[entry + 12 :]
    except struct.error:  # cut short
        return b""
    return exif


def jpeg(
    image: Image.Image, quality: int, subsampling: str, metadata: Metadata, *, restart_rows: int = 0
) -> bytes:
    """Encode L or RGB as baseline JPEG, of quality 1 to 100.

    Of ``restart_rows`` rows of blocks each, a part can be decoded by itself; 0: the whole alone.

    simplejpeg takes the same time and releases the GIL. But below quality 96 it uses the fast
    transform of libjpeg-turbo, which costs 0.1 dB at quality 90 and 0.6 dB at 95.
    """
    exif = _EXIF + metadata.exif
    return _saved(
        image, "JPEG", quality=quality, subsampling=subsampling, icc_profile=metadata.icc,
        exif=exif if len(_EXIF) < len(exif) <= _SEGMENT else b"", comment=b"",
        restart_marker_rows=restart_rows,
    )  # fmt: skip


def png(image: Image.Image, metadata: Metadata | None = None) -> bytes:
    """Encode as PNG. A palette keeps its transparency, and indices beyond its end."""
    exif, icc = metadata or Metadata()
    if image.mode == "P":
        _complete_palette(image)
    return _saved(image, "PNG", exif=exif, icc_profile=icc)


def _complete_palette(image: Image.Image) -> None:
    """Give each index its colour: Pillow writes as many bits a pixel as the palette needs."""
    image.load()
    mode = image.im.getpalettemode()
    needed = len(mode) * (int(np.asarray(image).max()) + 1)
    if len(image.im.getpalette(mode, mode)) < needed:
        ramp = image.crop((0, 0, 256, 1))
        ramp.frombytes(bytes(range(256)))
        ramp.info = {}  # its transparency is kept beside the palette
        image.putpalette(ramp.convert(mode).tobytes()[:needed], mode)


def webp(image: Image.Image, quality: int, *, lossless: bool, metadata: Metadata) -> bytes:
    """Encode RGB or RGBA as WebP; `lossless` also keeps the colours of transparent pixels."""
    exif, icc = metadata
    return _saved(
        image, "WEBP", quality=quality, lossless=lossless, exact=lossless, exif=exif,
        icc_profile=icc, xmp=b"",
    )  # fmt: skip


def bmp(image: Image.Image) -> bytes:
    """Encode L or RGB as BMP, which has neither Exif nor profile."""
    return _saved(image, "BMP")


def _saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def raw(image: Image.Image) -> np.ndarray:
    """Pixels as (C, H, W), C-contiguous, little-endian."""
    pixels = np.asarray(image)
    planes = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    return np.ascontiguousarray(planes, planes.dtype.newbyteorder("<"))
