r"""LMDB: a memory-mapped B+tree, one directory with ``data.mdb`` in it.

What packio writes: record number i of N has the key ``%08d`` of i (more digits if N needs them)
and the sample's bytes as its value; there is nothing else in the database. ``labels.tsv`` beside it
has one line a record, ``index<TAB>label<TAB>key<LF>``: the label empty if there is none, the
numbers of a vector with commas between them; the key as raw bytes with tab, LF, CR and backslash
written ``\t``, ``\n``, ``\r`` and ``\\``. Masks are in ``mask/``, a database of its own, under the
same keys. The values of another field F are in ``F.KIND/``, where KIND is image, mask, array, text
or bytes. A sample may have no value there. What else a pack has (meta, boxes) is in its index
alone. With ``values="datum"`` each image and mask is a Datum that holds its bytes and, if it is an
int, the sample's label: `packio.formats.lmdb.values`.

How the bytes lie on disk, format version 1 (of LMDB 0.9, which packio writes). All numbers are
little-endian here; LMDB writes them as the machine has them. The file is a row of pages as large as
the writer's memory pages (4,096 bytes, or as the meta page says); a page number times the page size
is its position. Pages at the end of the file that are in no use may be missing. Each page begins
with 16 bytes::

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

Version 3 (of LMDB 1.0) differs in this. A page begins with 24 bytes: a u64 transaction id follows
the page's own number. Lower, upper and the positions of nodes count from byte 24. A value begins at
an even position. A node names overflow pages by three u64: the number of the first, a transaction
id, and how many there are.

Sources: ``lmdb.h`` and ``mdb.c`` of LMDB 0.9 (https://git.openldap.org/openldap/openldap, branch
mdb.RE/0.9) and of LMDB 1.0.2 (in py-lmdb 3.0.0), checked against files that they wrote.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packio.errors import IntegrityError
from packio.formats import ApartField, Caps, Format, Reading, check_reading
from packio.formats.blobs.by_library import ReaderApart
from packio.formats.lmdb import layouts, pages
from packio.formats.lmdb.library import LABELS_NAME, LmdbWriter
from packio.formats.lmdb.pages import DATA_NAME, MAGIC_BYTES
from packio.formats.wire import unescape
from packio.sample.fields import KINDS
from packio.sample.record import IMAGE, MASK, Place, Record
from packio.system import files


class Lmdb(Format):
    caps: Caps = Caps(
        (".lmdb",), is_directory=True, package="lmdb", reads_by_library=True,
        keeps=frozenset(("key", "label")),
        fields_apart=True, leaves=("lock.mdb",),
        options={"values": "'datum': protobuf messages with image and label, for Caffe and DALI."},
    )  # fmt: skip

    def recognise(self, head: bytes, name: str) -> bool:
        if DATA_NAME.encode() in head.split(b"\n"):
            return True
        is_file = MAGIC_BYTES in (head[16:20], head[24:28])  # LMDB 0.9 and 1.0
        return is_file or super().recognise(head, name)

    def scan(self, path: Path, reading: Reading) -> Iterator[Record[Place]]:
        """Yield every record, in order; a database without ``labels.tsv`` and fields is of others.

        ``reading.label`` is the position of the label in values that are lists, as "2", or its name
        in values that are dicts; ``reading.database`` the name of a database within.
        """
        check_reading(path, reading, "label", "database")
        labels = _read_labels(path)
        others = [ApartField(n, _values_apart(at, kind)) for at, n, kind in _others(path)]
        if not labels and not others:
            for stored in layouts.scan(path, reading):
                key = stored.name if stored.key is None else stored.key
                place = stored.place("image")
                yield Record(key, {IMAGE: place}, stored.label, meta=stored.meta)
            return
        check_reading(path, reading)
        for stored in layouts.own(path):
            number = int(stored.name) if stored.name.isdigit() else -1
            label, key = labels.get(number, (stored.label, stored.name))
            found = ((other.name, other.find_place(stored.name)) for other in others)
            fields = {name: place for name, place in found if place is not None}
            yield Record(key, {IMAGE: stored.place("image"), **fields}, label)
        for other in others:
            if other.left is not None:
                where = path / Path(other.left[1].file).parent
                raise IntegrityError(f"{where}: {other.left[0]!r} is of no sample; pack again")

    def writer(
        self, path: Path, *, count: int, size: int, classes: Sequence[str], **options: Any
    ) -> LmdbWriter:
        return LmdbWriter(path, count, size, **options)

    def reader(self, path: Path, reading: Reading) -> ReaderApart:
        return ReaderApart(path, reading, "packio.formats.lmdb.library:find")

    def identity(self, path: Path) -> Any:
        return pages.identity(path)


FORMAT = Lmdb()


def _values_apart(path: Path, kind: str) -> Iterator[tuple[bytes, Place]]:
    """The LMDB key and the value of each sample that has a value in a database of a field."""
    for entry in layouts.own(path, datums=kind in ("image", "mask")):
        yield entry.name, entry.place(kind)._replace(file=f"{path.name}/{entry.file}")


def _others(path: Path) -> Iterator[tuple[Path, str, str]]:
    """Path, field and kind of the databases within; the masks come first."""
    if (path / MASK / DATA_NAME).is_file():
        yield path / MASK, MASK, "mask"
    for data in sorted(path.glob(f"*.*/{DATA_NAME}")):
        name, _, kind = data.parent.name.rpartition(".")
        if kind in KINDS:
            yield data.parent, name, kind


def _read_labels(path: Path) -> dict[int, tuple[Any, bytes]]:
    """Read label and key by record number from ``labels.tsv``; nothing if it does not parse."""
    found: dict[int, tuple[Any, bytes]] = {}
    try:
        lines = files.content(path / LABELS_NAME).split(b"\n")
        for line in lines[:-1]:
            number, label, key = line.split(b"\t")
            found[int(number)] = (_label(label), unescape(key))
    except (OSError, ValueError):
        return {}
    return found


def _label(text: bytes) -> int | np.ndarray | None:
    """A label as `LmdbWriter` writes it: floats have a point, an exponent, or are inf or nan."""
    if not text:
        return None
    is_real = any(letter in text for letter in b".en")
    if b"," in text or is_real:
        numbers = map(float if is_real else int, text.split(b","))
        return np.array([*numbers], np.float32 if is_real else np.int64)
    return int(text)
