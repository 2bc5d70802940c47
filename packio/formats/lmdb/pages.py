"""The pages of an LMDB database, walked without its library; see `packio.formats.lmdb`."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from packio.errors import IntegrityError, NotAPackError
from packio.formats.blobs import ranges
from packio.formats.blobs.ranges import Input
from packio.sample.facts import Facts
from packio.sample.record import IMAGE, Place, Record

DATA_NAME = "data.mdb"
VERSION = 1

_HEADER = struct.Struct("<QHHHH")
_META = struct.Struct("<IIQQ" + "IHHQQQQQ" * 2 + "QQ")
_NODE = struct.Struct("<HHHH")
_OVERFLOW_HEADER = struct.Struct("<QHHI")
_PAGE_NUMBER = struct.Struct("<Q")

_MAGIC = 0xBEEFC0DE
MAGIC_BYTES = _MAGIC.to_bytes(4, "little")
_EMPTY = 2**64 - 1  # root page of an empty tree
_BRANCH, _LEAF, _OVERFLOW, _META_PAGE = 1, 2, 4, 8
_KINDS = 0x6F  # the bits of a page's kind that say something about a finished file
_IN_OVERFLOW = 1  # flag of a node
_UNORDERED = 0x02 | 0x08  # flags of a tree: keys compared backwards, or as native integers
_DUPLICATES = 0x04  # flag of a tree
_DEEPEST = 32  # LMDB's CURSOR_STACK


class Entry(NamedTuple):
    """One record of a database, and what the layout of the database says of the record."""

    name: bytes  # the LMDB key
    file: str
    offset: int  # bytes
    length: int  # bytes
    label: int | None = None
    key: bytes | None = None  # path of the image, if the database tells it
    meta: bytes | None = None  # a JSON object
    facts: Facts | None = None  # of pixels

    def place(self, kind: str) -> Place:
        """Where the value lies, as the value of a field."""
        return Place(kind, self.file, self.offset, self.length, facts=self.facts)

    def record(self) -> Record[Place]:
        """The sample whose image the value is."""
        key = self.name if self.key is None else self.key
        return Record(key, {IMAGE: self.place("image")}, self.label, meta=self.meta)


class _Meta(NamedTuple):
    """What the meta page in force says."""

    page_size: int  # bytes
    flags: int
    depth: int
    entries: int
    root: int
    last_page: int
    txnid: int


def identity(path: Path) -> dict[str, int]:
    """Read numbers that change with every transaction: its id, and three more to be sure."""
    with opened(path) as file:
        meta = newest_meta(file)
    return {"txnid": meta.txnid, "last_page": meta.last_page, "root": meta.root,
            "entries": meta.entries}  # fmt: skip


def scan(path: Path) -> Iterator[Entry]:
    """Yield every record of a database, in the order of the tree.

    Nothing is mapped into memory. Page numbers, positions and sizes are checked before they are
    followed, so a damaged file ends in an error.

    Args:
        path: The directory that holds ``data.mdb``, or a database that is a single file.
    """
    with opened(path) as file:
        yield from entries(file)


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


def is_of_version_3(path: Path) -> bool:
    """Tell whether LMDB 1.0 wrote a database. Only py-lmdb finds the values in such a file."""
    with opened(path) as file:
        return file.size >= 28 and file.read(4, 24) == MAGIC_BYTES


def newest_meta(file: Input) -> _Meta:
    """Read the meta page with the larger transaction id."""
    first = _meta(file, 0, 0)
    second = _meta(file, 1, first.page_size)
    return second if second.txnid > first.txnid else first


def _meta(file: Input, number: int, offset: int) -> _Meta:
    page = file.read(min(_HEADER.size + _META.size, max(file.size - offset, 0)), offset)
    if number == 0:
        _check_is_version_1(page, file.path)
    where = f"{file.path}: page {number}"
    if len(page) < _HEADER.size + _META.size:
        raise IntegrityError(f"{where} is beyond the end of the file ({file.size} bytes)")
    _, _, kind, _, _ = _HEADER.unpack_from(page)
    magic, version, _, _, *trees, last_page, txnid = _META.unpack_from(page, _HEADER.size)
    page_size, records = trees[0], trees[8:]
    if not kind & _META_PAGE or (magic, version) != (_MAGIC, VERSION):
        raise IntegrityError(f"{where} should be a meta page of version {VERSION}, and is not")
    if page_size not in (512 << i for i in range(7)) or offset not in (0, page_size):
        raise IntegrityError(f"{where} says pages have {page_size} bytes, which cannot be")
    _, flags, depth, _, _, _, count, root = records
    return _Meta(page_size, flags, depth, count, root, last_page, txnid)


def _check_is_version_1(page: bytes, path: Path) -> None:
    magic = MAGIC_BYTES
    if page[24:28] == magic:
        raise NotAPackError(
            f"{path}: written by LMDB 1.0 (file version 3), whose values only its library finds; "
            "write it by LMDB 0.9, or copy it by mdb_dump and mdb_load"
        )
    if page[12:16] == magic or magic[::-1] in (page[12:16], page[16:20]):
        raise NotAPackError(
            f"{path}: an LMDB database of a 32-bit or big-endian machine; dump it there with "
            "mdb_dump and load it here with mdb_load"
        )
    version = int.from_bytes(page[20:24], "little")
    if page[16:20] != magic or version != VERSION:
        found = f"version {version}" if page[16:20] == magic else f"it begins {page[:24].hex()}"
        raise NotAPackError(f"{path}: not an LMDB database of version {VERSION}: {found}")


def entries(file: Input) -> Iterator[Entry]:
    """Yield every record of an open database; see `scan`."""
    meta, path = newest_meta(file), file.path
    if meta.flags & _DUPLICATES:
        raise NotAPackError(f"{path}: has duplicate keys, which packio does not read")
    count, last = 0, b""
    for number, page in _leaves(file, meta):
        found = _leaf(file, meta, number, page)
        names = [last, *(entry.name for entry in found)]
        if not meta.flags & _UNORDERED and not all(map(bytes.__lt__, names, names[1:])):
            raise _damaged(file, number, "has keys out of order")
        count, last = count + len(found), names[-1]
        yield from found
    if count != meta.entries:
        raise IntegrityError(f"{path}: has {count} records, the meta page says {meta.entries}")


def _damaged(file: Input, number: int, what: str) -> IntegrityError:
    return IntegrityError(f"{file.path}: page {number} {what}; restore or repack the file")


def _leaves(file: Input, meta: _Meta) -> Iterator[tuple[int, bytes]]:
    depth, root = meta.depth, meta.root
    if depth > _DEEPEST or (depth == 0) != (root == _EMPTY):
        raise IntegrityError(f"{file.path}: a tree of depth {depth}, root {root} cannot be")
    seen: set[int] = set()  # pages of the tree: no page may come twice
    path = [iter([root] if depth else [])]
    while path:
        number = next(path[-1], None)
        if number is None:
            path.pop()
            continue
        if number in seen:
            raise _damaged(file, number, "is in the tree twice")
        seen.add(number)
        is_leaf = len(path) == depth
        page = _page(file, meta, number, _LEAF if is_leaf else _BRANCH)
        if is_leaf:
            yield number, page
        else:
            nodes = [_NODE.unpack_from(page, node) for node in _nodes(file, number, page)]
            path.append(iter([low | high << 16 | top << 32 for low, high, top, _ in nodes]))


def _page(file: Input, meta: _Meta, number: int, kind: int) -> bytes:
    size = meta.page_size
    if not 2 <= number <= meta.last_page or (number + 1) * size > file.size:
        raise _damaged(file, number, f"is outside the file ({file.size} bytes)")
    page = file.read(size, number * size)
    own, _, found, _, _ = _HEADER.unpack_from(page)
    if own != number or found & _KINDS != kind:
        raise _damaged(file, number, f"says it is page {own} of kind {found}, not {kind}")
    return page


def _nodes(file: Input, number: int, page: bytes) -> tuple[int, ...]:
    """Positions of a page's nodes. Each position has room for the header of a node."""
    *_, lower, upper = _HEADER.unpack_from(page)
    if lower % 2 or not _HEADER.size < lower <= upper <= len(page):
        raise _damaged(file, number, f"has nodes in {upper}.. with positions up to {lower}")
    nodes = struct.unpack_from(f"<{(lower - _HEADER.size) // 2}H", page, _HEADER.size)
    if min(nodes) < upper or max(nodes) + _NODE.size > len(page):
        raise _damaged(file, number, "has a node outside itself")
    return nodes


def _leaf(file: Input, meta: _Meta, number: int, page: bytes) -> list[Entry]:
    found = []
    start, name, unpack = number * len(page), file.path.name, _NODE.unpack_from
    for node in _nodes(file, number, page):
        low, high, flags, key_size = unpack(page, node)
        key, length = node + _NODE.size, low | high << 16
        value = key + key_size
        end = value + (length if flags == 0 else _PAGE_NUMBER.size)
        if end > len(page):
            raise _damaged(file, number, f"has a node that ends at {end}, outside it")
        if flags == 0:
            offset = start + value
        elif flags == _IN_OVERFLOW:
            first = _PAGE_NUMBER.unpack_from(page, value)[0]
            offset = _overflow(file, meta, first, length, number)
        elif flags & ~0x06:
            raise _damaged(file, number, f"has a node of unknown flags {flags}")
        else:
            raise NotAPackError(
                f"{file.path}: {page[key:value]!r} is a database of its own, not a record (page "
                f"{number}); packio reads databases of plain records: copy the values that you "
                "want into a database without names"
            )
        found.append(Entry(page[key:value], name, offset, length))
    return found


def _overflow(file: Input, meta: _Meta, first: int, length: int, leaf: int) -> int:
    """Position of a value of so many bytes that lies in pages of its own."""
    size = meta.page_size
    offset = first * size + _HEADER.size
    if first < 2 or offset + length > file.size:  # 0 and 1 are meta pages
        raise _damaged(file, leaf, f"names a value of {length} bytes on page {first}, outside")
    own, _, kind, pages = _OVERFLOW_HEADER.unpack(file.read(_HEADER.size, first * size))
    if own != first or kind & _KINDS != _OVERFLOW or pages * size < length + _HEADER.size:
        raise _damaged(file, first, f"is not the first of a value of {length} bytes")
    if first + pages - 1 > meta.last_page:
        raise _damaged(file, first, f"has {pages} pages, beyond {meta.last_page}, the last")
    return offset
