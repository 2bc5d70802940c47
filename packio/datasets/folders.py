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
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from packio import __version__, registry
from packio.datasets.pack_dataset import PackDataset
from packio.errors import BadImagesError, CannotCreateError, PackioError
from packio.index import columns as made
from packio.index import indexfile
from packio.index.building import fact_values
from packio.index.indexfile import INDEX_SUFFIX, OF_PIXELS, OF_VALUES, Index
from packio.packing.assembly import deep_pixels
from packio.packing.run.reading import read_ahead
from packio.packs import opening
from packio.sample.record import IMAGE
from packio.sources import Context, Listing, listed
from packio.system import locks
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
    listing = listed(source, root, Context(allow_empty=skip))
    state = _State.of(root, listing)
    name = hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()
    index = cache_folder("folders") / name[:32] / f"{state.fingerprint[:32]}{INDEX_SUFFIX}"
    metadata = _metadata_of(index, state)
    if metadata is None:
        with _one_at_a_time(index):  # the processes of a training run come here together
            metadata = _metadata_of(index, state) or _indexed(index, listing, state)
    bad = [*listing.unlisted, *((os.fsencode(k), reason) for k, reason in metadata["skipped"])]
    deep = deep_pixels([Index(index).column("image/dtype").array()])
    _report(root, bad, [*listing.warnings, *deep], skip=skip and metadata["counts"]["packed"] > 0)
    return index, root


@dataclasses.dataclass(frozen=True)
class _State:
    """What a listing found, for comparison."""

    sizes: np.ndarray  # (N,) int64 bytes; -1 where it cannot be told
    mtimes: np.ndarray  # (N,) int64 ns
    fingerprint: str

    @staticmethod
    def of(root: Path, listing: Listing) -> _State:
        """Look at every file of a listing."""
        prefix, keys = os.fsencode(root) + b"/", listing.keys

        def look(start: int) -> np.ndarray:
            pairs = [_size_and_time(prefix + key) for key in keys[start : start + _CHUNK]]
            return np.array(pairs, np.int64)

        with ThreadPool(_THREADS, "packio-stat") as pool:
            chunks = list(pool.map(look, range(0, len(keys), _CHUNK)))
        pairs = np.concatenate(chunks) if chunks else np.zeros((0, 2), np.int64)
        digest = hashlib.sha256(f"{__version__} {json.dumps(listing.classes)}\0".encode())
        digest.update(b"\0".join(listing.keys))
        digest.update(pairs.tobytes())
        return _State(pairs[:, 0].copy(), pairs[:, 1].copy(), digest.hexdigest())


def _size_and_time(path: bytes) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError:  # reading it will say why
        return -1, 0
    return status.st_size, status.st_mtime_ns


@contextlib.contextmanager
def _one_at_a_time(index: Path) -> Iterator[None]:
    """Wait for other processes that list the same folder."""
    with contextlib.ExitStack() as stack:
        try:
            index.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locks.file_lock(index.with_name("lock")))
        except OSError as error:
            raise _cannot_create(index, error) from error
        yield


def _cannot_create(index: Path, error: OSError) -> CannotCreateError:
    return CannotCreateError(
        f"{index}: {error.strerror}; the listing of an image folder is kept there; "
        "PACKIO_CACHE_DIR can name a folder that can be written"
    )


def _metadata_of(index: Path, state: _State) -> dict[str, Any] | None:
    """Metadata of the cached index if it is of this state of the folder."""
    old = _cached(index)
    if old is None or old.metadata.get("fingerprint") != state.fingerprint:
        return None
    return old.metadata


def _cached(path: Path) -> Index | None:
    if not path.is_file():
        return None
    try:
        index = Index(path)
        for name in index.column_names:  # checks what will be used again
            index.column(name).array()
    except PackioError:  # damaged, or of another version: made anew
        return None
    return index


def _indexed(path: Path, listing: Listing, state: _State) -> dict[str, Any]:
    """Write an index; return its metadata. Files as the newest index knows them are not read."""
    indexes = path.parent.glob(f"*{INDEX_SUFFIX}")
    others = sorted(indexes, key=lambda index: index.stat().st_mtime_ns)  # the newest last
    newest = _cached(others[-1]) if others else None
    columns = {name: np.zeros(len(listing.keys), dtype) for name, dtype in _DTYPES.items()}
    points = [b""] * len(listing.keys)  # of each image; see `packio.images.native`
    wanted = _taken_over(newest, columns, points, listing, state)
    bad: dict[int, str] = {}
    changed = dataclasses.replace(
        listing,
        keys=[listing.keys[i] for i in wanted],
        sizes=state.sizes[wanted].tolist(),
    )
    for chunk in read_ahead(changed, range(len(wanted)), threads=_THREADS):
        for read in chunk:
            position = wanted[read.position]
            if read.problem is not None:
                bad[position] = read.problem
            image = read.record.image
            if image.facts is not None:
                found = {"length": len(image.data), **fact_values(image.data, image.facts)}
                for name, value in found.items():
                    columns[f"{IMAGE}/{name}"][position] = value
            points[position] = image.points
    columns["mtime_ns"][:] = state.mtimes
    metadata = _metadata(listing, state, bad)
    try:
        indexfile.write(path, _without(columns, points, listing, sorted(bad)), metadata)
    except OSError as error:
        raise _cannot_create(path, error) from error
    for old in others[: 1 - _KEPT]:
        old.unlink(missing_ok=True)
    return metadata


def _taken_over(
    old: Index | None, columns: dict[str, np.ndarray], points: list[bytes], listing: Listing,
    state: _State,
) -> list[int]:  # fmt: skip
    """Take over the rows of files that have not changed; return the positions of all others."""
    if old is None or not all(name in old for name in _DTYPES):
        return list(range(len(listing.keys)))
    row_of = {old.key(row): row for row in range(len(old))}
    rows = np.array([row_of.get(key, -1) for key in listing.keys], np.int64)
    same = rows >= 0
    for name, now in (("image/length", state.sizes), ("mtime_ns", state.mtimes)):
        same[same] = old.column(name).array()[rows[same]] == now[same]
    for name, column in columns.items():
        column[same] = old.column(name).array()[rows[same]]
    if "seek_data" in old:
        data, starts = (old.column(f"seek_{n}").array() for n in ("data", "offsets"))
        for position in np.flatnonzero(same).tolist():
            row = rows[position]
            points[position] = data[starts[row] : starts[row + 1]].tobytes()
    positions: list[int] = np.flatnonzero(~same).tolist()
    return positions


def _without(
    columns: dict[str, np.ndarray], points: list[bytes], listing: Listing, bad: list[int]
) -> dict[str, np.ndarray]:
    """All columns of the index, without the bad images."""
    good = np.ones(len(listing.keys), bool)
    good[bad] = False
    keys = [key for key, is_good in zip(listing.keys, good, strict=True) if is_good]
    kept: dict[str, np.ndarray] = {name: column[good] for name, column in columns.items()}
    kept["image/file"] = np.arange(len(keys), dtype=np.uint32)
    kept["image/offset"] = np.zeros(len(keys), np.int64)
    kept["label"] = np.array(listing.labels, np.int64)[good]
    if any(points):
        taken = [p for p, is_good in zip(points, good, strict=True) if is_good]
        kept["seek_data"], kept["seek_offsets"] = made.ragged(taken)
    return kept | made.of_objects([], [], []) | made.of_keys(keys)


def _metadata(listing: Listing, state: _State, bad: dict[int, str]) -> dict[str, Any]:
    found = len(listing.keys)
    packed = found - len(bad)
    return {
        "version": indexfile.VERSION,
        "format": "folder",
        "access": "range",
        "classes": listing.classes,
        "counts": {"found": found, "packed": packed, "skipped": len(bad)},
        "fingerprint": state.fingerprint,
        "options": {},
        "shards": [{"name": ".", "samples": packed}],
        "skipped": [[os.fsdecode(listing.keys[i]), reason] for i, reason in sorted(bad.items())],
        "source": {"kind": listing.kind},
        "versions": {"packio": __version__},
    }


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
