"""N5: a directory tree of arrays, cut into blocks of one file each.

What packio writes: the arrays of `packio.formats.blobs.columns`, raw, cut as
`packio.formats.chunks.layout` says, and the attribute ``packio`` of the root, a text. Raw pixels
are an array of them only if they are uint8: wider numbers would have their bytes in the other
order.

How the bytes lie on disk. A directory is a group; one whose ``attributes.json`` has the four below
is an array; that of the root has ``n5``, the version::

    dimensions   [columns, rows]     the axes in the other order than numpy's: the first one varies
    blockSize    [columns, rows]     fastest
    dataType     "uint8", "int64", "float32", …
    compression  {"type": "raw"}

Block (i, j) is the file ``i/j``, the axes in this order, too. All its numbers are big-endian::

    u16 mode, 0: default   u16 number of axes   u32 size along each   the values

Compressed blocks (``gzip``, ``bzip2``, ``xz``, ``blosc``, ``zstd``) have their values compressed,
not their header; packio reads them, and writes none.

A block at the end of an axis may be smaller than ``blockSize``; packio's are, tensorstore's are
not. A block that is not there is all zeros. packio writes every block, so in what packio wrote a
missing block is an error.

Sources: the specification, https://github.com/saalfeldlab/n5#file-system-specification (4.0.0),
checked against files that z5py 3.0.2 and tensorstore 0.1.86 wrote.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packio import registry
from packio.errors import NotAPackError
from packio.formats import Caps
from packio.formats.chunks import scanning
from packio.formats.chunks.arrays import ChunkedFormat
from packio.formats.chunks.layout import Array, ChunkLayout, ForeignArray

if TYPE_CHECKING:
    import numpy as np

_VERSION = "4.0.0"
_LARGEST = 2**31 - 1 - 8  # bytes of a block with its header: they are Java's arrays
_MOST_XZ = 256 << 20  # bytes of memory to decompress with; xz -9 asks for 65 MiB
_TYPES = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float32",
          "float64")  # fmt: skip


def _by_numcodecs(name: str) -> Callable[[bytes, int], bytes]:
    def decode(content: bytes, size: int) -> bytes:
        codec = registry.require("numcodecs", "zarr").get_codec({"id": name})
        values = bytearray(size)
        codec.decode(content, out=values)  # which it does not overrun
        return bytes(values)

    return decode


_DECODERS: dict[str, Callable[[bytes, int], bytes]] = {
    "gzip": lambda content, size:  # or zlib, as it begins
        zlib.decompressobj(47).decompress(content, size + 1),
    "bzip2": lambda content, size: bz2.BZ2Decompressor().decompress(content, size + 1),
    "xz": lambda content, size:
        lzma.LZMADecompressor(memlimit=_MOST_XZ).decompress(content, size + 1),
    "blosc": _by_numcodecs("blosc"), "zstd": _by_numcodecs("zstd"),
}  # fmt: skip


class _N5Layout(ChunkLayout):
    container, metadata, largest = "n5", "attributes.json", _LARGEST

    def array(self, shape: tuple[int, ...], block: tuple[int, ...], dtype: np.dtype) -> Array:
        return Array(shape, block, dtype.newbyteorder(">"), prefix="", separator="/", headers=True)

    def describe_group(self, attributes: dict[str, Any]) -> dict[str, Any]:
        return {"n5": _VERSION, **attributes}

    def describe_array(self, array: Array) -> dict[str, Any]:
        return {
            "dimensions": array.shape[::-1], "blockSize": array.block[::-1],
            "dataType": array.dtype.name, "compression": {"type": "raw"},
        }  # fmt: skip

    def attributes(self, metadata: dict[str, Any]) -> Any:
        return metadata

    def is_array(self, metadata: Mapping[str, Any]) -> bool:
        return "dimensions" in metadata

    def parse_array(self, metadata: dict[str, Any], where: str) -> ForeignArray:
        compression = metadata.get("compression", metadata.get("compressionType"))
        if isinstance(compression, dict):
            compression = compression.get("type")
        dtype = scanning.parse_dtype(metadata.get("dataType"), _TYPES, where)
        shape, block = scanning.shapes(metadata.get("dimensions"), metadata.get("blockSize"), where)
        array = self.array(shape[::-1], block[::-1], dtype)._replace(fill=0)
        if compression == "raw":
            return ForeignArray(array, array.block)
        decode = _DECODERS.get(compression) if isinstance(compression, str) else None
        if decode is None:
            raise NotAPackError(
                f"{where} is compressed ({compression!r}); expected raw, {', '.join(_DECODERS)}"
            )
        otherwise = (
            f"is compressed ({compression!r}), so its values are no byte ranges; write it with the "
            "compression 'raw'"
        )
        return ForeignArray(array, array.block, otherwise, decode)


class N5(ChunkedFormat):
    """N5 containers; blocks are raw or compressed by gzip, bzip2, xz, blosc or zstd."""

    caps: Caps = Caps(
        suffixes=(".n5",), is_directory=True, reads_by_library=True, spooled=True,
        keeps=frozenset(("key", "label", "meta", "boxes")),
    )  # fmt: skip
    marks = frozenset((b"attributes.json",))

    def layout(self, path: Path) -> ChunkLayout:
        if (path / "zarr.json").exists() or (path / ".zgroup").exists():
            raise NotAPackError(f"{path}/: is Zarr, not N5; name it .zarr")
        return _N5Layout()


FORMAT = N5()
