"""Container formats, one file each: how samples lie in it, how it is written, how it is scanned.

A format module has, as constants,

* ``SUFFIXES``: the file name endings that mean this format, the first one preferred;
* ``IS_DIRECTORY``: whether one pack of it is a directory even with a single shard;
* ``PACKAGE``, ``EXTRA``: the package that writes it, and packio's extra for it (None: core);

and these names:

* ``Writer(path, *, count, size)``: ``path`` (a `pathlib.Path`) does not exist yet; ``count``
  samples of together ``size`` bytes are about to come. ``add(records)`` takes a list of `Record`;
  ``close()`` makes all of it durable in the operating system's cache and returns a `Written`;
  ``abort()`` lets go of everything and may be called at any time.
* ``scan(path)``: yields an `Entry` for every record of the container, in order.
* ``identity(path)``: a JSON value that changes whenever the container is changed by its own
  library; it is kept in the index, and a container that has another one is refused.
* ``Reader(path)``: optional, only where records cannot be had by byte range;
  ``get(record_number) -> bytes``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np


class Record(NamedTuple):
    """One sample on its way into a container."""

    data: bytes
    label: int | None
    key: bytes


class Entry(NamedTuple):
    """One record of a container: its own name there, and where its value lies."""

    name: bytes
    file: str  # relative to the container's directory
    offset: int  # bytes
    length: int  # bytes


class Written(NamedTuple):
    """What a Writer leaves behind, in the order the records were added."""

    files: tuple[str, ...]  # paths relative to the container, "/" between parts
    file: np.ndarray  # (N,) uint32, which of `files`
    offset: np.ndarray  # (N,) int64 bytes
    length: np.ndarray  # (N,) int64 bytes
    sidecars: tuple[str, ...]  # further files, digested in the index but not read from
    info: dict[str, Any]  # goes into the index's metadata under the format's name
