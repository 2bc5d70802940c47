"""Tests of what only the native core does are skipped where it was not compiled."""

from __future__ import annotations

import contextlib
import ctypes
from typing import TYPE_CHECKING, Any

import pytest

from packio.images import native

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from packio.images.frames import Frame

needed = pytest.mark.skipif(
    native.why_not() is not None, reason=f"no native core: {native.why_not()}"
)


@contextlib.contextmanager
def chosen(kernels: str) -> Iterator[None]:
    """Have the core run kernels of one kind, "AVX2" or "portable", in this process."""
    library = native._library()
    assert isinstance(library, ctypes.CDLL)
    if not library.packio_choose(1) and kernels == "AVX2":
        pytest.skip("this processor has no AVX2")
    library.packio_choose(int(kernels == "AVX2"))
    yield
    library.packio_choose(1)


@pytest.fixture(params=["AVX2", "portable"])
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    """Kernels of one kind, in this process."""
    with chosen(request.param):
        yield request.param


def make(
    jpeg: bytes, size: tuple[int, int], box: tuple[int, int, int, int], frame: Frame,
    out: np.ndarray, *, points: bytes = b"", layout: int = 0, **options: Any,
) -> int:  # fmt: skip
    """Make one output of a JPEG; options as of `packio.images.native.request`."""
    return native.make(jpeg, native.request(*size, box, frame, out, **options), 1, points, layout)
