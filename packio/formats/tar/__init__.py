"""tar: an archive of ordinary files, laid out as WebDataset has it, without compression.

What packio writes: record number i has the name ``%08d`` of i (more digits if the count needs
them). Its members follow each other, in the order of their suffixes:

* ``.jpg .png .webp .bmp .gif .tif .ppm .jp2 .avif``: the image; ``.img`` if its encoding is
  unknown;
* ``.cls``: the label in ASCII digits, if it is an int; others may write the name of a class;
* ``.json``: one object: ``key``, the path in the source (``key_base64`` if that is not UTF-8); and
  where there are any, ``label``, a vector of numbers; ``boxes``, ``[x1, y1, x2, y2]`` in pixels
  each; ``box_labels``; ``box_columns``, lists by name; ``meta``, an object; and ``kinds``, the
  kinds of those fields whose endings do not tell them;
* ``.mask.png`` and so on: the mask;
* ``.NAME.png`` and so on, ``.NAME.npy``, ``.NAME.txt``, ``.NAME.bin``: a field of that name: an
  image or a mask, an array, text, or bytes. A text called ``txt`` has the suffix ``.txt`` alone, an
  array called ``npy`` has ``.npy``, and bytes called ``bin`` have ``.bin``.

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
import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packio.errors import OptionError, OutputError
from packio.formats import Caps, Format, Reading, Written, check_reading
from packio.formats.blobs import append_only
from packio.formats.blobs.append_only import write_whole
from packio.formats.blobs.ranges import open_input
from packio.formats.tar.samples import ENDINGS, infer_kind, samples
from packio.formats.wire.tar import OWNER, REST, TIME
from packio.images import encodings
from packio.index.indexfile import canonical_json
from packio.sample.labelling import hashable
from packio.sample.record import IMAGE, Field, Place, Record

WIDS_NAME = "shardindex.json"
TIMM_NAME = "_info.json"

_BLOCK = 512
_END = bytes(2 * _BLOCK)
_RECORD = 20 * _BLOCK  # archives are filled up to a multiple of it
_MOST_BYTES = 1 << 33  # of one member, exclusive: 11 octal digits
_MOST_NAME = 100  # bytes of a member's name in a USTAR header


class Writer(append_only.Writer):
    def __init__(self, path: Path, count: int) -> None:
        super().__init__(path)
        self._width = max(8, len(str(max(count - 1, 0))))  # of the names
        self._index = bytearray()

    def add(self, records: Sequence[Record[Field]]) -> None:
        for record in records:
            name = b"%0*d" % (self._width, self._count)
            entries = []
            for suffix, content, field in sorted(_members(record)):
                full = name + b"." + suffix.encode()
                offset = self._append(full, content, record.key)
                entries.append(b"%s %d %d %s" % (suffix.encode(), offset, len(content), full))
                if field:
                    self._note(field, offset, len(content))
            self._index += b" ".join(entries) + b"\n"
            self._count += 1

    def _append(self, name: bytes, content: bytes, key: bytes) -> int:
        """Append a member; return the position of its content."""
        if len(content) >= _MOST_BYTES:
            raise OutputError(
                f"{self._path}: {key!r} has {len(content)} bytes, a member of a tar has less than "
                f"{_MOST_BYTES}; choose another format"
            )
        if len(name) > _MOST_NAME:
            raise OutputError(
                f"{self._path}: {key!r} makes a member with a name of {len(name)} bytes, a tar has "
                f"{_MOST_NAME}; choose a shorter name for the field"
            )
        (archive,) = self._outputs
        offset = archive.size + _BLOCK
        start = name.ljust(100, b"\0") + OWNER + b"%011o\0" % len(content) + TIME
        checksum = b"%06o\0 " % (sum(start) + sum(REST) + 8 * ord(" "))
        archive.append(start + checksum + REST, content, bytes(-len(content) % _BLOCK))
        return offset

    def close(self) -> Written:
        (archive,) = self._outputs
        archive.append(_END, bytes(-(archive.size + len(_END)) % _RECORD))
        index = self._path.with_name(self._path.name + ".idx")
        written = self._close([self._path.name], [index.name], keys=self._width)
        write_whole(index, b"v1.2 %d\n" % self._count + self._index)
        return written


def _members(record: Record[Field]) -> list[tuple[str, bytes, str]]:
    """Suffix and content of each member of a record, and the name of its field."""
    members = [(_suffix(n, field), field.data, n) for n, field in record.fields.items()]
    members.append(("json", _described(record), ""))
    if record.label is not None and not isinstance(record.label, np.ndarray):
        members.append(("cls", b"%d" % record.label, ""))
    return members


def _suffix(name: str, field: Field) -> str:
    ending = ENDINGS.get(field.kind) or encodings.SUFFIXES.get(field.encoding, ".img")[1:]
    if name == IMAGE or (name == ending and field.kind in ENDINGS):
        return ending
    return f"{name}.{ending}"


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
    columns = {n: np.asarray(values).tolist() for n, values in record.box_columns.items()}
    if "labels" in columns:
        described["box_labels"] = columns.pop("labels")
    if columns:
        described["box_columns"] = columns
    strange = {
        name: field.kind
        for name, field in record.fields.items()
        if field.kind in ("image", "mask") and field.kind != infer_kind(name)
    }
    if strange:
        described["kinds"] = strange
    text = canonical_json(described).encode()
    if record.meta is None:
        return text
    # The metadata stay as they are: they are not parsed and written anew.
    return text[:-1] + b',"meta":' + record.meta.strip() + b"}"


def _count(shard: Path) -> int:
    """Number of samples, by the index beside the shard if there is one."""
    try:
        with shard.with_name(f"{shard.name}.idx").open("rb") as file:
            return int(file.readline(64).split()[1])
    except FileNotFoundError:  # others wrote the shard
        return sum(1 for _ in FORMAT.scan(shard, Reading()))


class Tar(Format):
    caps: Caps = Caps((".tar",), keeps=frozenset(("key", "label", "meta", "boxes")), at_urls=True)

    def recognise(self, head: bytes, name: str) -> bool:
        return head[257:262] == b"ustar" or super().recognise(head, name)

    def scan(self, path: Path, reading: Reading) -> Iterator[Record[Place]]:
        check_reading(path, reading, "label")
        with open_input(path) as file:
            found = samples(file)
            yield from found if reading.label is None else _labelled(found, reading.label, path)

    def writer(self, path: Path, *, count: int, **_: Any) -> Writer:
        return Writer(path, count)

    def finish(self, folder: Path, shards: Mapping[str, Path]) -> list[str]:
        """Write the files from which wids and timm learn the shards of a directory."""
        name = next(iter(shards), "").removesuffix(".tar").rpartition("-")[0] or "train"
        counts = [_count(path) for path in shards.values()]
        listed = [
            {"url": shard, "nsamples": count, "filesize": path.stat().st_size}
            for (shard, path), count in zip(shards.items(), counts, strict=True)
        ]
        wids = {
            "__kind__": "wids-shard-index-v1", "wids_version": 1, "name": name, "shardlist": listed,
        }  # fmt: skip
        split = {
            "name": name, "filenames": list(shards), "shard_lengths": counts,
            "num_samples": sum(counts),
        }  # fmt: skip
        for file, content in ((WIDS_NAME, wids), (TIMM_NAME, {"splits": {name: split}})):
            text = json.dumps(content, indent=1, sort_keys=True) + "\n"
            write_whole(folder / file, text.encode())
        return [WIDS_NAME, TIMM_NAME]


FORMAT = Tar()


def _labelled(found: Iterator[Record[Place]], name: str, path: Path) -> Iterator[Record[Place]]:
    """The samples with a member of their metadata as label; "": without labels."""
    known: set[str] = set()
    for record in found:
        members = json.loads(record.meta) if name and record.meta else {}
        known.update(members)
        label: Any = hashable(members.get(name))
        yield dataclasses.replace(record, label=label)
    if name and name not in known:
        shown = ", ".join(sorted(known)[:20]) or "nothing"
        raise OptionError(f"{path}: label={name!r} is in no metadata; there is {shown}")
