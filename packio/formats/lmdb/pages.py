"""The pages of an LMDB database, walked without its library; see `packio.formats.lmdb`."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from packio.errors import IntegrityError, NotAPackError, ReadError
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


class Stored(NamedTuple):
    """One record of a database, and what a layout says of it."""

    name: bytes  # the LMDB key
    file: str
    offset: int  # bytes
    length: int  # bytes
    label: int | None = None
    key: bytes | None = None  # path of the image, where one is told
    meta: bytes | None = None  # a JSON object
    facts: Facts | None = None  # of pixels

    def place(self, kind: str) -> Place:
        """Where the value lies, as the value of a field."""
        return Place(kind, self.file, self.offset, self.length, facts=self.facts)

    def record(self) -> Record[Place]:
        """The sample whose image the value is."""
        key = self.name if self.key is None else self.key
        return Record(key, {IMAGE: self.place("image")}, self.label, meta=self.meta)


def identity(path: Path) -> dict[str, int]:
    """Read what changes with every transaction: the transaction id, and three numbers to be sure.

    Raises:
        NotAPackError: not an LMDB database of version 1.
        IntegrityError: the file is damaged.
        ReadError: the file cannot be read.
    """
    with opened(path) as file:
        meta = newest_meta(file)
    return {
        "txnid": meta.txnid,
        "last_page": meta.last_page,
        "root": meta.root,
        "entries": meta.entries,
    }


def scan(path: Path) -> Iterator[Stored]:
    """Yield an entry for every record, in the order of the tree, by walking its pages.

    Nothing is mapped into memory and nothing in the file is believed: page numbers, positions and
    sizes are checked before they are followed, so a damaged file ends in an error.

    Args:
        path: The directory that holds ``data.mdb``, or a database that is a single file.

    Raises:
        NotAPackError: not an LMDB database of version 1, or one with trees inside.
        IntegrityError: a page is damaged or lies beyond the end of the file.
        ReadError: the file cannot be read.
    """
    with opened(path) as file:
        yield from Tree(file, newest_meta(file)).entries()


class File(NamedTuple):
    """An open database file."""

    descriptor: int
    path: Path
    size: int  # bytes

    def read(self, length: int, offset: int) -> bytes:
        """Read a range; shorter at the end of the file."""
        try:
            return os.pread(self.descriptor, length, offset)
        except OSError as error:
            raise ReadError(f"{self.path}: cannot be read at {offset}: {error}") from error


class _Meta(NamedTuple):
    """What the meta page in force says."""

    page_size: int  # bytes
    flags: int
    depth: int
    entries: int
    root: int
    last_page: int
    txnid: int


@contextlib.contextmanager
def opened(path: Path) -> Iterator[File]:
    """Open the data file of a database."""
    data = data_file(path)
    try:
        descriptor = os.open(data, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ReadError(f"{data}: cannot be opened: {error.strerror}") from error
    try:
        yield File(descriptor, data, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


def data_file(path: Path) -> Path:
    """Path of the data file of a database."""
    if not path.is_dir():
        return path
    data = path / DATA_NAME
    if not data.is_file():
        raise NotAPackError(f"{path}/: no {DATA_NAME} in it; not an LMDB database")
    return data


def newest_meta(file: File) -> _Meta:
    """Read the meta page with the larger transaction id."""
    first = _meta(file, 0, 0)
    second = _meta(file, 1, first.page_size)
    return second if second.txnid > first.txnid else first


def _meta(file: File, number: int, offset: int) -> _Meta:
    page = file.read(_HEADER.size + _META.size, offset)
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
    _, flags, depth, _, _, _, entries, root = records
    return _Meta(page_size, flags, depth, entries, root, last_page, txnid)


def _check_is_version_1(page: bytes, path: Path) -> None:
    magic = MAGIC_BYTES
    if page[24:28] == magic:
        raise NotAPackError(
            f"{path}: written by LMDB 1.0 (file version 3), whose values packio does not find by "
            "byte range; read it through the library with access='lmdb', or write it by LMDB 0.9"
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


class Tree:
    """The tree of records of a database, read page by page."""

    def __init__(self, file: File, meta: _Meta) -> None:
        self._file = file
        self._meta = meta
        self._seen: set[int] = set()  # pages of the tree: none may come twice

    def entries(self) -> Iterator[Stored]:
        """Yield all entries, in order."""
        meta = self._meta
        if meta.flags & _DUPLICATES:
            raise NotAPackError(
                f"{self._file.path}: has duplicate keys, which packio does not read"
            )
        count, last = 0, b""
        for number, page in self._leaves():
            found = self._leaf(number, page)
            names = [last, *(entry.name for entry in found)]
            if not meta.flags & _UNORDERED and not all(map(bytes.__lt__, names, names[1:])):
                raise self._damaged(number, "has keys out of order")
            count, last = count + len(found), names[-1]
            yield from found
        if count != meta.entries:
            raise IntegrityError(
                f"{self._file.path}: has {count} records, the meta page says {meta.entries}"
            )

    def _damaged(self, number: int, what: str) -> IntegrityError:
        return IntegrityError(
            f"{self._file.path}: page {number} {what}; restore or repack the file"
        )

    def _leaves(self) -> Iterator[tuple[int, bytes]]:
        depth, root = self._meta.depth, self._meta.root
        if depth > _DEEPEST or (depth == 0) != (root == _EMPTY):
            raise IntegrityError(
                f"{self._file.path}: a tree of depth {depth}, root {root} cannot be"
            )
        path = [iter([root] if depth else [])]
        while path:
            number = next(path[-1], None)
            if number is None:
                path.pop()
            elif len(path) < depth:
                path.append(iter(self._children(number, self._page(number, _BRANCH))))
            else:
                yield number, self._page(number, _LEAF)

    def _page(self, number: int, kind: int) -> bytes:
        size = self._meta.page_size
        if not 2 <= number <= self._meta.last_page or (number + 1) * size > self._file.size:
            raise self._damaged(number, f"is outside the file ({self._file.size} bytes)")
        if number in self._seen:
            raise self._damaged(number, "is in the tree twice")
        self._seen.add(number)
        page = self._file.read(size, number * size)
        if len(page) < size:
            raise self._damaged(number, "is cut off; the file shrinks")
        own, _, found, _, _ = _HEADER.unpack_from(page)
        if own != number or found & _KINDS != kind:
            raise self._damaged(number, f"says it is page {own} of kind {found}, not {kind}")
        return page

    def _nodes(self, number: int, page: bytes) -> tuple[int, ...]:
        """Positions of a page's nodes; each has room for a node's header."""
        *_, lower, upper = _HEADER.unpack_from(page)
        if lower % 2 or not _HEADER.size < lower <= upper <= len(page):
            raise self._damaged(number, f"has nodes in {upper}.. with positions up to {lower}")
        nodes = struct.unpack_from(f"<{(lower - _HEADER.size) // 2}H", page, _HEADER.size)
        if min(nodes) < upper or max(nodes) + _NODE.size > len(page):
            raise self._damaged(number, "has a node outside itself")
        return nodes

    def _children(self, number: int, page: bytes) -> list[int]:
        nodes = map(_NODE.unpack_from, [page] * len(page), self._nodes(number, page))
        return [low | high << 16 | top << 32 for low, high, top, _ in nodes]

    def _leaf(self, number: int, page: bytes) -> list[Stored]:
        found = []
        start, file, unpack = number * len(page), self._file.path.name, _NODE.unpack_from
        for node in self._nodes(number, page):
            low, high, flags, key_size = unpack(page, node)
            key, length = node + _NODE.size, low | high << 16
            value = key + key_size
            end = value + (length if flags == 0 else _PAGE_NUMBER.size)
            if end > len(page):
                raise self._damaged(number, f"has a node that ends at {end}, outside it")
            if flags == 0:
                offset = start + value
            elif flags == _IN_OVERFLOW:
                offset = self._overflow(_PAGE_NUMBER.unpack_from(page, value)[0], length, number)
            else:
                raise self._not_a_record(number, page[key:value], flags)
            found.append(Stored(page[key:value], file, offset, length))
        return found

    def _not_a_record(self, number: int, key: bytes, flags: int) -> Exception:
        if flags & ~0x06:
            return self._damaged(number, f"has a node of unknown flags {flags}")
        return NotAPackError(
            f"{self._file.path}: {key!r} is a database of its own, not a record (page {number}); "
            "packio reads databases of plain records"
        )

    def _overflow(self, first: int, length: int, leaf: int) -> int:
        """Position of a value of so many bytes that lies in pages of its own."""
        size = self._meta.page_size
        offset = first * size + _HEADER.size
        if first < 2 or offset + length > self._file.size:  # 0 and 1 are meta pages
            raise self._damaged(leaf, f"names a value of {length} bytes on page {first}, outside")
        header = self._file.read(_HEADER.size, first * size)
        if len(header) < _HEADER.size:
            raise self._damaged(first, "is cut off; the file shrinks")
        own, _, kind, pages = _OVERFLOW_HEADER.unpack(header)
        if own != first or kind & _KINDS != _OVERFLOW or pages * size < length + _HEADER.size:
            raise self._damaged(first, f"is not the first of a value of {length} bytes")
        if first + pages - 1 > self._meta.last_page:
            raise self._damaged(
                first, f"has {pages} pages, beyond {self._meta.last_page}, the last"
            )
        return offset
