"""TorchCodec's image decoders: JPEG and PNG, without FFmpeg; its wheels need PyPI's torch."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from packio import registry
from packio.errors import DecodeError, MissingPackageError
from packio.images.decoders._plain import check_gray, check_scans, plain_jpeg, plain_png

if TYPE_CHECKING:
    from types import ModuleType

    import numpy as np

PACKAGE = "torchcodec"
EXTRA = "torchcodec"
ENCODINGS = frozenset({"jpeg", "png"})
MODES = frozenset({"RGB", "GRAY"})
EXACT = True
decode_fast = decode_batch = size = None

_GRAY, _RGB = 0, 2  # PNG colour types


@functools.cache  # a module: the same in every process
def _library() -> ModuleType:
    registry.require(PACKAGE, EXTRA)
    library = registry.require("torchcodec.decoders", EXTRA)
    if not hasattr(library, "decode_image"):
        raise MissingPackageError(
            "torchcodec has no decode_image; try: pip install 'torchcodec>=0.16'"
        )
    return library


def version() -> str:
    _library()
    return str(registry.require(PACKAGE, EXTRA).__version__)


def decode(data: bytes, mode: str = "RGB") -> np.ndarray:
    """Decode a plain JPEG or PNG with TorchCodec; see `DecoderPlugin.decode`."""
    import numpy as np
    import torch

    if data[:2] == b"\xff\xd8":
        check_scans(data)
        facts = plain_jpeg(data, mode)
        if facts.orientation != 1:  # decode_image turns the pixels, and has no option not to
            raise DecodeError(f"torchcodec: orientation {facts.orientation}, expected 1")
    else:
        depth, colour = plain_png(data)
        check_gray(mode, is_gray=colour == _GRAY)
        if depth != 8 or colour not in (_GRAY, _RGB):
            raise DecodeError(f"torchcodec: PNG of colour type {colour} with {depth} bits")
    library = _library()
    source = torch.frombuffer(bytearray(data), dtype=torch.uint8)  # of bytes, torch warns
    try:
        planes = library.decode_image(source, mode=mode)
    except (RuntimeError, ValueError) as error:
        raise DecodeError(f"torchcodec: {str(error).splitlines()[0]}") from error
    if planes.ndim != 3 or planes.dtype != torch.uint8:
        raise DecodeError(f"torchcodec: {planes.dtype} of shape {tuple(planes.shape)}")
    return np.ascontiguousarray(planes.permute(1, 2, 0).numpy())
