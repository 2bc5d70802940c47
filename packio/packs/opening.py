"""Opening a pack, and reading its samples by byte range, or by a container's own library."""

from __future__ import annotations

import bisect
import functools
import itertools
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from packio.errors import IntegrityError, OptionError, ReadError
from packio.formats import Reading
from packio.index.indexfile import SPLIT_RECORD, crc32c
from packio.packs import locating
from packio.packs.collecting import remarks_of
from packio.packs.table import PackTable, Row
from packio.sample import levels
from packio.sample.fields import PIXELS
from packio.sample.packed import Sample, build_sample
from packio.sample.record import IMAGE, MASK, Field, Record
from packio.storage import remote, sample_cache, urls
from packio.storage.local import LocalStore
from packio.storage.store import Store
from packio.system.locks import cached_property

if TYPE_CHECKING:
    import numpy as np

    from packio.packs.raw import RawRows
    from packio.storage.sample_cache import RamCache
    from packio.storage.store import Range


def open(  # noqa: A001 (public name)
    path: str | os.PathLike[str],
    *,
    access: str | None = None,
    image: str | None = None,
    label: str | None = None,
    layout: str | None = None,
    trust_plain_pickle: bool = False,
    database: str | None = None,
    index: str | os.PathLike[str] | None = None,
    pack: str | os.PathLike[str] | None = None,
    by_key: bool = False,
) -> Pack:
    """Open a pack.

    Args:
        path: A pack: a directory with ``index.packio`` in it, a file with ``<name>.packio`` beside
            it, a selection, or the URL of a pack, as ``s3://bucket/train.tar``. A container without
            an index is walked once; the user's cache keeps its index. Several containers of one
            format are one pack: a folder of them, or braces, as ``shards/{000..127}.tar``.
        access: "range" reads byte ranges of files; the name of the format, as "lmdb", reads by the
            library of the format. None takes the access that the index recommends.
        image, label, layout, trust_plain_pickle, database: How to read a container without an
            index; see `packio.reindex`.
        index: Path or URL of an index that is not beside its container; see `packio.reindex`.
        pack: Of a selection (`packio.select`): the pack that it is of, if that was moved.
        by_key: Of a selection: if the pack has changed, take the samples with the same keys.

    Raises:
        NotAPackError: there is nothing at the path, or no pack.
        OptionError: `image`, `label`, `layout` or `database` is given beside an index, or names
            nothing there.
        UnfinishedPackError: packing into this path was interrupted or is going on.
        IntegrityError: index and files do not belong together, or are damaged, or have changed.
        VersionError: a newer packio wrote the index.
    """
    opened = open_silently(
        path, access=access, index=index, pack=pack, by_key=by_key, image=image, label=label,
        layout=layout, trust_plain_pickle=trust_plain_pickle, database=database,
    )  # fmt: skip
    for remark in remarks_of(opened.metadata):
        warnings.warn(f"{opened.path}: {remark}", stacklevel=2)
    return opened


def open_silently(
    path: str | os.PathLike[str], *, access: str | None = None,
    index: str | os.PathLike[str] | None = None, pack: str | os.PathLike[str] | None = None,
    by_key: bool = False, **reading: Any,
) -> Pack:  # fmt: skip
    """`open` for a caller that itself tells what the index leaves out, as packing does."""
    beside, whole = (None if p is None else urls.absolute(p) for p in (index, pack))
    again = functools.partial(
        locating.locate_asked, urls.absolute(path), beside, Reading(**reading), whole, by_key
    )
    return Pack(path, access=access, located=again(), again=again)


class Pack(PackTable, Sequence[Sample]):
    """A pack, opened by `packio.open`: a sequence of `Sample`.

    Safe in threads and forked workers. A pickled pack is its path and the digest of its index; if
    the pack has changed meanwhile, unpickling raises an IntegrityError.

    Attributes:
        access: How samples are read: by "range", or by the library of the format.
        ram: What is kept in memory or on a disk, and how much of it; None: nothing.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, access: str | None = None,
        expect_digest: str | None = None, located: tuple[Path, Path] | None = None,
        kept: RamCache | None = None, again: locating.Again | None = None,
    ) -> None:  # fmt: skip
        self.path: Path = urls.place(path)
        self._absolute = urls.absolute(path)  # a later chdir changes nothing
        if located and again and urls.parse(located[0]) is None and not located[0].is_file():
            located = again()  # the user's cache may have been emptied
        self._elsewhere = located  # the index, and the folder that its paths are relative to
        self._again = again
        index_path, root = located or locating.resolve_pack(self._absolute)
        index = remote.open_index(index_path)
        if expect_digest is not None and index.digest != expect_digest:
            raise IntegrityError(f"{index_path}: has changed since this object was made; open anew")
        super().__init__(urls.place(path), index)
        self.ram = kept
        self._files = locating.open_files(index, self.format, root, self._absolute)
        columns = [index.column(f"{name}/file") for name in index.fields]
        self._files.check(lambda file: any(
            (chunk == file).any() for column in columns for chunk in column.chunks()
        ))  # fmt: skip
        locating.check_identity(index, self.format, self._shards, self._files)
        self.access: str = access or index.metadata.get("access", "range")
        self._readers = self._open_readers(root)
        self._slots = {name: i * self._count for i, name in enumerate(self.fields)}
        self._others = [n for n in levels.others(self.fields) if n not in (IMAGE, MASK)]
        more = any(name in index for name in ("split", "boxes", "meta_data"))
        self._has_belongings = more or len(self.fields) > 1

    def _open_readers(self, root: Path) -> list[Any]:
        """A reader of the format's library for each shard; none if byte ranges are read."""
        metadata = self.index_file.metadata
        name = metadata["format"]
        # Then the column offset has record numbers
        self._by_record = metadata.get("access", "range") != "range"
        if self.access == "range" and not self._by_record:
            return []
        if not self._files.is_local or ("selection" in metadata and not self._by_record):
            raise OptionError(f"access={self.access!r}: {self.path} is read by 'range' only")
        if self.access != name or not self.format.caps.reads_by_library:
            known = repr(name) if self._by_record else f"'range' and {name!r}"
            raise OptionError(f"access={self.access!r}: a {name} pack has {known}")
        options = metadata.get("options", {})
        reading = Reading(**{n: options.get(n) for n in ("image", "layout", "database")})
        return [self.format.reader(root / name, reading) for name, _ in self._shards]

    def reopen(self, access: str) -> Pack:
        """Open the same pack with another access; see `packio.open`.

        Raises:
            IntegrityError: the pack has changed meanwhile.
        """
        return self._made_again()(self._absolute, access=access, kept=None)

    def _made_again(self) -> functools.partial[Pack]:
        return functools.partial(
            Pack, access=self.access, expect_digest=self.digest, located=self._elsewhere,
            kept=self.ram, again=self._again,
        )  # fmt: skip

    def __reduce__(self) -> tuple[Any, ...]:
        return locating.open_pickled, (self._made_again(), self._absolute)

    def __repr__(self) -> str:
        name = self.index_file.metadata["format"]
        return f"<packio.Pack {self.path} ({len(self)} samples, {name})>"

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | list[Sample]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        row = self.row(index)
        position = row.position
        return build_sample(
            position, self.key(position), self.read(row), row.encoding, self.label(position),
            row.height, row.width, row.orientation, row.channels, row.dtype,
            *self._belongings(position),
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

    @cached_property
    def raw_rows(self) -> RawRows | None:
        """The mapped pixels, if all samples are raw pixels of one shape; else None."""
        if self._readers or not self._files.is_mappable:
            return None
        from packio.packs import raw

        edges = [*(first for _, first in self._shards), len(self)]
        counts = [b - a for a, b in itertools.pairwise(edges)]
        return raw.find(self.index_file, self._files, counts, self.key)

    def keep_in_ram(self, room: int | None = None) -> None:
        """Keep the bytes that are read in memory that all workers share; see `RamCache`.

        Mapped samples (`raw_rows`) are not kept: they are in the page cache already.

        Args:
            room: Bytes to keep at most; None takes half of the memory that is available.

        Raises:
            OutputError: the system gives no memory for the cache.
        """
        if self.raw_rows is None:
            self.ram = sample_cache.share_cache(self.digest, len(self), len(self.fields), room)

    def read(self, row: Row, name: str = IMAGE, *, check: bool = True) -> bytes:
        """Read the encoded bytes of a sample.

        Args:
            row: Row of the sample, from `rows`.
            name: Name of the field that the row describes.
            check: Compare the CRC32C.

        Raises:
            IntegrityError: the bytes are not those that were packed.
            ReadError: the file cannot be read.
        """
        position, file, offset, length, crc = row[:5]
        if self.ram is not None and check:
            kept = self.ram.get(self._slots[name] + position, crc)
            if kept is not None:
                return kept
        if self._readers and name == IMAGE:
            data = self._record(position, offset)
        else:
            try:
                data = self._files.read(file, offset, length)
            except (ReadError, IntegrityError):
                locating.refuse_changed(self.index_file, self.path)
                raise
            if row.flags & SPLIT_RECORD:
                data = self.format.unsplit(data)
        if check and crc32c(data) != crc:
            locating.refuse_changed(self.index_file, self.path)
            what = "" if name == IMAGE else f"{name} of "
            raise IntegrityError(
                f"{self._files.path(file)}: {what}record {position} ({self.key(position)!r}, "
                f"{length} bytes at {offset}) is damaged: CRC32C differs"
            )
        if self.ram is not None and check:
            self.ram.put(self._slots[name] + position, data)
        return data

    def _record(self, position: int, offset: int) -> bytes:
        """Read a sample's bytes by the container's own library."""
        shard = bisect.bisect_right(self._shards, position, key=lambda s: s[1]) - 1
        number = offset if self._by_record else position - self._shards[shard][1]
        try:
            data: bytes = self._readers[shard].get(number)
        except IndexError as error:  # it would end a for loop
            raise IntegrityError(f"{error}: changed since it was indexed; reindex it") from error
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
        facts = self.facts(name, index) if kind in PIXELS else None
        return Field(kind, data, facts, self.seek_points(index) if name == IMAGE else b"")

    def read_field(self, name: str, index: int) -> bytes | None:
        """Encoded bytes of a field of a sample, checked; None if the sample has none.

        Raises:
            OptionError: the pack has no field of this name.
            IntegrityError: the bytes are not those that were packed.
        """
        row = self.row(index, name)
        return None if row.offset < 0 and name != IMAGE else self.read(row, name)

    def record(self, index: int, *, with_levels: bool = True) -> Record[Field]:
        """The record of a sample, all of it or all but levels, as packing takes it.

        Raises:
            IntegrityError: the bytes are not those that were packed.
        """
        position = self._position(index)
        names = self.fields if with_levels else levels.others(self.fields)
        values = {name: self.field(name, position) for name in names}
        split = self.index_file.column("split").item(position) if self._splits else None
        boxes, labels = self.boxes(position)
        columns = {} if labels is None else {"labels": labels}
        return Record(
            self.key_bytes(position), {n: v for n, v in values.items() if v is not None},
            self.label(position), split, boxes, {**columns, **self.more_of_boxes(position)},
            self.meta_bytes(position),
        )  # fmt: skip

    def read_many(self, indices: Sequence[int] | np.ndarray) -> list[bytes]:
        """Read the encoded bytes of some samples, in file order; return them as asked for."""
        rows = self.rows(indices)
        data: list[bytes] = [b""] * len(rows)
        pack = self.prefetch({IMAGE: rows})
        for i in rows.file_order():
            data[i] = pack.read(rows[i])
        return data

    def prefetch(self, rows: Mapping[str, Sequence[Row]]) -> Pack:
        """This pack, prepared to read values next: name of a field → their rows.

        From a URL their bytes are fetched at once. For files on a disk the system is told which
        ranges come next.
        """
        if not self.reads_ahead:
            return self
        if self.ram is not None:  # kept since they were expected, as by another process
            self._files.forget(self._ranges(rows, are_kept=True))
        files = self._files.prefetch(self._ranges(rows))
        if files is self._files:
            return self
        pack = object.__new__(Pack)
        pack.__dict__.update(self.__dict__)
        pack._files = files
        return pack

    def expect(self, rows: Mapping[str, Sequence[Row]]) -> None:
        """Ask for the bytes of values that will be read soon; see `prefetch`, `looks_ahead`."""
        if self._files.looks_ahead:
            self._files.expect(self._ranges(rows))

    def forget(self) -> None:
        """Do not keep what was expected, and has not been read."""
        self._files.forget()

    @property
    def looks_ahead(self) -> bool:
        """Whether `expect` does anything: for packs at URLs that plain HTTP reaches."""
        return self._files.looks_ahead

    @property
    def reads_ahead(self) -> bool:
        """Whether `prefetch` does anything: not if a library reads, or files of a folder."""
        return not self._readers and self._files.reads_ahead

    def _ranges(self, rows: Mapping[str, Sequence[Row]], *, are_kept: bool = False) -> list[Range]:
        """File, offset and length of the values that are kept, in memory or on a disk, or not."""
        kept = self.ram
        return [
            row[1:4] for name, some in rows.items() for row in some if row.offset >= 0
            and are_kept == (kept is not None and kept.holds(self._slots[name] + row.position))
        ]  # fmt: skip

    @property
    def local_files(self) -> LocalStore | None:
        """The files on a disk whose byte ranges are the images, if none are kept in memory."""
        is_read_here = not self._readers and self.ram is None
        return self._files if is_read_here and isinstance(self._files, LocalStore) else None

    @property
    def storage(self) -> Store:
        """The object that reads byte ranges of the pack's files."""
        return self._files

    def by_key(self, key: str | bytes) -> Sample:
        """The sample with this key.

        Raises:
            KeyNotFoundError: there is none.
        """
        return self[self.find(key)]

    def close(self) -> None:
        """Close the files; they open again when read from."""
        self._files.close()
        self.__dict__.pop("raw_rows", None)

    def __enter__(self) -> Pack:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
