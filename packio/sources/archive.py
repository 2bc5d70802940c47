"""A tar or zip archive of images: of class folders as an image folder has them, or flat.

The folder that all images have in common is the top: if there are folders of images below it, they
are the classes, as in `packio.sources.image_folder`, and keys, labels and order are those that the
unpacked archive would have; if there are none, or a list of labels is given, images are sorted by
path, as in `packio.sources.flat_folder`, and have the labels of the list, or none. Tar
archives in an uncompressed tar archive are taken as folders of their names, as ImageNet's
``ILSVRC2012_img_train.tar`` has them.

Samples are read where they lie; nothing is unpacked, and nothing written under any name. Compressed
tar archives can only be read from their beginning: they are unpacked once, into a nameless file in
TMPDIR, which needs as much room and is gone with the process. Members of zip archives are stored or
deflated.

What cannot be read is listed with its reason: links, sparse and encrypted members, names that lead
out of the archive, all but the last of those that bear one name, and what comes after damage.

A tar archive in which images have companions (``1.jpg``, ``1.cls``) is a WebDataset, a container
that `packio.open` reads; it is not taken here.
"""

from __future__ import annotations

import bz2
import contextlib
import dataclasses
import functools
import gzip
import hashlib
import itertools
import lzma
import os
import re
import shlex
import tempfile
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any, NamedTuple

from packio.errors import DecodeError, OptionError, SourceError
from packio.sample.record import image_record
from packio.sources import Listing, ReadRecord, _classes, _files, _members
from packio.sources.tables import label_list

OPTIONS = {
    "folder": "folder in an archive to take as the top, as data/train; '.' is the archive",
    **label_list.OPTIONS,
}
SUFFIXES = (
    ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz", ".tbz2", ".tar.xz", ".txz", ".zip",
)  # fmt: skip

_COMPRESSED: dict[bytes, tuple[str, Callable[..., Any] | None]] = {
    b"\x1f\x8b": ("gunzip", gzip.open),
    b"BZh": ("bunzip2", bz2.open),
    b"\xfd7zXZ\0": ("unxz", lzma.open),
    b"\x28\xb5\x2f\xfd": ("unzstd", None),
}
_ZIP = (b"PK\3\4", b"PK\5\6")  # the second: an empty one
_MOST_EXPANSION, _ALWAYS_ALLOWED = 200, 64 << 20  # bytes unpacked for a byte packed; bytes
_PEEK = 256  # members that show what a tar archive is
_CHUNK = 1 << 20
_SHOWN = 5  # names in a message

_is_odd = re.compile(rb"(^|/)(\.{0,2}(/|$))|\0").search


class _File(NamedTuple):
    """An archive as it is on disk."""

    path: str
    size: int  # bytes
    mtime_ns: int

    @contextlib.contextmanager
    def opened(self) -> Iterator[int]:
        """A descriptor of the file, unless it has changed."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if (status.st_size, status.st_mtime_ns) != (self.size, self.mtime_ns):
                raise SourceError(f"{self.path}: has changed since it was listed; pack again")
            yield descriptor
        finally:
            os.close(descriptor)


class _Spool:
    """An unpacked archive without a name; closed when nothing refers to it any more.

    Other processes of this machine open it as a file of this one's in ``/proc``.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = os.dup(descriptor)
        weakref.finalize(self, os.close, self._descriptor)

    def __reduce__(self) -> tuple[object, ...]:
        status = os.fstat(self._descriptor)
        path = f"/proc/{os.getpid()}/fd/{self._descriptor}"
        return _File, (path, status.st_size, status.st_mtime_ns)

    def opened(self) -> AbstractContextManager[int]:
        """A descriptor of the file."""
        return contextlib.nullcontext(self._descriptor)


def recognise(path: str | Path) -> bool:
    """Tell whether the path is an archive by its suffix, and neither a pack nor a WebDataset."""
    name = os.fspath(path)
    if not name.lower().endswith(SUFFIXES) or not os.path.isfile(name):
        return False
    if os.path.exists(f"{name}.packio"):
        return False
    try:
        with open(name, "rb") as file:
            return not _is_webdataset(file.fileno())
    except OSError:  # listing it will say why
        return True


def listing(
    path: str | Path,
    *,
    classes: Sequence[str] | None = None,
    allow_empty: bool = False,  # noqa: ARG001 (the signature of all sources; folders are not kept)
    folder: str | None = None,
    labels: str | os.PathLike[str] | None = None,
    label_offset: int = 0,
) -> Listing:
    """List the images in an archive.

    Args:
        path: Of the archive.
        classes: Names that give the labels; None takes the folders found, sorted.
        allow_empty: Of no meaning here: folders without images are no classes.
        folder: Folder in the archive to take as the top; None: what all images have in common.
        labels: List of labels, for images without class folders; see `_label_list`.
        label_offset: Added to labels in the list that are numbers.

    Raises:
        SourceError: no archive, a damaged or compressed one that cannot be read, no images in it,
            splits instead of classes, a class unknown to `classes`, a list of labels that does not
            fit, or a WebDataset.
        OptionError: no such folder in the archive, or an offset that is no whole number.
    """
    path = Path(path)
    archive, advice = _readable(path)
    result = Listing("archive", None, [], [], None, [*(classes or ())])
    with archive.opened() as descriptor:
        if _is_webdataset(descriptor):
            raise SourceError(
                f"{path}: a WebDataset, with samples of several files; {advice}"
                "packio convert takes it as it is"
            )
        found = _images(path, descriptor, result)
    if not found and len(result.unlisted) < 2:
        why = "".join(f" ({reason})" for _, reason in result.unlisted)
        raise SourceError(f"{path}: no images in it{why}; {_files.EXPECTED}")
    _files.tell_others(result)
    top = _common_folder(found) if folder is None else _given_folder(path, folder, found)
    inner = [name[len(top) :] for name in found if name.startswith(top)]
    keys, folders = (sorted(inner), []) if labels else _arranged(path, inner, top, result)
    places = [found[top + key] for key in keys]
    result = dataclasses.replace(
        result,
        root=path.parent,
        files=[(os.fsencode(path.name),)] * len(keys),
        keys=keys,
        sizes=[place.size for place in places],
        rows=places,
        version=hashlib.sha256(repr([place.check for place in places]).encode()).hexdigest(),
        open=functools.partial(_opened, archive),
    )
    if labels:
        return label_list.labelled(result, Path(labels), classes, label_offset)
    return _with_classes(path, result, folders, classes) if folders else result


def _with_classes(
    path: Path, found: Listing, folders: list[str], classes: Sequence[str] | None
) -> Listing:
    names = _classes.names(str(path), folders, classes)
    position = {os.fsencode(name): i for i, name in enumerate(names)}
    labels = [position[key.partition(b"/")[0]] for key in found.keys]
    return dataclasses.replace(found, labels=labels, classes=names)


def _readable(path: Path) -> tuple[_File | _Spool, str]:
    """The archive, unpacked if it is compressed; and advice on how to do so by hand.

    Raises:
        SourceError: it cannot be read or unpacked.
    """
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            start = file.peek(8)
            for magic, (command, unpack) in _COMPRESSED.items():
                if start.startswith(magic):
                    advice = f"unpack it: {command} < {shlex.quote(str(path))} > unpacked.tar; "
                    return _unpacked(path, file, unpack, status.st_size, advice), advice
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}; expected an archive of images") from error
    return _File(os.path.abspath(path), status.st_size, status.st_mtime_ns), ""


def _unpacked(
    path: Path,
    file: IO[bytes],
    unpack: Callable[..., Any] | None,
    size: int,
    advice: str,
) -> _Spool:
    if unpack is None:
        raise SourceError(f"{path}: compressed by zstd; {advice}then pack that")
    most = max(_ALWAYS_ALLOWED, _MOST_EXPANSION * size)
    with tempfile.TemporaryFile(prefix="packio-", buffering=0) as spool, unpack(file) as stream:
        while chunk := _next_chunk(path, stream):
            most -= len(chunk)
            if most < 0:
                raise SourceError(
                    f"{path}: {_MOST_EXPANSION} times as large unpacked, and more; if that is "
                    f"meant, {advice}"
                )
            _write(path, spool.fileno(), chunk, advice)
        return _Spool(spool.fileno())


def _next_chunk(path: Path, stream: IO[bytes]) -> bytes:
    try:
        return stream.read(_CHUNK)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise SourceError(f"{path}: damaged or cut off ({error}); restore the file") from error


def _write(path: Path, descriptor: int, chunk: bytes, advice: str) -> None:
    rest = memoryview(chunk)
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    except OSError as error:
        raise SourceError(
            f"{tempfile.gettempdir()}: {error.strerror}, as {path} is unpacked there; make room, "
            f"name another place by TMPDIR, or {advice}"
        ) from error


def _is_zip(descriptor: int) -> bool:
    return os.pread(descriptor, 4, 0) in _ZIP


def _is_webdataset(descriptor: int) -> bool:
    """Tell whether some image has a companion: a member beside it with the same stem.

    Stems end at the first dot after the last slash. Source: WebDataset format specification,
    "File Format".
    """
    names = []
    with contextlib.suppress(DecodeError):  # damaged, or no tar archive: listing it says so
        if not _is_zip(descriptor):
            members = _members.of_tar(descriptor, 0, os.fstat(descriptor).st_size)
            names = [member.name.lower() for member in itertools.islice(members, _PEEK)]
    for stem, group in itertools.groupby(names, _stem):
        suffixes = [name[len(stem) :].decode(errors="replace") for name in group]
        images = sum(suffix.endswith(_files.EXTENSIONS) for suffix in suffixes)
        masks = any(suffix.startswith(".mask.") for suffix in suffixes)
        if images and stem.rpartition(b"/")[2] and (images < len(suffixes) or masks):
            return True
    return False


def _stem(name: bytes) -> bytes:
    folder, slash, base = name.rpartition(b"/")
    return folder + slash + base.partition(b".")[0]


def _images(path: Path, descriptor: int, result: Listing) -> dict[bytes, _members.Place]:
    """Inner path → where it lies, of all images that can be read."""
    found: dict[bytes, _members.Place] = {}
    for member in _all_members(path, descriptor, result):
        base = os.fsdecode(member.name.rpartition(b"/")[2])
        twin = base.startswith("._")  # macOS keeps a file's attributes in it
        if twin or not base.lower().endswith(_files.EXTENSIONS):
            if twin or not base.startswith("."):
                result.others["._*" if twin else os.path.splitext(base)[1].lower()] += 1
            continue
        name = _inner_name(member.name)
        problem = member.problem or ("" if name else "its name leads out of the archive")
        if problem or name in found:
            result.unlisted.append((member.name, problem or "there twice; the last one counts"))
        if not problem:
            found[name] = member.place
    return found


def _all_members(path: Path, descriptor: int, result: Listing) -> Iterator[_members.Member]:
    """Yield the members of an archive, and of tar archives in a tar archive."""
    if _is_zip(descriptor):
        members = _members.of_zip(descriptor)
    else:
        members = _members.of_tar(descriptor, 0, os.fstat(descriptor).st_size)
    for member in _until_damage(members, os.fsencode(path.name), result):
        place, inner = member.place, member.name.lower().endswith(b".tar")
        if not inner or member.problem or place.method != _members.TAR:
            yield member
            continue
        folder = member.name[: -len(b".tar")]
        below = _members.of_tar(descriptor, place.offset, place.size)
        for found in _until_damage(below, member.name, result):
            yield found._replace(name=folder + b"/" + found.name)


def _until_damage(
    members: Iterator[_members.Member], name: bytes, result: Listing
) -> Iterator[_members.Member]:
    try:
        yield from members
    except DecodeError as error:
        result.unlisted.append((name, str(error)))


def _inner_name(name: bytes) -> bytes:
    """A member's path, plain; empty where it leads nowhere in the archive."""
    if not _is_odd(name):
        return name
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    leads_out = name.startswith(b"/") or b".." in parts or b"\0" in name
    return b"" if leads_out else b"/".join(parts)


def _common_folder(names: Iterable[bytes]) -> bytes:
    """The folder that all have in common, with a slash at its end; empty if there is none."""
    common = os.path.commonpath({name.rpartition(b"/")[0] for name in names} or {b""})
    return common and common + b"/"


def _given_folder(path: Path, folder: str, names: Iterable[bytes]) -> bytes:
    top = os.fsencode("" if folder == "." else folder.strip("/") + "/")
    names = list(names)
    if not any(name.startswith(top) for name in names):
        tops = sorted({os.fsdecode(name.partition(b"/")[0]) for name in names if b"/" in name})
        raise OptionError(
            f"folder={folder!r}: no images in such a folder of {path}; at its top are "
            f"{', '.join(ascii(top)[1:-1] for top in tops[:_SHOWN]) or 'no folders'}"
        )
    return top


def _arranged(
    path: Path, names: list[bytes], top: bytes, result: Listing
) -> tuple[list[bytes], list[str]]:
    """Keys in their order, and the names of the class folders, if there are any."""
    folders = sorted({os.fsdecode(name.partition(b"/")[0]) for name in names if b"/" in name})
    if not folders:
        return sorted(names), []
    if _classes.are_splits(folders):
        _refuse_splits(path, os.fsdecode(top), folders)
    keys = sorted((name for name in names if b"/" in name), key=_place_in_order)
    if beside := len(names) - len(keys):
        result.warnings.append(f"{beside} images beside the class folders belong to no class")
    return keys, folders


def _place_in_order(key: bytes) -> tuple[str, str, str]:
    """By class, folder and name, as text: the order of an image folder."""
    folder, _, name = os.fsdecode(key).rpartition("/")
    return folder.partition("/")[0], folder, name


def _refuse_splits(path: Path, top: str, folders: list[str]) -> None:
    train = next((f for f in folders if f.lower().startswith("train")), folders[0])
    commands = [
        f"packio pack {shlex.quote(str(path))} {name}.lmdb --folder {shlex.quote(top + name)}"
        + ("" if name == train else f" --classes-from {train}.lmdb")
        for name in sorted(folders, key=lambda name: name != train)
    ]
    raise SourceError(
        f"{path}: its folders are splits ({', '.join(folders)}), not classes; "
        f"pack each by itself: {'; '.join(commands)}"
    )


@contextlib.contextmanager
def _opened(archive: _File | _Spool, rows: Sequence[_members.Place]) -> Iterator[ReadRecord]:
    with archive.opened() as descriptor:
        yield lambda position: image_record(_members.read(descriptor, rows[position]))
