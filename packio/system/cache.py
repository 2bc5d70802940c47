"""The user's cache: what can be made again, and is not written beside the data."""

from __future__ import annotations

import os
from pathlib import Path


def folder(*names: str) -> Path:
    """A folder in the cache, or the cache itself; it need not exist yet.

    It is ``$PACKIO_CACHE_DIR``, or ``packio`` in ``$XDG_CACHE_HOME`` or ``~/.cache``.
    """
    own = os.environ.get("PACKIO_CACHE_DIR")
    if own:
        return Path(own, *names)
    return Path(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "packio", *names
    )
