"""What every room does with files: read a range, make them durable, remove them, ask for room."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import resource
import secrets
import shlex
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from packio.errors import CannotCreateError, OptionError, PackioError, ReadError
from packio.system.pools import ThreadPool

OF_ONE_FILE = frozenset({  # errors of a file that is gone, unreadable, or no file
    errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.EISDIR,
    errno.ESPIPE, errno.ENXIO, errno.EINVAL, errno.ENAMETOOLONG,
})  # fmt: skip
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGT]?)(i?)B?")
_LONGEST_ENDING = 32  # bytes, as .caption.text.idx, .skipped.jsonl, .packio-tmp
_MANY = 1 << 16  # files, where there is no limit
_OF_SYSTEMS = frozenset({  # of macOS, Windows, Linux, Synology and QNAP, in lower case
    "__macosx", "thumbs.db", "ehthumbs.db", "desktop.ini", "$recycle.bin", "recycler",
    "system volume information", "lost+found", "@eadir", "#recycle", "#snapshot", "@recycle",
    "@recently-snapshot", "@__thumb", "__pycache__",
})  # fmt: skip


def read_at(descriptor: int, length: int, offset: int) -> bytes:
    """Read a range of a file, without its position; the kernel may hand it over in parts."""
    data = os.pread(descriptor, length, offset)
    while 0 < len(data) < length:
        more = os.pread(descriptor, length - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


def is_hidden(name: str) -> bool:
    """Tell whether a name is that of a hidden file or folder, or of one that a system makes."""
    return name.startswith(".") or name.lower() in _OF_SYSTEMS


def check_of_file(error: Exception, where: object) -> None:
    """Raise if an error tells of a disk, a network or this process: the file may be sound.

    Errors without a number are those that libraries raise for bytes that they cannot decode.
    """
    if not isinstance(error, OSError):
        return
    if isinstance(error, PackioError):
        raise error
    if isinstance(error, ConnectionError | TimeoutError) or not (
        error.errno is None or error.errno in OF_ONE_FILE
    ):
        raise ReadError(
            f"{where}: cannot be read: {error.strerror or error}; this is an error of the disk, "
            "the network or the system, and no sample is left out for it; run it again to go on"
        ) from error


def spare_descriptors() -> int:
    """Files that packs may keep open: a quarter of ``ulimit -n``; torch's workers need the rest."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MANY if soft == resource.RLIM_INFINITY else min(soft // 4, _MANY)


def absolute(path: str | os.PathLike[str]) -> Path:
    """Make a path absolute, without following links."""
    try:
        return Path(os.path.abspath(path))
    except FileNotFoundError as error:
        raise ReadError(
            f"{os.fspath(path)}: the current folder was deleted; change to one that is there, or "
            "give the whole path"
        ) from error


def check_folder_of(path: str | os.PathLike[str]) -> None:
    """Check that the folder of a file that is to be made is there; before long work, best."""
    folder = Path(path).parent
    if folder.is_dir():
        return
    if os.path.lexists(folder):
        raise CannotCreateError(f"{os.fspath(path)}: {folder} is no folder; choose another place")
    raise CannotCreateError(
        f"{os.fspath(path)}: the folder {folder} does not exist; make it first: "
        f"mkdir -p {shlex.quote(str(folder))}"
    )


def check_length(path: Path) -> None:
    """Check that files beside a pack can have the pack's name and an ending of their own."""
    try:
        most = os.pathconf(path.parent, "PC_NAME_MAX") - _LONGEST_ENDING
    except (OSError, ValueError):  # the folder is missing: making the pack will say so
        return
    if (length := len(os.fsencode(path.name))) > most:
        raise CannotCreateError(
            f"{path}: a name of {length} bytes; it may have {most}, as files beside a pack have "
            "its name and an ending: choose a shorter name"
        )


def beyond_link(path: Path) -> Path:
    """Where a link leads, which may be on another file system; any other path as it is."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def open_file(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Open a regular file for reading, and nothing else: opening a FIFO would wait for ever."""
    return open(path, "rb", opener=_only_regular)


def content(path: str | os.PathLike[str]) -> bytes:
    """Read a whole regular file."""
    with open_file(path) as file:
        return file.read()


def _only_regular(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "not a regular file", path)


def temporary_name(path: Path) -> Path:
    """A name beside a path that nobody can foresee; it is short, as the path's may be long."""
    return path.with_name(f".packio-{secrets.token_hex(8)}.tmp")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a new file, which is synced and takes the place of a path when all is written."""
    temporary = temporary_name(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(temporary, flags, 0o666), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno and error.filename in (None, str(temporary)):
            error.filename = os.fspath(path)
        raise


def free_bytes(path: str | os.PathLike[str]) -> int:
    """Count the bytes that an ordinary user may still write to the file system of a path."""
    return shutil.disk_usage(path).free


def more_room() -> str:
    """Say how to make room for a file: where file sizes are limited, free bytes do not help."""
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit == resource.RLIM_INFINITY:
        return "make room"
    return f"no file may be larger than {limit:,} bytes here: raise that limit (ulimit -f)"


def room_beside(path: Path) -> str:
    """Say how much room a file has, and how to make more, for the message of an error."""
    try:
        free = f"{free_bytes(path.parent)} bytes free"
    except OSError:
        free = "room left: unknown"
    return f"{free}; {more_room()} and run it again"


def sync(path: str | os.PathLike[str]) -> None:
    """Make a file durable; of a folder, the names in it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Make a folder and every file and folder below it durable, four at a time."""
    paths = [folder]
    for root, folders, files in os.walk(folder):
        paths += [Path(root) / name for name in (*folders, *files)]
    with ThreadPool(4, "packio-sync") as pool:
        list(pool.map(sync, reversed(paths)))


def remove(path: Path) -> None:
    """Remove a file, or a folder with all it holds; a link is removed, not what it points to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def byte_count(text: str) -> int:
    """Turn "256MB", "1.5GiB" or "1000" into a number of bytes."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise OptionError(f"{text!r}: expected a size in bytes, as 256MB or 1GiB")
    number, prefix, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** " KMGT".index(prefix.upper() or " "))


def cache_folder(*names: str) -> Path:
    """Path in the user's cache: ``$PACKIO_CACHE_DIR``, or ``packio`` in the system's folder."""
    if own := os.environ.get("PACKIO_CACHE_DIR"):
        return Path(own, *names)
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(caches, "packio", *names)
