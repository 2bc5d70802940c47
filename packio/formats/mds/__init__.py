"""MDS, version 2: shards of MosaicML's streaming; packio reads them and does not write them.

How the bytes lie on disk, numbers little-endian. A shard, ``shard.00000.mds`` ::

    u32 n   u32 offsets[n + 1]   config (JSON)   samples

The offsets count from the beginning of the file. Sample i begins at ``offsets[i]`` and ends at
``offsets[i + 1]``; the last offset is the size of the file. The config lies between the offsets and
the first sample. The config has ``version`` 2, ``format`` "mds", and three lists of the same
length: ``column_names``, ``column_encodings`` and ``column_sizes`` (bytes; null if samples differ).
A sample is a u32 size for each column of size null, then the values of all columns, in the order of
the config. Encodings: ``jpeg``, ``png`` and ``bytes`` are the value itself, ``str`` is UTF-8,
``int`` an int64, ``uint8`` … ``int64`` such integers, ``str_int`` digits, ``json`` JSON;
``ndarray:DTYPE:SHAPE`` is the numbers of an array, one after the other.

The folder has an ``index.json`` that lists the shards: ``raw_data`` has ``basename`` and ``bytes``
of the file, ``zip_data`` has both of the compressed file, or is null.

The image is in a column of ``jpeg`` or ``png``, else in a column of ``bytes`` that begin as an
image does. If several columns fit, packio takes the column with a usual name, as ``image``. Label
(integers), key (``str``), mask and metadata (``json``) are in columns of usual names, which
`packio.formats.mds.shard` lists. Every other column is a field of its name: an image (``jpeg``,
``png``), text (``str``, ``json``, ``str_…``), else the bytes as they lie there. Pickles stay bytes.

Source: https://github.com/mosaicml/streaming, streaming/base/format/mds/writer.py and encodings.py,
checked against shards that mosaicml-streaming 0.13.0 wrote.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from packio.errors import IntegrityError, NotAPackError, ReadError
from packio.formats import Caps, Format, Reading, check_reading
from packio.formats.blobs.ranges import opened, refuse_compressed
from packio.formats.mds.shard import Shard
from packio.sample.record import Place, Record
from packio.system import files

INDEX_NAME = "index.json"


class Mds(Format):
    """Shards of MosaicML's streaming, and folders of shards with ``index.json``."""

    caps: Caps = Caps(
        (".mds",), writes=False, keeps=frozenset(("key", "label", "meta")), at_urls=True
    )

    def shards(self, names: Sequence[str], content: Callable[[str], bytes | None]) -> Sequence[str]:
        """The shards that ``index.json`` lists; without it, all that are there."""
        index = content(INDEX_NAME)
        if index is None:
            return names
        listed = [
            _facts(one, f"{INDEX_NAME}: shard {i}")[0]
            for i, one in enumerate(_shards_of(index, INDEX_NAME))
        ]
        if missing := sorted({*listed} - {*names}):
            raise IntegrityError(f"{missing[0]}: is not there, but {INDEX_NAME} lists it")
        return listed

    def scan(self, path: Path, reading: Reading) -> Iterator[Record[Place]]:
        """Yield every sample of a shard, or of all shards of a folder, in order.

        Args:
            path: A shard, or a folder with ``index.json``. Names of files are relative to the
                folder.
        """
        check_reading(path, reading, "label")
        if not path.is_dir():
            refuse_compressed(path)
            yield from _records(path, path.name, 0, None, reading.label)
            return
        first = 0
        for number, listed in enumerate(_listed(path)):
            where = f"{path / INDEX_NAME}: shard {number}"
            name, size, count = _facts(listed, where)
            shard = path / name
            if not shard.exists():
                _refuse_zipped(path, listed, shard)
            yield from _records(shard, name, first, (size, count), reading.label)
            first += count


FORMAT = Mds()


def _records(
    path: Path, name: str, first: int, expected: tuple[int, int] | None, label: str | None
) -> Iterator[Record[Place]]:
    with opened(path) as file:
        shard = Shard(file, label)
        found = file.size, shard.count
        if expected is not None and found != expected:
            raise IntegrityError(
                f"{path}: has {found[0]} bytes and {found[1]} samples, {INDEX_NAME} says "
                f"{expected[0]} and {expected[1]}; restore it"
            )
        for i in range(shard.count):
            yield shard.record(i, b"%d" % (first + i), name)


def _listed(folder: Path) -> list[Any]:
    """Read the list of shards from a folder's index."""
    path = folder / INDEX_NAME
    try:
        content = files.content(path)
    except FileNotFoundError:
        raise NotAPackError(f"{folder}/: no {INDEX_NAME} in it; not a folder of MDS") from None
    except OSError as error:
        raise ReadError(f"{path}: cannot be read: {error.strerror}") from error
    return _shards_of(content, path)


def _shards_of(content: bytes, path: object) -> list[Any]:
    """The list of shards in the bytes of a folder's index."""
    try:
        index = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{path}: no JSON: {error}") from error
    if not isinstance(index, dict) or not isinstance(index.get("shards"), list):
        raise NotAPackError(f"{path}: lists no shards; not the index of a folder of MDS")
    return list(index["shards"])


def _facts(listed: Any, where: str) -> tuple[str, int, int]:
    """Name, bytes and samples of a shard that the index lists."""
    if not isinstance(listed, dict) or (listed.get("version"), listed.get("format")) != (2, "mds"):
        raise NotAPackError(f"{where} is not of format mds, version 2")
    raw = listed.get("raw_data")
    raw = raw if isinstance(raw, dict) else {}
    name, size, count = raw.get("basename"), raw.get("bytes"), listed.get("samples")
    if not isinstance(name, str) or type(size) is not int or type(count) is not int:
        raise IntegrityError(f"{where} has no basename, bytes and samples; restore it")
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\0" in name:
        raise IntegrityError(f"{where} is {name!r}, which is not within the folder")
    return name, size, count


def _refuse_zipped(folder: Path, listed: Any, shard: Path) -> None:
    zipped = listed.get("zip_data")
    name = zipped.get("basename") if isinstance(zipped, dict) else None
    if isinstance(name, str):
        refuse_compressed(folder / name)
    raise ReadError(f"{shard}: is not there, but {INDEX_NAME} lists it")
