"""N5: a directory tree of arrays, cut into blocks of one file each.

What packio writes: the arrays of `packio.formats._blob_columns`, raw, cut as
`packio.formats._chunks` says, and the attribute ``packio`` of the root, a text.

How the bytes lie on disk. A directory is a group; one whose ``attributes.json`` has the four below
is an array; that of the root has ``n5``, the version::

    dimensions   [columns, rows]     the axes in the other order than numpy's: the first one varies
    blockSize    [columns, rows]     fastest
    dataType     "uint8", "int64", "float32", …
    compression  {"type": "raw"}

Block (i, j) is the file ``i/j``, the axes in this order, too. All its numbers are big-endian::

    u16 mode, 0: default   u16 number of axes   u32 size along each   the values

A block at the end of an axis may be smaller than ``blockSize``; packio's are, tensorstore's are
not. A block that is not there is all zeros to others, an error to packio.

Sources: the specification, https://github.com/saalfeldlab/n5#file-system-specification (4.0.0),
checked against files that z5py 3.0.2 and tensorstore 0.1.86 wrote.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from packio.errors import NotAPackError
from packio.formats import Entry, _chunks_scan, _chunks_writer
from packio.formats._chunks import Array, Layout

if TYPE_CHECKING:
    import numpy as np

__all__ = ["EXTRA", "IS_DIRECTORY", "PACKAGE", "SUFFIXES", "Writer", "scan"]

SUFFIXES = (".n5",)
IS_DIRECTORY = True
PACKAGE = None
EXTRA = None

_VERSION = "4.0.0"
_LARGEST = 2**31 - 1 - 8  # bytes of a block with its header: they are Java's arrays
_TYPES = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float32",
          "float64")  # fmt: skip


def _array(shape: tuple[int, ...], block: tuple[int, ...], dtype: np.dtype) -> Array:
    return Array(shape, block, dtype.newbyteorder(">"), prefix="", separator="/", headers=True)


def _describe_group(attributes: dict[str, Any]) -> dict[str, Any]:
    return {"n5": _VERSION, **attributes}


def _describe_array(array: Array) -> dict[str, Any]:
    return {
        "dimensions": array.shape[::-1],
        "blockSize": array.block[::-1],
        "dataType": array.dtype.name,
        "compression": {"type": "raw"},
    }


def _parse_array(metadata: dict[str, Any], where: str) -> Array:
    if "dimensions" not in metadata:
        raise NotAPackError(f"{where} is a group; expected an array")
    compression = metadata.get("compression", metadata.get("compressionType"))
    kind = compression.get("type") if isinstance(compression, dict) else compression
    if kind != "raw":
        raise NotAPackError(
            f"{where} is compressed ({kind!r}), so its values are no byte ranges; "
            "write it with the compression 'raw'"
        )
    dtype = _chunks_scan.known_type(metadata.get("dataType"), _TYPES, where)
    shape, block = _chunks_scan.shapes(metadata.get("dimensions"), metadata.get("blockSize"), where)
    return _array(shape[::-1], block[::-1], dtype)


def _refuse(path: Path) -> None:
    if (path / "zarr.json").exists() or (path / ".zgroup").exists():
        raise NotAPackError(f"{path}/: is Zarr, not N5; name it .zarr")


_LAYOUT = Layout(
    container="n5",
    metadata="attributes.json",
    array=_array,
    describe_group=_describe_group,
    describe_array=_describe_array,
    parse_attributes=lambda metadata: metadata,
    parse_array=_parse_array,
    refuse=_refuse,
    largest=_LARGEST,
)


class Writer(_chunks_writer.Writer):
    """Write records into a new N5 container; the same records give the same bytes."""

    layout: ClassVar[Layout] = _LAYOUT


def scan(path: Path) -> Iterator[Entry]:
    """Yield an entry for every sample, in order.

    What others write is found if it has the arrays ``data`` and ``offsets``, not compressed, and no
    sample lies in two blocks.

    Raises:
        NotAPackError: there are no such arrays.
        IntegrityError: a block is missing or has the wrong size, or an array does not fit another.
        VersionError: written by a newer packio.
        ReadError: a file cannot be read.
    """
    return _chunks_scan.scan(path, _LAYOUT)
