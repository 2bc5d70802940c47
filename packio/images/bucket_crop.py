"""The crop that follows the size of its batch."""

from __future__ import annotations

import dataclasses

from packio.errors import OptionError
from packio.images.arithmetic import Integer, truncated, where
from packio.images.bucketing import Size, checked, covered, is_small
from packio.images.frames import Frame, merged
from packio.images.geometry import Uniforms, check_interpolation


@dataclasses.dataclass(frozen=True)
class BucketCrop:
    """The largest box of the ratio of the batch's size, resized to that size.

    Each batch of a `packio.BucketSampler` has a size of its own, which its indices carry.

    Args:
        size: (height, width) for indices that carry none, as in ``ds[0]`` or with another sampler.
            None: those are refused.
        position: "random": the box lies anywhere in the image; "center": in the middle.
        small: What becomes of images that are smaller than the size on a side: "enlarge", or
            "pad": they keep their pixels, and get a border, black in images and `ignore_index` in
            masks. (``BucketSampler(drop_small=True)`` leaves them out.)
        interpolation: "bilinear", "bicubic", "area" or "nearest"; antialiased.

    Raises:
        OptionError: a value is not allowed.
    """

    size: Size | None = None
    position: str = "random"
    small: str = "enlarge"
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        if self.size is not None:
            object.__setattr__(self, "size", checked(self.size))
        allowed = {"position": ("random", "center"), "small": ("enlarge", "pad")}
        for name, values in allowed.items():
            if (given := getattr(self, name)) not in values:
                raise OptionError(f"{name}={given!r}: expected one of {', '.join(values)}")
        check_interpolation(self.interpolation)

    @property
    def draws(self) -> int:
        """Random numbers for one image."""
        return 2 if self.position == "random" else 0

    @property
    def output_size(self) -> Size | None:
        """(height, width) of every output; None: each batch has its own."""
        return self.size

    def of(self, size: Size | None) -> BucketCrop:
        """The same crop to a size that indices carry; None: they carry none."""
        return self if size is None else dataclasses.replace(self, size=size)

    def frame(self, height: Integer, width: Integer, u: Uniforms) -> Frame:
        """Frame of an upright image of this size, for 2 random numbers or none.

        Raises:
            OptionError: no size is known.
        """
        if self.size is None:
            raise OptionError(
                "crop=BucketCrop(): these indices carry no size; take a DataLoader or a "
                "packio.Loader with batch_sampler=packio.BucketSampler(…), packio.ConcatPacks and "
                "subset() in place of torch's ConcatDataset and Subset, which drop the size; or "
                "give a size for such indices, as BucketCrop((1024, 1024))"
            )
        high, broad = self.size
        h, w = covered(height, width, high, broad)
        top, left = self._start(height, h, u, 0), self._start(width, w, u, 1)
        frame = Frame(top, left, h, w, high, broad, 0, 0, high, broad)
        if self.small == "enlarge":
            return frame
        top, left = self._start(height, high, u, 0), self._start(width, broad, u, 1)
        kept = Frame(0, 0, height, width, height, width, top, left, high, broad)
        return merged(is_small(height, width, high, broad), kept, frame)

    def _start(self, length: Integer, size: Integer, u: Uniforms, axis: int) -> Integer:
        """First pixel of a box along a side; negative: so many pixels of border before the side."""
        if self.position == "center":
            return where(length < size, -((size - length) // 2), (length - size) // 2)
        inside = truncated(u[axis] * (abs(length - size) + 1))
        return where(length < size, -inside, inside)
