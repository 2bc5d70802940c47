"""Verifying: every byte of a pack against its index; all damages are told, not only the first.

The index is checked first (CRC32C of each block of each column), then each file is read once, from
its beginning to its end: size and SHA-256 of the whole, CRC32C of each record and mask in it. So
every flipped bit is found, and one in a record is told with the record's key. Where a file is not
as it was written, its format walks what lies around the records. Memory: a few MiB a thread, and
about 60 bytes for each sample of the files that are being read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import os
import stat
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import BinaryIO, Literal, NamedTuple

import numpy as np

from packio import encodings, indexing, registry
from packio.decoders import Decoder, Stored
from packio.errors import (
    DecodeError,
    IntegrityError,
    MissingPackageError,
    NotAPackError,
    OptionError,
    PackioError,
    ReadError,
    UnfinishedPackError,
    VersionError,
)
from packio.formats import Entry
from packio.indexfile import INDEX_NAME, INDEX_SUFFIX, SPLIT_RECORD, Index, crc32c
from packio.packing.report import Progress, ProgressCallback
from packio.packs import UNFINISHED_SUFFIX, NoSuchPackError
from packio.storage.local import LocalFiles

_SPAN = 4 << 20  # bytes read at once; more where a record is larger
_STORED = ("file", "offset", "length", "encoding", "height", "width", "channels", "dtype")
_CHUNK = 1024  # samples that are decoded at once
_PROGRESS_SECONDS = 0.1  # between two calls of the callback


@dataclasses.dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is wrong.

    Attributes:
        file: Relative to the folder of the index.
        position: Of the sample in the pack; None where no one sample is concerned.
        key: Of the sample; bytes that are not UTF-8 are surrogate-escaped.
        offset, length: Of the bytes in the file; None where it is not known.
        problem: One line.
        unreadable: The operating system does not give the bytes out, though the file is there.
    """

    file: str
    position: int | None
    key: str | None
    offset: int | None
    length: int | None
    problem: str
    unreadable: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a verification found.

    Attributes:
        path: Of the pack.
        format: Of the container; empty where the index does not tell.
        samples: How many the pack has.
        files: How many files were read, the index not counted.
        bytes: In them.
        damages: All that is wrong: the index first, then by file and offset.
        warnings: One line each; what is not wrong but not as packed either.
        seconds: The whole run took.
    """

    path: Path
    format: str
    samples: int
    files: int
    bytes: int
    damages: tuple[Damage, ...]
    warnings: tuple[str, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged."""
        return not self.damages


class _Kind(NamedTuple):
    """All records, or all masks: the columns that say where they lie, and their order there."""

    file: np.ndarray  # (N,)
    offset: np.ndarray  # (N,) bytes
    length: np.ndarray  # (N,) bytes
    crc: np.ndarray  # (N,) uint32
    order: np.ndarray  # (N,) positions by file and offset
    prefix: str  # of the columns: "" or "mask_"


class _Values(NamedTuple):
    """The records and masks of one file, by offset."""

    position: np.ndarray  # (n,) of the sample
    offset: np.ndarray  # (n,) bytes
    length: np.ndarray  # (n,) bytes
    crc: np.ndarray  # (n,) uint32
    is_mask: np.ndarray  # (n,) bool


def verify(
    path: str | os.PathLike[str],
    *,
    decode: bool = False,
    structure: bool | Literal["always"] = True,
    num_workers: int | None = None,
    progress: ProgressCallback | None = None,
) -> VerifyReport:
    """Check all of a pack: index, files, records, masks; report everything that is damaged.

    Args:
        path: A pack.
        decode: Decode every image as well; only this tells of images that were bad when packed.
        structure: Walk the container by its own format where a file is not as it was written, to
            tell what is wrong in it; "always" walks intact files too.
        num_workers: Threads; None takes one for each processor, at most 16.
        progress: Called with a `Progress` about ten times a second, from any of the threads.

    Returns:
        A report; its ``ok`` tells whether the pack is as it was written.

    Raises:
        NotAPackError: nothing there, or nothing that could be a pack.
        UnfinishedPackError: packing into this path was interrupted or is going on.
        ReadError: the index cannot be read.
        OptionError: an argument that cannot be meant.
    """
    began = time.monotonic()
    if num_workers is not None and num_workers < 1:
        raise OptionError(f"num_workers={num_workers}: expected at least 1")
    if structure not in (True, False, "always"):
        raise OptionError(f"structure={structure!r}: expected True, False or 'always'")
    path, absolute = Path(path), Path(os.path.abspath(path))
    index_path = _index_of(absolute)
    try:
        index = _opened(index_path)
    except (NotAPackError, IntegrityError, VersionError) as error:
        damage = _of_file(index_path.name, _without(error, index_path))
        return VerifyReport(path, "", 0, 0, 0, (damage,), (), time.monotonic() - began)
    run = _Run(index, absolute, _Meter(index, progress, began))
    run.check(num_workers or min(16, os.cpu_count() or 1), decode=decode, structure=structure)
    return VerifyReport(
        path, str(index.metadata.get("format")), len(index), run.files, run.bytes,
        tuple(run.sorted_damages()), tuple(run.warnings), time.monotonic() - began,
    )  # fmt: skip


class _Meter:
    """Counts what is done, from several threads, and calls the callback."""

    def __init__(self, index: Index, progress: ProgressCallback | None, began: float) -> None:
        self._samples, self._progress, self._began = len(index), progress, began
        self._lock, self._called = threading.Lock(), 0.0
        self.begin("reading", 0)

    def begin(self, stage: str, total_bytes: int) -> None:
        """Count anew, for the next stage."""
        self._stage, self._total_bytes = stage, total_bytes
        self._done = self._done_bytes = 0

    def step(self, samples: int, size: int, bad: int) -> None:
        """Count samples and bytes that were checked; ``bad`` damages are known by now."""
        if self._progress is None:
            return
        with self._lock:
            self._done += samples
            self._done_bytes += size
            now = time.monotonic()
            if now - self._called >= _PROGRESS_SECONDS or self._done == self._samples:
                self._called = now
                self._progress(
                    Progress(
                        self._done, self._samples, self._done_bytes, self._total_bytes, bad,
                        now - self._began, self._stage,
                    )
                )  # fmt: skip


class _Run:
    """One verification of a pack whose index opens."""

    def __init__(self, index: Index, path: Path, meter: _Meter) -> None:
        self.damages: list[Damage] = []
        self.warnings: list[str] = []
        self.files = self.bytes = 0
        self._index, self._path, self._root, self._meter = index, path, index.path.parent, meter
        self._table: list[tuple[str, int, bytes]] = []
        self._shards: list[tuple[str, range]] = []  # name, positions of the samples
        self._format: ModuleType | None = None
        self._kinds: list[_Kind] = []
        self._stopped = False  # an interrupt came, or the callback failed
        self._intact: set[int] = set()  # numbers of the files that are as they were written
        self._bad: set[int] = set()  # positions of the samples whose bytes are not theirs

    def check(self, threads: int, *, decode: bool, structure: bool | str) -> None:
        """Check everything that can be checked."""
        self._check_columns()
        self._check_metadata()
        self._check_table()
        whole = not self.damages  # else nothing that the index says of records can be relied on
        if whole:
            self._kinds = list(_kinds(self._index))
            self._check_numbers()
        self._meter.begin("reading", sum(size for _, size, _ in self._table))
        with ThreadPoolExecutor(threads, "packio-verify") as pool:
            try:
                self.bytes = sum(pool.map(self._check_file, range(len(self._table))))
            except BaseException:
                self._stopped = True  # a large file would be read to its end
                raise
            if structure and whole:
                for name, positions in self._shards:
                    self._walk(name, positions, always=structure == "always")
            if decode and whole:
                self._meter.begin("decoding", 0)
                self._decode(pool)
        self._look_for_strangers()

    def sorted_damages(self) -> list[Damage]:
        """All damages: the index first, then by file, offset and position."""
        numbers = {name: i for i, (name, _, _) in enumerate(self._table)}
        return sorted(
            set(self.damages),
            key=lambda d: (numbers.get(d.file, -1), d.offset or 0, d.position or 0, d.problem),
        )

    def _check_columns(self) -> None:
        for name in self._index.column_names:
            try:
                self._index.column(name).array()
            except IntegrityError as error:
                self._tell_of_index(_without(error, self._index.path))

    def _check_metadata(self) -> None:
        """Look at what the index says of formats and shards."""
        metadata, first = self._index.metadata, 0
        try:
            for shard in metadata["shards"]:
                positions = range(first, first + int(shard["samples"]))
                self._shards.append((str(shard["name"]), positions))
                first = positions.stop
            self._format = registry.load("formats", str(metadata["format"]))
        except (KeyError, TypeError, ValueError, OptionError) as error:
            self._tell_of_index(f"its metadata does not parse ({error})")
        if first != len(self._index):
            self._tell_of_index(f"its shards have {first} samples, the pack {len(self._index)}")

    def _check_table(self) -> None:
        try:
            self._table = self._index.files()
        except IntegrityError as error:
            self._tell_of_index(_without(error, self._index.path))
            return
        self.files = len(self._table)
        name = self._path.name
        if self._index.path.name != INDEX_NAME and name not in {n for n, _, _ in self._table}:
            self._tell_of_index(f"does not list {name}; the index of another pack")

    def _tell_of_index(self, problem: str) -> None:
        self.damages.append(_of_file(self._index.path.name, problem))

    def _check_numbers(self) -> None:
        for kind in self._kinds:
            for position in np.flatnonzero(kind.file >= len(self._table)).tolist():
                problem = f"sample {position}: lies in file {kind.file[position]}, which is none"
                self._bad.add(position)
                self._tell_of_index(problem)

    def _values(self, file: int) -> _Values:
        """The records and masks of a file."""
        parts = []
        for kind in self._kinds:
            begin = np.searchsorted(kind.file, file, "left", sorter=kind.order)
            stop = np.searchsorted(kind.file, file, "right", sorter=kind.order)
            rows = kind.order[begin:stop]
            is_mask = np.full(len(rows), kind.prefix == "mask_")
            parts.append((rows, kind.offset[rows], kind.length[rows], kind.crc[rows], is_mask))
        if not parts:
            return _Values(*[np.zeros(0, np.int64)] * 5)
        columns = [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
        order = np.argsort(columns[1], kind="stable")
        return _Values(*(column[order] for column in columns))

    def _tell_of(self, name: str, values: _Values, i: int, problem: str) -> None:
        position = int(values.position[i])
        self._bad.add(position)
        problem = f"mask: {problem}" if values.is_mask[i] else problem
        place = int(values.offset[i]), int(values.length[i])
        self.damages.append(Damage(name, position, self._key(position), *place, problem))

    def _key(self, position: int) -> str | None:
        try:
            return os.fsdecode(self._index.key(position))
        except IntegrityError:
            return None

    def _check_file(self, number: int) -> int:
        """Check one file and all that is in it; return how many bytes it has."""
        name, expected, digest = self._table[number]
        values = self._values(number)
        try:
            status = (self._root / name).stat()
            if not stat.S_ISREG(status.st_mode):  # opening a FIFO would wait for ever
                return self._lose(name, values, "not a regular file, though the index lists it")
            with (self._root / name).open("rb") as file:
                found, problems = self._read_through(file, status.st_size, values)
        except OSError as error:
            missing = isinstance(error, (FileNotFoundError, NotADirectoryError))
            problem = "missing" if missing else f"cannot be read: {error.strerror}"
            return self._lose(name, values, problem, unreadable=not missing)
        for i, problem in problems:
            self._tell_of(name, values, i, problem)
        if status.st_size != expected:
            self._tell_of_file(name, f"{status.st_size} bytes, the index says {expected}")
        elif found == digest:
            self._intact.add(number)
        elif not problems:
            where = ", though its records are as they were packed" if len(values.offset) else ""
            self._tell_of_file(name, f"SHA-256 differs{where}")
        return status.st_size

    def _lose(self, name: str, values: _Values, problem: str, *, unreadable: bool = False) -> int:
        """Tell of a file that is not there, and note its samples."""
        lost = set(values.position.tolist())
        self._bad |= lost
        problem += f"; {len(lost)} samples have bytes in it" if lost else ""
        self._tell_of_file(name, problem, unreadable=unreadable)
        self._meter.step(int(np.count_nonzero(values.is_mask == 0)), 0, len(self.damages))
        return 0

    def _tell_of_file(self, name: str, problem: str, *, unreadable: bool = False) -> None:
        self.damages.append(_of_file(name, problem, unreadable=unreadable))

    def _read_through(
        self, file: BinaryIO, size: int, values: _Values
    ) -> tuple[bytes, list[tuple[int, str]]]:
        """Read a file once: its SHA-256, and which of the values in it are damaged and how."""
        digest, problems, begin, first = hashlib.sha256(), [], 0, 0
        while (begin < size or first < len(values.offset)) and not self._stopped:
            stop, last = begin + _SPAN, len(values.offset)
            if stop < size:
                last = int(np.searchsorted(values.offset, stop))
            ends = values.offset[first:last] + values.length[first:last]
            stop = min(size, max(stop, int(ends.max(initial=0))))
            data = file.read(stop - begin)
            digest.update(data)
            span = _Span(file, size, begin, np.frombuffer(data, np.uint8))
            for i in range(first, last):
                problem = self._problem(span, values, i)
                if problem is not None:
                    problems.append((i, problem))
            images = last - first - int(np.count_nonzero(values.is_mask[first:last]))
            self._meter.step(images, len(data), len(self.damages) + len(problems))
            begin, first = stop, last
        return digest.digest(), problems

    def _problem(self, span: _Span, values: _Values, i: int) -> str | None:
        """What is wrong with one value, if anything."""
        data: bytes | np.ndarray | None
        data = span.bytes(int(values.offset[i]), int(values.length[i]))
        if data is None:
            return f"lies beyond the end of the file, which has {span.size} bytes"
        if not values.is_mask[i] and self._is_split(int(values.position[i])):
            try:
                data = self._unsplit(bytes(data))
            except IntegrityError as error:
                return str(error)
        return None if crc32c(data) == values.crc[i] else "CRC32C differs"

    def _is_split(self, position: int) -> bool:
        if not hasattr(self._format, "unsplit"):
            return False
        return bool(self._index.column("flags").item(position) & SPLIT_RECORD)

    def _unsplit(self, data: bytes) -> bytes:
        assert self._format is not None  # noqa: S101 (the metadata were found good)
        whole: bytes = self._format.unsplit(data)
        return whole

    def _walk(self, shard: str, positions: range, *, always: bool) -> None:
        """Compare what the container itself says of its samples with the index."""
        assert self._format is not None  # noqa: S101 (the metadata were found good)
        files = self._files_of(shard, positions)
        if not (self._root / shard).exists() or (files <= self._intact and not always):
            return
        prefix = f"{shard}/" if self._format.IS_DIRECTORY and shard != "." else ""
        try:
            self._compare(shard, positions, self._format.scan(self._root / shard), prefix)
        except MissingPackageError as error:
            self.warnings.append(f"{shard}: its structure is not checked: {error}")
        except (PackioError, OSError) as error:
            text = str(error).removeprefix(f"{self._root}{os.sep}")
            named = (name for name, _, _ in self._table if text.startswith(name))
            file = max(named, key=len, default=shard)
            self._tell_of_file(file, _without(error, self._root / file))

    def _files_of(self, shard: str, positions: range) -> set[int]:
        """Numbers of the files that a shard consists of."""
        used = [np.unique(k.file[positions.start : positions.stop]) for k in self._kinds]
        within = {
            i
            for i, (name, _, _) in enumerate(self._table)
            if shard in (".", name) or name.startswith(f"{shard}/")
        }
        return within.union(*(numbers.tolist() for numbers in used))

    def _compare(self, shard: str, positions: range, entries: Iterable[Entry], prefix: str) -> None:
        metadata = self._index.metadata
        reindexed = metadata.get("source", {}).get("kind") == "reindex"
        spare = metadata["counts"]["skipped"] if reindexed else 0  # images that no pack could take
        expected = iter(positions)
        position = next(expected, None)
        for entry in entries:
            place = f"{prefix}{entry.file}", entry.offset, entry.length
            if position is not None and place == self._place(position, 0):
                for problem in self._differences(position, entry, prefix, reindexed):
                    self._tell_of_entry(position, problem)
                position = next(expected, None)
            elif spare:
                spare -= 1
            elif position is None:
                self._tell_of_file(shard, f"more samples than the {len(positions)} of the index")
                return
            else:
                problem = "{}: {} bytes at {} by the container".format(place[0], *place[:0:-1])
                self._tell_of_entry(position, problem)
                return
        if position is not None:
            left = positions.stop - position
            self._tell_of_file(
                shard, f"{left} samples fewer than the {len(positions)} of the index"
            )

    def _place(self, position: int, kind: int) -> tuple[str, int, int]:
        k = self._kinds[kind]
        number, offset, length = (int(a[position]) for a in (k.file, k.offset, k.length))
        return self._table[number][0], offset, length

    def _differences(
        self, position: int, entry: Entry, prefix: str, reindexed: bool
    ) -> Iterator[str]:
        """In what the container and the index say of a sample they differ."""
        key = self._index.key(position)
        if not reindexed and entry.key is not None and entry.key != key:
            yield f"the container's key is {os.fsdecode(entry.key)!r}"
        if entry.label is not None and "label" in self._index:
            label = self._index.column("label").array()[position]
            if not np.array_equal(np.asarray(entry.label, label.dtype), label, equal_nan=True):
                yield f"the container's label is {entry.label}, the index's {label}"
        if entry.mask is not None and len(self._kinds) > 1:
            file, offset, length = entry.mask
            if (prefix + file, offset, length) != self._place(position, 1):
                yield f"mask: {length} bytes at {offset} by the container"

    def _tell_of_entry(self, position: int, problem: str) -> None:
        file, offset, length = self._place(position, 0)
        self.damages.append(Damage(file, position, self._key(position), offset, length, problem))

    def _decode(self, pool: ThreadPoolExecutor) -> None:
        names, sizes = [t[0] for t in self._table], [t[1] for t in self._table]
        with contextlib.closing(LocalFiles(self._root, names, sizes)) as files:
            work = functools.partial(self._decode_one, Decoder("auto", "UNCHANGED"), files)
            for start in range(0, len(self._index), _CHUNK):
                list(pool.map(work, range(start, min(start + _CHUNK, len(self._index)))))

    def _decode_one(self, decoder: Decoder, files: LocalFiles, position: int) -> None:
        if position in self._bad:
            return
        item = {n: self._index.column(n).item(position) for n in _STORED}
        try:
            data = files.read(item["file"], item["offset"], item["length"])
            if self._is_split(position):
                data = self._unsplit(data)
            encoding = encodings.NAMES.get(item["encoding"], "unknown")
            dtype = encodings.DTYPES[item["dtype"]]
            decoder(data, Stored(encoding, item["height"], item["width"], item["channels"], dtype))
        except (DecodeError, IntegrityError, ReadError) as error:
            self._tell_of_entry(position, f"does not decode: {error}")
        self._meter.step(1, item["length"], len(self.damages))

    def _look_for_strangers(self) -> None:
        """Warn of files in a directory pack that the index does not list."""
        if self._index.path.name != INDEX_NAME:
            return
        known = {name for name, _, _ in self._table} | {INDEX_NAME}
        for folder, _, files in os.walk(self._root):
            names = (os.path.relpath(os.path.join(folder, name), self._root) for name in files)
            strangers = sorted(name for name in names if name not in known)
            self.warnings += [f"{name}: not of the pack" for name in strangers]


class _Span(NamedTuple):
    """A piece of a file, read."""

    file: BinaryIO
    size: int  # of the file, bytes
    begin: int  # in the file, bytes
    view: np.ndarray  # (n,) uint8

    def bytes(self, offset: int, length: int) -> np.ndarray | None:
        """Some bytes of the file, by offset in it; None where there are none."""
        if not 0 <= offset <= offset + length <= self.size:
            return None
        if offset < self.begin:  # it begins in the piece before: values overlap
            return np.frombuffer(os.pread(self.file.fileno(), length, offset), np.uint8)
        return self.view[offset - self.begin : offset - self.begin + length]


def _kinds(index: Index) -> Iterator[_Kind]:
    for prefix in ("", "mask_"):
        if f"{prefix}offset" in index:
            file, offset, length, crc = [
                index.column(prefix + name).array()
                for name in ("file", "offset", "length", "crc32c")
            ]
            yield _Kind(file, offset, length, crc, np.lexsort((offset, file)), prefix)


def _index_of(path: Path) -> Path:
    """Where the index of the pack at a path is, or would be."""
    unfinished = path.with_name(path.name + UNFINISHED_SUFFIX) if path.name else path
    if unfinished != path and unfinished.exists():
        raise UnfinishedPackError(
            f"{path}: packing into it is unfinished ({unfinished.name} is there); "
            "run the same `packio pack` again, or delete that folder to give up"
        )
    beside = path.with_name(path.name + INDEX_SUFFIX) if path.name else path
    if path.is_dir():
        index = path / INDEX_NAME
    elif path.is_file() or beside.is_file():
        index = beside
    else:
        raise NoSuchPackError(f"{path}: no file or folder; a pack was expected")
    if not index.is_file() and indexing.find(path) is None:
        raise NotAPackError(f"{path}: no {index.name}, and no container that packio knows")
    return index


def _opened(path: Path) -> Index:
    """Open an index.

    Raises:
        IntegrityError: it is missing or damaged.
        NotAPackError: damaged, or none of packio's.
        ReadError: it cannot be read.
    """
    if not path.is_file():
        raise IntegrityError(f"{path}: missing; `packio reindex` makes one of what the files hold")
    return Index(path)


def _of_file(name: str, problem: str, *, unreadable: bool = False) -> Damage:
    return Damage(name, None, None, None, None, problem, unreadable)


def _without(error: Exception, path: Path) -> str:
    """The message of an error in one line, without the path that it begins with."""
    lines = (str(error) or type(error).__name__).splitlines()
    return lines[0].removeprefix(str(path)).lstrip(":, ")
