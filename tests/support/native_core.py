"""Tests of what only the native core does are skipped where it was not compiled."""

from __future__ import annotations

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


@pytest.fixture(params=["AVX2", "portable"])
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    """Kernels of one kind, in this process."""
    library = native._library()
    assert isinstance(library, ctypes.CDLL)
    if not library.packio_choose(1) and request.param == "AVX2":
        pytest.skip("this processor has no AVX2")
    library.packio_choose(int(request.param == "AVX2"))
    yield request.param
    library.packio_choose(1)


def make(
    jpeg: bytes, size: tuple[int, int], box: tuple[int, int, int, int], frame: Frame,
    out: np.ndarray, *, points: bytes = b"", **options: Any,
) -> int:  # fmt: skip
    """Make one output of a JPEG; options as of `packio.images.native.request`."""
    return native.make(jpeg, native.request(*size, box, frame, out, **options), 1, points)
