r"""LMDB: a memory-mapped B+tree, one directory with ``data.mdb`` in it.

What packio writes: record number i of N has the key ``%08d`` of i (more digits if N needs them)
and the sample's bytes as its value; there is nothing else in the database. ``labels.tsv`` beside it
has one line a record, ``index<TAB>label<TAB>key<LF>``: the label empty if there is none, the key as
raw bytes with tab, LF, CR and backslash written ``\t``, ``\n``, ``\r`` and ``\\``.

How the bytes lie on disk, format version 1 (LMDB 0.9; LMDB 1.0 writes another, version 3). All
numbers are little-endian here; LMDB writes them as the machine has them. The file is a row of pages
as large as the writer's memory pages (4,096 bytes, or as the meta page says); a page number times
the page size is its position. Pages at the end of the file that are in no use may be missing. Each
page begins with 16 bytes::

    u64 its own number   u16 unused   u16 kind   u16 lower, u16 upper   (or u32 pages, if overflow)
    kind: 1 branch  2 leaf  4 overflow  8 meta  0x20 and 0x40: of databases with duplicate keys

* **Meta**, pages 0 and 1, written in turn; that with the larger transaction id holds. From byte 16:
  u32 magic 0xBEEFC0DE, u32 version, u64 address, u64 map size, twice the 48 bytes of a tree (first
  the free list, whose first field is the page size, then the records), u64 last page in use,
  u64 transaction id. A tree: u32 padding, u16 flags, u16 depth, u64 numbers of branch, leaf and
  overflow pages, u64 entries, u64 root page (all ones: empty).
* **Branch and leaf**: the u16 at 16..lower are the positions of the nodes within the page, in the
  order of their keys; the nodes lie in upper..end. A node: u16 low, u16 high, u16 flags, u16 key
  size, the key, the value. In a branch, low, high and flags are the 48 bits of a child's page
  number and there is no value. In a leaf, low and high are the size of the value and flags says
  where it is: 0 here; 1 in overflow pages, here is the u64 number of the first; 2 or 4: it is a
  tree of its own.
* **Overflow**: the value, from byte 16 of the first of as many pages in a row as it takes, so it is
  one range of bytes. Values that do not fit twice into a page go there.

Sources: ``lmdb.h`` and ``mdb.c`` of LMDB 0.9 (https://git.openldap.org/openldap/openldap, branch
mdb.RE/0.9), checked against files that it wrote.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio import registry
from packio.errors import (
    CannotCreateError,
    IntegrityError,
    NotAPackError,
    OutputError,
    ReadError,
)
from packio.formats import Entry, Record, Written
from packio.indexfile import crc32c

SUFFIXES = (".lmdb",)
IS_DIRECTORY = True
PACKAGE = "lmdb"
EXTRA = None

DATA_NAME = "data.mdb"
LABELS_NAME = "labels.tsv"

# A batch is held twice, here and in LMDB's dirty pages, until it is committed. Written in 8 MiB the
# 5,000 photos of 504 MB take 0.25 s, in 64 MiB 0.37 s, in 256 MiB 0.41 s (the best of 7 runs each):
# the heap is used again while it is in the cache, and need not be zeroed by the kernel anew.
_COMMIT_BYTES = 8 << 20
_COMMIT_RECORDS = 5000
_MOST_BYTES = 0xFFFFFFFF  # of one value: LMDB's MAXDATASIZE

_HEADER = struct.Struct("<QHHHH")
_META = struct.Struct("<IIQQ" + "IHHQQQQQ" * 2 + "QQ")
_NODE = struct.Struct("<HHHH")
_OVERFLOW_HEADER = struct.Struct("<QHHI")
_PAGE_NUMBER = struct.Struct("<Q")

_MAGIC = 0xBEEFC0DE
_VERSION = 1
_EMPTY = 2**64 - 1  # root page of an empty tree
_BRANCH, _LEAF, _OVERFLOW, _META_PAGE = 1, 2, 4, 8
_KINDS = 0x6F  # the bits of a page's kind that say something about a finished file
_IN_OVERFLOW = 1  # flag of a node
_UNORDERED = 0x02 | 0x08  # flags of a tree: keys compared backwards, or as native integers
_DUPLICATES = 0x04  # flag of a tree
_DEEPEST = 32  # LMDB's CURSOR_STACK

_ESCAPES = ((b"\\", b"\\\\"), (b"\t", b"\\t"), (b"\n", b"\\n"), (b"\r", b"\\r"))


def identity(path: Path) -> dict[str, int]:
    """Read what changes with every transaction: the transaction id, and three numbers to be sure.

    Raises:
        NotAPackError: not an LMDB database of version 1.
        IntegrityError: the file is damaged.
        ReadError: the file cannot be read.
    """
    with _opened(path) as file:
        meta = _newest_meta(file)
    return {
        "txnid": meta.txnid,
        "last_page": meta.last_page,
        "root": meta.root,
        "entries": meta.entries,
    }


def scan(path: Path) -> Iterator[Entry]:
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
    with _opened(path) as file:
        yield from _Tree(file, _newest_meta(file)).entries()


class _File(NamedTuple):
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
def _opened(path: Path) -> Iterator[_File]:
    data = _data_file(path)
    try:
        descriptor = os.open(data, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ReadError(f"{data}: cannot be opened: {error.strerror}") from error
    try:
        yield _File(descriptor, data, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


def _data_file(path: Path) -> Path:
    if not path.is_dir():
        return path
    data = path / DATA_NAME
    if not data.is_file():
        raise NotAPackError(f"{path}/: no {DATA_NAME} in it; not an LMDB database")
    return data


def _newest_meta(file: _File) -> _Meta:
    first = _meta(file, 0, 0)
    second = _meta(file, 1, first.page_size)
    return second if second.txnid > first.txnid else first


def _meta(file: _File, number: int, offset: int) -> _Meta:
    page = file.read(_HEADER.size + _META.size, offset)
    if number == 0:
        _check_is_version_1(page, file.path)
    where = f"{file.path}: page {number}"
    if len(page) < _HEADER.size + _META.size:
        raise IntegrityError(f"{where} is beyond the end of the file ({file.size} bytes)")
    _, _, kind, _, _ = _HEADER.unpack_from(page)
    magic, version, _, _, *trees, last_page, txnid = _META.unpack_from(page, _HEADER.size)
    page_size, records = trees[0], trees[8:]
    if not kind & _META_PAGE or (magic, version) != (_MAGIC, _VERSION):
        raise IntegrityError(f"{where} should be a meta page of version {_VERSION}, and is not")
    if page_size not in (512 << i for i in range(7)) or offset not in (0, page_size):
        raise IntegrityError(f"{where} says pages have {page_size} bytes, which cannot be")
    _, flags, depth, _, _, _, entries, root = records
    return _Meta(page_size, flags, depth, entries, root, last_page, txnid)


def _check_is_version_1(page: bytes, path: Path) -> None:
    magic = _MAGIC.to_bytes(4, "little")
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
    if page[16:20] != magic or version != _VERSION:
        found = f"version {version}" if page[16:20] == magic else f"it begins {page[:24].hex()}"
        raise NotAPackError(f"{path}: not an LMDB database of version {_VERSION}: {found}")


class _Tree:
    """The tree of records of a database, read page by page."""

    def __init__(self, file: _File, meta: _Meta) -> None:
        self._file = file
        self._meta = meta
        self._seen: set[int] = set()  # pages of the tree: none may come twice

    def entries(self) -> Iterator[Entry]:
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

    def _leaf(self, number: int, page: bytes) -> list[Entry]:
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
            found.append(Entry(page[key:value], file, offset, length))
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


class Writer:
    """Write records into a new database; the same records give the same bytes.

    Records are committed by 8 MiB or 5,000, whatever comes first, however they are handed over;
    twice that is the memory in use. A map that proves too small grows, and the batch that hit its
    end is written again: LMDB has then forgotten all of it.
    """

    def __init__(self, path: Path, *, count: int, size: int) -> None:
        """Create the directory.

        Args:
            path: The directory; does not exist yet.
            count: Samples about to come; sets the width of the keys.
            size: Bytes of all of them together.

        Raises:
            CannotCreateError: the directory cannot be made.
            OutputError: there is no room for the map.
            MissingPackageError: lmdb does not load.
        """
        self._lmdb = registry.require(PACKAGE, EXTRA)
        self._path = path
        self._width = max(8, len(str(max(count - 1, 0))))
        self._crcs = array("I")
        self._batch: list[tuple[bytes, bytes]] = []
        self._batch_bytes = 0
        self._env: Any = None
        try:
            path.mkdir()
            self._labels = (path / LABELS_NAME).open("xb")
        except OSError as error:
            raise CannotCreateError(f"{path}: cannot be created: {error.strerror}") from error
        # A value above half a page takes whole pages and 16 bytes, another its key and 10 bytes.
        self._map_size = (size + count * (4096 + 64) + (16 << 20)) >> 20 << 20
        try:
            with self._output_errors():
                self._env = self._open()
        except OutputError:
            self.abort()
            raise

    def _open(self) -> Any:
        # py-lmdb 3 writes both versions of the format; older ones do not know the option.
        options = {"lib_version": 0} if _major(self._lmdb) >= 3 else {}
        return self._lmdb.open(
            os.fspath(self._path),
            map_size=self._map_size,
            meminit=True,  # otherwise the heap's old bytes get into the file
            lock=False,
            sync=False,  # once, in close
            map_async=False,
            writemap=False,
            **options,
        )

    @contextlib.contextmanager
    def _output_errors(self) -> Iterator[None]:
        try:
            yield
        except (self._lmdb.Error, OSError) as error:
            raise OutputError(
                f"{self._path}: cannot be written after {len(self._crcs)} records: {error} "
                f"({_free_bytes(self._path)} bytes free; LMDB calls a full disk an input/output "
                "error); make room and run it again"
            ) from error

    def add(self, records: Sequence[Record]) -> None:
        """Append records.

        Raises:
            OutputError: they cannot be written; the message tells the space left.
        """
        if self._env is None:
            raise OutputError(f"{self._path}: closed already")
        lines = []
        for record in records:
            if len(record.data) > _MOST_BYTES:
                raise OutputError(f"{self._path}: {record.key!r} has over {_MOST_BYTES} bytes")
            number = len(self._crcs)
            lines.append(_label_line(number, record))
            self._crcs.append(crc32c(record.data))
            self._batch.append((self._key(number), record.data))
            self._batch_bytes += len(record.data)
            if self._batch_bytes >= _COMMIT_BYTES or len(self._batch) >= _COMMIT_RECORDS:
                self._commit()
        with self._output_errors():
            self._labels.write(b"".join(lines))

    def _key(self, number: int) -> bytes:
        return b"%0*d" % (self._width, number)

    def _commit(self) -> None:
        with self._output_errors():
            while not self._put_batch():
                self._map_size *= 2
                self._env.set_mapsize(self._map_size)
        self._batch = []
        self._batch_bytes = 0

    def _put_batch(self) -> bool:
        """Write the batch in one transaction, or nothing of it and tell that the map is full."""
        try:
            with self._env.begin(write=True) as transaction:
                for key, data in self._batch:
                    if not transaction.put(key, data, append=True):
                        raise OutputError(f"{self._path}: LMDB refused to append {key!r}")
        except self._lmdb.MapFullError:
            return False
        return True

    def close(self) -> Written:
        """Commit what is left, and read everything back while it is synced to the disk.

        Raises:
            OutputError: it cannot be written, or what can be read is not what was added.
        """
        if self._env is None:
            raise OutputError(f"{self._path}: closed already")
        if self._batch:
            self._commit()
        with self._output_errors():
            entries = self._env.stat()["entries"]
            self._labels.flush()
        self.abort()
        if entries != len(self._crcs):
            raise OutputError(
                f"{self._path}: {len(self._crcs)} records were written, LMDB has {entries}"
            )
        with _opened(self._path) as file, ThreadPoolExecutor(1, "packio-sync") as pool:
            synced = pool.submit(os.fsync, file.descriptor)
            written = self._read_back(file)
            with self._output_errors():
                synced.result()
        return written

    def abort(self) -> None:
        """Let go of the database and of the records not yet committed; the files stay."""
        self._batch = []
        env, self._env = self._env, None
        if env is not None:
            env.close()
        with contextlib.suppress(OSError):  # flushes, and the disk may be full
            self._labels.close()

    def _read_back(self, file: _File) -> Written:
        """Find every record where it lies, and compare its checksum with what was added."""
        offset = np.empty(len(self._crcs), np.int64)
        length = np.empty(len(self._crcs), np.int64)
        for i, entry in enumerate(_Tree(file, _newest_meta(file)).entries()):
            data = file.read(entry.length, entry.offset)
            if entry.name != self._key(i) or crc32c(data) != self._crcs[i]:
                raise OutputError(
                    f"{file.path}: record {i} reads back differently (as {entry.name!r}, "
                    f"{len(data)} bytes at {entry.offset}); the disk or its driver is at fault"
                )
            offset[i], length[i] = entry.offset, entry.length
        return Written(
            files=(DATA_NAME,),
            file=np.zeros(len(self._crcs), np.uint32),
            offset=offset,
            length=length,
            sidecars=(LABELS_NAME,),
            info={"keys": self._width, "version": _VERSION},
        )


def _major(module: Any) -> int:
    return int(module.__version__.split(".")[0])


def _free_bytes(path: Path) -> int:
    try:
        return shutil.disk_usage(path.parent).free
    except OSError:
        return 0


def _label_line(number: int, record: Record) -> bytes:
    key = record.key
    for raw, escaped in _ESCAPES:
        key = key.replace(raw, escaped)
    given: int | None = record.label
    label = b"" if given is None else b"%d" % given
    return b"%d\t%s\t%s\n" % (number, label, key)


class Reader:
    """Read records through py-lmdb: what has no byte ranges, as files written by LMDB 1.0.

    Opens when first read from. May be used in any number of threads, in forked and in spawned
    processes, and pickles as its path.
    """

    def __init__(self, path: Path) -> None:
        """Remember the path: a directory with ``data.mdb``, or a single file."""
        self._shared: _SharedEnvironment | None = None
        self.path = Path(path)

    def __reduce__(self) -> tuple[type[Reader], tuple[Path]]:
        return Reader, (self.path,)

    def get(self, record_number: int) -> bytes:
        """Read the value of a record, by its position in the order of the keys.

        Raises:
            IndexError: there are not so many.
            ReadError: the database cannot be opened or read.
            IntegrityError: the file is shorter than it says.
            MissingPackageError: lmdb does not load.
        """
        return self._environment().get(record_number)

    def __len__(self) -> int:
        return self._environment().entries()

    def _environment(self) -> _SharedEnvironment:
        if self._shared is None:
            with _lock():
                if self._shared is None:
                    self._shared = _acquire(self.path)
        return self._shared

    def close(self) -> None:
        """Let go of the database; it opens again when read from."""
        if self._shared is not None:
            with _lock():
                shared, self._shared = self._shared, None
                if shared is not None:
                    _release(shared)

    def __del__(self) -> None:
        self.close()


class _SharedEnvironment:
    """One open database of this process, used by all its readers.

    py-lmdb refuses to open a database twice in a process, and keeps refusing in a forked child
    until the inherited environment is closed there; that leaves the parent's alone.
    """

    def __init__(self, path: Path, key: tuple[int, int]) -> None:
        self.key = key
        self.users = 0
        self._lmdb = registry.require(PACKAGE, EXTRA)
        self._path = path
        self._env: Any = None
        self._pid = 0
        self._name: Callable[[int], bytes] | None = None  # of a record number

    def get(self, record_number: int) -> bytes:
        with self._read_errors(), self._environment().begin() as transaction:
            count = transaction.stat()["entries"]
            if not 0 <= record_number < count:
                raise IndexError(f"{self._path}: no record {record_number}; it has {count}")
            if self._name is None:
                self._name = _numbered_keys(transaction) or _listed_keys(transaction)
            value = transaction.get(self._name(record_number))
            if value is None:  # it looked numbered, and was not
                self._name = _listed_keys(transaction)
                value = transaction.get(self._name(record_number))
        if value is None:
            raise IntegrityError(f"{self._path}: record {record_number} is listed but not found")
        return bytes(value)

    def entries(self) -> int:
        with self._read_errors():
            return int(self._environment().stat()["entries"])

    def _environment(self) -> Any:
        if self._pid != os.getpid():
            with _lock():
                if self._pid != os.getpid():
                    if self._env is not None:
                        self._env.close()  # inherited by fork
                    self._env = self._open()
                    self._pid = os.getpid()
        return self._env

    def _open(self) -> Any:
        env = self._lmdb.open(
            os.fspath(self._path),
            subdir=self._path.is_dir(),
            create=False,
            readonly=True,
            lock=False,
            readahead=False,
        )
        try:
            self._check_size(env)
        except BaseException:
            env.close()
            raise
        return env

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
        self._env, self._pid = None, 0

    def _check_size(self, env: Any) -> None:
        """Refuse a short file: LMDB maps it, and a touch beyond its end kills the process."""
        size = _data_file(self._path).stat().st_size
        end = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
        if size >= end:
            return
        try:
            for _ in scan(self._path):  # it may be that no page in use is missing
                pass
        except NotAPackError as error:
            raise IntegrityError(
                f"{self._path}: has {size} bytes, its last page ends at {end}; restore the file"
            ) from error

    @contextlib.contextmanager
    def _read_errors(self) -> Iterator[None]:
        try:
            yield
        except self._lmdb.Error as error:
            raise ReadError(f"{self._path}: LMDB cannot read it: {error}") from error


def _numbered_keys(transaction: Any) -> Callable[[int], bytes] | None:
    """The rule of the keys, if the first and the last are those that packio writes."""
    cursor = transaction.cursor()
    cursor.last()
    last = bytes(cursor.key())
    cursor.first()
    first, width = bytes(cursor.key()), len(last)
    ends = (b"%0*d" % (width, 0), b"%0*d" % (width, transaction.stat()["entries"] - 1))
    return (lambda number: b"%0*d" % (width, number)) if (first, last) == ends else None


def _listed_keys(transaction: Any) -> Callable[[int], bytes]:
    return list(transaction.cursor().iternext(keys=True, values=False)).__getitem__


# Databases open in this process, by device and inode; each stays as long as a reader uses it. What
# a forked child inherits is closed and opened anew when first used there (by its pid); a spawned
# one starts empty; none is pickled. A lock is one process's own: held by another thread at a fork,
# it would stay locked in the child for ever. It is reentrant, as garbage may be collected, and so a
# reader closed, while it is held.
_ENVIRONMENTS: dict[tuple[int, int], _SharedEnvironment] = {}
_LOCKS: dict[int, threading.RLock] = {}


def _lock() -> threading.RLock:
    return _LOCKS.setdefault(os.getpid(), threading.RLock())


def _acquire(path: Path) -> _SharedEnvironment:
    data = _data_file(path)
    try:
        status = data.stat()
    except OSError as error:
        raise ReadError(f"{data}: cannot be opened: {error.strerror}") from error
    key = (status.st_dev, status.st_ino)
    shared = _ENVIRONMENTS.get(key) or _SharedEnvironment(path, key)
    shared.users += 1
    _ENVIRONMENTS[key] = shared  # also if its last other reader has been collected meanwhile
    return shared


def _release(shared: _SharedEnvironment) -> None:
    shared.users -= 1
    if shared.users == 0:
        _ENVIRONMENTS.pop(shared.key, None)
        shared.close()
