"""Files below a folder: finding them at any depth, and reading them whole."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from packio.errors import DecodeError, SourceError
from packio.images.encodings import IMAGE_SUFFIXES
from packio.sample.record import Field, Record
from packio.sources import Listing, ReadRecord
from packio.system.files import read_at
from packio.system.pools import ThreadPool

EXTENSIONS = IMAGE_SUFFIXES
EXPECTED = f"files counted as images end in {', '.join(EXTENSIONS)}"
_STAT_FILES = 1024  # whose sizes are asked for together
_STAT_SECONDS = 1e-4  # a file; where it takes longer, as on a network, threads share the waiting
_STAT_THREADS = 16
_TOLD = 1000  # files found between two calls of the callback
MAX_BYTES = (1 << 31) - 1  # of one sample

_Identity = tuple[int, int]  # device, inode


def is_plain_folder(path: str | os.PathLike[str]) -> bool:
    """Tell whether the path is a folder and no pack; False if permission to look is missing."""
    return os.path.isdir(path) and not os.path.exists(os.path.join(path, "index.packio"))


def entries(path: str | os.PathLike[str], expected: str) -> list[tuple[str, bool]]:
    """List the names in a folder, each with whether it is a folder. Links are followed.

    Raises:
        SourceError: there is no folder, or it cannot be read; the message ends in `expected`.
    """
    try:
        with os.scandir(path) as found:
            return [(entry.name, is_folder(entry)) for entry in found]
    except FileNotFoundError as error:
        raise SourceError(f"{path}: no such folder; expected {expected}") from error
    except NotADirectoryError as error:
        raise SourceError(f"{path}: not a folder; expected {expected}") from error
    except OSError as error:
        where = os.fsdecode(error.filename or path)
        raise SourceError(f"{where}: cannot be looked into: {error.strerror}") from error


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Tell whether an entry is a folder. Links are followed; a dangling link is no folder.

    Raises:
        OSError: the entry cannot be looked at, as below a folder without permission.
    """
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno == errno.ELOOP:  # a link to itself: reading it will say so
            return False
        raise


def images(
    root: str | os.PathLike[str],
    top: str,
    result: Listing,
    tell: Callable[[int], None] = lambda _: None,
    *,
    endings: tuple[str, ...] = EXTENSIONS,
) -> list[tuple[bytes, int]]:
    """List the key and the bytes of every image below a folder, at any depth, sorted by key.

    Args:
        root: Folder that the keys are relative to.
        top: Folder to begin in, relative to the root; "" is the root itself.
        result: Receives other files, folders that cannot be listed, and cycles.
        tell: Called with the number of files found since the last call.
        endings: Endings of the names of images, in lower case.
    """
    found = [
        (os.fsencode(f"{folder}/{name}" if folder else name), size)
        for folder, files in walk(os.fspath(root), top, result, tell, endings=endings)
        for name, size in files
    ]
    return sorted(found)


def walk(
    root: str,
    top: str,
    result: Listing,
    tell: Callable[[int], None] = lambda _: None,
    *,
    endings: tuple[str, ...] = EXTENSIONS,
) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    """Yield (folder, [(image name, bytes)]) for a folder and all folders below it.

    The arguments are those of `images`. Names within a folder are sorted as text. A folder that
    leads back to a folder above it, through a link, is not entered.
    """
    waiting: list[tuple[str, tuple[_Identity, ...]]] = [(top, (_identity(root),) if top else ())]
    while waiting:
        folder, ancestors = waiting.pop()
        found: list[tuple[str, int]] = []
        try:
            path = os.path.join(root, folder)
            here = _identity(path)
            if here in ancestors:
                result.warnings.append(f"{folder!a} leads back to a folder above; not entered")
                continue
            with os.scandir(path) as scanned:
                listed = sorted(scanned, key=lambda e: e.name)
        except OSError as error:
            _unlisted(folder, error, result)
            continue
        for entry in listed:
            below = f"{folder}/{entry.name}" if folder else entry.name
            try:
                if is_folder(entry):
                    waiting.append((below, (*ancestors, here)))
                elif entry.name.lower().endswith(endings):
                    found.append((entry.name, _size(entry)))
                    if len(found) % _TOLD == 0:
                        tell(_TOLD)
                elif not entry.name.startswith("."):
                    result.others[os.path.splitext(entry.name)[1].lower()] += 1
            except OSError as error:
                _unlisted(below, error, result)
        tell(len(found) % _TOLD)
        yield folder, found


def _unlisted(folder: str, error: OSError, result: Listing) -> None:
    reason = f"folder cannot be listed: {error.strerror}"
    result.unlisted.append((os.fsencode(folder) + b"/", reason))


def _identity(folder: str) -> _Identity:
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_size
    except OSError:  # a dangling link: reading it will say so
        return -1


def tell_others(result: Listing) -> None:
    """Add a warning about files that are not taken as images."""
    if result.others:
        common = ", ".join(f"{ending or 'none'} {n}" for ending, n in result.others.most_common(5))
        result.warnings.append(
            f"{result.others.total()} files with other endings are not taken as images ({common}); "
            f"{EXPECTED}"
        )


@contextlib.contextmanager
def folder_opened(path: str | os.PathLike[str]) -> Iterator[int]:
    """Yield a descriptor of a folder.

    Raises:
        OSError: the folder is gone.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def opened(
    root: str | os.PathLike[str],
    keys: Sequence[bytes],
    more: Mapping[str, tuple[str, Sequence[bytes]]] | None = None,
) -> Iterator[ReadRecord]:
    """Yield a function that reads the files of a sample by its position.

    Args:
        root: Folder that the paths are relative to.
        keys: Paths of the images.
        more: Name of a further field → its kind and its paths; b"" if the sample has no such file.

    Raises:
        OSError: the folder is gone.
    """
    with folder_opened(root) as descriptor:

        def read(position: int) -> Record[Field]:
            fields = {"image": Field("image", whole_file(descriptor, keys[position]))}
            for name, (kind, paths) in (more or {}).items():
                if paths[position]:
                    fields[name] = Field(kind, further_file(descriptor, paths[position], name))
            return Record(b"", fields)

        yield read


def further_file(root: int, path: bytes, name: str) -> bytes:
    """Read a file that belongs to an image; an error names the field and the file.

    Args:
        root: Descriptor of the folder that the path is relative to.
        path: Of the file.
        name: Of the field.

    Raises:
        OSError, DecodeError: see `whole_file`.
    """
    try:
        return whole_file(root, path)
    except OSError as error:
        raise OSError(error.errno, f"{name} {path!a}: {error.strerror}") from error
    except DecodeError as error:
        raise DecodeError(f"{name} {path!a}: {error}") from error


def whole_file(root: int, key: bytes) -> bytes:
    """Read a regular file; a file that changes meanwhile is read a second time.

    Args:
        root: Descriptor of the folder that the key is relative to.
        key: Relative path.

    Raises:
        OSError: the file cannot be opened or read.
        DecodeError: this is no regular file, the file is too large, or it keeps changing.
    """
    # without O_NONBLOCK, opening a FIFO would wait for its writer
    descriptor = os.open(key, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=root)
    try:
        for _ in range(2):
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode):
                raise DecodeError("not a regular file")
            if before.st_size > MAX_BYTES:
                raise DecodeError(f"{before.st_size} bytes; the limit is {MAX_BYTES:,}")
            data = read_at(descriptor, before.st_size + 1, 0)
            after = os.fstat(descriptor)
            if len(data) == before.st_size and after.st_mtime_ns == before.st_mtime_ns:
                return data
    finally:
        os.close(descriptor)
    raise DecodeError("changed while it was read, twice")


def sizes(folder: int, paths: Sequence[bytes]) -> list[int]:
    """Bytes of each file, -1 where there is none.

    Args:
        folder: Descriptor of the folder that the paths are relative to.
        paths: Of the files.
    """
    began = time.perf_counter()
    found = _sizes(folder, paths[:_STAT_FILES])
    slow = time.perf_counter() - began > _STAT_FILES * _STAT_SECONDS
    parts = (paths[i : i + _STAT_FILES] for i in range(_STAT_FILES, len(paths), _STAT_FILES))
    with ThreadPool(_STAT_THREADS if slow else 1, "packio-stat") as pool:
        for part in pool.map(functools.partial(_sizes, folder), parts):
            found += part
    return found


def _sizes(folder: int, paths: Sequence[bytes]) -> list[int]:
    found = []
    for path in paths:
        try:
            found.append(os.stat(path, dir_fd=folder).st_size)
        except OSError:  # reading it will say so
            found.append(-1)
    return found
