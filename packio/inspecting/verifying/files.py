"""Checks of files: size and SHA-256 of a file, and CRC32C of each value in it, in one reading."""

from __future__ import annotations

import hashlib
import os
import stat
from typing import BinaryIO, NamedTuple

import numpy as np

from packio.errors import IntegrityError
from packio.index.indexfile import INDEX_NAME, crc32c
from packio.inspecting.verifying.findings import Findings
from packio.sample.record import IMAGE
from packio.system.files import read_at
from packio.system.pools import ThreadPool

_SPAN = 4 << 20  # bytes read at once; more if a value is larger


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

    def bytes(self, offset: int, length: int) -> np.ndarray | None:
        """Bytes of the file, by offset in the file; None if they lie beyond the end."""
        if not 0 <= offset <= offset + length <= self.size:
            return None
        if offset < self.begin:  # values overlap: this one begins in the piece before
            return np.frombuffer(read_at(self.file.fileno(), length, offset), np.uint8)
        return self.view[offset - self.begin : offset - self.begin + length]


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


def _problem_of(found: Findings, span: _Piece, values: _FileValues, i: int) -> str | None:
    data: bytes | np.ndarray | None
    data = span.bytes(int(values.offset[i]), int(values.length[i]))
    if data is None:
        return f"lies beyond the end of the file, which has {span.size} bytes"
    try:
        data = found.unsplit(int(values.position[i]), int(values.field[i]), data)
    except IntegrityError as error:
        return str(error)
    return None if crc32c(data) == values.crc[i] else "CRC32C differs"


def check_files(found: Findings, pool: ThreadPool) -> int:
    """Check all files and the values in them; return the number of bytes."""
    found.meter.begin("reading", sum(size for _, size, _ in found.table))
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
        for i in range(first, last):
            problem = _problem_of(found, span, values, i)
            if problem is not None:
                problems.append((i, problem))
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
