"""What tests of formats share: each has a cache of its own."""

from __future__ import annotations

import dataclasses

import pytest
from caching import own_cache

from packio.formats import hdf5

__all__ = ["own_cache"]


@pytest.fixture
def hdf5_indexed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """HDF5 is indexed in this process, which saves half a second each."""
    caps = dataclasses.replace(hdf5.FORMAT.caps, dies_of_damage=False)
    monkeypatch.setattr(hdf5.Hdf5, "caps", caps)
