"""Indexes of unpacked image folders, kept in the user's cache and refreshed when a file changes.

A folder is listed as `packio.pack` lists it; each file is read once, in threads, for its header
facts and CRC32C. Listing again compares name, size and modification time of every file; only files
that differ from the newest index are read again. Indexes lie in the cache under the folder's path
and the state of its files, so that those in use stay: by a training run that goes on while the
folder changes, or by other machines with a home in common and other files at the same path.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from packio import __version__, registry
from packio.datasets.pack_dataset import PackDataset
from packio.errors import BadImagesError, PackioError
from packio.index import columns as make_columns
from packio.index import indexfile
from packio.index.building import fact_values
from packio.index.indexfile import INDEX_SUFFIX, OF_PIXELS, OF_VALUES, Index
from packio.packing.assembly import deep_pixels
from packio.packing.run.reading import read_ahead
from packio.packs import indexing, opening
from packio.sample.record import IMAGE
from packio.sources import Context, Listing, list_samples
from packio.system.files import absolute, cache_folder
from packio.system.pools import ThreadPool

_THREADS = 16  # they wait for the disk, or for the network
_SHOWN = 10  # bad images in a message
_KEPT = 8  # indexes of one folder
_CHUNK = 1024  # files that a thread looks at in one go
_DTYPES = {
    f"{IMAGE}/{name}": np.dtype(code)
    for name, code in (OF_VALUES | OF_PIXELS).items()
    if name not in ("file", "offset")
} | {"mtime_ns": np.dtype(np.int64)}

_Bad = tuple[bytes, str]  # key, reason


class FolderDataset(PackDataset, format="folder"):
    """Images of a folder that is not packed, laid out as for torchvision's ImageFolder.

    The first opening reads every file once, in threads, for its header and checksum. The result is
    kept in the user's cache (``$PACKIO_CACHE_DIR``, or ``~/.cache/packio``); nothing is written
    beside the images. A later opening looks at the size and modification time of each file, and
    reads the files that have changed. It raises SourceError if there is no folder of class folders,
    BadImagesError if images cannot be read (on_error="skip" leaves them out, with a warning), and
    CannotCreateError if the cache cannot be written.

    Gives the same tensors and draws as a pack of the same folder. Each read opens and closes a
    file. That takes little time beside decoding if the files are in memory; on disks and network
    storage it takes the time that they need to open a file.
    """

    def _open(self, path: str | os.PathLike[str], access: str | None) -> opening.Pack:
        skip = self._options["on_error"] == "skip"
        found = index_folder(path, skip=skip)
        again = functools.partial(index_folder, absolute(path), skip=skip)
        return opening.Pack(path, access=access, located=found, again=again)


def index_folder(path: str | os.PathLike[str], *, skip: bool) -> tuple[Path, Path]:
    """Index an image folder, or find its index in the cache; write nothing beside the files."""
    root = absolute(path)
    source = registry.load("sources", "image_folder")
    listing = list_samples(source, root, Context(allow_empty=skip))
    states = _look_at(root, listing.keys)
    digest = hashlib.sha256(f"{__version__} {json.dumps(listing.classes)}\0".encode())
    digest.update(b"\0".join(listing.keys))
    digest.update(states.tobytes())
    name = hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()
    index = cache_folder("folders") / name[:32] / f"{digest.hexdigest()[:32]}{INDEX_SUFFIX}"
    write = functools.partial(_write_index, index, listing, states, digest.hexdigest())
    indexing.make_once(index, root, write)
    table = Index(index)
    skipped = [(os.fsencode(key), reason) for key, reason in table.metadata["skipped"]]
    remarks = [*listing.warnings, *deep_pixels([table.column("image/dtype").array()])]
    _report(root, [*listing.unlisted, *skipped], remarks, skip=skip and len(table) > 0)
    return index, root


def _look_at(root: Path, keys: Sequence[bytes]) -> np.ndarray:
    """Look at files in threads: (N, 2) int64, bytes and mtime in ns; (-1, 0): reading says why."""
    prefix = os.fsencode(root) + b"/"

    def look(start: int) -> np.ndarray:
        some = keys[start : start + _CHUNK]
        states = np.full((len(some), 2), (-1, 0), np.int64)
        for state, key in zip(states, some, strict=True):
            with contextlib.suppress(OSError):
                status = os.stat(prefix + key)
                state[:] = status.st_size, status.st_mtime_ns
        return states

    with ThreadPool(_THREADS, "packio-stat") as pool:
        chunks = pool.map(look, range(0, len(keys), _CHUNK))
        return np.concatenate([np.empty((0, 2), np.int64), *chunks])


def _write_index(path: Path, listing: Listing, states: np.ndarray, fingerprint: str) -> None:
    """Write an index. Files that are as the newest index knows them are not read."""
    kept = set(path.parent.glob(f"*{INDEX_SUFFIX}")) - {path}  # where it is, it is damaged
    others = sorted(kept, key=lambda index: index.stat().st_mtime_ns)
    columns = {name: np.zeros(len(listing.keys), dtype) for name, dtype in _DTYPES.items()}
    points = [b""] * len(listing.keys)  # of each image; see `packio.images.native`
    same = np.zeros(len(listing.keys), bool)
    with contextlib.suppress(PackioError, KeyError):  # damaged, or old: nothing is the same
        if others:
            same = _copy_rows(Index(others[-1]), columns, points, listing, states)
    changed = np.flatnonzero(~same).tolist()
    keys, sizes = [listing.keys[i] for i in changed], states[changed, 0].tolist()
    part = dataclasses.replace(listing, keys=keys, sizes=sizes)
    good, skipped = np.ones(len(listing.keys), bool), []
    for chunk in read_ahead(part, range(len(changed)), threads=_THREADS):
        for read in chunk:
            position, image = changed[read.position], read.record.image
            if read.problem is not None:
                good[position] = False
                skipped.append((position, read.problem))
            if image.facts is not None:
                values = {"length": len(image.data), **fact_values(image.data, image.facts)}
                for name, value in values.items():
                    columns[f"{IMAGE}/{name}"][position] = value
            points[position] = image.points
    columns["mtime_ns"][:] = states[:, 1]
    table = {name: column[good] for name, column in columns.items()}
    packed = int(good.sum())
    table["image/file"] = np.arange(packed, dtype=np.uint32)
    table["image/offset"] = np.zeros(packed, np.int64)
    table["label"] = np.array(listing.labels, np.int64)[good]
    if any(points):
        own_points = list(itertools.compress(points, good))
        table["seek_data"], table["seek_offsets"] = make_columns.join_values(own_points)
    table |= make_columns.object_columns([], [], [])
    table |= make_columns.key_columns(list(itertools.compress(listing.keys, good)))
    metadata = {
        "version": indexfile.VERSION,
        "format": "folder",
        "access": "range",
        "classes": listing.classes,
        "counts": {"found": len(good), "packed": packed, "skipped": len(skipped)},
        "fingerprint": fingerprint,
        "options": {},
        "shards": [{"name": ".", "samples": packed}],
        "skipped": [[os.fsdecode(listing.keys[i]), reason] for i, reason in sorted(skipped)],
        "source": {"kind": listing.kind},
        "versions": {"packio": __version__},
    }
    indexfile.write(path, table, metadata)
    for old in others[: 1 - _KEPT]:
        old.unlink(missing_ok=True)


def _copy_rows(
    old: Index, columns: dict[str, np.ndarray], points: list[bytes], listing: Listing,
    states: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Copy the rows of files that have not changed; return which files these are, (N,) bool."""
    before = {name: old.column(name).array() for name in _DTYPES}
    row_of = {key: row for row, key in enumerate(old.every_key())}
    rows = np.array([row_of.get(key, -1) for key in listing.keys], np.int64)
    same = rows >= 0
    known = np.stack([before["image/length"], before["mtime_ns"]], axis=1)
    same[same] = (known[rows[same]] == states[same]).all(axis=1)
    if "seek_data" in old:
        data, starts = (old.column(f"seek_{n}").array() for n in ("data", "offsets"))
        for position in np.flatnonzero(same).tolist():
            row = rows[position]
            points[position] = data[starts[row] : starts[row + 1]].tobytes()
    for name, column in columns.items():
        column[same] = before[name][rows[same]]
    return same


def _report(root: Path, bad: list[_Bad], remarks: list[str], *, skip: bool) -> None:
    for remark in remarks:
        warnings.warn(f"{root}: {remark}", stacklevel=7)
    if not bad:
        return
    shown = [(os.fsdecode(key), reason) for key, reason in bad[:_SHOWN]]
    lines = "".join(f"\n  {ascii(key)[1:-1]}: {reason}" for key, reason in shown)
    more = f"\n  and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
    if skip:
        warnings.warn(f"{root}: {len(bad)} bad images are left out:{lines}{more}", stacklevel=7)
        return
    error = BadImagesError(
        f"{root}: bad images: {len(bad)}; mend or remove them, or leave them out with "
        f"on_error='skip':{lines}{more}"
    )
    error.skipped = tuple(shown)
    raise error
