"""The decode wall: one core that decodes whole JPEGs from memory with simplejpeg, and no more.

The run multiplies it by the cores: a loader that decodes whole images cannot be faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from typing import Any

import numpy as np
import simplejpeg
from _contract import Job, files

WAYS = dict.fromkeys(("rrc224", "photos", "eval224", "bicubic384"), ("one core",))


def versions() -> dict[str, str]:
    """What was measured."""
    return {"simplejpeg": version("simplejpeg")}


def prepare(job: Job) -> None:
    """Nothing is written."""


def _is_taken(encoded: bytes) -> bool:
    """Whether simplejpeg decodes it: not CMYK, nor an odd subsampling."""
    try:
        simplejpeg.decode_jpeg(encoded, "RGB")
    except ValueError:
        return False
    return True


def epochs(job: Job) -> Callable[[], Iterable[Any]]:
    """Decode all; each image stands for itself, not for a batch."""
    data = [path.read_bytes() for path, _ in files(job.source)]
    data = [encoded for encoded in data if _is_taken(encoded)]
    nothing = np.zeros((1, 3, 1, 1), np.uint8)

    def epoch() -> Iterator[Any]:
        for encoded in data:
            simplejpeg.decode_jpeg(encoded, "RGB")
            yield (nothing,)

    return epoch
