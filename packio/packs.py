"""A pack, opened: its samples, keys, labels and classes, read by byte range."""

from __future__ import annotations

import bisect
import functools
import itertools
import json
import operator
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np

from packio import encodings, indexing, registry
from packio.errors import (
    IntegrityError,
    NotAPackError,
    OptionError,
    ReadError,
    UnfinishedPackError,
)
from packio.indexfile import INDEX_NAME, INDEX_SUFFIX, SPLIT_RECORD, Index, Keys, crc32c
from packio.sample import Sample
from packio.storage.folder import FolderFiles
from packio.storage.local import LocalFiles

if TYPE_CHECKING:
    from types import ModuleType

UNFINISHED_SUFFIX = ".packio-tmp"  # of the folder in which a pack is built


class NoSuchPackError(NotAPackError, FileNotFoundError):
    """Nothing is at the path given."""


class Row(NamedTuple):
    """What the index says of one sample."""

    position: int  # in the pack
    file: int
    offset: int  # bytes
    length: int  # bytes
    crc32c: int
    height: int  # pixels, as stored
    width: int  # pixels, as stored
    channels: int
    orientation: int  # 1..8
    flags: int  # bits of packio.indexfile
    encoding: str
    dtype: str


_ROW_COLUMNS = Row._fields[1:]


def open(path: str | os.PathLike[str], *, access: str | None = None) -> Pack:  # noqa: A001 (public name)
    """Open a pack.

    Args:
        path: As given to `packio.pack`: a directory with ``index.packio``, or a file with
            ``<name>.packio`` beside it. A container without an index, as others write them, is
            walked once, and its index kept in the user's cache.
        access: "range" (byte ranges of ordinary files), or the format's own library, as "lmdb";
            None takes what the index recommends.

    Raises:
        NotAPackError: nothing there, or not a pack.
        UnfinishedPackError: packing into this path was interrupted or is going on.
        IntegrityError: index and files do not belong together, or are damaged.
        VersionError: written by a newer packio.
    """
    return Pack(path, access=access)


class Pack(Sequence[Sample]):
    """A pack, opened by `packio.open`: a sequence of `Sample`.

    Safe in threads and forked workers; pickles as its path and the digest of its index, so that a
    pack changed in between is noticed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        access: str | None = None,
        expect_digest: str | None = None,
        located: tuple[Path, Path] | None = None,
    ) -> None:
        self.path = Path(path)
        self._absolute = Path(os.path.abspath(path))  # a later chdir changes nothing
        self._elsewhere = located  # the index, and the folder that its paths are relative to
        index_path, root = located or _located(self._absolute)
        self.index_file = Index(index_path)
        if expect_digest is not None and self.index_file.digest != expect_digest:
            raise IntegrityError(f"{index_path}: has changed since this object was made; open anew")
        self.format = _format(self.index_file)
        self._files = self._storage(root)
        self._files.check()
        self._shards = _shards(self.index_file)
        _check_identity(self.index_file, self.format, self._shards, root)
        self.access = access or self.index_file.metadata.get("access", "range")
        self._readers = self._own_readers(root)
        self._columns = [self.index_file.column(name) for name in _ROW_COLUMNS]
        self._label = self.index_file.column("label") if "label" in self.index_file else None

    def _storage(self, root: Path) -> LocalFiles | FolderFiles:
        if getattr(self.format, "WHOLE_FILES", False):
            return FolderFiles(root, self.index_file.key)
        files = self.index_file.files()
        if self._absolute.is_file() and self._absolute.name not in {f[0] for f in files}:
            raise IntegrityError(
                f"{self.index_file.path}: the index of another pack, not of {self._absolute.name}"
            )
        return LocalFiles(root, [f[0] for f in files], [f[1] for f in files])

    def _own_readers(self, root: Path) -> list[Any]:
        """A reader for each shard; none where byte ranges are read."""
        if self.access == "range":
            return []
        name = self.index_file.metadata["format"]
        if self.access != name or not hasattr(self.format, "Reader"):
            raise OptionError(f"access={self.access!r}: a {name} pack has 'range' and {name!r}")
        return [self.format.Reader(root / name) for name, _ in self._shards]

    def __reduce__(self) -> tuple[object, ...]:
        made_again = functools.partial(
            Pack, access=self.access, expect_digest=self.digest, located=self._elsewhere
        )
        return made_again, (self._absolute,)

    def __repr__(self) -> str:
        name = self.index_file.metadata["format"]
        return f"<packio.Pack {self.path} ({len(self)} samples, {name})>"

    def __len__(self) -> int:
        return len(self.index_file)

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | list[Sample]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        row = self.row(index)
        boxes, box_labels = self.boxes(row.position)
        return Sample(
            mask=self.mask(row.position), meta=self.meta(row.position), boxes=boxes,
            box_labels=box_labels, index=row.position, key=self.key(row.position),
            data=self.read(row), encoding=row.encoding, label=self.label(row.position),
            height=row.height, width=row.width, orientation=row.orientation,
            channels=row.channels, dtype=row.dtype,
        )  # fmt: skip

    def row(self, index: int) -> Row:
        """Look up what the index says of one sample; see `rows`."""
        position = self._position(operator.index(index))
        *numbers, encoding, dtype = [column.item(position) for column in self._columns]
        return Row._make((position, *numbers, *self._names(encoding, dtype)))

    def _names(self, encoding: int, dtype: int) -> tuple[str, str]:
        if dtype >= len(encodings.DTYPES):  # an IndexError would end a for loop
            raise IntegrityError(f"{self.path}: column dtype has the unknown code {dtype}")
        return encodings.NAMES.get(encoding, "unknown"), encodings.DTYPES[dtype]

    def rows(self, indices: Sequence[int] | np.ndarray) -> list[Row]:
        """Look up what the index says of some samples; negative indices count from the end.

        Raises:
            IndexError: an index is out of range.
            IntegrityError: the index is damaged there.
        """
        wanted = np.asarray(indices, np.int64)
        positions, size = wanted.tolist(), len(self)
        if positions and not 0 <= min(positions) <= max(positions) < size:
            bad = next((i for i in positions if not -size <= i < size), None)
            if bad is not None:
                raise IndexError(f"index {bad} is out of range: {self.path} has {size} samples")
            positions = [i % size for i in positions]
            wanted = np.array(positions, np.int64)
        *numbers, encoding, dtype = (column.take(wanted).tolist() for column in self._columns)
        names = [self._names(e, d) for e, d in zip(encoding, dtype, strict=True)]
        fixed = zip(positions, *numbers, strict=True)
        return [Row._make((*row, *two)) for row, two in zip(fixed, names, strict=True)]

    def read(self, row: Row, *, check: bool = True) -> bytes:
        """Read the encoded bytes of a sample.

        Args:
            row: As `rows` gave it.
            check: Compare the CRC32C.

        Raises:
            IntegrityError: the bytes are not those that were packed.
            ReadError: the file cannot be read.
        """
        if self._readers:
            data = self._record(row.position)
        else:
            data = self._files.read(row.file, row.offset, row.length)
            if row.flags & SPLIT_RECORD:
                data = self.format.unsplit(data)
        if check and crc32c(data) != row.crc32c:
            raise IntegrityError(
                f"{self._files.path(row.file)}: record {row.position} "
                f"({self.key(row.position)!r}, {row.length} bytes at {row.offset}) is damaged: "
                "CRC32C differs"
            )
        return data

    def _record(self, position: int) -> bytes:
        """A sample's bytes through the container's own library."""
        shard = bisect.bisect_right(self._shards, position, key=lambda s: s[1]) - 1
        data: bytes = self._readers[shard].get(position - self._shards[shard][1])
        return data

    def mask(self, index: int) -> bytes | None:
        """Encoded bytes of a sample's mask, checked; None in a pack without masks.

        Raises:
            IntegrityError: the bytes are not those that were packed.
        """
        if "mask_offset" not in self.index_file:
            return None
        position = self._position(index)
        names = ("mask_file", "mask_offset", "mask_length", "mask_crc32c")
        file, offset, length, crc = [self.index_file.column(n).item(position) for n in names]
        data = self._files.read(file, offset, length)
        if crc32c(data) != crc:
            raise IntegrityError(
                f"{self._files.path(file)}: mask of record {position} ({self.key(position)!r}, "
                f"{length} bytes at {offset}) is damaged: CRC32C differs"
            )
        return data

    def meta(self, index: int) -> dict[str, Any] | None:
        """What else belongs to a sample; None in a pack without it."""
        if "meta_data" not in self.index_file:
            return None
        position = self._position(index)
        start, stop = self.index_file.column("meta_offsets").span(position, position + 2).tolist()
        text = self.index_file.column("meta_data").span(start, stop).tobytes()
        meta: dict[str, Any] = json.loads(text.decode("utf-8", "surrogatepass"))
        return meta

    def boxes(self, index: int) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Boxes (k, 4) float32 XYXY in pixels and their labels (k,) int64, where there are any."""
        if "boxes" not in self.index_file:
            return None, None
        position = self._position(index)
        start, stop = self.index_file.column("box_offsets").span(position, position + 2).tolist()
        boxes = self.index_file.column("boxes").span(start, stop).copy()
        if "box_labels" not in self.index_file:
            return boxes, None
        return boxes, self.index_file.column("box_labels").span(start, stop).copy()

    def read_many(self, indices: Sequence[int] | np.ndarray) -> list[bytes]:
        """Read the encoded bytes of some samples, in file order; return them as asked for."""
        rows = self.rows(indices)
        data: list[bytes] = [b""] * len(rows)
        for i in file_order(rows):
            data[i] = self.read(rows[i])
        return data

    def key(self, index: int) -> str:
        """Key of a sample; bytes that are not UTF-8 are surrogate-escaped."""
        return os.fsdecode(self.key_bytes(index))

    def key_bytes(self, index: int) -> bytes:
        """Key of a sample as raw bytes."""
        return self.index_file.key(self._position(index))

    def _position(self, index: int) -> int:
        size = len(self)
        if not -size <= index < size:
            raise IndexError(f"index {index} is out of range: {self.path} has {size} samples")
        return index % size

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
        value = self._label.span(position, position + 1)[0]
        return int(value) if value.ndim == 0 else value.copy()

    def take_labels(self, indices: np.ndarray) -> np.ndarray:
        """Copy out the labels of some samples of a labelled pack: (n,) int64 or (n, k) float32."""
        assert self._label is not None  # noqa: S101 (for the type checker)
        return self._label.take(indices)

    @property
    def labels(self) -> np.ndarray | None:
        """All labels: (N,) int64 or (N, k) float32, a read-only view; None if there are none."""
        return None if self._label is None else self._label.array()

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

    def __enter__(self) -> Pack:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def file_order(rows: Sequence[Row]) -> list[int]:
    """Positions in ``rows`` by file and offset: the order to read them in."""
    return sorted(range(len(rows)), key=lambda i: (rows[i].file, rows[i].offset))


def _located(path: Path) -> tuple[Path, Path]:
    """The index of what is at a path, and the folder that its paths are relative to."""
    unfinished = path.with_name(path.name + UNFINISHED_SUFFIX) if path.name else path
    if unfinished != path and os.path.exists(unfinished):
        raise UnfinishedPackError(
            f"{path}: packing into it is unfinished ({unfinished.name} is there); "
            "run the same `packio pack` again, or delete that folder to give up"
        )
    kind = _file_kind(path)
    if kind is None:
        raise NoSuchPackError(f"{path}: does not exist; a pack was expected")
    index = path / INDEX_NAME if stat.S_ISDIR(kind) else path.with_name(path.name + INDEX_SUFFIX)
    if stat.S_ISREG(_file_kind(index) or 0):
        return index, index.parent
    if os.path.lexists(index):
        raise NotAPackError(f"{index}: not a file; the index of {path} was expected")
    if not (stat.S_ISDIR(kind) or stat.S_ISREG(kind)):
        raise NotAPackError(f"{path}: neither a file nor a folder; a pack was expected")
    return indexing.cached(path)


def _file_kind(path: Path) -> int | None:
    """Mode of what is at a path; None if nothing is."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: NUL in the path
        return None
    except OSError as error:
        raise ReadError(f"{path}: {error.strerror}; a pack was expected") from error


def _format(index: Index) -> ModuleType:
    name = index.metadata.get("format")
    try:
        return registry.load("formats", str(name))
    except OptionError as error:
        raise NotAPackError(f"{index.path}: format {name!r} is unknown to this packio") from error


def has_index(path: Path) -> bool:
    """Tell whether a pack is at a path, finished or damaged, without opening it."""
    beside = path.with_name(path.name + INDEX_SUFFIX) if path.name else path
    return os.path.isfile(path / INDEX_NAME) or (os.path.isfile(path) and os.path.isfile(beside))


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
    index: Index, container: ModuleType, shards: list[tuple[str, int]], root: Path
) -> None:
    if not hasattr(container, "identity"):
        return
    expected = index.metadata.get("identity")
    found = [container.identity(root / name) for name, _ in shards]
    if found != expected:
        raise IntegrityError(
            f"{root}: changed since it was packed ({found}, the index says {expected}); pack again"
        )
