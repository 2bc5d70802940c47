"""Files below a folder: found in any depth, and each read whole, the same from beginning to end."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence

from packio.errors import DecodeError, SourceError
from packio.images.encodings import IMAGE_SUFFIXES
from packio.sample.record import image_record
from packio.sources import FOUND, Listing, ReadRecord
from packio.system.files import read_at

EXTENSIONS = IMAGE_SUFFIXES
EXPECTED = f"files counted as images end in {', '.join(EXTENSIONS)}"
_TOLD = 1000  # files at a time
MAX_BYTES = (1 << 31) - 1  # of one sample

_Identity = tuple[int, int]  # device, inode


def is_plain_folder(path: str | os.PathLike[str]) -> bool:
    """Tell whether the path is a folder, and not a pack; False where it may not be looked at."""
    return os.path.isdir(path) and not os.path.exists(os.path.join(path, "index.packio"))


def entries(path: str | os.PathLike[str], expected: str) -> list[tuple[str, bool]]:
    """Name of everything in a folder, and whether it is a folder, links followed.

    Raises:
        SourceError: no folder, or it cannot be looked into; the message ends in `expected`.
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
    """Follow links; what leads nowhere is no folder.

    Raises:
        OSError: it cannot be told, as behind a folder that may not be entered.
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
    *,
    endings: tuple[str, ...] = EXTENSIONS,
) -> list[tuple[bytes, int]]:
    """Key and bytes of every image below a folder, in any depth, sorted by key.

    Args:
        root: Folder that the keys are relative to.
        top: Folder to begin in, relative to the root; "" is the root itself.
        result: Takes note of other files, of folders that cannot be listed, and of cycles.
        endings: What names of images end in, in lower case.
    """
    found = [
        (os.fsencode(f"{folder}/{name}" if folder else name), size)
        for folder, files in walk(os.fspath(root), top, result, endings=endings)
        for name, size in files
    ]
    return sorted(found)


def walk(
    root: str, top: str, result: Listing, *, endings: tuple[str, ...] = EXTENSIONS
) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    """Yield (folder, [(image name, bytes)]) for a folder and all below it, cycles cut.

    Arguments as of `images`; the names of a folder are sorted as text. `FOUND` is told.
    """
    tell = FOUND.get()
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
    """Warn of the files that are not taken as images."""
    if result.others:
        common = ", ".join(f"{ending or 'none'} {n}" for ending, n in result.others.most_common(5))
        result.warnings.append(
            f"{result.others.total()} files with other endings are not taken as images ({common}); "
            f"{EXPECTED}"
        )


@contextlib.contextmanager
def opened(root: str | os.PathLike[str], keys: Sequence[bytes]) -> Iterator[ReadRecord]:
    """Yield a function that reads the file of a key by its position.

    Args:
        root: Folder that the keys are relative to.
        keys: Relative paths.

    Raises:
        OSError: the folder is gone.
    """
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield lambda position: image_record(whole_file(descriptor, keys[position]))
    finally:
        os.close(descriptor)


def whole_file(root: int, key: bytes) -> bytes:
    """Read a regular file; a file that changes meanwhile is read again, once.

    Args:
        root: Descriptor of the folder that the key is relative to.
        key: Relative path.

    Raises:
        OSError: it cannot be opened or read.
        DecodeError: no regular file, too large, or one that does not stop changing.
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
