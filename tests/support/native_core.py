"""Tests of what only the native core does are skipped where it was not compiled."""

from __future__ import annotations

import pytest

from packio.images import native

needed = pytest.mark.skipif(
    native.why_not() is not None, reason=f"no native core: {native.why_not()}"
)
