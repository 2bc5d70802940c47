"""jpeg4py: the system's libjpeg-turbo through cffi."""

from __future__ import annotations

import functools
import importlib.metadata
from typing import TYPE_CHECKING

from packio import registry
from packio.errors import DecodeError, MissingPackageError
from packio.images.decoders._plain import plain_jpeg

if TYPE_CHECKING:
    from types import ModuleType

    import numpy as np

PACKAGE = "jpeg4py"
EXTRA = "jpeg4py"
ENCODINGS = frozenset({"jpeg"})
MODES = frozenset({"RGB", "GRAY"})
EXACT = True
decode_fast = decode_batch = size = None


@functools.cache  # a module with its library loaded: each process loads its own
def _library() -> ModuleType:
    library = registry.require(PACKAGE, EXTRA)
    try:
        library.initialize()
    except OSError as error:  # the package is there, the shared library is not
        raise MissingPackageError(
            f"jpeg4py finds no libturbojpeg.so.0 ({error}); "
            "try: pip install 'packio[jpeg4py]' and apt install libturbojpeg0"
        ) from error
    return library


def version() -> str:
    _library()
    return importlib.metadata.version("jpeg4py")


def decode(data: bytes, mode: str = "RGB") -> np.ndarray:
    """Decode a plain JPEG with jpeg4py; see `DecoderPlugin.decode`.

    A warning of libjpeg-turbo is an error.
    """
    import numpy as np

    plain_jpeg(data, mode)
    library = _library()
    pixfmt = library.TJPF_GRAY if mode == "GRAY" else library.TJPF_RGB
    image = library.JPEG(np.frombuffer(data, np.uint8))
    try:
        pixels: np.ndarray = image.decode(pixfmt=pixfmt)
    except library.JPEGRuntimeError as error:
        # Keep the handle out of jpeg4py's cache: it may fail on every good image, too.
        if image.decompressor is not None:
            image.decompressor.release()
            image.decompressor = None
        raise DecodeError(f"jpeg4py: {error}") from error
    return pixels[:, :, None] if pixels.ndim == 2 else pixels
