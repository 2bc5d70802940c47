"""A cache of its own for each test: a room whose conftest imports the fixture has it everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import pathlib


@pytest.fixture(autouse=True)
def own_cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The folder that caches lie in during this test."""
    monkeypatch.setenv("PACKIO_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"
