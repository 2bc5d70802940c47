"""Zarr, version 3: a directory tree of arrays, cut into chunks of one file each.

What packio writes: the arrays of `packio.formats._blob_columns`, raw, cut as
`packio.formats._chunks` says, and the attribute ``packio`` of the root, a text.

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
to packio. With the key encoding "v2" it would be ``i.j``.

Sources: the specification, https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html (3.1),
checked against files that zarr-python 3.1.6 and tensorstore 0.1.86 wrote.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from packio.errors import NotAPackError
from packio.formats import Entry, _chunks_scan, _chunks_writer
from packio.formats._chunks import Array, Layout

if TYPE_CHECKING:
    import numpy as np

__all__ = ["EXTRA", "IS_DIRECTORY", "PACKAGE", "SUFFIXES", "Writer", "scan"]

SUFFIXES = (".zarr",)
IS_DIRECTORY = True
PACKAGE = None
EXTRA = None

_TYPES = ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
          "float16", "float32", "float64")  # fmt: skip


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
    dtype = _chunks_scan.known_type(metadata.get("data_type"), _TYPES, where)
    dtype = dtype.newbyteorder(_byte_order(metadata.get("codecs"), dtype, where))
    grid, extensions = _named(metadata.get("chunk_grid")), metadata.get("storage_transformers")
    if grid[0] != "regular" or extensions:
        raise NotAPackError(f"{where} has a chunk grid {grid[0]!r}; expected 'regular'")
    shape, block = _chunks_scan.shapes(metadata.get("shape"), grid[1].get("chunk_shape"), where)
    prefix, separator = _key_encoding(metadata.get("chunk_key_encoding"), where)
    return Array(shape, block, dtype, prefix, separator, headers=False)


def _named(value: Any) -> tuple[Any, dict[str, Any]]:
    """Name and configuration of an extension point; a name alone is a short form."""
    if not isinstance(value, dict):
        return value, {}
    configuration = value.get("configuration")
    return value.get("name"), configuration if isinstance(configuration, dict) else {}


def _byte_order(codecs: Any, dtype: np.dtype, where: str) -> Literal["<", ">"]:
    steps = [_named(codec) for codec in codecs] if isinstance(codecs, list) else []
    names = [name for name, _ in steps]
    if names != ["bytes"]:
        raise NotAPackError(
            f"{where} goes through the codecs {names}, so its values are no byte ranges; "
            "write it with compressors=None, without shards or other filters"
        )
    order = steps[0][1].get("endian")
    if order not in ("little", "big") and dtype.itemsize > 1:
        raise NotAPackError(f"{where} does not say the byte order of its {dtype} values")
    return ">" if order == "big" else "<"


def _key_encoding(value: Any, where: str) -> tuple[str, str]:
    name, configuration = _named(value)
    separator = configuration.get("separator", "." if name == "v2" else "/")
    if name not in ("default", "v2") or separator not in ("/", "."):
        raise NotAPackError(f"{where} names its chunks by {value!r}, which packio does not know")
    return ("" if name == "v2" else f"c{separator}"), separator


def _refuse(path: Path) -> None:
    """Refuse Zarr of version 2, whose metadata have other names."""
    for folder in (path, path / "data"):
        for name in (".zgroup", ".zarray"):
            if (folder / name).exists():
                raise NotAPackError(
                    f"{folder}/: Zarr of version 2, packio reads version 3; migrate it with "
                    "`zarr migrate v3`, or write it with zarr_format=3"
                )


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
    refuse=_refuse,
    largest=2**62,
)


class Writer(_chunks_writer.Writer):
    """Write records into a new Zarr group; the same records give the same bytes."""

    layout: ClassVar[Layout] = _LAYOUT


def scan(path: Path) -> Iterator[Entry]:
    """Yield an entry for every sample, in order.

    What others write is found if it has the arrays ``data`` and ``offsets``, neither compressed nor
    sharded, and no sample lies in two chunks.

    Raises:
        NotAPackError: there are no such arrays.
        IntegrityError: a chunk is missing or has the wrong size, or an array does not fit another.
        VersionError: written by a newer packio.
        ReadError: a file cannot be read.
    """
    return _chunks_scan.scan(path, _LAYOUT)
