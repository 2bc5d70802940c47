"""Operations on images of bytes, with the pixels of Pillow, by the native core.

Colours: brightness, contrast, saturation, hue, grayscale, invert, equalize, autocontrast,
posterize, solarize, solarize_add, sharpness. Blurs: gaussian_blur (torchvision's), pillow_blur.
Moves: rotate, affine, perspective. Random versions are in packio itself, as `packio.RandAugment`.

Each function takes an image, (C, H, W) uint8, or a batch, (N, C, H, W), and returns a new tensor:

>>> packio.ops.rotate(images, 30, interpolation="bilinear")                 # doctest: +SKIP
"""

from packio.ops.blurs import gaussian_blur as gaussian_blur
from packio.ops.blurs import pillow_blur as pillow_blur
from packio.ops.tones import autocontrast as autocontrast
from packio.ops.tones import brightness as brightness
from packio.ops.tones import contrast as contrast
from packio.ops.tones import equalize as equalize
from packio.ops.tones import grayscale as grayscale
from packio.ops.tones import hue as hue
from packio.ops.tones import invert as invert
from packio.ops.tones import posterize as posterize
from packio.ops.tones import saturation as saturation
from packio.ops.tones import sharpness as sharpness
from packio.ops.tones import solarize as solarize
from packio.ops.tones import solarize_add as solarize_add
from packio.ops.transform import Transform as Transform
from packio.ops.warps import affine as affine
from packio.ops.warps import perspective as perspective
from packio.ops.warps import rotate as rotate

__all__ = [
    "Transform",
    "affine",
    "autocontrast",
    "brightness",
    "contrast",
    "equalize",
    "gaussian_blur",
    "grayscale",
    "hue",
    "invert",
    "perspective",
    "pillow_blur",
    "posterize",
    "rotate",
    "saturation",
    "sharpness",
    "solarize",
    "solarize_add",
]
