"""Decoders: encoded bytes → pixels, one library a file.

`DecoderPlugin` is the contract of a decoder module. `Decoder` tries one module, then Pillow.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from packio import registry
from packio.errors import (
    DecodeError,
    Decoding,
    LimitError,
    MissingPackageError,
    ModeError,
    OptionError,
)
from packio.images import dct, encodings, native
from packio.images.decoders import pillow
from packio.images.encodings import DTYPES, RAW, PixelInfo
from packio.system.locks import ForkSafeLock, block_forks

if TYPE_CHECKING:
    import numpy as np
    import torch

    DecodeFast: TypeAlias = Callable[[bytes, str, int], np.ndarray]
    DecodeBatch: TypeAlias = Callable[
        [Sequence[bytearray], str, torch.device], Sequence[torch.Tensor]
    ]
    Size: TypeAlias = Callable[[bytes, str], tuple[int, int]]

MODES = ("RGB", "GRAY", "RGB_ALPHA", "UNCHANGED")
NATIVE = "native"  # the name that insists on the native core
_CHANNELS = {"RGB": (1, 3), "GRAY": (1,)}  # mode → channels of the images that the core takes
MAX_PIXELS = 178_956_970  # pixels; twice Pillow's warning limit, where Pillow itself gives up


class DecoderPlugin(Protocol):
    """What a decoder module has: a module without one of these names is no decoder."""

    @property
    def PACKAGE(self) -> str:  # noqa: N802 (a constant of a module)
        """Importable name of the package that the module needs, as "cv2"."""

    @property
    def EXTRA(self) -> str | None:  # noqa: N802 (a constant of a module)
        """The extra of packio that installs the package; None if the core needs it anyway."""

    @property
    def ENCODINGS(self) -> frozenset[str]:  # noqa: N802 (a constant of a module)
        """Encodings that the module decodes: keys of `packio.images.encodings.CODES`."""

    @property
    def MODES(self) -> frozenset[str]:  # noqa: N802 (a constant of a module)
        """Modes that the module decodes to: some of `MODES`.

        The module decodes to GRAY only what is stored as gray: libraries differ in how they turn
        colours into gray.
        """

    @property
    def EXACT(self) -> bool:  # noqa: N802 (a constant of a module)
        """Whether the pixels of each image that it decodes are bit-identical to Pillow's."""

    def version(self) -> str:
        """Version of the library.

        Raises:
            MissingPackageError: the library is missing.
        """

    def decode(self, data: bytes, mode: str) -> np.ndarray:
        """Decode one image.

        Args:
            data: The encoded bytes.
            mode: One of the module's ``MODES``.

        Returns:
            (H, W, C) uint8, C-contiguous, RGB order, as stored: orientation is not applied. Under
            UNCHANGED also uint16 or float32.

        Raises:
            DecodeError: the library cannot decode the image, or may not decode it exactly. Pillow
                then decodes the image, as it does if anything else is raised.
        """

    @property
    def decode_fast(self) -> DecodeFast | None:
        """``decode_fast(data, mode, scale)`` for JPEGs, or None.

        The function returns pixels with each side divided by the scale (1, 2, 4 or 8) and rounded
        up, and may decode less exactly. It raises DecodeError as ``decode`` does.
        """

    @property
    def decode_batch(self) -> DecodeBatch | None:
        """``decode_batch(datas, mode, device)`` for many JPEGs at once, as on a GPU, or None.

        The function returns (C, H, W) uint8 tensors on a torch.device, complete when it returns.
        ``datas`` are bytearrays that ``size`` accepted. If a JPEG fails, the function raises
        DecodeError; packio then tries the halves, down to the JPEG that fails. One thread calls the
        function at a time, within `packio.images.devices.side_stream`.
        """

    @property
    def size(self) -> Size | None:
        """``size(data, mode)`` reads (height, width) from the header; None without decode_batch.

        The function raises DecodeError for an image that ``decode_batch`` should not get.
        """


CONTRACT = DecoderPlugin


def load(name: str) -> DecoderPlugin:
    """Load a decoder module; see `packio.registry.load`."""
    return cast("DecoderPlugin", registry.load("decoders", name))


class Decoder:
    """A chosen decoder, and Pillow for the images that the chosen decoder cannot decode.

    Safe to call from several threads; pickles as its options. "auto" takes, for each encoding, the
    fastest decoder whose pixels are bit-identical to Pillow's, and packio's native core where that
    makes outputs; "native" is "auto", and insists that the core is there.
    """

    def __init__(
        self, name: str = "auto", mode: str = "RGB", *, max_pixels: int = MAX_PIXELS
    ) -> None:
        if mode not in MODES:
            raise OptionError(f"mode={mode!r}: expected one of {', '.join(MODES)}")
        self.name, self.mode, self.max_pixels = name, mode, max_pixels
        self.fallbacks = 0  # images that Pillow decoded because the chosen decoder could not
        self.declined = [0] * len(native.REASONS)  # by the core
        self.has_core = name in ("auto", NATIVE) and mode in _CHANNELS and not native.why_not()
        self._lock = ForkSafeLock()
        self._chosen: dict[str, DecoderPlugin] = {}  # by encoding
        self._batching: DecoderPlugin | None = None  # the plugin, if it decodes batches
        if name == NATIVE:
            native.require(f"decoder={name!r}")
        with block_forks():  # a child of a process that imports would wait for the import for ever
            pillow.prepare()
            if name not in ("auto", NATIVE):
                plugin = load(name)
                plugin.version()
                self._batching = plugin if plugin.decode_batch is not None else None
        if name in ("auto", NATIVE):
            self._choose("jpeg")  # now, so that forked workers need not import it one by one

    def __reduce__(self) -> tuple[object, ...]:
        return functools.partial(Decoder, max_pixels=self.max_pixels), (self.name, self.mode)

    def __call__(self, data: bytes, stored: PixelInfo) -> np.ndarray:
        """Decode one image: (H, W, C) uint8, C-contiguous, RGB order; see `DecoderPlugin.decode`.

        Raises:
            DecodeError: the image is damaged, has too many pixels (LimitError), or has pixels that
                do not fit the mode (ModeError).
        """
        plugin = self._fitting(stored)
        data = dct.as_file(data, stored.encoding)
        if plugin is not None and plugin is not pillow:
            pixels = self._tried(plugin.decode, data, self.mode)
            if pixels is not None:
                return pixels
        elif stored.encoding in RAW:
            with Decoding():
                return pillow.decode_raw(data, stored, self.mode)
        elif self.name not in ("auto", NATIVE, "pillow"):
            self._count_fallback()
        return pillow.decode(data, self.mode)

    def _tried(self, decode: Callable[..., np.ndarray], *arguments: Any) -> np.ndarray | None:
        """Pixels that a plugin makes; None if it fails, whatever it raises: Pillow tells why."""
        with contextlib.suppress(DecodeError), Decoding():
            pixels = decode(*arguments)
            if pixels.ndim == 3 and pixels.dtype.isnative and pixels.dtype.name in DTYPES:
                return pixels
        self._count_fallback()
        return None

    def core_takes(self, stored: PixelInfo) -> bool:
        """Tell whether the native core may make outputs of an image."""
        return (
            self.has_core
            and stored.encoding in native.LAYOUTS
            and stored.channels in _CHANNELS[self.mode]
            and stored.dtype == "uint8"
            and stored.height * stored.width <= self.max_pixels
        )

    def count_declined(self, reason: int) -> None:
        with self._lock:
            self.declined[reason] += 1

    def fast(self, data: bytes, stored: PixelInfo, scale: int) -> tuple[np.ndarray, int]:
        """Decode less exactly and smaller; the scale is 1 if the library cannot do that."""
        if stored.encoding in encodings.JPEGS:
            plugin = self._fitting(stored)
            if plugin is not None and plugin.decode_fast is not None:
                jpeg = dct.as_file(data, stored.encoding)
                pixels = None
                if scale == 1 or encodings.has_dct(jpeg):
                    pixels = self._tried(plugin.decode_fast, jpeg, self.mode, scale)
                if pixels is not None:
                    return pixels, scale
        return self(data, stored), 1

    @property
    def decodes_batches(self) -> bool:
        return self._batching is not None

    def takes(self, stored: PixelInfo) -> bool:
        """Tell whether `decode_batch` takes an image; an image that it refuses is counted."""
        self._check(stored)
        takes = self._batching is not None and self._fits(self._batching, stored)
        if not takes and stored.encoding not in RAW:
            self._count_fallback()
        return takes

    def size(self, data: bytes) -> tuple[int, int] | None:
        """(height, width) of an image that `takes` allows; None if only Pillow should decode it."""
        if self._batching is None or self._batching.size is None:
            return None
        with contextlib.suppress(DecodeError), Decoding():
            return self._batching.size(data, self.mode)
        self._count_fallback()
        return None

    def decode_batch(
        self, datas: Sequence[bytearray], device: torch.device
    ) -> list[torch.Tensor | None]:
        """Decode JPEGs whose `size` is known: (C, H, W) uint8 each, or None if one cannot be."""
        if self._batching is None or self._batching.decode_batch is None:
            return [None] * len(datas)
        with contextlib.suppress(DecodeError), Decoding():
            return list(self._batching.decode_batch(datas, self.mode, device))
        if len(datas) == 1:
            self._count_fallback()
            return [None]
        half = len(datas) // 2
        return self.decode_batch(datas[:half], device) + self.decode_batch(datas[half:], device)

    def _check(self, stored: PixelInfo) -> None:
        if stored.height * stored.width > self.max_pixels:
            raise LimitError(
                f"{stored.width}x{stored.height} pixels, the limit is {self.max_pixels:,} in all"
            )
        if stored.dtype != "uint8" and self.mode != "UNCHANGED":
            raise ModeError(
                f"{stored.dtype} pixels do not fit mode={self.mode!r}; use mode='UNCHANGED'"
            )

    def _fitting(self, stored: PixelInfo) -> DecoderPlugin | None:
        """The chosen plugin for an image; None where only Pillow, or none, decodes the image."""
        self._check(stored)
        encoding = dct.file_encoding(stored.encoding)
        if encoding in RAW:
            return None
        plugin = self._chosen.get(encoding) or self._choose(encoding)
        return plugin if self._fits(plugin, stored) else None

    def _fits(self, plugin: DecoderPlugin, stored: PixelInfo) -> bool:
        encoding = dct.file_encoding(stored.encoding)
        if encoding not in plugin.ENCODINGS or self.mode not in plugin.MODES:
            return False
        return self.mode != "GRAY" or stored.channels == 1

    def _choose(self, encoding: str) -> DecoderPlugin:
        with block_forks():
            name = automatic(encoding) if self.name in ("auto", NATIVE) else self.name
            plugin = load(name)
            with contextlib.suppress(MissingPackageError):  # the first image will say so
                plugin.version()  # imports its package
        self._chosen[encoding] = plugin
        return plugin

    def _count_fallback(self) -> None:
        with self._lock:
            self.fallbacks += 1


@functools.cache  # what is installed: the same in every process
def automatic(encoding: str) -> str:
    """Name the decoder that "auto" takes for an encoding: the fastest with Pillow's pixels."""
    if encoding == "jpeg":
        return "simplejpeg"
    if encoding == "png":
        with contextlib.suppress(MissingPackageError):
            load("isal").version()
            return "isal"
    return "pillow"
