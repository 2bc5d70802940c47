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

from packio import __version__, cache, encodings, indexfile, registry
from packio import columns as made
from packio.errors import DecodeError, NotAPackError, OptionError
from packio.formats import Entry
from packio.indexfile import INDEX_NAME, INDEX_SUFFIX
from packio.storage.local import LocalFiles

_MAGICS = (  # format, offset, bytes
    ("hdf5", 0, b"\x89HDF\r\n\x1a\n"),
    ("tar", 257, b"ustar"),
    ("pth", 0, b"PK\x03\x04"),
    ("recordio", 0, b"\x0a\x23\xd7\xce"),
    ("lmdb", 16, b"\xde\xc0\xef\xbe"),  # a database that is a single file
    ("lmdb", 24, b"\xde\xc0\xef\xbe"),  # of LMDB 1.0
)
_MARKS = (("lmdb", "data.mdb"), ("n5", "attributes.json"), ("zarr", "zarr.json"))  # in a directory


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
    """Recognise a container by its suffix, or by its first bytes; None if it is none."""
    if path.is_dir():
        return _find_directory(path)
    name = _format_of_file(path)
    return None if name is None else Container(name, path.parent, (path.name,))


def _find_directory(path: Path) -> Container | None:
    for name, mark in _MARKS:
        if (path / mark).is_file():
            return Container(name, path, (".",))
    modules = {n: registry.load("formats", n) for n in registry.names("formats")}
    for name, module in modules.items():
        found = sorted(p.name for p in path.iterdir() if p.name.endswith(module.SUFFIXES))
        shards = [n for n in found if (path / n).is_dir() == module.IS_DIRECTORY]
        if shards:
            return Container(name, path, tuple(n for n in shards if ".mask." not in n))
    return None


def _format_of_file(path: Path) -> str | None:
    for name in registry.names("formats"):
        module = registry.load("formats", name)
        if path.name.lower().endswith(module.SUFFIXES) and not module.IS_DIRECTORY:
            return name
    with path.open("rb") as file:
        start = file.read(512)
    for name, offset, magic in _MAGICS:
        if start[offset : offset + len(magic)] == magic:
            return name
    return None


@dataclasses.dataclass(frozen=True)
class Reading:
    """How to take what a container says.

    Attributes:
        label_offset: Added to labels that are ints.
        trust_plain_pickle: Read values that are pickles of plain data; nothing in them is run.
    """

    label_offset: int = 0
    trust_plain_pickle: bool = False

    def scan(self, module: ModuleType, path: Path) -> Iterator[Entry]:
        """The entries of a shard."""
        options = {}
        if self.trust_plain_pickle and "trust_plain_pickle" in signature(module.scan).parameters:
            options["trust_plain_pickle"] = True
        entries: Iterator[Entry] = module.scan(path, **options)
        return entries


def cached(
    path: Path, *, label_offset: int = 0, trust_plain_pickle: bool = False
) -> tuple[Path, Path]:
    """The index of a bare container, from the user's cache, made if it is not there yet.

    Args:
        path: Of the container.
        label_offset: Added to labels that are ints.
        trust_plain_pickle: Read values that are pickles of plain data; nothing in them is run.

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
    reading = Reading(label_offset, trust_plain_pickle)
    index = cache.folder("indexes") / f"{_fingerprint(container, reading)}{INDEX_SUFFIX}"
    if not index.is_file():
        index.parent.mkdir(parents=True, exist_ok=True)
        indexfile.write(index, *_built(container, reading))
    return index, container.root


def reindex(
    path: str | os.PathLike[str], *, label_offset: int = 0, trust_plain_pickle: bool = False
) -> Path:
    """Index a container anew, and write the index beside it, as `packio.pack` does.

    What only an index holds is lost if the old one is: the metadata of LMDB and RecordIO packs.

    Args:
        path: A container: a pack whose index is lost or damaged, or one that others wrote.
        label_offset: Added to labels that are ints: -1 makes labels from 1 begin at 0. The smallest
            label found is in the index's metadata, as ``labels.min``.
        trust_plain_pickle: Read an LMDB database whose values are pickles of plain data (bytes,
            text, numbers, tuples, lists, dicts). Nothing in them is run; all else is refused.

    Returns:
        Path of the index.

    Raises:
        NotAPackError: no container that packio knows, or without images.
        IntegrityError: the container is damaged.
        OSError: the index cannot be written.
    """
    path = Path(os.path.abspath(path))
    if not os.path.lexists(path):
        raise NotAPackError(f"{path}: does not exist; a container was expected")
    container = find(path)
    if container is None:
        raise NotAPackError(f"{path}: no container that packio knows")
    index = path / INDEX_NAME if path.is_dir() else path.with_name(path.name + INDEX_SUFFIX)
    indexfile.write(index, *_built(container, Reading(label_offset, trust_plain_pickle)))
    return index


def _fingerprint(container: Container, reading: Reading) -> str:
    digest = hashlib.sha256(f"{__version__} {container.format} {reading}".encode())
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
    samples = _Samples(container, module, reading)
    counts = [samples.add_shard(shard) for shard in container.shards]
    if not samples.rows:
        raise NotAPackError(
            f"{container.root}: no images in this {container.format} container"
            + (f"; the first record: {samples.first_problem}" if samples.first_problem else "")
        )
    found = len(samples.rows) + samples.skipped
    metadata: dict[str, Any] = {
        "version": indexfile.VERSION,
        "format": container.format,
        "access": "range",
        "classes": samples.classes(),
        "counts": {"found": found, "packed": len(samples.rows), "skipped": samples.skipped},
        "source": {"kind": "reindex"},
        "options": {},
        "shards": [
            {"name": n, "samples": c} for n, c in zip(container.shards, counts, strict=True)
        ],
        "versions": {"packio": __version__},
    }
    if hasattr(module, "identity"):
        metadata["identity"] = [module.identity(container.root / n) for n in container.shards]
    columns = samples.columns()
    if samples.least_label is not None and columns.get("label", np.empty(0)).ndim == 1:
        metadata["labels"] = {"min": samples.least_label, "offset": reading.label_offset}
    return columns, metadata


class _Samples:
    """The samples of a container, collected entry by entry."""

    def __init__(self, container: Container, module: ModuleType, reading: Reading) -> None:
        self._container, self._module, self._reading = container, module, reading
        names = _files(container)
        self._names = [name for name, _ in names]
        self._numbers = {name: i for i, name in enumerate(self._names)}
        self._sizes = [path.stat().st_size for _, path in names]
        self._storage = LocalFiles(container.root, self._names, self._sizes)
        self.rows: list[tuple[int, ...]] = []
        self._masks: list[tuple[int, ...]] = []
        self._keys: list[bytes] = []
        self._labels: list[Any] = []
        self._metas: list[bytes | None] = []
        self._boxes: list[Any] = []
        self._box_labels: list[Any] = []
        self.skipped = 0
        self.first_problem = ""
        self.least_label: int | None = None  # as it is found, if any is an int

    def add_shard(self, shard: str) -> int:
        """Walk one shard; return how many samples it has."""
        before = len(self.rows)
        path = self._container.root / shard
        prefix = f"{shard}/" if path.is_dir() and shard != "." else ""
        for entry in self._reading.scan(self._module, path):
            try:
                self._add(entry, prefix)
            except DecodeError as error:
                self.skipped += 1
                self.first_problem = self.first_problem or f"{entry.name!r}: {error}"
        return len(self.rows) - before

    def _add(self, entry: Entry, prefix: str) -> None:
        file = self._numbers[prefix + entry.file]
        data = self._storage.read(file, entry.offset, entry.length)
        if entry.split:
            data = self._module.unsplit(data)
        facts = entry.facts or encodings.read_facts(data)
        if entry.facts is not None:
            encodings.check_raw(facts, len(data))
        flags = indexfile.PROGRESSIVE if facts.progressive else 0
        flags |= indexfile.SPLIT_RECORD if entry.split else 0
        self.rows.append((
            file, entry.offset, entry.length, indexfile.crc32c(data), facts.height, facts.width,
            encodings.CODES[facts.encoding], facts.orientation, facts.channels,
            encodings.DTYPES.index(facts.dtype), flags,
        ))  # fmt: skip
        self._keys.append(entry.key if entry.key is not None else entry.name)
        self._labels.append(self._label(entry.label))
        self._metas.append(entry.meta)
        self._boxes.append(entry.boxes)
        self._box_labels.append(entry.box_labels)
        if entry.mask is not None:
            self._add_mask(entry.mask, prefix)

    def _label(self, label: int | tuple[float, ...] | None) -> int | tuple[float, ...] | None:
        if not isinstance(label, int):
            return label
        self.least_label = label if self.least_label is None else min(label, self.least_label)
        moved = label + self._reading.label_offset
        if not -(1 << 63) <= moved < 1 << 63:
            raise OptionError(f"label {label} with label_offset={self._reading.label_offset}: "
                              "does not fit 64 bits")  # fmt: skip
        return moved

    def _add_mask(self, place: tuple[str, int, int], prefix: str) -> None:
        name, offset, length = place
        file = self._numbers[prefix + name]
        mask = self._storage.read(file, offset, length)
        try:
            encoding = encodings.read_facts(mask).encoding
        except DecodeError:
            encoding = "unknown"
        code = encodings.CODES[encoding]
        self._masks.append((file, offset, length, indexfile.crc32c(mask), code))

    def classes(self) -> list[str]:
        """Names of int labels: the folders in the keys, where each label has one of its own."""
        names: dict[int, str] = {}
        for label, key in zip(self._labels, self._keys, strict=True):
            folder = os.fsdecode(key).partition("/")
            if not isinstance(label, int) or not folder[1]:
                return []
            if names.setdefault(label, folder[0]) != folder[0]:
                return []
        complete = sorted(names) == list(range(len(names)))
        return [names[i] for i in sorted(names)] if complete else []

    def columns(self) -> dict[str, np.ndarray]:
        """The columns of the index."""
        names = ("file", "offset", "length", "crc32c", "height", "width", "encoding",
                 "orientation", "channels", "dtype", "flags")  # fmt: skip
        columns = _typed(names, self.rows)
        if len(set(self._keys)) != len(self._keys):  # not unique: the position makes them so
            self._keys = [b"%08d/%s" % (i, k) for i, k in enumerate(self._keys)]
        columns |= made.of_keys(self._keys) | made.of_files(self._container.root, self._names)
        return columns | self._label_column() | self._optional_columns()

    def _label_column(self) -> dict[str, np.ndarray]:
        if any(label is None for label in self._labels):
            return {}
        if all(isinstance(label, int) for label in self._labels):
            return {"label": np.array(self._labels, np.int64)}
        widths = {len(label) if isinstance(label, tuple) else -1 for label in self._labels}
        return {"label": np.array(self._labels, np.float32)} if len(widths) == 1 else {}

    def _optional_columns(self) -> dict[str, np.ndarray]:
        columns: dict[str, np.ndarray] = {}
        if len(self._masks) == len(self.rows):
            names = ("mask_file", "mask_offset", "mask_length", "mask_crc32c", "mask_encoding")
            columns |= _typed(names, self._masks)
        metas = [meta for meta in self._metas if meta is not None]
        if len(metas) == len(self.rows):
            columns["meta_data"], columns["meta_offsets"] = made.ragged(metas)
        if all(boxes is not None for boxes in self._boxes):
            flat = [box for boxes in self._boxes for box in boxes]
            columns["boxes"] = np.array(flat, np.float32).reshape(-1, 4)
            columns["box_offsets"] = made.offsets(map(len, self._boxes))
            if all(labels is not None for labels in self._box_labels):
                flat = [label for labels in self._box_labels for label in labels]
                columns["box_labels"] = np.array(flat, np.int64)
        return columns


_WIDE = {"offset", "length", "mask_offset", "mask_length"}
_NARROW = {"encoding", "orientation", "channels", "dtype", "flags", "mask_encoding"}


def _typed(names: Sequence[str], rows: list[tuple[int, ...]]) -> dict[str, np.ndarray]:
    columns = {}
    for name, values in zip(names, zip(*rows, strict=True), strict=True):
        dtype = np.int64 if name in _WIDE else np.uint8 if name in _NARROW else np.uint32
        columns[name] = np.array(values, dtype)
    return columns
