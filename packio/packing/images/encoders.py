"""Encoders: pixels become JPEG, PNG, WebP, BMP or raw bytes, with Exif and colour profile."""

from __future__ import annotations

import contextlib
import io
import re
import struct
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from packio.errors import DecodeError, ModeError

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


_NO_METADATA = Metadata()


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


def encode(
    image: Image.Image, encoding: str, metadata: Metadata = _NO_METADATA, *, quality: int = 90,
    subsampling: str = "4:4:4", lossless: bool = False, restart_rows: int = 0,
) -> bytes:  # fmt: skip
    """Encode pixels of a mode that the encoding holds: "jpeg" (baseline), "png", "webp" or "bmp".

    JPEG and lossy WebP have a quality, 1 to 100. Lossless WebP keeps the colours of transparent
    pixels, too. A PNG's palette keeps its transparency, and indices beyond its end. BMP has no
    metadata. Of ``restart_rows`` rows of blocks of a JPEG, a part can be decoded by itself.

    simplejpeg takes the same time and releases the GIL. But below quality 96 it uses the fast
    transform of libjpeg-turbo, which costs 0.1 dB at quality 90 and 0.6 dB at 95.
    """
    exif, icc = metadata
    options: dict[str, Any] = {}
    if encoding == "jpeg":
        exif = _EXIF + exif if 0 < len(exif) <= _SEGMENT - len(_EXIF) else b""
        options = {"quality": quality, "subsampling": subsampling, "comment": b"",
                   "restart_marker_rows": restart_rows}  # fmt: skip
    elif encoding == "webp":
        options = {"quality": quality, "lossless": lossless, "exact": lossless, "xmp": b""}
    elif encoding == "png" and image.mode == "P":
        _complete_palette(image)
    if encoding != "bmp":
        options |= {"exif": exif, "icc_profile": icc}
    file = io.BytesIO()
    image.save(file, encoding.upper(), **options)
    return file.getvalue()


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


def raw(image: Image.Image) -> np.ndarray:
    """Pixels as (C, H, W), C-contiguous, little-endian."""
    pixels = np.asarray(image)
    planes = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    return np.ascontiguousarray(planes, planes.dtype.newbyteorder("<"))


_EXPANDED = {"1": "L", "La": "LA", "RGBa": "RGBA", "PA": "RGBA",
             **dict.fromkeys(("P", "CMYK", "YCbCr", "LAB", "HSV", "RGBX"), "RGB")}  # fmt: skip
_TRANSPARENT = {"1": "LA", "L": "LA", "P": "RGBA", "RGB": "RGBA"}
_WIDER = {"L": ("RGB", "RGBA"), "LA": ("RGBA", "L", "RGB"), "RGB": ("RGBA", "L"),
          "RGBA": ("RGB", "L")}  # fmt: skip
_WITHOUT_ALPHA = {"LA": "L", "RGBA": "RGB"}
_SIXTEEN_BIT_COLOUR = re.compile(r"(LA|RGB[AX]?|CMYK);16")  # raw modes that Pillow reads as 8 bits
_PROFILED = {  # (mode, colour space of the profile) → mode that the profile is applied to
    ("L", "GRAY"): "L",
    ("L", "RGB"): "RGB",  # an image that was made gray, with its old profile
    ("RGB", "RGB"): "RGB",
    ("CMYK", "CMYK"): "CMYK",
}


def is_wide(image: Image.Image) -> bool:
    """Tell whether pixels have more than 8 bits a channel. Call it before pixels are loaded."""
    return image.mode[0] in "IF" or _is_sixteen_bit_colour(image)


def _is_sixteen_bit_colour(image: Image.Image) -> bool:
    tiles = getattr(image, "tile", ())  # gone once pixels are loaded; tile[3] is the raw mode
    return any(_SIXTEEN_BIT_COLOUR.search(str(tile[3])) for tile in tiles)


def asks_for_change(image: Image.Image, *, icc: str, alpha: str, wide: str) -> bool:
    """Tell whether the options change an image's pixels. Call it before pixels are loaded."""
    return (
        (icc == "srgb" and _foreign_profile(image) is not None)
        or (alpha != "keep" and image.has_transparency_data)
        or (wide == "scale" and is_wide(image))
    )


def prepare(
    image: Image.Image, holds: Collection[str], *, icc: str, alpha: str, wide: str
) -> Image.Image:
    """Bring an opened image into a mode that an encoding holds: L, LA, RGB, RGBA, I;16 or F."""
    if is_wide(image):
        image = _narrowed(image, holds, wide)
        if is_wide(image):
            return image
    if icc == "srgb":
        image = _to_srgb(image)
    image = _expanded(image)
    if image.mode in _WITHOUT_ALPHA:
        image = _transparency(image, holds, alpha)
    if image.mode in holds:
        return image
    return image.convert(next(mode for mode in _WIDER[image.mode] if mode in holds))


def _expanded(image: Image.Image) -> Image.Image:
    """Bring an 8-bit image into L, LA, RGB or RGBA; a transparent colour becomes alpha."""
    if image.mode in _TRANSPARENT and image.has_transparency_data:
        return image.convert(_TRANSPARENT[image.mode])
    return image.convert(_EXPANDED[image.mode]) if image.mode in _EXPANDED else image


def _narrowed(image: Image.Image, holds: Collection[str], wide: str) -> Image.Image:
    from PIL import Image

    if _is_sixteen_bit_colour(image):
        if wide != "scale":
            raise ModeError(
                f"16-bit {image.mode} pixels, of which Pillow reads 8 bits; wide='scale' keeps "
                "these, the higher ones"
            )
        image.load()  # Pillow loads 8 bits of each channel
        return image
    if image.mode == "F":
        if "F" not in holds:
            raise ModeError("floating-point pixels; encode='raw', mode='UNCHANGED' keeps them")
        return image
    image = sixteen_bits(image)
    if wide == "scale":
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if "I;16" not in holds:
        raise ModeError(
            "16-bit pixels do not fit; wide='scale' keeps their higher 8 bits; encode='png', and "
            "'raw' with mode='UNCHANGED', keep all"
        )
    return image


def sixteen_bits(image: Image.Image) -> Image.Image:
    """Bring a gray image of a wide integer mode into mode I;16."""
    from PIL import Image

    if image.mode == "I;16":
        return image
    pixels = np.asarray(image)
    if pixels.min() < 0 or pixels.max() > 0xFFFF:
        raise ModeError("pixels have more than 16 bits; packio reads up to 16")
    return Image.fromarray(pixels.astype(np.uint16))


def _transparency(image: Image.Image, holds: Collection[str], alpha: str) -> Image.Image:
    from PIL import Image

    opaque = _WITHOUT_ALPHA[image.mode]
    if alpha in ("white", "black"):
        behind = Image.new("RGBA", image.size, alpha)
        return Image.alpha_composite(behind, image.convert("RGBA")).convert(opaque)
    if alpha == "drop":
        return image.convert(opaque)
    if any(mode in holds for mode in _WITHOUT_ALPHA):
        return image
    if image.getchannel("A").getextrema()[0] != 255:
        raise ModeError(
            "transparent pixels do not fit; alpha='white' or 'black' puts a colour behind them, "
            "'drop' shows what they hide, encode='png' or 'webp' keeps them"
        )
    return image.convert(opaque)


def _foreign_profile(image: Image.Image) -> bytes | None:
    """Colour profile of an image; None if it has none, or sRGB's."""
    from PIL import ImageCms

    profile: bytes | None = image.info.get("icc_profile")
    with contextlib.suppress(ImageCms.PyCMSError):
        if profile and "sRGB" in ImageCms.getProfileDescription(io.BytesIO(profile)):
            return None
    return profile or None


def _to_srgb(image: Image.Image) -> Image.Image:
    """Convert pixels to sRGB by their profile. Gray images stay gray."""
    from PIL import ImageCms

    data = _foreign_profile(image)
    if data is None:
        return image
    alpha = None
    if image.mode not in ("L", "RGB", "CMYK"):
        image = _expanded(image)
    if image.mode in _WITHOUT_ALPHA:
        alpha = image.getchannel("A")
        image = image.convert(_WITHOUT_ALPHA[image.mode])
    try:
        profile = ImageCms.ImageCmsProfile(io.BytesIO(data))
        space = profile.profile.xcolor_space.strip()
        pixels = image.convert(_PROFILED[image.mode, space])
        srgb = ImageCms.createProfile("sRGB")
        converted = ImageCms.profileToProfile(pixels, profile, srgb, outputMode="RGB")
    except KeyError:
        raise DecodeError(
            f"a colour profile for {space} in an image of mode {image.mode}; icc='keep' ignores it"
        ) from None
    except (OSError, ImageCms.PyCMSError) as error:
        raise DecodeError(f"a damaged colour profile ({error}); icc='keep' ignores it") from error
    assert converted is not None  # noqa: S101 (None only if inPlace=True)
    if image.mode == "L":
        converted = converted.convert("L")
    if alpha is not None:
        converted.putalpha(alpha)
    return converted
