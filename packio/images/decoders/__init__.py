"""Decoders: encoded bytes → pixels, one library a file.

A decoder module has, as constants,

* ``PACKAGE``, ``EXTRA``: the package it needs, and packio's extra for it (None: core);
* ``ENCODINGS``: the encodings it decodes, as "jpeg";
* ``MODES``: the modes it gives, of "RGB", "GRAY", "RGB_ALPHA", "UNCHANGED" (torchvision's
  ImageReadMode words). GRAY is asked of it for gray images only, since libraries differ in how
  they make gray of colours;
* ``EXACT``: whether its pixels are bit-identical to Pillow's wherever it succeeds;

and these functions:

* ``decode(data, mode) -> (H, W, C) uint8`` (uint16 or float32 under UNCHANGED), C-contiguous, as
  stored (orientation is not applied). ``data`` is bytes, or a bytearray where it was cut out of a
  larger JPEG. It raises DecodeError on everything that it cannot do, and on the slightest doubt of
  its library; Pillow then has the last word.
* ``decode_fast(data, mode, scale) -> (H, W, C)``: optional, for JPEGs: at 1/scale of the size (1,
  2, 4 or 8; each side rounded up), with whatever the library does faster and less exactly. It
  raises DecodeError as ``decode`` does.
* ``version() -> str``: of the library; it raises MissingPackageError where the library is missing.

A decoder that takes many JPEGs at once, as a GPU's does, has both of these beside:

* ``decode_batch(datas, mode, device) -> [(C, H, W), …]``: uint8 tensors of a torch.device, done
  when it returns. ``datas`` are bytearrays that ``size`` has passed. It raises DecodeError where
  any of them fails; they are then tried in halves, down to the one that does. One thread calls it
  at a time, within `packio.images.decoders._cuda.side_stream`.
* ``size(data, mode) -> (height, width)``: of the pixels that ``decode_batch`` has to give, by the
  header alone; it raises DecodeError where it should not be asked.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from packio import registry
from packio.errors import DecodeError, LimitError, ModeError, OptionError
from packio.images.decoders import pillow
from packio.images.encodings import RAW

if TYPE_CHECKING:
    from types import ModuleType

    import numpy as np
    import torch

MODES = ("RGB", "GRAY", "RGB_ALPHA", "UNCHANGED")
MAX_PIXELS = 178_956_970  # pixels; twice Pillow's warning limit, where Pillow itself gives up


class Described(Protocol):
    """What the index, or a header, says of pixels before they are decoded; see `Stored`."""

    @property
    def encoding(self) -> str:
        """A key of `packio.images.encodings.CODES`."""
        ...

    @property
    def height(self) -> int:
        """Pixels, as stored."""
        ...

    @property
    def width(self) -> int:
        """Pixels, as stored."""
        ...

    @property
    def channels(self) -> int:
        """As stored, a palette expanded."""
        ...

    @property
    def dtype(self) -> str:
        """One of `packio.images.encodings.DTYPES`."""
        ...


class Stored(NamedTuple):
    """A plain description of stored pixels."""

    encoding: str
    height: int  # pixels, as stored
    width: int  # pixels, as stored
    channels: int
    dtype: str  # "uint8", "uint16" or "float32"


class Decoder:
    """A chosen decoder with Pillow behind it: what the first cannot do, the second decides.

    Safe to call from several threads; pickles as its options.

    Args:
        name: A decoder's name, or "auto": per encoding the fastest that is bit-identical to Pillow.
        mode: "RGB", "GRAY", "RGB_ALPHA" or "UNCHANGED".
        max_pixels: Refuse images with more pixels than this.

    Raises:
        OptionError: no such decoder or mode.
        MissingPackageError: the decoder's package is not installed.
    """

    def __init__(
        self, name: str = "auto", mode: str = "RGB", *, max_pixels: int = MAX_PIXELS
    ) -> None:
        if mode not in MODES:
            raise OptionError(f"mode={mode!r}: expected one of {', '.join(MODES)}")
        self.name, self.mode, self.max_pixels = name, mode, max_pixels
        self.fallbacks = 0  # images that Pillow decoded because the chosen decoder could not
        self._lock = threading.Lock()
        self._chosen: dict[str, ModuleType] = {}  # encoding → plugin
        self._batching: Any = None  # the plugin, if it decodes batches
        if name != "auto":
            plugin = registry.load("decoders", name)
            plugin.version()
            self._batching = plugin if hasattr(plugin, "decode_batch") else None

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (self.name, self.mode, self.max_pixels)

    def __call__(self, data: bytes, stored: Described) -> np.ndarray:
        """Decode one image.

        Args:
            data: The encoded bytes.
            stored: What its header says.

        Returns:
            (H, W, C) uint8, C-contiguous; RGB order; uint16 or float32 only under UNCHANGED.

        Raises:
            DecodeError: it is damaged, too large (LimitError), or its pixels do not fit the
                mode (ModeError).
        """
        self._check(stored)
        if stored.encoding in RAW:
            from packio.images.decoders import _raw

            return _raw.decode(data, stored, self.mode)
        plugin = self._chosen.get(stored.encoding) or self._choose(stored.encoding)
        if plugin is pillow or not self._fits(plugin, stored):
            if plugin is not pillow and self.name != "auto":
                self._count_fallback()
            return pillow.decode(data, self.mode)
        try:
            return plugin.decode(data, self.mode)  # type: ignore[no-any-return]  # a plugin module
        except DecodeError:
            self._count_fallback()
            return pillow.decode(data, self.mode)

    def fast(self, data: bytes, stored: Described, scale: int) -> tuple[np.ndarray, int]:
        """Decode one image, less exactly and smaller.

        Args:
            data: The encoded bytes.
            stored: What its header says.
            scale: 1, 2, 4 or 8: how many pixels of each side become one, if the library can.

        Returns:
            (H, W, C) pixels, each side divided by the scale and rounded up, and the scale: 1 where
            it cannot be.

        Raises:
            DecodeError: see `__call__`.
        """
        self._check(stored)
        plugin = self._chosen.get(stored.encoding)
        if plugin is None and stored.encoding not in RAW:
            plugin = self._choose(stored.encoding)
        if stored.encoding == "jpeg" and plugin is not None and self._fits(plugin, stored):
            decode_fast = getattr(plugin, "decode_fast", None)
            if decode_fast is not None:
                try:
                    return decode_fast(data, self.mode, scale), scale
                except DecodeError:
                    self._count_fallback()
        return self(data, stored), 1

    @property
    def decodes_batches(self) -> bool:
        """Whether it has `decode_batch`."""
        return self._batching is not None

    @property
    def fallback(self) -> Decoder:
        """What decodes the images that `decode_batch` cannot: Pillow, with the same options."""
        return Decoder("pillow", self.mode, max_pixels=self.max_pixels)

    def takes(self, stored: Described) -> bool:
        """Whether `decode_batch` may have an image; those that it may not are counted.

        Raises:
            DecodeError: nobody may: see `__call__`.
        """
        self._check(stored)
        takes = self._batching is not None and self._fits(self._batching, stored)
        if not takes and stored.encoding not in RAW:
            self._count_fallback()
        return takes

    def size(self, data: bytes) -> tuple[int, int] | None:
        """(height, width) of the pixels of an image that `takes` allows; None: not so plain."""
        try:
            height, width = self._batching.size(data, self.mode)
            return height, width
        except DecodeError:
            self._count_fallback()
            return None

    def decode_batch(
        self, datas: Sequence[bytearray], device: torch.device
    ) -> list[torch.Tensor | None]:
        """Decode JPEGs, all of which have a `size`, on a device.

        Returns:
            (C, H, W) uint8 of each, on the device; None for those that could not be decoded.
        """
        try:
            return list(self._batching.decode_batch(datas, self.mode, device))
        except DecodeError:
            if len(datas) == 1:
                self._count_fallback()
                return [None]
        half = len(datas) // 2
        return self.decode_batch(datas[:half], device) + self.decode_batch(datas[half:], device)

    def _check(self, stored: Described) -> None:
        if stored.height * stored.width > self.max_pixels:
            raise LimitError(
                f"{stored.width}x{stored.height} pixels, the limit is {self.max_pixels:,} in all"
            )
        if stored.dtype != "uint8" and self.mode != "UNCHANGED":
            raise ModeError(
                f"{stored.dtype} pixels do not fit mode={self.mode!r}; use mode='UNCHANGED'"
            )

    def _fits(self, plugin: ModuleType, stored: Described) -> bool:
        if stored.encoding not in plugin.ENCODINGS or self.mode not in plugin.MODES:
            return False
        return self.mode != "GRAY" or stored.channels == 1

    def _choose(self, encoding: str) -> ModuleType:
        name = self.name if self.name != "auto" else automatic(encoding)
        plugin: ModuleType = registry.load("decoders", name)
        self._chosen[encoding] = plugin
        return plugin

    def _count_fallback(self) -> None:
        with self._lock:
            self.fallbacks += 1


def _restore(name: str, mode: str, max_pixels: int) -> Decoder:
    return Decoder(name, mode, max_pixels=max_pixels)


def automatic(encoding: str) -> str:
    """Name the decoder that "auto" takes for an encoding: never one that differs from Pillow."""
    from packio.images.decoders import _calibration

    return _calibration.fastest(encoding) or ("simplejpeg" if encoding == "jpeg" else "pillow")
