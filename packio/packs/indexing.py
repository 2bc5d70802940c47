"""Indexing: what lies where in a container that has no index, so that it can be opened as a pack.

A container that packio did not write, or whose index is lost, is walked once; each sample is read,
its header and checksum are taken, and all goes into an index file. Opening such a container puts
the index into the user's cache, under the identity of its files (device, inode, size, modification
time of each); nothing is ever written beside the data, unless `reindex` is asked to.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterator, Sequence
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from packio import __version__, registry
from packio.errors import NotAPackError, OptionError
from packio.formats import Reading
from packio.index import indexfile
from packio.index.indexfile import INDEX_NAME, INDEX_SUFFIX
from packio.packs import braces, isolation
from packio.packs.collecting import Samples
from packio.system import cache

_MAGICS = (  # format, offset, bytes
    ("hdf5", 0, b"\x89HDF\r\n\x1a\n"),
    ("tar", 257, b"ustar"),
    ("pth", 0, b"PK\x03\x04"),
    ("recordio", 0, b"\x0a\x23\xd7\xce"),
    ("lmdb", 16, b"\xde\xc0\xef\xbe"),  # a database that is a single file
    ("lmdb", 24, b"\xde\xc0\xef\xbe"),  # of LMDB 1.0
)
MARKS = (  # in a directory
    ("lmdb", "data.mdb"), ("n5", "attributes.json"), ("zarr", "zarr.json"), ("zarr", ".zgroup"),
    ("zarr", ".zarray"),
)  # fmt: skip

_INNER_MARKS = (("n5", "*/attributes.json"), ("zarr", "*/.zarray"))  # of one without a head

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
    """Recognise a container by its suffix, or by its first bytes; None if it is none.

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
    for name, mark in MARKS:
        if (path / mark).is_file():
            return Container(name, path, (".",))
    modules = registry.load_all("formats")
    for name, module in modules.items():
        found = sorted(p.name for p in path.iterdir() if p.name.endswith(module.SUFFIXES))
        shards = [n for n in found if (path / n).is_dir() == module.IS_DIRECTORY]
        if shards:
            return Container(name, path, tuple(n for n in shards if ".mask." not in n))
    inner = (name for name, mark in _INNER_MARKS if next(path.glob(mark), None) is not None)
    return next((Container(name, path, (".",)) for name in inner), None)


def _format_of_file(path: Path) -> str | None:
    for name, module in registry.load_all("formats").items():
        if path.name.lower().endswith(module.SUFFIXES) and not module.IS_DIRECTORY:
            return name
    with path.open("rb") as file:
        start = file.read(512)
    for name, offset, magic in _MAGICS:
        if start[offset : offset + len(magic)] == magic:
            return name
    return None


def scanned(reading: Reading, module: Any, path: Path) -> Iterator[Any]:
    """The records of a shard.

    Raises:
        OptionError: the format knows no such names.
    """
    if isinstance(module, ModuleType):  # a format that is no `Format` yet
        takes = signature(module.scan).parameters
        options: dict[str, Any] = reading.names()
        for name in options.keys() - takes:
            raise OptionError(
                f"{path}: {name}={options[name]!r} is of no use: containers of this format have "
                "nothing to choose from"
            )
        if reading.trust_plain_pickle and "trust_plain_pickle" in takes:
            options["trust_plain_pickle"] = True
        entries: Iterator[Any] = module.scan(path, **options)
        return entries
    found: Iterator[Any] = module.scan(path, reading)
    return found


def reader_of(reading: Reading, module: Any, path: Path) -> Any:
    """What reads the entries of a shard that are no byte ranges; None if all are."""
    if not isinstance(module, ModuleType):
        return module.reader(path, reading)
    if not hasattr(module, "Reader"):
        return None
    return module.Reader(path, **{n: v for n, v in reading.names().items() if n != "label"})


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
    if not getattr(registry.load("formats", container.format), "CRASHES", False):
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
    found = []
    for shard in container.shards:
        top = container.root / shard
        if top.is_dir():
            paths = [p for p in top.rglob("*") if p.is_file()]
        else:
            paths = [p for p in (top, top.with_suffix(f".mask{top.suffix}")) if p.is_file()]
        found += [(os.path.relpath(p, container.root), p) for p in paths]
    return sorted(f for f in found if not f[0].endswith((INDEX_NAME, INDEX_SUFFIX)))


def _built(container: Container, reading: Reading) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Columns and metadata of an index."""
    module = registry.load("formats", container.format)
    root = container.root
    samples = Samples(root, [name for name, _ in _files(container)], module, reading.label_offset)
    counts = [
        samples.add_shard(
            name, scanned(reading, module, root / name), reader_of(reading, module, root / name)
        )
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
    if hasattr(module, "identity"):
        metadata["identity"] = [module.identity(root / n) for n in container.shards]
    columns = samples.columns()
    if samples.least_label is not None and columns.get("label", np.empty(0)).ndim == 1:
        metadata["labels"] = {"min": samples.least_label, "offset": reading.label_offset}
    return columns, metadata
