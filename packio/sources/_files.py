"""Files below a folder: finding them at any depth, and reading them whole."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from packio.errors import DecodeError, OptionError, ReadError, SourceError
from packio.images import encodings
from packio.sample.record import image_record
from packio.sources import Context, Flag, Listing, ReadRecord, command
from packio.system.files import check_of_file, is_hidden, read_at
from packio.system.pools import ThreadPool

EXTENSIONS = encodings.IMAGE_SUFFIXES
EXPECTED = f"files counted as images end in {', '.join(EXTENSIONS)}; --endings adds others"
ARCHIVES = (
    ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz", ".tbz2", ".tar.xz", ".txz", ".zip",
)  # fmt: skip
HIDDEN = {"include_hidden": Flag("take hidden files and folders, and those that systems make")}
OPTIONS = HIDDEN | {
    "label_regex": "label of an image by its path: what the regular expression's group matches",
    "endings": "further endings that count as images, as '.gif,.avif'; 'none': names without one",
}
_NO_ENDING = "none"
_FURTHER = (  # endings of images that are taken only if the user asks for them
    ".apng", ".avif", ".gif", ".heic", ".heif", ".jfif", ".jp2", ".jpe", ".jxl", ".pbm", ".pnm",
    ".tga",
)  # fmt: skip
_STAT_FILES = 1024  # whose sizes one thread asks for in one go
_STAT_THREADS = 16
_TOLD = 1000  # files found between two calls of the callback
MAX_BYTES = (1 << 31) - 1  # of one sample
HEAD_BYTES = 1 << 16  # that show whether a file can be an image
LARGE = 1 << 20  # bytes of a file whose head is looked at before the file is read

_Identity = tuple[int, int]  # device, inode


def is_plain_folder(path: str | os.PathLike[str]) -> bool:
    """Tell whether the path is a folder and no pack; False if permission to look is missing."""
    return os.path.isdir(path) and not os.path.exists(os.path.join(path, "index.packio"))


def entries(path: str | os.PathLike[str], expected: str) -> list[tuple[str, bool]]:
    """Each name in a folder, and whether it is that of a folder. Links are followed."""
    try:
        with os.scandir(path) as found:
            return [(entry.name, is_folder(entry)) for entry in found]
    except FileNotFoundError as error:
        raise SourceError(f"{path}: no such folder; expected {expected}") from error
    except NotADirectoryError as error:
        raise SourceError(f"{path}: not a folder; expected {expected}") from error
    except OSError as error:
        where = os.fsdecode(error.filename or path)
        check_of_file(error, where)
        raise SourceError(f"{where}: cannot be looked into: {error.strerror}") from error


def names_in(folder: str | os.PathLike[str], *endings: str) -> list[str]:
    """Names in a folder that end so, sorted; none if it cannot be looked into."""
    try:
        return sorted(n for n in os.listdir(folder) if n.lower().endswith(endings or ""))
    except OSError:
        return []


def is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno == errno.ELOOP:  # a link to itself: an error comes when it is read
            return False
        raise


def is_image(name: str) -> bool:
    return name.lower().endswith(EXTENSIONS)


def image_test(context: Context) -> Callable[[str], bool]:
    given = context.option("endings")
    if given is None:
        return is_image
    parts = given.split(",") if isinstance(given, str) else given
    more = [part.strip().lower() for part in parts]
    if not all(part.strip(".") for part in more):
        raise OptionError(f"endings={given!r}: expected endings as '.gif,.avif', or 'none'")
    ends = ends_in(
        *EXTENSIONS, *(f".{part.removeprefix('.')}" for part in more if part != _NO_ENDING)
    )
    takes_bare = _NO_ENDING in more
    return lambda name: ends(name) or (takes_bare and "." not in os.path.basename(name))


def ends_in(*endings: str) -> Callable[[str], bool]:
    lower = tuple(ending.lower() for ending in endings)
    return lambda name: name.lower().endswith(lower)


def is_taken(path: str, result: Listing, context: Context, *, is_wanted: bool = True) -> bool:
    """Tell whether a file or folder is taken; if not, note in a listing that it is left out."""
    start = 0
    for part in path.split("/") if not context.option("include_hidden") else ():
        if is_hidden(part) and part not in (".", ".."):
            if is_wanted or start + len(part) < len(path):
                result.hidden.add(path[: start + len(part) + 1])
            return False
        start += len(part) + 1
    if not is_wanted:
        result.others[os.path.splitext(path)[1].lower()] += 1
    return is_wanted


def images(
    root: str | os.PathLike[str], top: str, result: Listing, context: Context,
    wanted: Callable[[str], bool] = is_image,
) -> list[tuple[bytes, int]]:  # fmt: skip
    """List the key and the bytes of every image below a folder, sorted by key."""
    return sorted(
        (os.fsencode(f"{folder}/{name}" if folder else name), size)
        for folder, files in walk(os.fspath(root), top, result, context, wanted)
        for name, size in files
    )


def walk(
    root: str, top: str, result: Listing, context: Context,
    wanted: Callable[[str], bool] = is_image,
) -> Iterator[tuple[str, list[tuple[str, int]]]]:  # fmt: skip
    """Yield (folder, [(image name, bytes)]), names sorted; links to a folder above are left out."""
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
                is_inner = is_folder(entry)
                is_wanted = is_inner or wanted(entry.name)
                if not is_taken(below + "/" * is_inner, result, context, is_wanted=is_wanted):
                    continue
                if is_inner:
                    waiting.append((below, (*ancestors, here)))
                    continue
                found.append((entry.name, _bytes(entry)))
                if len(found) % _TOLD == 0:
                    context.found(_TOLD)
            except OSError as error:
                _unlisted(below, error, result)
        context.found(len(found) % _TOLD)
        yield folder, found


def _bytes(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_size
    except OSError:  # a dangling link: an error comes when it is read
        return -1


def _unlisted(folder: str, error: OSError, result: Listing) -> None:
    check_of_file(error, folder)
    reason = f"folder cannot be listed: {error.strerror}"
    result.unlisted.append((os.fsencode(folder) + b"/", reason))


def _identity(folder: str) -> _Identity:
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def tell_others(result: Listing) -> None:
    if not result.others:
        return
    from PIL import Image  # slow to import

    encodings.load_plugins()
    known = Image.registered_extensions()
    common = ", ".join(f"{e or _NO_ENDING} {n}" for e, n in result.others.most_common(5))
    images = sorted(e for e in result.others if e in _FURTHER)
    more = [e for e in images if e in known] + [_NO_ENDING] * ("" in result.others)
    hint = f"; to take them, say --endings {','.join(more)}" if more else ""
    if unknown := [e for e in images if e not in known]:
        hint += (
            f"; Pillow cannot read {', '.join(unknown)} here: pip install pillow-heif for .heic "
            "and .heif, pillow-jxl-plugin for .jxl"
        )
    result.warnings.append(
        f"{result.others.total()} files with other endings are not taken as images ({common}); "
        f"files counted as images end in {', '.join(EXTENSIONS)}{hint}"
    )


def archive_hint(path: str | os.PathLike[str]) -> str:
    """Name the command that packs an archive in a folder, or in a folder in it."""
    places = [""]
    while places:
        place = places.pop(0)
        for name, is_folder in sorted(entries(os.path.join(path, place), "a folder")):
            below = os.path.join(place, name)
            if name.lower().endswith(ARCHIVES) and not is_folder:
                stem = name.partition(".")[0] or "archive"
                return f"; it holds {below}: {command(os.path.join(path, below), stem)}"
            if is_folder and not place and not is_hidden(name):
                places.append(below)
    return ""


@contextlib.contextmanager
def folder_opened(path: str | os.PathLike[str]) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def open_files(root: str | os.PathLike[str], keys: Sequence[bytes]) -> Iterator[ReadRecord]:
    with contextlib.ExitStack() as stack:
        try:
            descriptor = stack.enter_context(folder_opened(root))
        except OSError as error:
            raise ReadError(f"{os.fspath(root)}: {error.strerror}; it was listed before") from error
        yield lambda position: image_record(whole_file(descriptor, keys[position], is_image=True))


def reader(root: str | os.PathLike[str]) -> Callable[[bytes], bytes]:
    return lambda key: whole_file(None, os.path.join(os.fsencode(root), key))


def check_head(head: bytes, size: int) -> None:
    """Refuse a large file that no image begins like, before the rest of the file is read."""
    if encodings.is_image(head):
        return
    from PIL import Image, UnidentifiedImageError

    Image.init()
    encodings.load_plugins()
    if any(accepts is not None and accepts(head[:16]) for _, accepts in Image.OPEN.values()):
        return
    try:
        Image.open(io.BytesIO(head)).close()
    except UnidentifiedImageError as error:
        raise encodings.unidentified_error(head, size) from error
    except Exception:  # noqa: BLE001, S110 (a plugin needs more than the head: read the file)
        pass


def whole_file(root: int | None, key: bytes, *, is_image: bool = False) -> bytes:
    """Read a regular file; a file that changes meanwhile is read a second time."""
    # without O_NONBLOCK, opening a FIFO would wait for its writer
    descriptor = os.open(key, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=root)
    try:
        for _ in range(2):
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode):
                raise DecodeError("not a regular file")
            if before.st_size > MAX_BYTES:
                raise DecodeError(f"{before.st_size} bytes; the limit is {MAX_BYTES:,}")
            if is_image and before.st_size > LARGE:
                check_head(read_at(descriptor, HEAD_BYTES, 0), before.st_size)
            data = read_at(descriptor, before.st_size + 1, 0)
            after = os.fstat(descriptor)
            if len(data) == before.st_size and after.st_mtime_ns == before.st_mtime_ns:
                return data
    finally:
        os.close(descriptor)
    raise DecodeError("changed while it was read, twice")


def lines_of(file: Path) -> list[bytes]:
    """The lines of a list that are not blank, without blanks around them."""
    try:
        text = file.read_bytes().removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        raise SourceError(f"{file}: {error.strerror}; expected a list") from error
    return [stripped for line in text.split(b"\n") if (stripped := line.strip())]


def sizes(root: str | os.PathLike[str], paths: Sequence[bytes]) -> list[int]:
    """Bytes of each file below a folder, -1 where there is none."""

    def size(path: bytes) -> int:
        try:
            return os.stat(path, dir_fd=folder).st_size
        except OSError:  # an error comes when the file is read
            return -1

    def look(start: int) -> list[int]:
        return [size(path) for path in paths[start : start + _STAT_FILES]]

    # threads share the waiting for a network
    with folder_opened(root) as folder, ThreadPool(_STAT_THREADS, "packio-stat") as pool:
        return [size for part in pool.map(look, range(0, len(paths), _STAT_FILES)) for size in part]
