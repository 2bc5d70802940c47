"""Checks of files: size and SHA-256 of a file, and CRC32C of each value in it, in one reading."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple

import numpy as np

from packio.errors import DecodeError, IntegrityError, MissingPackageError, PackioError, ReadError
from packio.formats import Reader
from packio.images import encodings
from packio.images.decoders import Decoder
from packio.index.indexfile import INDEX_NAME, crc32c
from packio.inspecting.verifying.findings import Findings, strip_path
from packio.sample.fields import PIXELS, decode
from packio.sample.record import IMAGE, Facts, Field, Place, Record
from packio.storage.local import LocalStore
from packio.system.files import read_at
from packio.system.pools import ThreadPool

_SPAN = 4 << 20  # bytes read at once; more if a value is larger
_CHUNK = 1024  # samples that are decoded at once


class _FileValues(NamedTuple):
    """The values that lie in one file, by offset."""

    position: np.ndarray  # (n,) of the sample
    offset: np.ndarray  # (n,) bytes
    length: np.ndarray  # (n,) bytes
    crc: np.ndarray  # (n,) uint32
    field: np.ndarray  # (n,) which of the fields: 0 is the image


class _Piece(NamedTuple):
    """A piece of a file that has been read."""

    file: BinaryIO
    size: int  # of the file, bytes
    begin: int  # in the file, bytes
    view: np.ndarray  # (n,) uint8

    def problem_of(self, found: Findings, values: _FileValues, i: int) -> str | None:
        """What is wrong with a value; None: its bytes are those that were packed."""
        position, offset, length, crc, field = (int(column[i]) for column in values)
        if not 0 <= offset <= offset + length <= self.size:
            return f"lies beyond the end of the file, which has {self.size} bytes"
        start = offset - self.begin
        data: bytes | np.ndarray = self.view[max(start, 0) : start + length]
        if start < 0:  # values overlap: this one begins in the piece before
            data = read_at(self.file.fileno(), length, offset)
        try:
            data = found.unsplit(position, field, data)
        except IntegrityError as error:
            return str(error)
        return None if crc32c(data) == crc else "CRC32C differs"


def _values_of(found: Findings, file: int) -> _FileValues:
    parts = []
    for number, kind in enumerate(found.kinds):
        if found.by_record and kind.name == IMAGE:
            continue
        begin = np.searchsorted(kind.file, file, "left", sorter=kind.order)
        stop = np.searchsorted(kind.file, file, "right", sorter=kind.order)
        rows = kind.order[begin:stop]
        rows = rows[kind.offset[rows] >= 0]  # else the sample has no such field
        field = np.full(len(rows), number)
        parts.append((rows, kind.offset[rows], kind.length[rows], kind.crc[rows], field))
    if not parts:
        return _FileValues(*[np.zeros(0, np.int64)] * 5)
    columns = [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
    order = np.argsort(columns[1], kind="stable")
    return _FileValues(*(column[order] for column in columns))


def check_files(found: Findings, pool: ThreadPool) -> int:
    """Check all files and the values in them; return the number of bytes."""
    found.meter.begin("reading", len(found.index), sum(size for _, size, _ in found.table))
    try:
        return sum(pool.map(lambda number: _check_file(found, number), range(len(found.table))))
    except BaseException:
        found.stopped = True  # else threads would read a large file to its end
        raise


def _check_file(found: Findings, number: int) -> int:
    name, expected, digest = found.table[number]
    values = _values_of(found, number)
    try:
        status = (found.root / name).stat()
        if not stat.S_ISREG(status.st_mode):  # opening a FIFO would wait for ever
            return _lose(found, name, values, "not a regular file, though the index lists it")
        with (found.root / name).open("rb") as file:
            actual, problems = _read_through(found, file, status.st_size, values)
    except OSError as error:
        missing = isinstance(error, (FileNotFoundError, NotADirectoryError))
        problem = "missing" if missing else f"cannot be read: {error.strerror}"
        return _lose(found, name, values, problem, unreadable=not missing)
    for i, problem in problems:
        position = int(values.position[i])
        found.bad.add(position)
        field = found.kinds[int(values.field[i])].name
        place = name, int(values.offset[i]), int(values.length[i])
        found.tell_of_sample(position, place, f"{field}: " * (field != IMAGE) + problem)
    if status.st_size != expected:
        found.tell_of_file(name, f"{status.st_size} bytes, the index says {expected}")
    elif actual == digest:
        found.intact.add(number)
    elif not problems:
        where = ", though its records are as they were packed" if len(values.offset) else ""
        found.tell_of_file(name, f"SHA-256 differs{where}")
    return status.st_size


def _lose(
    found: Findings, name: str, values: _FileValues, problem: str, *, unreadable: bool = False
) -> int:
    """Report a file that cannot be read, and note that its samples are bad."""
    lost = set(values.position.tolist())
    found.bad |= lost
    problem += f"; {len(lost)} samples have bytes in it" if lost else ""
    found.tell_of_file(name, problem, unreadable=unreadable)
    found.meter.step(int(np.count_nonzero(values.field == 0)), 0, len(found.damages))
    return 0


def _read_through(
    found: Findings, file: BinaryIO, size: int, values: _FileValues
) -> tuple[bytes, list[tuple[int, str]]]:
    """Read a file once; return its SHA-256, and the number and problem of each damaged value."""
    digest, problems, begin, first = hashlib.sha256(), [], 0, 0
    while (begin < size or first < len(values.offset)) and not found.stopped:
        stop, last = begin + _SPAN, len(values.offset)
        if stop < size:
            last = int(np.searchsorted(values.offset, stop))
        ends = values.offset[first:last] + values.length[first:last]
        stop = min(size, max(stop, int(ends.max(initial=0))))
        data = file.read(stop - begin)
        digest.update(data)
        span = _Piece(file, size, begin, np.frombuffer(data, np.uint8))
        checked = ((i, span.problem_of(found, values, i)) for i in range(first, last))
        problems += [(i, problem) for i, problem in checked if problem is not None]
        images = last - first - int(np.count_nonzero(values.field[first:last]))
        found.meter.step(images, len(data), len(found.damages) + len(problems))
        begin, first = stop, last
    return digest.digest(), problems


def find_strangers(found: Findings) -> None:
    """Warn about files in a directory pack that the index does not list."""
    if found.index.path.name != INDEX_NAME:
        return
    known = {name for name, _, _ in found.table} | {INDEX_NAME}
    for folder, _, files in os.walk(found.root):
        names = (os.path.relpath(os.path.join(folder, name), found.root) for name in files)
        strangers = sorted(name for name in names if name not in known)
        found.warnings += [f"{name}: not of the pack" for name in strangers]


def walk(found: Findings, *, always: bool) -> None:
    """Compare shards with the index: all shards, or only those whose files have changed."""
    for shard, positions in found.shards:
        if (found.root / shard).exists() and (
            always or not found.files_of(shard, positions) <= found.intact
        ):
            _walk(found, shard, positions)


def _walk(found: Findings, shard: str, positions: range) -> None:
    assert found.format is not None  # noqa: S101 (the metadata were found good)
    prefix = f"{shard}/" if found.format.caps.is_directory and shard != "." else ""
    try:
        every = found.format.scan(found.root / shard, found.reading)
        records = (r for r in every if r.fields)  # else a label without image
        _compare(found, shard, positions, records, prefix)
    except MissingPackageError as error:
        found.warnings.append(f"{shard}: its structure is not checked: {error}")
    except (PackioError, OSError) as error:
        text = str(error).removeprefix(f"{found.root}{os.sep}")
        named = (name for name, _, _ in found.table if text.startswith(name))
        file = max(named, key=len, default=shard)
        found.tell_of_file(file, strip_path(error, found.root / file))


def _compare(
    found: Findings, shard: str, positions: range, records: Iterable[Record[Place]], prefix: str
) -> None:
    metadata = found.index.metadata
    reindexed = metadata.get("source", {}).get("kind") == "reindex"
    spare = metadata["counts"]["skipped"] if reindexed else 0  # images that no pack could take
    expected = iter(positions)
    position = next(expected, None)
    for number, record in enumerate(records):
        place = _at(prefix, record.image)
        known = None if position is None else found.place(position, 0)
        if found.by_record:
            is_there = known is not None and known[:2] == (place[0], number)
        else:
            is_there = known == place
        if position is not None and is_there:
            for problem in _differences(found, position, record, prefix, reindexed=reindexed):
                found.tell_of_sample(position, found.place(position, 0), problem)
            position = next(expected, None)
        elif spare:
            spare -= 1
        elif position is None:
            found.tell_of_file(shard, f"more samples than the {len(positions)} of the index")
            return
        else:
            problem = "{}: {} bytes at {} by the container".format(place[0], *place[:0:-1])
            found.tell_of_sample(position, found.place(position, 0), problem)
            return
    if position is not None:
        left = positions.stop - position
        found.tell_of_file(shard, f"{left} samples fewer than the {len(positions)} of the index")


def _differences(
    found: Findings, position: int, record: Record[Place], prefix: str, *, reindexed: bool
) -> Iterator[str]:
    """Describe each difference between the container's record and the index's row of a sample."""
    index, keeps = found.index, found.format.caps.keeps if found.format else frozenset()
    if not reindexed and "key" in keeps and record.key != index.key(position):
        yield f"the container's key is {os.fsdecode(record.key)!r}"
    is_named = index.metadata.get("options", {}).get("label") is not None
    said = None if is_named or isinstance(record.label, str) else record.label
    if said is not None and "label" in index:
        label = index.column("label").take(np.array([position]))[0]
        said = np.asarray(said).reshape(-1) + (found.reading.label_offset if not label.ndim else 0)
        if not np.array_equal(said.astype(label.dtype), np.atleast_1d(label), equal_nan=True):
            yield f"the container's label is {said}, the index's {label}"
    for number, kind in enumerate(found.kinds):
        place = record.fields.get(kind.name)
        if kind.name == IMAGE or place is None:
            continue
        if _at(prefix, place) != found.place(position, number):
            yield f"{kind.name}: {place.length} bytes at {place.offset} by the container"


def _at(prefix: str, place: Place) -> tuple[str, int, int]:
    return prefix + place.file, place.offset, place.length


def decode_values(found: Findings, pool: ThreadPool) -> None:
    """Decode all values of the samples whose bytes are those that were packed."""
    found.meter.begin("decoding", len(found.index))
    names, sizes = [t[0] for t in found.table], [t[1] for t in found.table]
    decoder = Decoder("auto", "UNCHANGED")
    with contextlib.closing(LocalStore(found.root, names, sizes)) as files:
        for shard, positions in found.shards:
            reader = None
            if found.by_record:
                if not found.files_of(shard, positions) <= found.intact:
                    continue  # its library may crash over it
                assert found.format is not None  # noqa: S101 (the metadata were found good)
                reader = found.format.reader(found.root / shard, found.reading)
            work = functools.partial(_decode_sample, found, decoder, reader, files)
            for start in range(0, len(positions), _CHUNK):
                list(pool.map(work, positions[start : start + _CHUNK]))


def _decode_sample(
    found: Findings, decoder: Decoder, reader: Reader | None, files: LocalStore, position: int
) -> None:
    if position in found.bad:
        return
    for number, columns in enumerate(found.kinds):
        name, kind = columns.name, found.index.fields[columns.name]
        place = [int(a[position]) for a in (columns.file, columns.offset, columns.length)]
        if name != IMAGE and place[1] < 0:
            continue  # the sample has no such field
        try:
            by_number = reader if name == IMAGE else None
            data = files.read(*place) if by_number is None else by_number.get(place[1])
            data = bytes(found.unsplit(position, number, data))
            if kind in PIXELS:
                decoder(data, _facts(found, name, position))
            else:
                decode(Field(kind, data))
        except (DecodeError, IntegrityError, ReadError, IndexError) as error:
            problem = f"{name}: " * (name != IMAGE) + f"does not decode: {error}"
            found.tell_of_sample(position, found.place(position, number), problem)
    found.meter.step(1, int(found.kinds[0].length[position]), len(found.damages))


def _facts(found: Findings, field: str, position: int) -> Facts:
    encoding, height, width, channels, dtype = (
        int(found.index.column(f"{field}/{name}").item(position))
        for name in ("encoding", "height", "width", "channels", "dtype")
    )
    name = encodings.NAMES.get(encoding, "unknown")
    return Facts(name, height, width, channels, encodings.DTYPES[dtype])
