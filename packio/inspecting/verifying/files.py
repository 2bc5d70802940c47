"""Checks of files: size and SHA-256 of a file, and CRC32C of each value in it, in one reading."""

from __future__ import annotations

import hashlib
import os
import stat
from typing import BinaryIO

import numpy as np

from packio.index.indexfile import INDEX_NAME
from packio.inspecting.verifying.findings import Findings
from packio.inspecting.verifying.records import Span, Values, problem_of, tell, values_of
from packio.system.pools import ThreadPool

_SPAN = 4 << 20  # bytes read at once; more if a value is larger


def check_files(found: Findings, pool: ThreadPool) -> int:
    """Check all files and the values in them; return the number of bytes."""
    found.meter.begin("reading", sum(size for _, size, _ in found.table))
    try:
        return sum(pool.map(lambda number: _check_file(found, number), range(len(found.table))))
    except BaseException:
        found.stopped = True  # else threads would read a large file to its end
        raise


def _check_file(found: Findings, number: int) -> int:
    """Check one file and all values in it; return the number of bytes."""
    name, expected, digest = found.table[number]
    values = values_of(found, number)
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
        tell(found, name, values, i, problem)
    if status.st_size != expected:
        found.tell_of_file(name, f"{status.st_size} bytes, the index says {expected}")
    elif actual == digest:
        found.intact.add(number)
    elif not problems:
        where = ", though its records are as they were packed" if len(values.offset) else ""
        found.tell_of_file(name, f"SHA-256 differs{where}")
    return status.st_size


def _lose(
    found: Findings, name: str, values: Values, problem: str, *, unreadable: bool = False
) -> int:
    """Report a file that cannot be read, and note that its samples are bad."""
    lost = set(values.position.tolist())
    found.bad |= lost
    problem += f"; {len(lost)} samples have bytes in it" if lost else ""
    found.tell_of_file(name, problem, unreadable=unreadable)
    found.meter.step(int(np.count_nonzero(values.field == 0)), 0, len(found.damages))
    return 0


def _read_through(
    found: Findings, file: BinaryIO, size: int, values: Values
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
        span = Span(file, size, begin, np.frombuffer(data, np.uint8))
        for i in range(first, last):
            problem = problem_of(found, span, values, i)
            if problem is not None:
                problems.append((i, problem))
        images = last - first - int(np.count_nonzero(values.field[first:last]))
        found.meter.step(images, len(data), len(found.damages) + len(problems))
        begin, first = stop, last
    return digest.digest(), problems


def look_for_strangers(found: Findings) -> None:
    """Warn about files in a directory pack that the index does not list."""
    if found.index.path.name != INDEX_NAME:
        return
    known = {name for name, _, _ in found.table} | {INDEX_NAME}
    for folder, _, files in os.walk(found.root):
        names = (os.path.relpath(os.path.join(folder, name), found.root) for name in files)
        strangers = sorted(name for name in names if name not in known)
        found.warnings += [f"{name}: not of the pack" for name in strangers]
