"""tar: an archive of ordinary files, laid out as WebDataset has it, without compression.

What packio writes: record number i has the name ``%08d`` of i (more digits if the count needs
them), and a few members one after the other, in the order of their suffixes:

* ``.jpg .png .webp .bmp .gif .tif .ppm .jp2 .avif``: the image; ``.img`` if nobody knows what;
* ``.cls``: the label in ASCII digits, if it is an int;
* ``.json``: one object: ``key``, the path in the source (``key_base64`` if that is not UTF-8); and
  where there are any, ``label``, a vector of numbers; ``boxes``, ``[x1, y1, x2, y2]`` in pixels
  each; ``box_labels``; ``meta``, an object;
* ``.mask.png`` and so on: the mask.

``OUT.idx`` beside it is DALI's index: ``v1.2`` and the number of samples; then a line a sample:
suffix, position of the content, size and name of each member. A pack of several shards also gets
``shardindex.json`` (wids) and ``_info.json`` (timm; the split has the name of the shards' stem).

How the bytes lie on disk: a member is a header of 512 bytes, and its content, filled up with zeros
to a multiple of 512 bytes; after the last member come zeros, 1,024 bytes at least. The header, all
fields ASCII, numbers octal and closed by NUL or space::

    0 name 100   100 mode 8   108 user 8   116 group 8   124 size 12   136 time 12   148 checksum 8
    156 kind 1   157 link 100   257 "ustar" NUL "00"   265 names of user and group   345 prefix 155

The name is ``prefix/name`` where there is a prefix. The checksum is the sum of the header's bytes,
its own eight counted as spaces. Kinds: 0 or NUL file, 5 directory, 1 and 2 links; x and g: the
content is further fields of the next member or of all, ``length name=value<LF>`` each (pax); L: the
content is the name of the next member (GNU). packio writes USTAR: kind 0 only, mode 0444, all else
that could differ zero.

Sources: POSIX.1-2017, pax, "ustar Interchange Format" and "pax Extended Header"; GNU tar manual,
"Basic Tar Format"; WebDataset (https://github.com/webdataset/webdataset), ``tariterators.py``; DALI
(https://github.com/NVIDIA/DALI), ``tools/wds2idx.py``; wids of webdataset 0.2.111; timm,
``reader_wds.py``.
"""

from __future__ import annotations

import base64
import json
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packio.errors import OutputError
from packio.formats import Ranges, Written
from packio.formats.blobs.append_only import Output, write_whole
from packio.formats.tar.samples import scan
from packio.images import encodings
from packio.index.indexfile import canonical_json
from packio.sample.record import Field, Record

__all__ = ["EXTRA", "IS_DIRECTORY", "PACKAGE", "SUFFIXES", "Writer", "finish", "scan"]

SUFFIXES = (".tar",)
IS_DIRECTORY = False
PACKAGE = None
EXTRA = None

WIDS_NAME = "shardindex.json"
TIMM_NAME = "_info.json"

_BLOCK = 512
_END = bytes(2 * _BLOCK)
_RECORD = 20 * _BLOCK  # archives are filled up to a multiple of it
_MOST_BYTES = 1 << 33  # of one member, exclusive: 11 octal digits
# mode, user, group; behind size, time and checksum: kind, link, magic, names, devices, prefix
_OWNER = b"0000444\0" + b"0000000\0" * 2
_FILE = b"0" + bytes(100) + b"ustar\0" + b"00" + bytes(64) + b"0000000\0" * 2 + bytes(167)


class Writer:
    """Write records into a new archive; the same records give the same bytes.

    Args:
        path: Of the archive; does not exist yet, nor does ``path.idx``.
        count: Samples about to come; sets the width of the names.
        size: Bytes of all of them together.
        classes: Names of the labels.

    Raises:
        CannotCreateError: the archive cannot be made.
    """

    def __init__(
        self, path: Path, *, count: int, size: int = 0, classes: Sequence[str] = ()
    ) -> None:
        self._path = path
        self._width = max(8, len(str(max(count - 1, 0))))
        self._index = bytearray()
        self._image, self._mask = (array("q"), array("q")), (array("q"), array("q"))
        self._archive = Output(path)

    def add(self, records: Sequence[Record[Field]]) -> None:
        """Append records.

        Raises:
            OutputError: they cannot be written; the message tells the space left.
        """
        for record in records:
            name = b"%0*d" % (self._width, len(self._image[0]))
            members = _members(record)
            entries = []
            for suffix, content, place in sorted(members, key=lambda member: member[0]):
                full = name + b"." + suffix.encode()
                offset = self._append(full, content, record.key)
                entries.append(b"%s %d %d %s" % (suffix.encode(), offset, len(content), full))
                for column, value in zip(self._places(place), (offset, len(content)), strict=False):
                    column.append(value)
            self._index += b" ".join(entries) + b"\n"

    def _places(self, place: str) -> tuple[array[int], ...]:
        return {"image": self._image, "mask": self._mask}.get(place, ())

    def _append(self, name: bytes, content: bytes, key: bytes) -> int:
        """Append a member; return the position of its content."""
        if len(content) >= _MOST_BYTES:
            raise OutputError(
                f"{self._path}: {key!r} has {len(content)} bytes, a member of a tar has less than "
                f"{_MOST_BYTES}; choose another format"
            )
        offset = self._archive.size + _BLOCK
        self._archive.append(_header(name, len(content)), content, bytes(-len(content) % _BLOCK))
        return offset

    def close(self) -> Written:
        """Write what is left, and read everything back while it is synced to the disk.

        Raises:
            OutputError: it cannot be written, what can be read is not what was added, or some
                records have masks and some have none.
        """
        count, masks = len(self._image[0]), len(self._mask[0])
        if masks not in (0, count):
            raise OutputError(f"{self._path}: {masks} masks for {count} records")
        self._archive.append(_END, bytes(-(self._archive.size + len(_END)) % _RECORD))
        self._archive.close()
        index = self._path.with_name(self._path.name + ".idx")
        write_whole(index, b"v1.2 %d\n" % count + self._index)
        return Written(
            files=(self._path.name,),
            **_ranges(self._image)._asdict(),
            sidecars=(index.name,),
            info={"keys": self._width},
            masks=_ranges(self._mask) if masks else None,
        )

    def abort(self) -> None:
        """Let go of the archive; it stays."""
        self._archive.abort()


def _ranges(columns: tuple[array[int], array[int]]) -> Ranges:
    offset, length = (np.array(column, np.int64) for column in columns)
    return Ranges(np.zeros(len(offset), np.uint32), offset, length)


def _header(name: bytes, size: int) -> bytes:
    start = name.ljust(100, b"\0") + _OWNER + b"%011o\0" % size + b"%011o\0" % 0
    checksum = sum(start) + sum(_FILE) + 8 * ord(" ")
    return start + b"%06o\0 " % checksum + _FILE


def _members(record: Record[Field]) -> list[tuple[str, bytes, str]]:
    """Suffix and content of each member of a record, and what it is."""
    members = [
        (encodings.SUFFIXES.get(record.facts.encoding, ".img")[1:], record.image.data, "image"),
        ("json", _described(record), ""),
    ]
    if record.label is not None and not isinstance(record.label, np.ndarray):
        members.append(("cls", b"%d" % record.label, ""))
    if record.mask is not None:
        suffix = "mask." + encodings.SUFFIXES.get(record.mask.encoding, ".img")[1:]
        members.append((suffix, record.mask.data, "mask"))
    return members


def _described(record: Record[Field]) -> bytes:
    described: dict[str, Any] = {}
    try:
        described["key"] = record.key.decode()
    except UnicodeDecodeError:
        described["key_base64"] = base64.b64encode(record.key).decode()
    if isinstance(record.label, np.ndarray):
        described["label"] = record.label.tolist()
    if record.boxes is not None:
        described["boxes"] = record.boxes.tolist()
    if record.box_labels is not None:
        described["box_labels"] = record.box_labels.tolist()
    text = canonical_json(described).encode()
    if record.meta is None:
        return text
    return (
        text[:-1] + b',"meta":' + record.meta.strip() + b"}"
    )  # as it is, not parsed and written anew


def finish(folder: Path, shards: Sequence[str]) -> tuple[str, ...]:
    """Write what wids and timm want to know of a directory of archives.

    Args:
        folder: That the archives and their ``.idx`` files lie in.
        shards: Names of the archives, in order.

    Returns:
        Names of the files written.

    Raises:
        OutputError: they cannot be written.
    """
    name = shards[0].removesuffix(SUFFIXES[0]).rpartition("-")[0] if shards else ""
    name = name or "train"
    counts = [_count(folder / f"{shard}.idx") for shard in shards]
    sizes = [(folder / shard).stat().st_size for shard in shards]
    listed = [
        {"url": shard, "nsamples": count, "filesize": size}
        for shard, count, size in zip(shards, counts, sizes, strict=True)
    ]
    wids = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "name": name, "shardlist": listed}
    split = {
        "name": name, "filenames": list(shards), "shard_lengths": counts, "num_samples": sum(counts)
    }  # fmt: skip
    for file, content in ((WIDS_NAME, wids), (TIMM_NAME, {"splits": {name: split}})):
        write_whole(folder / file, json.dumps(content, indent=1, sort_keys=True).encode() + b"\n")
    return WIDS_NAME, TIMM_NAME


def _count(index: Path) -> int:
    with index.open("rb") as file:
        return int(file.readline(64).split()[1])
