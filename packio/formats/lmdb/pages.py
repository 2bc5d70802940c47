"""The pages of an LMDB database, walked without its library; see `packio.formats.lmdb`."""

from __future__ import annotations

import os
import shlex
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from packio.errors import IntegrityError, NotAPackError, OptionError
from packio.formats.blobs.ranges import Input
from packio.formats.lmdb.meta import Meta, newest, of_tree, opened
from packio.sample.facts import Facts
from packio.sample.record import IMAGE, Place, Record

_NODE = struct.Struct("<HHHH")

_BRANCH, _LEAF, _OVERFLOW = 1, 2, 4
_KINDS = 0x6F  # the bits of a page's kind that say something about a finished file
_IN_OVERFLOW, _IS_DATABASE = 1, 2  # flags of a node
_SHOWN = 10  # names of databases in a message
_UNORDERED = 0x02 | 0x08  # flags of a tree: keys compared backwards, or as native integers
_DUPLICATES = 0x04  # flag of a tree


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

    def record(self) -> Record[Place]:
        """The sample whose image the value is."""
        key = self.name if self.key is None else self.key
        return Record(key, {IMAGE: self.place("image")}, self.label, meta=self.meta)


def scan(path: Path) -> Iterator[Entry]:
    """Yield every record of a database, in the order of the tree.

    Nothing is mapped into memory. Page numbers, positions and sizes are checked before they are
    followed, so a damaged file ends in an error.

    Args:
        path: The directory that holds ``data.mdb``, or a database that is a single file.
    """
    with opened(path) as file:
        yield from entries(file)


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
            self.meta = of_tree(file, self.meta, trees[name])


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
    """Yield every record of an open database; see `scan`."""
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
