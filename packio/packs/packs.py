"""A pack, opened: its samples, keys, labels and classes, read by byte range."""

from __future__ import annotations

import bisect
import functools
import itertools
import json
import operator
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from packio import registry
from packio.errors import DecodeError, IntegrityError, NotAPackError, OptionError
from packio.formats import Format, Reading
from packio.index.indexfile import (
    PROGRESSIVE,
    SEEKABLE,
    SPLIT_RECORD,
    Index,
    Keys,
    crc32c,
)
from packio.index.lookup import KeyBytes
from packio.packs import locating
from packio.packs.rows import Row, Rows, RowTable
from packio.sample.facts import Facts
from packio.sample.fields import PIXELS
from packio.sample.record import IMAGE, MASK, Field, Record
from packio.sample.sample import Sample, made
from packio.storage import filesystems, ram, remote, urls
from packio.storage.folder import FolderFiles
from packio.storage.local import LocalFiles
from packio.storage.remote import RemoteFiles
from packio.storage.urls import Url

if TYPE_CHECKING:
    from packio.packs.raw import RawRows
    from packio.storage.ram import RamCache


def open(  # noqa: A001 (public name)
    path: str | os.PathLike[str],
    *,
    access: str | None = None,
    image: str | None = None,
    label: str | None = None,
    layout: str | None = None,
) -> Pack:
    """Open a pack.

    Args:
        path: As given to `packio.pack`: a directory with ``index.packio``, or a file with
            ``<name>.packio`` beside it; or the URL of one, as ``s3://bucket/train.tar``, which is
            read by range. A container without an index, as others write them, is walked once; its
            index is kept in the user's cache, as are those of URLs. Several such containers of one
            format are one pack: a folder of them, or braces, as ``shards/{000..127}.tar``.
        access: "range" (byte ranges of ordinary files), or the format's own library, as "lmdb";
            None takes what the index recommends.
        image, label, layout: Of a container without an index: see `packio.reindex`.

    Raises:
        NotAPackError: nothing there, or not a pack.
        OptionError: a name is given of a container that has an index, or that is not in it.
        UnfinishedPackError: packing into this path was interrupted or is going on.
        IntegrityError: index and files do not belong together, or are damaged.
        VersionError: written by a newer packio.
    """
    reading = Reading(image=image, label=label, layout=layout)
    located = locating.located(Path(os.path.abspath(path)), reading) if reading.names() else None
    return Pack(path, access=access, located=located)


class Pack(Sequence[Sample]):
    """A pack, opened by `packio.open`: a sequence of `Sample`.

    Safe in threads and forked workers; pickles as its path and the digest of its index, so that a
    pack changed in between is noticed.

    Attributes:
        fields: Kind of each named field: "image", "mask", "array", "text" or "bytes".
        box_columns: Names of the columns that boxes have, as "labels" and "crowd".
        ram: What `keep_in_ram` keeps, and how much of it; None: nothing.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        access: str | None = None,
        expect_digest: str | None = None,
        located: tuple[Path, Path] | None = None,
        kept: RamCache | None = None,
    ) -> None:
        self.path = urls.place(path)
        self._absolute = urls.absolute(path)  # a later chdir changes nothing
        self._elsewhere = located  # the index, and the folder that its paths are relative to
        index_path, root = located or locating.located(self._absolute)
        shard_path = functools.partial(filesystems.shard_index, root)
        if isinstance(root, Url):
            shard_path = functools.partial(remote.shard_index, root)
        self.index_file = Index(index_path, filesystems.nearby(index_path), shard_path)
        self.ram = kept
        if expect_digest is not None and self.index_file.digest != expect_digest:
            raise IntegrityError(f"{index_path}: has changed since this object was made; open anew")
        self.format = _format(self.index_file)
        self._files = self._storage(root)
        self._files.check()
        self._shards = _shards(self.index_file)
        _check_identity(self.index_file, self.format, self._shards, root)
        self.access = access or self.index_file.metadata.get("access", "range")
        self._readers = self._own_readers(root)
        self._label = self.index_file.column("label") if "label" in self.index_file else None
        self._count = len(self.index_file)
        self._keys = KeyBytes(self.index_file)
        self.fields = self.index_file.fields
        self._tables = {name: RowTable(self.index_file, name) for name in self.fields}
        self._numbers, self._names = self._tables[IMAGE].numbers, self._tables[IMAGE].names
        self._slots = {name: i * self._count for i, name in enumerate(self.fields)}
        self._others = [name for name in self.fields if name not in (IMAGE, MASK)]
        self.box_columns = self.index_file.box_columns
        self._box_columns = [n for n in self.box_columns if n != "labels"]
        self._splits = list(self.index_file.metadata.get("splits") or [])
        self._has_belongings = (
            bool(self._splits)
            or len(self.fields) > 1
            or any(n in self.index_file for n in ("boxes", "meta_data"))
        )
        self._label_is_int = self._label is not None and len(self._label.shape) == 1

    def _storage(self, root: Path) -> LocalFiles | FolderFiles | RemoteFiles:
        if self.format.caps.whole_files:
            return FolderFiles(root, self.index_file.key)
        files = self.index_file.files()
        if isinstance(root, Url):
            return RemoteFiles(root, [f[0] for f in files], [f[1] for f in files])
        if self._absolute.is_file() and self._absolute.name not in {f[0] for f in files}:
            raise IntegrityError(
                f"{self.index_file.path}: the index of another pack, not of {self._absolute.name}"
            )
        return LocalFiles(root, [f[0] for f in files], [f[1] for f in files])

    def _own_readers(self, root: Path) -> list[Any]:
        """A reader for each shard; none where byte ranges are read."""
        metadata = self.index_file.metadata
        name, recommended = metadata["format"], metadata.get("access", "range")
        self._by_record = recommended != "range"  # then the column offset has record numbers
        if self.access == "range" and not self._by_record:
            return []
        if isinstance(root, Url):
            raise OptionError(f"access={self.access!r}: a pack at a URL is read by 'range' only")
        if self.access != name or not self.format.caps.reads_by_library:
            known = repr(name) if self._by_record else f"'range' and {name!r}"
            raise OptionError(f"access={self.access!r}: a {name} pack has {known}")
        options = metadata.get("options", {})
        reading = Reading(image=options.get("image"), layout=options.get("layout"))
        return [self.format.reader(root / name, reading) for name, _ in self._shards]

    def reopened(self, access: str) -> Pack:
        """The same pack, read in another way; see `packio.open`.

        Raises:
            IntegrityError: it has changed since.
        """
        return Pack(
            self._absolute, access=access, expect_digest=self.digest, located=self._elsewhere
        )

    def __reduce__(self) -> tuple[object, ...]:
        made_again = functools.partial(
            Pack, access=self.access, expect_digest=self.digest, located=self._elsewhere,
            kept=self.ram,
        )  # fmt: skip
        return made_again, (self._absolute,)

    def __repr__(self) -> str:
        name = self.index_file.metadata["format"]
        return f"<packio.Pack {self.path} ({len(self)} samples, {name})>"

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | list[Sample]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        position = self._position(operator.index(index))  # no Row: it would cost a microsecond
        file, offset, length, crc, height, width, channels, orientation, flags, *codes = (
            self._numbers(position)
        )
        data = self._data(position, file, offset, length, crc, flags)
        encoding, dtype = self._names(*codes)
        return made(
            position, self._keys.text(position), data, encoding, self.label(position),
            height, width, orientation, channels, dtype, *self._belongings(position),
        )  # fmt: skip

    def _belongings(self, position: int) -> tuple[Any, ...]:
        """Mask, boxes, box labels, meta, split, further columns of boxes, further fields."""
        if not self._has_belongings:
            return None, None, None, None, None, {}, {}
        values = {name: self.field(name, position) for name in self._others}
        return (
            self.mask(position), *self.boxes(position), self.meta(position),
            self.split_of(position), self.more_of_boxes(position),
            {name: value for name, value in values.items() if value is not None},
        )  # fmt: skip

    def row(self, index: int, name: str = IMAGE) -> Row:
        """Look up what the index says of one sample; see `rows`."""
        return self._table(name).row(self._position(operator.index(index)))

    def _table(self, name: str) -> RowTable:
        if name not in self._tables:
            known = ", ".join(self.fields)
            raise OptionError(f"{self.path}: no field {name!r}; there are: {known}")
        return self._tables[name]

    def positions(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """Positions in the pack, (N,) int64 from 0 on; negative indices count from the end.

        Raises:
            IndexError: an index is out of range.
        """
        wanted, size = np.asarray(indices, np.int64), len(self)
        if len(wanted) and not 0 <= wanted.min() <= wanted.max() < size:
            bad = wanted[(wanted < -size) | (wanted >= size)]
            if len(bad):
                raise IndexError(f"index {bad[0]} is out of range: {self.path} has {size} samples")
            return wanted % size
        return wanted

    def rows(self, indices: Sequence[int] | np.ndarray, name: str = IMAGE) -> Rows:
        """Look up what the index says of some samples; negative indices count from the end.

        Args:
            indices: Of the samples.
            name: Of the field that the rows describe.

        Raises:
            IndexError: an index is out of range.
            IntegrityError: the index is damaged there.
            OptionError: the pack has no field of this name.
        """
        return self._table(name).rows(self.positions(indices))

    @functools.cached_property
    def raw_rows(self) -> RawRows | None:
        """The pixels, mapped, where all samples are raw pixels of one shape; else None."""
        if self._readers or not isinstance(self._files, LocalFiles):
            return None
        from packio.packs import raw

        edges = [*(first for _, first in self._shards), len(self)]
        counts = [b - a for a, b in itertools.pairwise(edges)]
        return raw.find(self.index_file, self._files, counts, self.key)

    def keep_in_ram(self, room: int | None = None) -> None:
        """Keep the bytes of samples, once read, in memory that workers share; see `RamCache`.

        Not where all samples are mapped (`raw_rows`): those are in the page cache as they are.

        Args:
            room: Bytes; None takes half of the memory that is available.

        Raises:
            OutputError: the system gives no memory for it.
        """
        if self.raw_rows is None:
            self.ram = ram.shared(self.digest, len(self), len(self.fields), room)

    def read(self, row: Row, name: str = IMAGE, *, check: bool = True) -> bytes:
        """Read the encoded bytes of a sample.

        Args:
            row: As `rows` gave it.
            name: Of the field that the row describes.
            check: Compare the CRC32C.

        Raises:
            IntegrityError: the bytes are not those that were packed.
            ReadError: the file cannot be read.
        """
        crc = row.crc32c if check else None
        return self._data(row.position, row.file, row.offset, row.length, crc, row.flags, name)

    def _data(
        self, position: int, file: int, offset: int, length: int, crc: int | None, flags: int,
        name: str = IMAGE,
    ) -> bytes:  # fmt: skip
        if self.ram is not None and crc is not None:
            kept = self.ram.get(self._slots[name] + position, crc)
            if kept is not None:
                return kept
        if self._readers and name == IMAGE:
            data = self._record(position, offset)
        else:
            data = self._files.read(file, offset, length)
            if flags & SPLIT_RECORD:
                data = self.format.unsplit(data)
        if crc is not None and crc32c(data) != crc:
            what = "" if name == IMAGE else f"{name} of "
            raise IntegrityError(
                f"{self._files.path(file)}: {what}record {position} ({self.key(position)!r}, "
                f"{length} bytes at {offset}) is damaged: CRC32C differs"
            )
        if self.ram is not None and crc is not None:
            self.ram.put(self._slots[name] + position, data)
        return data

    def _record(self, position: int, offset: int) -> bytes:
        """A sample's bytes through the container's own library."""
        shard = bisect.bisect_right(self._shards, position, key=lambda s: s[1]) - 1
        number = offset if self._by_record else position - self._shards[shard][1]
        data: bytes = self._readers[shard].get(number)
        return data

    def mask(self, index: int) -> bytes | None:
        """Encoded bytes of a sample's mask, checked; None if the sample has none.

        Raises:
            IntegrityError: the bytes are not those that were packed.
        """
        return None if MASK not in self.fields else self.read_field(MASK, index)

    def field(self, name: str, index: int) -> Field | None:
        """A named field of a sample; None if the sample has none.

        Raises:
            OptionError: the pack has no field of this name.
            IntegrityError: the bytes are not those that were packed.
        """
        data = self.read_field(name, index)
        if data is None:
            return None
        kind = self.fields[name]
        return Field(kind, data, self.facts(name, index) if kind in PIXELS else None)

    def facts(self, name: str, index: int) -> Facts:
        """What the index says of the pixels of a field of kind image or mask."""
        row = self.row(index, name)
        return Facts(
            row.encoding, row.height, row.width, row.channels, row.dtype, row.orientation,
            progressive=bool(row.flags & PROGRESSIVE), seekable=bool(row.flags & SEEKABLE),
        )  # fmt: skip

    def read_field(self, name: str, index: int) -> bytes | None:
        """Encoded bytes of a field of a sample, checked; None if the sample has none.

        Raises:
            OptionError: the pack has no field of this name.
            IntegrityError: the bytes are not those that were packed.
        """
        row = self.row(index, name)
        return None if row.offset < 0 and name != IMAGE else self.read(row, name)

    def record(self, index: int) -> Record[Field]:
        """The record of a sample, all of it, as packing takes it.

        Raises:
            IntegrityError: the bytes are not those that were packed.
        """
        position = self._position(index)
        values = {name: self.field(name, position) for name in self.fields}
        split = None
        if self._splits:
            split = self.index_file.column("split").item(position)
        boxes, labels = self.boxes(position)
        columns = {} if labels is None else {"labels": labels}
        return Record(
            self.key_bytes(position), {n: v for n, v in values.items() if v is not None},
            self.label(position), split, boxes, {**columns, **self.more_of_boxes(position)},
            self.meta_bytes(position),
        )  # fmt: skip

    def meta(self, index: int) -> dict[str, Any] | None:
        """What else belongs to a sample; None if there is nothing."""
        text = self.meta_bytes(index)
        if text is None:
            return None
        meta: dict[str, Any] = json.loads(text.decode("utf-8", "surrogatepass"))
        return meta

    def meta_bytes(self, index: int) -> bytes | None:
        """The metadata of a sample as packed, a JSON object in UTF-8; None if there is none."""
        if "meta_data" not in self.index_file:
            return None
        position = self._position(index)
        start, stop = self.index_file.column("meta_offsets").span(position, position + 2).tolist()
        return self.index_file.column("meta_data").span(start, stop).tobytes() or None

    def split_of(self, index: int) -> str | None:
        """Name of the split of a sample; None in a pack without splits."""
        if not self._splits:
            return None
        return str(self._splits[self.index_file.column("split").item(self._position(index))])

    def more_of_boxes(self, index: int) -> dict[str, np.ndarray]:
        """Columns of a sample's boxes beside their labels: name → (k,) int64 or float32."""
        if not self._box_columns:
            return {}
        position = self._position(index)
        start, stop = self.index_file.column("box_offsets").span(position, position + 2).tolist()
        column = self.index_file.column
        return {n: column(f"boxes/{n}").span(start, stop).copy() for n in self._box_columns}

    def boxes(self, index: int) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Boxes (k, 4) float32 XYXY in pixels and their labels (k,) int64, where there are any."""
        if "boxes" not in self.index_file:
            return None, None
        position = self._position(index)
        start, stop = self.index_file.column("box_offsets").span(position, position + 2).tolist()
        boxes = self.index_file.column("boxes").span(start, stop).copy()
        if "boxes/labels" not in self.index_file:
            return boxes, None
        return boxes, self.index_file.column("boxes/labels").span(start, stop).copy()

    def read_many(self, indices: Sequence[int] | np.ndarray) -> list[bytes]:
        """Read the encoded bytes of some samples, in file order; return them as asked for."""
        rows = self.rows(indices)
        data: list[bytes] = [b""] * len(rows)
        pack = self.fetched({IMAGE: rows})
        for i in rows.file_order():
            data[i] = pack.read(rows[i])
        return data

    def fetched(self, rows: Mapping[str, Sequence[Row]]) -> Pack:
        """This pack, with the bytes of some samples at hand, or on their way, read at once.

        At a URL they are fetched; of files on a disk the system is told which ranges come next.

        Args:
            rows: Name of a field → what the index says of its values; see `rows`.
        """
        if not self.reads_ahead:
            return self
        ranges = [
            row[1:4] for name in rows for row in self._missing(rows[name], self._slots[name])
            if row.offset >= 0
        ]  # file, offset, length  # fmt: skip
        if isinstance(self._files, RemoteFiles):
            pack = object.__new__(Pack)
            pack.__dict__.update(self.__dict__)
            pack._files = self._files.fetched(ranges)
            return pack
        if isinstance(self._files, LocalFiles):
            self._files.announce(ranges)
        return self

    @property
    def reads_ahead(self) -> bool:
        """Whether `fetched` does anything: not where a library reads, or a file is a sample."""
        return not self._readers and not isinstance(self._files, FolderFiles)

    def _missing(self, rows: Sequence[Row], first: int) -> Sequence[Row]:
        """Those whose bytes are not kept in memory, in slots from the first one on."""
        if (ram := self.ram) is None:
            return rows
        return [row for row in rows if not ram.holds(first + row.position)]

    @property
    def storage(self) -> LocalFiles | FolderFiles | RemoteFiles:
        """What reads byte ranges of the pack's files."""
        return self._files

    def key(self, index: int) -> str:
        """Key of a sample; bytes that are not UTF-8 are surrogate-escaped."""
        return self._keys.text(self._position(index))

    def key_bytes(self, index: int) -> bytes:
        """Key of a sample as raw bytes."""
        return bytes(self._keys(self._position(index)))

    def _position(self, index: int) -> int:
        size = self._count
        if not -size <= index < size:
            raise IndexError(f"index {index} is out of range: {self.path} has {size} samples")
        return index % size

    def named(self, error: DecodeError, row: Row, part: str = "sample") -> DecodeError:
        """The same error, which names the sample: what cannot be decoded does not know whose it is.

        Args:
            error: What is wrong.
            row: Of the sample.
            part: What of it is bad.
        """
        name = f"{self.path}, {part} {row.position} ({self.key(row.position)!r})"
        return type(error)(f"{name}: {error}")

    def keys(self) -> Sequence[str]:
        """All keys, in order, decoded lazily."""
        return Keys(self.index_file)

    def find(self, key: str | bytes) -> int:
        """Index of the sample with this key.

        Raises:
            KeyNotFoundError: there is none.
        """
        return self.index_file.find(os.fsencode(key))

    def by_key(self, key: str | bytes) -> Sample:
        """The sample with this key.

        Raises:
            KeyNotFoundError: there is none.
        """
        return self[self.find(key)]

    def label(self, index: int) -> int | np.ndarray | None:
        """Label of a sample: an int, a (k,) float32 vector, or None in a pack without labels."""
        if self._label is None:
            return None
        position = self._position(index)
        if self._label_is_int:
            return self._label.item(position)
        vector: np.ndarray = self._label.span(position, position + 1)[0].copy()
        return vector

    def take_labels(self, indices: np.ndarray) -> np.ndarray:
        """Copy out the labels of some samples of a labelled pack: (n,) int64 or (n, k) float32."""
        assert self._label is not None  # noqa: S101 (for the type checker)
        return self._label.take(indices)

    @property
    def labels(self) -> np.ndarray | None:
        """All labels: (N,) int64 or (N, k) float32, a read-only view; None if there are none."""
        return None if self._label is None else self._label.array()

    def split(self, name: str) -> np.ndarray:
        """Positions of the samples of a split, (n,) int64, ascending.

        Raises:
            OptionError: the pack has no such split.
        """
        names = self._splits
        if name not in names or "split" not in self.index_file:
            known = f"there are: {', '.join(names)}" if names else "it has none"
            raise OptionError(f"{self.path}: no split {name!r}; {known}")
        return np.flatnonzero(self.index_file.column("split").array() == names.index(name))

    @property
    def classes(self) -> list[str]:
        """Class names; a label is a position in this list."""
        return list(self.index_file.metadata.get("classes") or [])

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Label of each class name."""
        return {name: i for i, name in enumerate(self.classes)}

    @property
    def metadata(self) -> dict[str, Any]:
        """The index's metadata: format, counts, source, options, versions."""
        return self.index_file.metadata

    @property
    def digest(self) -> str:
        """Hexadecimal SHA-256 that identifies the pack's contents."""
        return self.index_file.digest

    def close(self) -> None:
        """Close the files; they open again when read from."""
        self._files.close()
        self.__dict__.pop("raw_rows", None)

    def __enter__(self) -> Pack:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _format(index: Index) -> Format:
    name = index.metadata.get("format")
    try:
        container: Format = registry.load("formats", str(name))
    except OptionError as error:
        raise NotAPackError(f"{index.path}: format {name!r} is unknown to this packio") from error
    return container


def _shards(index: Index) -> list[tuple[str, int]]:
    """Names of the shards, relative to the index, and the position of the first sample of each."""
    try:
        shards = [(str(s["name"]), int(s["samples"])) for s in index.metadata["shards"]]
    except (KeyError, TypeError, ValueError) as error:
        raise NotAPackError(f"{index.path}: its list of shards does not parse ({error})") from error
    names, counts = [s[0] for s in shards], [s[1] for s in shards]
    if sum(counts) != len(index) or any(n.startswith("/") or ".." in n.split("/") for n in names):
        raise NotAPackError(f"{index.path}: its list of shards does not add up")
    return list(zip(names, itertools.accumulate(counts, initial=0), strict=False))


def _check_identity(
    index: Index, container: Format, shards: list[tuple[str, int]], root: Path
) -> None:
    if isinstance(root, Url):  # objects do not change
        return
    found = [container.identity(root / name) for name, _ in shards]
    expected = index.metadata.get("identity", [None] * len(found))
    if found != expected:
        raise IntegrityError(
            f"{root}: changed since it was packed ({found}, the index says {expected}); pack again"
        )
