"""Zarr, version 3: a directory tree of arrays, cut into chunks of one file each.

What packio writes: the arrays of `packio.formats.blobs.columns`, raw, cut as
`packio.formats.chunks.layout` says, and the attribute ``packio`` of the root, a text.

How the bytes lie on disk. Every group and every array is a directory with a ``zarr.json``. A
group's has ``zarr_format`` 3, ``node_type`` "group" and ``attributes``; an array's has, beside
``zarr_format`` and ``node_type`` "array"::

    shape               [rows, columns]   numpy's order, the last axis varies fastest
    data_type           "uint8", "int64", "float32", …
    chunk_grid          {"name": "regular", "configuration": {"chunk_shape": [rows, columns]}}
    chunk_key_encoding  {"name": "default", "configuration": {"separator": "/"}}
    codecs              [{"name": "bytes", "configuration": {"endian": "little"}}]
    fill_value          0

Chunk (i, j) is the file ``c/i/j``: the values and nothing else, always of the whole chunk; what
lies beyond the array is zeros. A chunk that is not there is all ``fill_value``. packio writes every
chunk, so in what packio wrote a missing chunk is an error. With the key encoding "v2" a chunk is
the file ``i.j``. Version 2 describes arrays in files ``.zarray``; packio reads it, and writes none.

Sources: the specification, https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html (3.1),
checked against files that zarr-python 3.1.6 and tensorstore 0.1.86 wrote.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from packio import registry
from packio.errors import NotAPackError
from packio.formats import Caps
from packio.formats.chunks import scanning
from packio.formats.chunks.arrays import ChunkedFormat
from packio.formats.chunks.layout import Array, ChunkLayout, ForeignArray

_TYPES = ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
          "float16", "float32", "float64")  # fmt: skip
_CODES_2 = ("b1", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8")
# What decompresses and nothing else: one of numcodecs' codecs loads pickles.
_CODECS_2 = ("zlib", "gzip", "bz2", "lzma", "blosc", "zstd", "lz4", "shuffle", "delta", "crc32",
             "crc32c", "adler32", "fletcher32")  # fmt: skip
_CODECS_3 = ("bytes", "transpose", "sharding_indexed", "gzip", "zstd", "blosc", "crc32c",
             *(f"numcodecs.{name}" for name in _CODECS_2))  # fmt: skip


def _names(codecs: Any) -> list[Any]:
    return [_named(codec)[0] for codec in codecs] if isinstance(codecs, list) else []


def _checked_codecs(codecs: Any, block: tuple[int, ...], where: str) -> tuple[int, ...]:
    """Check that codecs are known to run no code; return the shape of what is decoded at once."""
    names = _names(codecs)
    if not names or any(name not in _CODECS_3 for name in names):
        raise NotAPackError(
            f"{where} goes through the codecs {names}; expected some of {', '.join(_CODECS_3)}"
        )
    if "sharding_indexed" not in names:
        return block
    _, sharding = _named(codecs[names.index("sharding_indexed")])
    _, chunk = scanning.shapes(list(block), sharding.get("chunk_shape"), where)
    _checked_codecs(sharding.get("index_codecs"), chunk, where)
    return _checked_codecs(sharding.get("codecs"), chunk, where)


def _opened(version: int, folder: Path) -> Callable[[int, int], np.ndarray]:
    zarr = registry.require("zarr", "zarr")
    array = zarr.open_array(str(folder), mode="r", zarr_format=version)
    return lambda first, stop: np.asarray(array[first:stop])


def _named(value: Any) -> tuple[Any, dict[str, Any]]:
    """Name and configuration of an extension point; a name alone is a short form."""
    if not isinstance(value, dict):
        return value, {}
    configuration = value.get("configuration")
    return value.get("name"), configuration if isinstance(configuration, dict) else {}


def _fill(value: Any, dtype: np.dtype) -> float | None:
    """The value of chunks that are not there; None: the metadata tell no number of the type."""
    if not isinstance(value, (bool, int, float)) and value not in ("NaN", "Infinity", "-Infinity"):
        return None
    try:
        fill = float(value)
    except OverflowError:
        return None
    if dtype.kind not in "iu":
        return fill
    limits = np.iinfo(dtype)
    return fill if limits.min <= fill <= limits.max else None


def _key_encoding(value: Any, where: str) -> tuple[str, str]:
    name, configuration = _named(value)
    separator = configuration.get("separator", "." if name == "v2" else "/")
    if name not in ("default", "v2") or separator not in ("/", "."):
        raise NotAPackError(f"{where} names its chunks by {value!r}, which packio does not know")
    return ("" if name == "v2" else f"c{separator}"), separator


class _Zarr3Layout(ChunkLayout):
    container, metadata = "zarr", "zarr.json"

    def array(self, shape: tuple[int, ...], block: tuple[int, ...], dtype: np.dtype) -> Array:
        little = dtype.newbyteorder("<")
        return Array(shape, block, little, prefix="c/", separator="/", headers=False)

    def describe_group(self, attributes: dict[str, Any]) -> dict[str, Any]:
        return {"zarr_format": 3, "node_type": "group", "attributes": attributes}

    def describe_array(self, array: Array) -> dict[str, Any]:
        little = {"configuration": {"endian": "little"}} if array.dtype.itemsize > 1 else {}
        return {
            "zarr_format": 3, "node_type": "array", "attributes": {},
            "shape": array.shape, "data_type": array.dtype.name,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": array.block}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "codecs": [{"name": "bytes", **little}],
            "fill_value": 0.0 if array.dtype.kind == "f" else 0,
        }  # fmt: skip

    def is_array(self, metadata: Mapping[str, Any]) -> bool:
        return metadata.get("node_type") == "array"

    def parse_array(self, metadata: dict[str, Any], where: str) -> ForeignArray:
        if metadata.get("zarr_format") != 3:
            found = metadata.get("zarr_format")
            raise NotAPackError(f"{where} is an array of the Zarr format {found!r}; expected 3")
        dtype = scanning.parse_dtype(metadata.get("data_type"), _TYPES, where)
        grid, extensions = _named(metadata.get("chunk_grid")), metadata.get("storage_transformers")
        if grid[0] != "regular" or extensions:
            raise NotAPackError(f"{where} has a chunk grid {grid[0]!r}; expected 'regular'")
        shape, block = scanning.shapes(metadata.get("shape"), grid[1].get("chunk_shape"), where)
        prefix, separator = _key_encoding(metadata.get("chunk_key_encoding"), where)
        codecs: Any = metadata.get("codecs")
        fill = _fill(metadata.get("fill_value"), dtype)
        array = Array(shape, block, dtype, prefix, separator, headers=False, fill=fill)
        if _names(codecs) == ["bytes"]:
            order = _named(codecs[0])[1].get("endian")
            if order not in ("little", "big") and dtype.itemsize > 1:
                raise NotAPackError(f"{where} does not say the byte order of its {dtype} values")
            dtype = dtype.newbyteorder(">" if order == "big" else "<")
            return ForeignArray(array._replace(dtype=dtype), block)
        chunk = _checked_codecs(codecs, block, where)
        otherwise = (
            f"goes through the codecs {_names(codecs)}, so its values are no byte ranges; write it "
            "with compressors=None, without shards or other filters"
        )
        return ForeignArray(array, chunk, otherwise, library=functools.partial(_opened, 3))


class _Zarr2Layout(_Zarr3Layout):
    """Version 2, which packio only reads.

    Source: https://zarr-specs.readthedocs.io/en/latest/v2/v2.0.html
    """

    metadata = ".zarray"

    def is_array(self, metadata: Mapping[str, Any]) -> bool:
        return True

    def parse_array(self, metadata: dict[str, Any], where: str) -> ForeignArray:
        code, separator = metadata.get("dtype"), metadata.get("dimension_separator", ".")
        known = isinstance(code, str) and code[:1] in ("<", ">", "|") and code[1:] in _CODES_2
        if not known or separator not in (".", "/"):
            raise NotAPackError(f"{where} has values of type {code!r}; expected one of {_CODES_2}")
        shape, block = scanning.shapes(metadata.get("shape"), metadata.get("chunks"), where)
        dtype = np.dtype(code)
        fill = _fill(metadata.get("fill_value"), dtype)
        array = Array(shape, block, dtype, "", separator, headers=False, fill=fill)
        filters = metadata.get("filters") or []
        steps = [*(filters if isinstance(filters, list) else [filters]), metadata.get("compressor")]
        names = [s.get("id") if isinstance(s, dict) else s for s in steps if s is not None]
        if any(name not in _CODECS_2 for name in names):
            raise NotAPackError(
                f"{where} goes through the codecs {names}; expected some of {', '.join(_CODECS_2)}"
            )
        if not names and metadata.get("order") == "C":
            return ForeignArray(array, block)
        otherwise = (
            "is compressed, filtered or not in C order, so its values are no byte ranges; write it "
            "with compressor=None"
        )
        return ForeignArray(array, block, otherwise, library=functools.partial(_opened, 2))


class Zarr(ChunkedFormat):
    """Zarr groups of version 3, and of version 2 for reading."""

    caps: Caps = Caps(
        suffixes=(".zarr",), is_directory=True, reads_by_library=True, spooled=True,
        keeps=frozenset(("key", "label", "meta", "boxes")),
    )  # fmt: skip
    marks = frozenset((b"zarr.json", b".zgroup", b".zarray"))

    def layout(self, path: Path) -> ChunkLayout:
        """How a group is written: in version 2 if that has left its files, else in version 3."""
        marks = (".zgroup", ".zarray", ".zattrs", ".zmetadata")
        is_old = any((path / name).exists() for name in marks) or any(path.glob("*/.zarray"))
        return _Zarr2Layout() if is_old and not (path / "zarr.json").exists() else _Zarr3Layout()


FORMAT = Zarr()
