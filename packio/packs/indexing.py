"""Indexing: make an index of a container that has none, so that packio can open the container.

Either others wrote the container, or its index is lost. packio walks the container once, reads each
sample, takes its header and checksum, and writes all of this into an index file. Opening such a
container puts the index into the user's cache, under the identity of the container's files: device,
inode, size and modification time of each. Only `reindex` writes beside the data.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packio import __version__, registry
from packio.errors import NotAPackError, OptionError
from packio.formats import Format, Reading
from packio.index import indexfile
from packio.index.indexfile import INDEX_NAME, INDEX_SUFFIX
from packio.packs import braces, isolation
from packio.packs.collecting import Samples
from packio.system import cache

_HEAD = 512  # bytes of a file that tell its format
# Names of shards without a suffix, as TensorFlow's: train-00000-of-00004.
_NUMBERED = re.compile(r"-\d+-of-\d+$")
_MOST_INNER = 16, 1000  # folders in a folder, and names in each, that tell its format

# A container whose library hangs is given up after two minutes, and a second for each megabyte.
_SECONDS, _SECONDS_A_BYTE = 120, 1e-6


@dataclasses.dataclass(frozen=True)
class Container:
    """A container found at a path.

    Attributes:
        format: Name of its format.
        root: Folder that all paths are relative to.
        shards: Names relative to the root; "." where the root is the one shard.
    """

    format: str
    root: Path
    shards: tuple[str, ...]


def find(path: Path) -> Container | None:
    """Recognise a container by its first bytes, or by its name; None if it is none.

    Several may be named by braces (`packio.packs.braces`): they are the shards of one.

    Raises:
        NotAPackError: one of several is no container.
        OptionError: several that do not go together.
    """
    if path.is_dir():
        return _find_directory(path)
    if not os.path.lexists(path) and len(each := braces.expanded(os.fspath(path))) > 1:
        return _find_several(path, [Path(one) for one in each])
    name = _format_of_file(path)
    return None if name is None else Container(name, path.parent, (path.name,))


def is_marked(path: Path) -> bool:
    """Tell whether a folder is one container by itself, and not just holds containers."""
    return _recognised(_names_in(path), "", _is_directory) is not None


def _find_several(pattern: Path, paths: Sequence[Path]) -> Container:
    """The containers at some paths as one."""
    found = []
    for path in paths:
        if not path.exists():
            raise NotAPackError(f"{path}: does not exist; {pattern} stands for it, among others")
        if (path / INDEX_NAME).is_file() or path.with_name(path.name + INDEX_SUFFIX).is_file():
            raise OptionError(
                f"{path}: has an index of its own; open it, and put all of {pattern} together by "
                "packio.ConcatPacks or packio merge"
            )
        container = find(path)
        if container is None:
            raise NotAPackError(f"{path}: no container that packio knows")
        found.append(container)
    formats = sorted({container.format for container in found})
    if len(formats) > 1:
        raise OptionError(f"{pattern}: {' and '.join(formats)}; expected containers of one format")
    root = os.path.commonpath([container.root for container in found])
    shards = [os.path.relpath(c.root / name, root) for c in found for name in c.shards]
    return Container(formats[0], Path(root), tuple(shards))


def _find_directory(path: Path) -> Container | None:
    head = _names_in(path)
    if name := _recognised(head, "", _is_directory):
        return Container(name, path, (".",))
    if shards := _shards_in(path, head):
        return Container(*_of_one_format(path, shards))
    name = _recognised(head + _names_within(path, head), "", _is_directory)
    name = name or _recognised(head, path.name, _is_directory)
    return None if name is None else Container(name, path, (".",))


def _is_directory(form: Format) -> bool:
    return form.caps.is_directory


def _names_in(folder: Path) -> bytes:
    return b"".join(name + b"\n" for name in sorted(os.listdir(os.fsencode(folder))))


def _names_within(folder: Path, head: bytes) -> bytes:
    """Names in some of the folders in a folder: an N5 or Zarr group may have no file of its own."""
    most_folders, most_names = _MOST_INNER
    folders = (name for name in head.split(b"\n") if name and (folder / os.fsdecode(name)).is_dir())
    found = []
    for name in itertools.islice(folders, most_folders):
        with os.scandir(os.path.join(os.fsencode(folder), name)) as entries:
            found += [name + b"/" + e.name + b"\n" for e in itertools.islice(entries, most_names)]
    return b"".join(sorted(found))


def _shards_in(folder: Path, head: bytes) -> dict[str, list[str]]:
    """Format → names of the containers in a folder."""
    formats: dict[str, Format] = registry.load_all("formats")
    suffixes = tuple(s for form in formats.values() for s in form.caps.suffixes)
    found: dict[str, list[str]] = {}
    for name in map(os.fsdecode, head.split(b"\n")):
        path = folder / name
        if not name.lower().endswith(suffixes):
            if _NUMBERED.search(name) and path.is_file() and (form := _format_of_file(path)):
                found.setdefault(form, []).append(name)
            continue
        is_directory = path.is_dir()
        of_kind = {n: f for n, f in formats.items() if f.caps.is_directory == is_directory}
        form = next((n for n, f in of_kind.items() if f.recognise(b"", name)), None)
        if form is not None:
            found.setdefault(form, []).append(name)
    for form, names in found.items():
        siblings = {p.name for name in names for p in formats[form].siblings(folder / name)}
        found[form] = [name for name in names if name not in siblings]
    return found


def _of_one_format(folder: Path, found: dict[str, list[str]]) -> tuple[str, Path, tuple[str, ...]]:
    """The containers in a folder, where all of them are of one format.

    Raises:
        OptionError: they are of several formats.
    """
    if len(found) > 1:
        shown = ", ".join(f"{names[0]} ({form})" for form, names in sorted(found.items()))
        raise OptionError(
            f"{folder}/: holds containers of several formats: {shown}; expected one format; name "
            f"a file, or several as {folder}/{{a,b}}.tar"
        )
    ((form, names),) = found.items()
    return form, folder, tuple(names)


def _format_of_file(path: Path) -> str | None:
    head = b""
    if path.is_file():
        with contextlib.suppress(OSError), path.open("rb") as file:  # scanning it tells the error
            head = file.read(_HEAD)

    return _recognised(head, "", _is_any) or _recognised(head, path.name, _is_file)


def _is_any(_: Format) -> bool:
    return True


def _is_file(form: Format) -> bool:
    return not form.caps.is_directory


def _recognised(head: bytes, name: str, among: Callable[[Format], bool]) -> str | None:
    """The first format, of some, that says a container is its own."""
    formats = registry.load_all("formats").items()
    return next((n for n, form in formats if among(form) and form.recognise(head, name)), None)


def cached(path: Path, reading: Reading) -> tuple[Path, Path]:
    """The index of a bare container, from the user's cache, made if it is not there yet.

    Args:
        path: Of the container.
        reading: How to take what it says.

    Returns:
        The index file, and the folder that its paths are relative to.

    Raises:
        NotAPackError: no container that packio knows.
        PackioError: the container is damaged.
    """
    container = find(path)
    if container is None:
        raise NotAPackError(
            f"{path}: no index, and no container that packio knows; "
            f"make a pack with: packio pack SRC {path}.lmdb"
        )
    index = cache.folder("indexes") / f"{_fingerprint(container, reading)}{INDEX_SUFFIX}"
    if not index.is_file():
        index.parent.mkdir(parents=True, exist_ok=True)
        _make(path, container, reading, index)
    return index, container.root


def reindex(
    path: str | os.PathLike[str],
    *,
    label_offset: int = 0,
    trust_plain_pickle: bool = False,
    image: str | None = None,
    label: str | None = None,
    layout: str | None = None,
) -> Path:
    """Index a container anew, and write the index beside it, as `packio.pack` does.

    What only an index holds is lost if the old one is: the metadata of LMDB and RecordIO packs.

    Args:
        path: A container: a pack whose index is lost or damaged, or one that others wrote.
        label_offset: Added to labels that are ints: -1 makes labels from 1 begin at 0. The smallest
            label found is in the index's metadata, as ``labels.min``.
        trust_plain_pickle: Read an LMDB database whose values are pickles of plain data (bytes,
            text, numbers, tuples, lists, dicts). Nothing in them is run; all else is refused.
        image: Where the images are, if not under a usual name: the path of a dataset in an HDF5
            file or of an array in N5 and Zarr, the key or position in what ``torch.save`` saved, a
            feature of TFRecords.
        label: The same of the labels; "" takes none.
        layout: Order of pixels that are not encoded: "HWC" or "CHW", "RGB" or "BGR", or one of each
            with a comma between; RGB, and by the shape, if nothing is said.

    Returns:
        Path of the index.

    Raises:
        NotAPackError: no container that packio knows, or without images.
        IntegrityError: the container is damaged.
        OptionError: a name is not in the container; the message lists what is.
        OSError: the index cannot be written.
    """
    path = Path(os.path.abspath(path))
    if not os.path.lexists(path):
        raise NotAPackError(f"{path}: does not exist; a container was expected")
    container = find(path)
    if container is None:
        raise NotAPackError(f"{path}: no container that packio knows")
    index = path / INDEX_NAME if path.is_dir() else path.with_name(path.name + INDEX_SUFFIX)
    reading = Reading(label_offset, trust_plain_pickle, image, label, layout)
    _make(path, container, reading, index)
    return index


def _make(path: Path, container: Container, reading: Reading, index: Path) -> None:
    """Write the index of a container; in a process of its own, if its library may crash."""
    if not registry.load("formats", container.format).caps.dies_of_damage:
        indexfile.write(index, *_built(container, reading))
        return
    size = sum(file.stat().st_size for _, file in _files(container))
    isolation.run(
        "packio.packs.indexing:make", str(path), str(index), dataclasses.asdict(reading),
        where=path, seconds=_SECONDS + size * _SECONDS_A_BYTE,
    )  # fmt: skip


def make(path: str, index: str, reading: dict[str, Any]) -> None:
    """Write the index of a container, here and now; see `reindex`."""
    container = find(Path(path))
    if container is not None:
        indexfile.write(Path(index), *_built(container, Reading(**reading)))


def _fingerprint(container: Container, reading: Reading) -> str:
    digest = hashlib.sha256(f"{__version__} {container.format} {reading}".encode())
    digest.update("\0".join(container.shards).encode("utf-8", "surrogateescape"))
    for name, path in _files(container):
        s = path.stat()
        digest.update(f"{name}\0{s.st_dev} {s.st_ino} {s.st_size} {s.st_mtime_ns}\0".encode(
            "utf-8", "surrogateescape"))  # fmt: skip
    return digest.hexdigest()


def _files(container: Container) -> list[tuple[str, Path]]:
    """All files of a container's shards, relative to the root, sorted."""
    form: Format = registry.load("formats", container.format)
    found = []
    for shard in container.shards:
        top = container.root / shard
        if top.is_dir():
            paths = [p for p in top.rglob("*") if p.is_file()]
        else:
            paths = [top, *form.siblings(top)]
        found += [(os.path.relpath(p, container.root), p) for p in paths]
    return sorted(f for f in found if not f[0].endswith((INDEX_NAME, INDEX_SUFFIX)))


def _built(container: Container, reading: Reading) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Columns and metadata of an index."""
    form: Format = registry.load("formats", container.format)
    root = container.root
    samples = Samples(root, [name for name, _ in _files(container)], form, reading.label_offset)
    counts = [
        samples.add_shard(name, form.scan(root / name, reading), form.reader(root / name, reading))
        for name in container.shards
    ]
    if not len(samples):
        raise NotAPackError(
            f"{root}: no images in this {container.format} container"
            + (f"; the first record: {samples.first_problem}" if samples.first_problem else "")
        )
    metadata: dict[str, Any] = {
        "version": indexfile.VERSION,
        "format": container.format,
        "access": container.format if samples.by_library else "range",
        "fields": samples.fields,
        "classes": samples.classes(),
        "counts": {
            "found": len(samples) + samples.skipped,
            "packed": len(samples),
            "skipped": samples.skipped,
        },
        "source": {"kind": "reindex"},
        "options": reading.names(),
        "shards": [
            {"name": n, "samples": c} for n, c in zip(container.shards, counts, strict=True)
        ],
        "versions": {"packio": __version__},
    }
    identity = [form.identity(root / n) for n in container.shards]
    if identity != [None] * len(identity):
        metadata["identity"] = identity
    columns = samples.columns()
    if samples.least_label is not None and columns.get("label", np.empty(0)).ndim == 1:
        metadata["labels"] = {"min": samples.least_label, "offset": reading.label_offset}
    return columns, metadata
