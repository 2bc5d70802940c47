"""Crops that users give: packio's own, and torchvision's crops of the same names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from packio.errors import OptionError
from packio.images.geometry import CenterCrop, Geometry, RandomCrop, RandomResizedCrop, Resize


def accepted(crop: Any) -> Geometry | None:
    """A crop as a geometry: packio's own as it is, torchvision's as the same crop of packio's."""
    if crop is None or (isinstance(crop, Geometry) and not isinstance(crop, type)):
        return crop
    name = type(crop).__name__
    if type(crop).__module__.startswith("torchvision.transforms") and name in _TORCHVISIONS:
        return _TORCHVISIONS[name](crop)
    given = crop.__name__ if isinstance(crop, type) else repr(crop)
    raise OptionError(
        f"crop={given}: expected an object such as packio.RandomResizedCrop(224), or torchvision's "
        f"{', '.join(_TORCHVISIONS)}"
    )


def _how(crop: Any) -> str:
    how = crop.interpolation
    return how if isinstance(how, str) else str(how.value)


def _random_crop(crop: Any) -> RandomCrop:
    padding = crop.padding or 0
    sides = {padding} if isinstance(padding, int) else set(padding)
    if len(sides) > 1 or crop.fill != 0 or crop.padding_mode != "constant":
        raise OptionError(f"crop={crop!r}: packio pads all sides alike, with black")
    return RandomCrop(tuple(crop.size), sides.pop())


def _resize(crop: Any) -> Resize:
    size = [crop.size] if isinstance(crop.size, int) else list(crop.size)
    return Resize(size[0] if len(size) == 1 else (size[0], size[1]), crop.max_size, _how(crop))


_TORCHVISIONS: dict[str, Callable[[Any], Geometry]] = {
    "RandomResizedCrop": lambda c: RandomResizedCrop(
        tuple(c.size), tuple(c.scale), tuple(c.ratio), _how(c)
    ),
    "CenterCrop": lambda c: CenterCrop(tuple(c.size)),
    "RandomCrop": _random_crop,
    "Resize": _resize,
}
