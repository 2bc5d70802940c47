"""MDS, version 2: shards of MosaicML's streaming; packio reads them and does not write them.

How the bytes lie on disk, numbers little-endian. A shard, ``shard.00000.mds`` ::

    u32 n   u32 offsets[n + 1]   config (JSON)   samples

The offsets count from the beginning of the file: sample i is ``offsets[i]`` up to
``offsets[i + 1]``, the last is the size of the file, and the config lies between the offsets and
the first sample. It has ``version`` 2, ``format`` "mds", and of the same length ``column_names``,
``column_encodings`` and ``column_sizes``: bytes, or null where they differ between samples. A
sample is a u32 size for each column of the latter, then the values of all columns, in the order of
the config. Encodings: ``jpeg``, ``png`` and ``bytes`` as they are, ``str`` UTF-8, ``int`` an int64,
``uint8`` … ``int64`` such integers, ``str_int`` digits, ``json``; others are passed over.

The folder has an ``index.json`` that lists its shards: ``raw_data`` is the file's ``basename`` and
``bytes``, ``zip_data`` the same of the compressed file, or null.

The image is in a column of ``jpeg`` or ``png``, else of ``bytes`` that begin as an image does; of
several in the one called image or so. Label (of integers), key (``str``), mask and metadata
(``json``) are in columns called so, as `packio.formats.mds.shard` lists; others are passed over.
What is pickled is never read.

Source: https://github.com/mosaicml/streaming, streaming/base/format/mds/writer.py and encodings.py,
checked against shards that mosaicml-streaming 0.13.0 wrote.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from packio.errors import IntegrityError, NotAPackError, ReadError
from packio.formats import Caps, Format, Reading, check_reading
from packio.formats.mds.shard import Columns, Shard
from packio.sample.record import Place, Record

INDEX_NAME = "index.json"

_UNPACK = {
    "zstd": "zstd -d {0} -o {1}",
    "gz": "gunzip -c {0} > {1}",
    "bz2": "bunzip2 -c {0} > {1}",
    "br": "brotli -d {0} -o {1}",
    "snappy": "python3 -m snappy -d {0} {1}",
}  # suffix of a compressed shard → what unpacks it


class Mds(Format):
    """Shards of MosaicML's streaming, and folders of shards with ``index.json``."""

    caps = Caps((".mds",), writes=False, keeps=frozenset(("key", "label", "meta")))

    def scan(self, path: Path, reading: Reading) -> Iterator[Record[Place]]:
        """Yield every sample of a shard, or of all shards of a folder, in order.

        Args:
            path: A shard, or a folder with ``index.json``; files are told relative to the folder.
            reading: Nothing can be named.

        Raises:
            NotAPackError: no MDS shard, a compressed one, or one without images.
            IntegrityError: the file is damaged, or not what ``index.json`` says.
            ReadError: a file cannot be read.
        """
        check_reading(path, reading)
        if not path.is_dir():
            _refuse_compressed(path)
            yield from _records(path, path.name, 0, None)
            return
        first = 0
        for number, listed in enumerate(_listed(path)):
            where = f"{path / INDEX_NAME}: shard {number}"
            name, size, count = _facts(listed, where)
            shard = path / name
            if not shard.exists():
                _refuse_zipped(path, listed, shard)
            yield from _records(shard, name, first, (size, count))
            first += count


FORMAT = Mds()


def _records(
    path: Path, name: str, first: int, expected: tuple[int, int] | None
) -> Iterator[Record[Place]]:
    with Shard(path) as shard:
        found = shard.size, shard.count
        if expected is not None and found != expected:
            raise IntegrityError(
                f"{path}: has {found[0]} bytes and {found[1]} samples, {INDEX_NAME} says "
                f"{expected[0]} and {expected[1]}; restore it"
            )
        columns = Columns(shard)
        for i in range(shard.count):
            yield columns.record(i, b"%d" % (first + i), name)


def _listed(folder: Path) -> list[Any]:
    """Read the list of shards from a folder's index."""
    path = folder / INDEX_NAME
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise NotAPackError(f"{folder}/: no {INDEX_NAME} in it; not a folder of MDS") from None
    except OSError as error:
        raise ReadError(f"{path}: cannot be read: {error.strerror}") from error
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
        _refuse_compressed(folder / name)
    raise ReadError(f"{shard}: is not there, but {INDEX_NAME} lists it")


def _refuse_compressed(path: Path) -> None:
    command = _UNPACK.get(path.suffix[1:])
    if command is not None:
        names = (shlex.quote(os.fspath(p)) for p in (path, path.with_suffix("")))
        raise NotAPackError(
            f"{path}: compressed as a whole, so its samples cannot be read one by one; unpack it "
            f"and all beside it: "
            f"{command.format(*names)}"
        )
