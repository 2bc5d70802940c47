"""Colours of images that are encoded anew: palettes, CMYK, profiles, transparency, 16 bits."""

from __future__ import annotations

import io
import re
from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from packio.errors import DecodeError, ModeError

if TYPE_CHECKING:
    from PIL import Image

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


def prepared(
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
        return _image_of((np.asarray(image) >> 8).astype(np.uint8))
    if "I;16" not in holds:
        raise ModeError(
            "16-bit pixels do not fit; wide='scale' keeps their higher 8 bits; encode='png', and "
            "'raw' with mode='UNCHANGED', keep all"
        )
    return image


def sixteen_bits(image: Image.Image) -> Image.Image:
    """Bring a gray image of a wide integer mode into mode I;16."""
    if image.mode == "I;16":
        return image
    pixels = np.asarray(image)
    if pixels.min() < 0 or pixels.max() > 0xFFFF:
        raise ModeError("pixels have more than 16 bits; packio reads up to 16")
    return _image_of(pixels.astype(np.uint16))


def _image_of(pixels: np.ndarray) -> Image.Image:
    from PIL import Image

    return Image.fromarray(pixels)


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
    profile: bytes | None = image.info.get("icc_profile")
    return None if not profile or _is_srgb(profile) else profile


def _is_srgb(profile: bytes) -> bool:
    from PIL import ImageCms

    try:
        return "sRGB" in ImageCms.getProfileDescription(io.BytesIO(profile))
    except ImageCms.PyCMSError:
        return False


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
