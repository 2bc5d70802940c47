"""A decoder of batches for tests, on any device: simplejpeg's pixels, one image after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from packio.errors import DecodeError
from packio.images.decoders import nvjpeg, simplejpeg

if TYPE_CHECKING:
    from collections.abc import Sequence

PACKAGE = "simplejpeg"
EXTRA = None
ENCODINGS = frozenset({"jpeg"})
MODES = nvjpeg.MODES
EXACT = True
decode_fast = None

version, decode, size = simplejpeg.version, simplejpeg.decode, nvjpeg.size

CALLS: list[list[int]] = []  # bytes of the JPEGs of each call
LIES: list[bool] = []  # whether what is returned is of another size


def decode_batch(datas: Sequence[bytearray], mode: str, device: torch.device) -> list[torch.Tensor]:
    """Decode JPEGs, all or none."""
    CALLS.append([len(data) for data in datas])
    if not datas:
        raise DecodeError("nothing to decode")
    pixels = [torch.from_numpy(decode(bytes(data), mode)) for data in datas]
    less = 1 if LIES else 0
    return [p[less:].permute(2, 0, 1).contiguous().to(device) for p in pixels]
