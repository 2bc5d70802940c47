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
lies beyond the array is zeros. A chunk that is not there is all ``fill_value`` to others, an error
to packio. With the key encoding "v2" it would be ``i.j``. Version 2 describes arrays in files
``.zarray``; packio reads it, and writes none.

Sources: the specification, https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html (3.1),
checked against files that zarr-python 3.1.6 and tensorstore 0.1.86 wrote.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from packio import registry
from packio.errors import NotAPackError
from packio.formats import Entry
from packio.formats.chunks import arrays, scanning, writing
from packio.formats.chunks.arrays import Kind, Stored
from packio.formats.chunks.layout import Array, Layout

__all__ = ["EXTRA", "IS_DIRECTORY", "PACKAGE", "SUFFIXES", "Reader", "Writer", "scan"]

SUFFIXES = (".zarr",)
IS_DIRECTORY = True
PACKAGE = None
EXTRA = None

_TYPES = ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
          "float16", "float32", "float64")  # fmt: skip
_CODES_2 = ("b1", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8")
# What decompresses and nothing else: one of numcodecs' codecs loads pickles.
_CODECS_2 = ("zlib", "gzip", "bz2", "lzma", "blosc", "zstd", "lz4", "shuffle", "delta", "crc32",
             "crc32c", "adler32", "fletcher32")  # fmt: skip
_CODECS_3 = ("bytes", "transpose", "sharding_indexed", "gzip", "zstd", "blosc", "crc32c",
             *(f"numcodecs.{name}" for name in _CODECS_2))  # fmt: skip


def _array(shape: tuple[int, ...], block: tuple[int, ...], dtype: np.dtype) -> Array:
    return Array(shape, block, dtype.newbyteorder("<"), prefix="c/", separator="/", headers=False)


def _describe_group(attributes: dict[str, Any]) -> dict[str, Any]:
    return {"zarr_format": 3, "node_type": "group", "attributes": attributes}


def _describe_array(array: Array) -> dict[str, Any]:
    little = {"configuration": {"endian": "little"}} if array.dtype.itemsize > 1 else {}
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": array.shape,
        "data_type": array.dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": array.block}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [{"name": "bytes", **little}],
        "fill_value": 0.0 if array.dtype.kind == "f" else 0,
        "attributes": {},
    }


def _parse_array(metadata: dict[str, Any], where: str) -> Array:
    if metadata.get("zarr_format") != 3 or metadata.get("node_type") != "array":
        raise NotAPackError(
            f"{where} is a {metadata.get('node_type')!r} of the Zarr format "
            f"{metadata.get('zarr_format')!r}; expected an array of format 3"
        )
    return _describe(metadata, where).plain(
        f"{where} goes through the codecs {_names(metadata.get('codecs'))}, so its values are "
        "no byte ranges; write it with compressors=None, without shards or other filters"
    )


def _describe(metadata: dict[str, Any], where: str) -> Stored:
    """Describe an array of version 3."""
    dtype = scanning.known_type(metadata.get("data_type"), _TYPES, where)
    grid, extensions = _named(metadata.get("chunk_grid")), metadata.get("storage_transformers")
    if grid[0] != "regular" or extensions:
        raise NotAPackError(f"{where} has a chunk grid {grid[0]!r}; expected 'regular'")
    shape, block = scanning.shapes(metadata.get("shape"), grid[1].get("chunk_shape"), where)
    prefix, separator = _key_encoding(metadata.get("chunk_key_encoding"), where)
    codecs = metadata.get("codecs")
    array = Array(shape, block, dtype, prefix, separator, headers=False)
    if _names(codecs) == ["bytes"]:
        order = _byte_order(codecs, dtype, where)
        return Stored(array._replace(dtype=dtype.newbyteorder(order)), block)
    chunk = _checked_codecs(codecs, block, where)
    return Stored(array, chunk, library=functools.partial(_opened, 3))


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


def _describe_2(metadata: dict[str, Any], where: str) -> Stored:
    """Describe an array of version 2.

    Source: https://zarr-specs.readthedocs.io/en/latest/v2/v2.0.html
    """
    code, separator = metadata.get("dtype"), metadata.get("dimension_separator", ".")
    known = isinstance(code, str) and code[:1] in ("<", ">", "|") and code[1:] in _CODES_2
    if not known or separator not in (".", "/"):
        raise NotAPackError(f"{where} has values of type {code!r}; expected one of {_CODES_2}")
    shape, block = scanning.shapes(metadata.get("shape"), metadata.get("chunks"), where)
    array = Array(shape, block, np.dtype(code), prefix="", separator=separator, headers=False)
    filters = metadata.get("filters") or []
    steps = [*(filters if isinstance(filters, list) else [filters]), metadata.get("compressor")]
    names = [s.get("id") if isinstance(s, dict) else s for s in steps if s is not None]
    if any(name not in _CODECS_2 for name in names):
        raise NotAPackError(
            f"{where} goes through the codecs {names}; expected some of {', '.join(_CODECS_2)}"
        )
    if not names and metadata.get("order") == "C":
        return Stored(array, block)
    return Stored(array, block, library=functools.partial(_opened, 2))


def _parse_array_2(metadata: dict[str, Any], where: str) -> Array:
    return _describe_2(metadata, where).plain(
        f"{where} is compressed, filtered or not in C order, so its values are no byte ranges; "
        "write it with compressor=None"
    )


def _opened(version: int, folder: Path) -> Callable[[int, int], np.ndarray]:
    """Open an array by zarr-python; its codecs have been checked."""
    zarr = registry.require("zarr")
    array = zarr.open_array(str(folder), mode="r", zarr_format=version)
    return lambda first, stop: np.asarray(array[first:stop])


def _named(value: Any) -> tuple[Any, dict[str, Any]]:
    """Name and configuration of an extension point; a name alone is a short form."""
    if not isinstance(value, dict):
        return value, {}
    configuration = value.get("configuration")
    return value.get("name"), configuration if isinstance(configuration, dict) else {}


def _byte_order(codecs: Any, dtype: np.dtype, where: str) -> Literal["<", ">"]:
    order = _named(codecs[0])[1].get("endian")
    if order not in ("little", "big") and dtype.itemsize > 1:
        raise NotAPackError(f"{where} does not say the byte order of its {dtype} values")
    return ">" if order == "big" else "<"


def _key_encoding(value: Any, where: str) -> tuple[str, str]:
    name, configuration = _named(value)
    separator = configuration.get("separator", "." if name == "v2" else "/")
    if name not in ("default", "v2") or separator not in ("/", "."):
        raise NotAPackError(f"{where} names its chunks by {value!r}, which packio does not know")
    return ("" if name == "v2" else f"c{separator}"), separator


def _attributes(metadata: dict[str, Any]) -> Any:
    return metadata.get("attributes", {})


_LAYOUT = Layout(
    container="zarr",
    metadata="zarr.json",
    array=_array,
    describe_group=_describe_group,
    describe_array=_describe_array,
    parse_attributes=_attributes,
    parse_array=_parse_array,
    refuse=lambda _: None,
    largest=2**62,
)
_KIND = Kind(_LAYOUT, lambda metadata: metadata.get("node_type") == "array", _describe)
_KIND_2 = Kind(
    _LAYOUT._replace(metadata=".zarray", parse_array=_parse_array_2), lambda _: True, _describe_2
)


def _kind(path: Path) -> Kind:
    """Tell which version a directory is of."""
    marks = (".zgroup", ".zarray", ".zattrs", ".zmetadata")
    is_old = any((path / name).exists() for name in marks) or any(path.glob("*/.zarray"))
    return _KIND_2 if is_old and not (path / "zarr.json").exists() else _KIND


class Writer(writing.Writer):
    """Write records into a new Zarr group; the same records give the same bytes."""

    layout: ClassVar[Layout] = _LAYOUT


class Reader(arrays.Reader):
    """Read arrays of pixels that are compressed, or whose chunks are cut across images."""

    def kind(self) -> Kind:
        """What the container is."""
        return _kind(self.path)


def scan(
    path: Path, *, image: str | None = None, label: str | None = None, layout: str = ""
) -> Iterator[Entry]:
    """Yield an entry for every sample, in order.

    What others write, in version 2 or 3, is found if it has the arrays ``data`` and ``offsets``,
    neither compressed nor sharded, and no sample lies in two chunks; or an array of pixels
    (`packio.formats.blobs.pixels`), however it is cut and whichever of zarr-python's codecs it went
    through. Labels are an array of a usual name beside it.

    Args:
        path: The directory: a group, or one array.
        image: Path within it of the array of pixels.
        label: Path within it of the labels; "" takes none.
        layout: Order of pixels; see `packio.formats.blobs.pixels`.

    Raises:
        NotAPackError: there are no such arrays.
        IntegrityError: a chunk is missing or has the wrong size, or an array does not fit another.
        OptionError: there is nothing of a name given.
        VersionError: written by a newer packio.
        ReadError: a file cannot be read.
        MissingPackageError: zarr does not load, which compressed labels need.
    """
    return arrays.scan(path, _kind(path), image, label, layout)
