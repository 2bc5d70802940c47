"""The user's cache folder: packio can make everything in it again."""

from __future__ import annotations

import os
from pathlib import Path


def folder(*names: str) -> Path:
    """Path of a folder in the cache, or of the cache itself; it need not exist yet.

    The cache is ``$PACKIO_CACHE_DIR``, or ``packio`` in ``$XDG_CACHE_HOME`` or ``~/.cache``.
    """
    own = os.environ.get("PACKIO_CACHE_DIR")
    if own:
        return Path(own, *names)
    return Path(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "packio", *names
    )
