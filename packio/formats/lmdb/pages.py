"""The pages of an LMDB database, walked without its library; see `packio.formats.lmdb`.

Nothing is mapped into memory. Page numbers, positions and sizes are checked before they are
followed, so a damaged file ends in an error.
"""

from __future__ import annotations

import os
import shlex
import struct
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from packio.errors import IntegrityError, NotAPackError, OptionError
from packio.formats.blobs import ranges
from packio.formats.blobs.ranges import Input
from packio.sample.record import Facts, Place

DATA_NAME = "data.mdb"
EMPTY = 2**64 - 1  # root page of an empty tree

_MAGIC = 0xBEEFC0DE
MAGIC_BYTES = _MAGIC.to_bytes(4, "little")
_TREE = struct.Struct("<IHHQQQQQ")
_META = struct.Struct("<IIQQ" + "IHHQQQQQ" * 2 + "QQ")
_META_PAGE = 8
_DEEPEST = 32  # LMDB's CURSOR_STACK

_NODE = struct.Struct("<HHHH")
_BRANCH, _LEAF, _OVERFLOW = 1, 2, 4
_KINDS = 0x6F  # the bits of a page's kind that say something about a finished file
_IN_OVERFLOW, _IS_DATABASE = 1, 2  # flags of a node
_SHOWN = 10  # names of databases in a message
_UNORDERED = 0x02 | 0x08  # flags of a tree: keys compared backwards, or as native integers
_DUPLICATES = 0x04  # flag of a tree


class Version(NamedTuple):
    number: int
    header: struct.Struct  # of a page: its own number, unused, kind, lower, upper
    overflow: struct.Struct  # of an overflow page: its own number, unused, kind, pages
    reference: struct.Struct  # to overflow pages: the number of the first
    base: int  # bytes from the start of a page to where its positions count from
    even: int  # bytes: after its key, a value begins at a multiple of it


_VERSIONS = (  # base and even last
    Version(1, struct.Struct("<QHHHH"), struct.Struct("<QHHI"), struct.Struct("<Q"), 0, 1),
    Version(3, struct.Struct("<Q8xHHHH"), struct.Struct("<Q8xHHI"), struct.Struct("<Q16x"), 24, 2),
)


class Meta(NamedTuple):
    version: Version
    page_size: int  # bytes
    flags: int
    depth: int
    entries: int
    root: int
    last_page: int
    txnid: int


def open_data_file(path: Path) -> AbstractContextManager[Input]:
    return ranges.open_input(data_file(path), window=0)


def data_file(path: Path) -> Path:
    if not path.is_dir():
        return path
    data = path / DATA_NAME
    if not data.is_file():
        raise NotAPackError(f"{path}/: no {DATA_NAME} in it; not an LMDB database")
    return data


def identity(path: Path) -> dict[str, int]:
    """Read numbers that change with every transaction: its id, and more to be sure."""
    with open_data_file(path) as file:
        meta = newest(file)
    if meta.version.number == 3:
        return {"txnid": meta.txnid, "entries": meta.entries}
    return {"txnid": meta.txnid, "last_page": meta.last_page, "root": meta.root,
            "entries": meta.entries}  # fmt: skip


def is_of_version_3(path: Path) -> bool:
    with open_data_file(path) as file:
        return file.size >= 28 and file.read(4, 24) == MAGIC_BYTES


def newest(file: Input) -> Meta:
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


def _checked(file: Input, meta: Meta, tree: Sequence[int]) -> Meta:
    _, flags, depth, _, _, _, count, root = tree
    if depth > _DEEPEST or (depth == 0) != (root == EMPTY):
        raise IntegrityError(f"{file.path}: a tree of depth {depth}, root {root} cannot be")
    return meta._replace(flags=flags, depth=depth, entries=count, root=root)


class Entry(NamedTuple):
    """One record of a database, and what the layout of the database says of the record."""

    name: bytes  # the LMDB key
    file: str
    offset: int  # bytes
    length: int  # bytes
    label: Any = None
    key: bytes | None = None  # path of the image, if the database tells it
    meta: bytes | None = None  # a JSON object
    facts: Facts | None = None  # of pixels
    is_database: bool = False  # not a record: the value is a tree of its own

    def place(self, kind: str) -> Place:
        """Where the value lies, as the value of a field."""
        return Place(kind, self.file, self.offset, self.length, facts=self.facts)


class Database(Input):
    """A file of databases, for the records of one of them."""

    def __init__(self, file: Input, name: str) -> None:
        self.__dict__.update(file.__dict__)
        self.meta: Meta = newest(file)
        if name:
            trees = _trees(file)
            if name not in trees:
                there = ", ".join(map(repr, trees)) or "none with a name"
                raise OptionError(f"{file.path}: no database {name!r} in it; there are: {there}")
            if len(trees[name]) != _TREE.size:
                raise IntegrityError(f"{file.path}: a tree of {len(trees[name])} bytes cannot be")
            self.meta = _checked(file, self.meta, _TREE.unpack(trees[name]))


def _trees(file: Input) -> dict[str, bytes]:
    """The databases with names, and the records of their trees."""
    meta, found = newest(file), dict[str, bytes]()
    for number, page in _leaves(file, meta):
        for entry in _leaf(file, meta, number, page):
            if entry.is_database:
                tree = file.read(entry.length, entry.offset)
                name = entry.name.removesuffix(b"\0")  # LMDB 1.0 keeps C's end of the text
                found[os.fsdecode(name)] = tree
    return found


def _several(file: Input) -> NotAPackError:
    names = list(_trees(file))
    folder = file.path.parent if file.path.name == "data.mdb" else file.path
    return NotAPackError(
        f"{file.path}: holds databases with names: "
        f"{', '.join(map(repr, names[:_SHOWN]))}{' …' if len(names) > _SHOWN else ''}; say which "
        f"one: packio pack {shlex.quote(str(folder))} OUT.lmdb --database "
        f"{shlex.quote(names[0])}, or "
        f"database={names[0]!r} of packio.open and the datasets"
    )


def entries(file: Input) -> Iterator[Entry]:
    meta, path = file.meta if isinstance(file, Database) else newest(file), file.path
    if meta.flags & _DUPLICATES:
        raise NotAPackError(f"{path}: has duplicate keys, which packio does not read")
    count, last = 0, b""
    for number, page in _leaves(file, meta):
        found = _leaf(file, meta, number, page)
        names = [last, *(entry.name for entry in found)]
        if not meta.flags & _UNORDERED and not all(map(bytes.__lt__, names, names[1:])):
            raise _damaged(file, number, "has keys out of order")
        count, last = count + len(found), names[-1]
        if any(entry.is_database for entry in found):
            if not isinstance(file, Database):
                raise _several(file)
            found = [entry for entry in found if not entry.is_database]
        yield from found
    if count != meta.entries:
        raise IntegrityError(f"{path}: has {count} records, the meta page says {meta.entries}")


def _damaged(file: Input, number: int, what: str) -> IntegrityError:
    return IntegrityError(f"{file.path}: page {number} {what}; restore or repack the file")


def _leaves(file: Input, meta: Meta) -> Iterator[tuple[int, bytes]]:
    depth = meta.depth
    seen: set[int] = set()  # pages of the tree: no page may come twice
    path = [iter([meta.root] if depth else [])]
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
            nodes = [_NODE.unpack_from(page, at) for at in _nodes(file, meta, number, page)]
            path.append(iter([low | high << 16 | top << 32 for low, high, top, _ in nodes]))


def _page(file: Input, meta: Meta, number: int, kind: int) -> bytes:
    size = meta.page_size
    if not 2 <= number <= meta.last_page or (number + 1) * size > file.size:
        raise _damaged(file, number, f"is outside the file ({file.size} bytes)")
    page = file.read(size, number * size)
    own, _, found, _, _ = meta.version.header.unpack_from(page)
    if own != number or found & _KINDS != kind:
        raise _damaged(file, number, f"says it is page {own} of kind {found}, not {kind}")
    return page


def _nodes(file: Input, meta: Meta, number: int, page: bytes) -> tuple[int, ...]:
    """Positions of a page's nodes. Each position has room for the header of a node."""
    header, base = meta.version.header, meta.version.base
    lower, upper = (base + at for at in header.unpack_from(page)[-2:])
    if lower % 2 or not header.size < lower <= upper <= len(page):
        raise _damaged(file, number, f"has nodes in {upper}.. with positions up to {lower}")
    nodes = struct.unpack_from(f"<{(lower - header.size) // 2}H", page, header.size)
    if min(nodes) + base < upper or max(nodes) + base + _NODE.size > len(page):
        raise _damaged(file, number, "has a node outside itself")
    return tuple(base + at for at in nodes) if base else nodes


def _leaf(file: Input, meta: Meta, number: int, page: bytes) -> list[Entry]:
    found = []
    start, name, unpack = number * len(page), file.path.name, _NODE.unpack_from
    reference, even = meta.version.reference, meta.version.even
    for node in _nodes(file, meta, number, page):
        low, high, flags, key_size = unpack(page, node)
        key, length = node + _NODE.size, low | high << 16
        after = key + key_size
        value = after + after % even
        end = value + (reference.size if flags & _IN_OVERFLOW else length)
        if end > len(page):
            raise _damaged(file, number, f"has a node that ends at {end}, outside it")
        if flags in (0, _IS_DATABASE):
            offset = start + value
        elif flags == _IN_OVERFLOW:
            first = reference.unpack_from(page, value)[0]
            offset = _overflow(file, meta, first, length, number)
        else:
            raise _damaged(file, number, f"has a node of unknown flags {flags}")
        is_database = flags == _IS_DATABASE
        found.append(Entry(page[key:after], name, offset, length, is_database=is_database))
    return found


def _overflow(file: Input, meta: Meta, first: int, length: int, leaf: int) -> int:
    """Position of a value of so many bytes that lies in pages of its own."""
    size, header = meta.page_size, meta.version.overflow
    offset = first * size + header.size
    if first < 2 or offset + length > file.size:  # 0 and 1 are meta pages
        raise _damaged(file, leaf, f"names a value of {length} bytes on page {first}, outside")
    own, _, kind, pages = header.unpack(file.read(header.size, first * size))
    if own != first or kind & _KINDS != _OVERFLOW or pages * size < length + header.size:
        raise _damaged(file, first, f"is not the first of a value of {length} bytes")
    if first + pages - 1 > meta.last_page:
        raise _damaged(file, first, f"has {pages} pages, beyond {meta.last_page}, the last")
    return offset
