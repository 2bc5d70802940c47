"""Container formats, one file each: how samples lie in it, how it is written, how it is scanned.

A format module has, as constants,

* ``SUFFIXES``: the file name endings that mean this format, the first one preferred;
* ``IS_DIRECTORY``: whether one shard of it is a directory;
* ``PACKAGE``, ``EXTRA``: the package that writes it, and packio's extra for it (None: none, core);

and these names:

* ``Writer(path, *, count, size, classes=())``: one shard. ``path`` (a `pathlib.Path`) does not
  exist yet, its parent does; at most ``count`` samples of together about ``size`` bytes are about
  to come; ``classes`` are the names of the labels, where labels are ints. ``add(records)`` takes a
  list of `Record`; ``close()`` writes what is left and returns a `Written`; ``abort()`` lets go of
  everything and may be called at any time, also after ``close()``. The same records give the same
  bytes, however they are grouped. Optional fields (label, mask, meta, boxes) are there in all
  records of a pack or in none.
* ``scan(path)``: yields an `Entry` for every sample of a shard, in order, of what this module
  writes and, as far as it can, of what others write. No value in the file is believed before it is
  checked: anything wrong is an IntegrityError or NotAPackError, nothing is allocated by a claimed
  size. A format whose values others pickle may take ``trust_plain_pickle=False``, too; one that
  others lay out by names of their own ``image=None`` and ``label=None`` (names within the
  container; label "" takes none; a name that is not there is an OptionError that lists what is)
  and ``layout=""`` (order of pixels: `packio.formats.blobs.pixels`). An entry that is no range of
  bytes has the offset -1; ``Reader`` reads it by its number among all entries of the shard.
* ``WHOLE_FILES``: optional: True where a sample is a whole file named by its key, as in a folder;
  the index then has no table of files.
* ``identity(path)``: optional: a JSON value that changes whenever the shard is changed by its own
  library in place, keeping its size.
* ``Reader(path)``: optional, only where records cannot be had by byte range;
  ``get(record_number) -> bytes``. Takes ``image`` and ``layout`` where ``scan`` does. May be used
  in threads, in forked and in spawned processes, and pickles.
* ``CRASHES``: optional: True where the format's library dies of some damaged files: a container
  without an index is then indexed in a process of its own.
* ``unsplit(raw)``: optional, where a value can lie in several parts: raw bytes → the value. Raises
  IntegrityError.
* ``OPTIONS``: optional: what else ``Writer`` takes by keyword, name → one line of help.
* ``finish(folder, shards)``: optional: writes sidecars of a whole directory pack, given the names
  of its shard files; returns the sidecars' names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

    from packio.images.encodings import Facts


class Record(NamedTuple):
    """One sample on its way into a container."""

    data: bytes  # the encoded image
    label: int | np.ndarray | None  # an int, or a (k,) float32 vector
    key: bytes  # relative path in the source, any bytes
    encoding: str = "unknown"  # of the image, a key of packio.images.encodings.CODES
    height: int = 0  # pixels, as stored
    width: int = 0  # pixels, as stored
    channels: int = 0
    mask: bytes | None = None  # an encoded image of class ids
    mask_encoding: str = "unknown"
    meta: bytes | None = None  # a JSON object, UTF-8
    boxes: np.ndarray | None = None  # (k, 4) float32, XYXY in pixels
    box_labels: np.ndarray | None = None  # (k,) int64


class Entry(NamedTuple):
    """One sample of a container: its name there, where its bytes lie, and what is said of it."""

    name: bytes
    file: str  # relative to the shard itself if it is a directory, else to its folder
    offset: int  # bytes; -1: no range of bytes, `Reader` reads it
    length: int  # bytes
    label: int | tuple[float, ...] | None = None
    key: bytes | None = None  # the path in the source, where the container keeps it
    mask: tuple[str, int, int] | None = None  # file, offset, length
    meta: bytes | None = None  # a JSON object, UTF-8
    boxes: tuple[tuple[float, float, float, float], ...] | None = None
    box_labels: tuple[int, ...] | None = None
    split: bool = False  # offset and length are of raw bytes that `unsplit` takes
    facts: Facts | None = None  # of raw pixels, whose bytes do not tell


class Ranges(NamedTuple):
    """Where values lie, in the order the records were added."""

    file: np.ndarray  # (N,) uint32, which of `Written.files`
    offset: np.ndarray  # (N,) int64 bytes
    length: np.ndarray  # (N,) int64 bytes


class Written(NamedTuple):
    """What a Writer leaves behind, in the order the records were added."""

    files: tuple[str, ...]  # relative to the shard if it is a directory, else to its folder
    file: np.ndarray  # (N,) uint32, which of `files`
    offset: np.ndarray  # (N,) int64 bytes
    length: np.ndarray  # (N,) int64 bytes
    sidecars: tuple[str, ...]  # further files, digested in the index but not read from
    info: dict[str, Any]  # goes into the index's metadata; of an array of pixels: "raw"
    masks: Ranges | None = None
    split: np.ndarray | None = None  # (N,) bool: offset and length are of what `unsplit` takes
