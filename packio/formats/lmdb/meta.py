"""The meta pages of an LMDB database, and what differs between the versions of the format."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from packio.errors import IntegrityError, NotAPackError
from packio.formats.blobs import ranges
from packio.formats.blobs.ranges import Input

DATA_NAME = "data.mdb"
EMPTY = 2**64 - 1  # root page of an empty tree

_MAGIC = 0xBEEFC0DE
MAGIC_BYTES = _MAGIC.to_bytes(4, "little")
_TREE = struct.Struct("<IHHQQQQQ")
_META = struct.Struct("<IIQQ" + "IHHQQQQQ" * 2 + "QQ")
_META_PAGE = 8
_DEEPEST = 32  # LMDB's CURSOR_STACK


class Version(NamedTuple):
    """What differs between the versions; see `packio.formats.lmdb`."""

    number: int
    header: struct.Struct  # of a page: its own number, unused, kind, lower, upper
    overflow: struct.Struct  # of an overflow page: its own number, unused, kind, pages
    reference: struct.Struct  # to overflow pages: the number of the first
    base: int  # bytes from the start of a page to where its positions count from
    even: int  # bytes: after its key, a value begins at a multiple of it


def _known(number: int, header: str, overflow: str, reference: str, base: int) -> Version:
    structs = struct.Struct(header), struct.Struct(overflow), struct.Struct(reference)
    return Version(number, *structs, base, 2 if base else 1)


_VERSIONS = (
    _known(1, "<QHHHH", "<QHHI", "<Q", 0),
    _known(3, "<Q8xHHHH", "<Q8xHHI", "<Q16x", 24),
)


class Meta(NamedTuple):
    """What the meta page in force says."""

    version: Version
    page_size: int  # bytes
    flags: int
    depth: int
    entries: int
    root: int
    last_page: int
    txnid: int


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Input]:
    """Open the data file of a database."""
    with ranges.opened(data_file(path), window=0) as file:
        yield file


def data_file(path: Path) -> Path:
    """Path of the data file of a database."""
    if not path.is_dir():
        return path
    data = path / DATA_NAME
    if not data.is_file():
        raise NotAPackError(f"{path}/: no {DATA_NAME} in it; not an LMDB database")
    return data


def identity(path: Path) -> dict[str, int]:
    """Read numbers that change with every transaction: its id, and more to be sure."""
    with opened(path) as file:
        meta = newest(file)
    if meta.version.number == 3:
        return {"txnid": meta.txnid, "entries": meta.entries}
    return {"txnid": meta.txnid, "last_page": meta.last_page, "root": meta.root,
            "entries": meta.entries}  # fmt: skip


def is_of_version_3(path: Path) -> bool:
    """Tell whether LMDB 1.0 wrote a database."""
    with opened(path) as file:
        return file.size >= 28 and file.read(4, 24) == MAGIC_BYTES


def newest(file: Input) -> Meta:
    """Read the meta page with the larger transaction id."""
    version = _version(file.read(min(32, file.size), 0), file.path)
    first = _meta(file, version, 0, 0)
    second = _meta(file, version, 1, first.page_size)
    return second if second.txnid > first.txnid else first


def _version(page: bytes, path: Path) -> Version:
    for version in _VERSIONS:
        found = page[version.header.size :]
        if found[:4] == MAGIC_BYTES and found[4:8] == version.number.to_bytes(4, "little"):
            return version
    foreign = MAGIC_BYTES[::-1] in (page[12:16], page[16:20], page[24:28])
    if foreign or MAGIC_BYTES in (page[12:16], page[16:20][: 4 * (page[20:24] == b"\3\0\0\0")]):
        raise NotAPackError(
            f"{path}: an LMDB database of a 32-bit or big-endian machine; dump it there with "
            "mdb_dump and load it here with mdb_load"
        )
    found = page[16:] if page[16:20] == MAGIC_BYTES else page[24:]
    number = int.from_bytes(found[4:8], "little")
    said = f"version {number}" if found[:4] == MAGIC_BYTES else f"it begins {page[:24].hex()}"
    raise NotAPackError(f"{path}: not an LMDB database of version 1 or 3: {said}")


def _meta(file: Input, version: Version, number: int, offset: int) -> Meta:
    size = version.header.size + _META.size
    where = f"{file.path}: page {number}"
    if file.size < offset + size:
        raise IntegrityError(f"{where} is beyond the end of the file ({file.size} bytes)")
    page = file.read(size, offset)
    _, _, kind, _, _ = version.header.unpack_from(page)
    magic, found, _, _, *trees, last_page, txnid = _META.unpack_from(page, version.header.size)
    page_size, records = trees[0], trees[8:]
    if not kind & _META_PAGE or (magic, found) != (_MAGIC, version.number):
        raise IntegrityError(f"{where} should be a meta page of version {version.number}: it isn't")
    if page_size not in (512 << i for i in range(7)) or offset not in (0, page_size):
        raise IntegrityError(f"{where} says pages have {page_size} bytes, which cannot be")
    return _checked(file, Meta(version, page_size, 0, 0, 0, 0, last_page, txnid), records)


def of_tree(file: Input, meta: Meta, tree: bytes) -> Meta:
    """The meta page in force, for the database whose tree has this record."""
    if len(tree) != _TREE.size:
        raise IntegrityError(f"{file.path}: a tree of {len(tree)} bytes cannot be")
    return _checked(file, meta, _TREE.unpack(tree))


def _checked(file: Input, meta: Meta, tree: Sequence[int]) -> Meta:
    _, flags, depth, _, _, _, count, root = tree
    if depth > _DEEPEST or (depth == 0) != (root == EMPTY):
        raise IntegrityError(f"{file.path}: a tree of depth {depth}, root {root} cannot be")
    return meta._replace(flags=flags, depth=depth, entries=count, root=root)
