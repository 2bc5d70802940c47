"""Verifying: compare every byte of a pack with the index, and report all damages.

First the index is checked: the CRC32C of each block of each column. Then each file is read once
from beginning to end: size and SHA-256 of the file, CRC32C of each field of each sample. So every
flipped bit is found; if the bit is in a sample, the report names the sample's key. The SHA-256 of a
file covers compressed samples, which are no ranges of bytes. If a file has changed, the format then
walks the container. Memory: a few MiB a thread, and about 60 bytes for each sample of the files
that are being read.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Literal

import numpy as np

from packio import registry
from packio.errors import (
    IntegrityError,
    LockedError,
    NoSuchPackError,
    NotAPackError,
    OptionError,
    PackioError,
    VersionError,
)
from packio.index import indexfile
from packio.index.indexfile import INDEX_NAME, INDEX_SUFFIX, Index
from packio.inspecting.verifying.files import check_files, decode_values, find_strangers, walk
from packio.inspecting.verifying.findings import (
    Damage,
    FieldColumns,
    Findings,
    VerifyReport,
    strip_path,
)
from packio.packs import locating, recognising
from packio.packs.querying import selections
from packio.storage import urls
from packio.system import locks, processors
from packio.system.files import absolute
from packio.system.pools import ThreadPool
from packio.system.progress import Meter, ProgressCallback

__all__ = ["Damage", "VerifyReport", "verify"]

_PATIENCE, _STEP = 5.0, 0.1  # seconds to wait for another process that changes the pack


def verify(
    path: str | os.PathLike[str], *, decode: bool = False,
    structure: bool | Literal["always"] = True, index: str | os.PathLike[str] | None = None,
    num_workers: int | None = None, progress: ProgressCallback | None = None,
) -> VerifyReport:  # fmt: skip
    """Check the index, the files and every field of a pack; report everything that is damaged.

    Nothing is changed. `packio.reindex` makes a missing or damaged index anew.

    Args:
        path: A pack.
        decode: Decode every value as well: only this finds images that were bad when packed.
        structure: If a file has changed, walk the container by its own format, to tell what is
            wrong in the file; "always" walks unchanged files too.
        index: Path or URL of the index, if it is not beside the pack.
        num_workers: Threads; None takes one for each processor, at most 16.
        progress: Called with a `Progress` about ten times a second, from any of the threads.

    Returns:
        A report; ``ok`` tells whether the pack is as it was written.

    Raises:
        NotAPackError: there is nothing at the path, or no pack.
        UnfinishedPackError: packing into this path was interrupted or is going on.
        ReadError: the index cannot be read.
        OptionError: the value of an argument makes no sense.
    """
    began = time.monotonic()
    if num_workers is not None and num_workers < 1:
        raise OptionError(f"num_workers={num_workers}: expected at least 1")
    if structure not in (True, False, "always"):
        raise OptionError(f"structure={structure!r}: expected True, False or 'always'")
    if (url := urls.parse(path)) is not None:
        raise OptionError(
            f"{url}: a pack at a URL is not verified; reading it checks each sample. "
            "Copy the pack to a disk, and verify the copy"
        )
    path, whole, root = Path(path), absolute(path), None
    is_selection = index is None and selections.is_selection(whole)
    if index is not None:
        index_path, root = locating.resolve_with_index(whole, urls.absolute(index))
    else:
        index_path = whole if is_selection else locate_index(whole)
    try:
        if is_selection:
            structure = False  # its pack has more samples than it names
            index_path, root = _locate_selection(path, whole)
        if not index_path.is_file():
            raise IntegrityError(
                f"{index_path}: missing; `packio reindex` makes an index from the files"
            )
        known = Index(index_path)
    except (NotAPackError, IntegrityError, VersionError) as error:
        place = whole if is_selection else index_path
        damage = Damage(place.name, None, None, None, None, strip_path(error, place))
        return VerifyReport(path, "", 0, 0, 0, (damage,), (), time.monotonic() - began)
    found = Findings(known, whole, Meter(progress, began), root)
    size = _check(found, num_workers or min(16, processors.usable()), decode, structure)
    if _is_changing(found):
        return verify(
            path, decode=decode, structure=structure, index=index, num_workers=num_workers,
            progress=progress,
        )  # fmt: skip
    form, seconds = str(known.metadata.get("format")), time.monotonic() - began
    damages, remarks = tuple(found.sorted_damages()), tuple(found.warnings)
    return VerifyReport(path, form, len(known), len(found.table), size, damages, remarks, seconds)


def _locate_selection(path: Path, whole: Path) -> tuple[Path, Path]:
    """Check a selection; return the index of its samples and the folder of its pack's files."""
    selection = selections.read_selection(whole)
    selection.positions()
    selection.key_columns()
    index_path, root = locating.selection(whole)
    if urls.parse(root) is not None:
        raise OptionError(f"{path}: its pack is at a URL, and is not verified there")
    return index_path, root


def _check(found: Findings, threads: int, decode: bool, structure: bool | Literal["always"]) -> int:
    """Run all checks that the damages found so far allow; return the number of bytes read."""
    whole = check_index(found)
    with ThreadPool(threads, "packio-verify") as pool:
        size = check_files(found, pool)
        if structure and whole:
            walk(found, always=structure == "always")
        if decode and whole:
            decode_values(found, pool)
    find_strangers(found)
    return size


def _is_changing(found: Findings) -> bool:
    """Tell whether another process changed the pack meanwhile; warn of what an append left.

    While a process changes the pack, it is waited for, but not long.
    """
    if not found.damages:
        return False
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        with contextlib.suppress(LockedError), locks.changing(found.index.path):
            break
        time.sleep(_STEP)
    with contextlib.suppress(PackioError, OSError):
        if Index(found.index.path).digest != found.index.digest:
            return True
    rest = f"{found.path.name}{indexfile.APPENDING_SUFFIX}"
    if os.path.lexists(found.path.with_name(rest)):
        found.warnings.append(
            f"{rest} is there: an append was cut short; run it again to have all as it should be"
        )
    return False


def locate_index(path: Path) -> Path:
    """Path of a pack's index, which may be missing."""
    locating.check_finished(path)
    beside = path.with_name(path.name + INDEX_SUFFIX) if path.name else path
    if path.is_dir():
        index = path / INDEX_NAME
    elif path.is_file() or beside.is_file():
        index = beside
    else:
        raise NoSuchPackError(f"{path}: no file or folder; a pack was expected")
    if not index.is_file() and recognising.find(path) is None:
        raise NotAPackError(f"{path}: no {index.name}, and no container that packio knows")
    return index


def check_index(found: Findings) -> bool:
    """Check the index; return whether the places of the samples can be relied on."""
    for name in found.index.column_names:
        try:
            found.index.column(name).array()
        except IntegrityError as error:
            found.tell_of_index(strip_path(error, found.index.path))
    try:
        found.table = found.index.files()
    except IntegrityError as error:
        found.tell_of_index(strip_path(error, found.index.path))
    _check_metadata(found)
    if found.damages:
        return False
    name, is_folder = found.path.name, found.index.path.name == INDEX_NAME
    is_folder = is_folder or found.root == found.path or "selection" in found.index.metadata
    if not is_folder and name not in {one for one, _, _ in found.table}:
        found.tell_of_index(f"does not list {name}; the index of another pack")
        return False
    for field in found.index.fields:
        file, offset, length, crc = (
            found.index.column(f"{field}/{name}").array()
            for name in ("file", "offset", "length", "crc32c")
        )
        kind = FieldColumns(file, offset, length, crc, np.lexsort((offset, file)), field)
        found.kinds.append(kind)
        for position in np.flatnonzero(kind.file >= len(found.table)).tolist():
            found.bad.add(position)
            found.tell_of_index(
                f"sample {position}: lies in file {kind.file[position]}, which is none"
            )
    return not found.damages


def _check_metadata(found: Findings) -> None:
    """Read the format and the shards from the metadata."""
    metadata, first = found.index.metadata, 0
    try:
        for shard in metadata["shards"]:
            positions = range(first, first + int(shard["samples"]))
            found.shards.append((str(shard["name"]), positions))
            first = positions.stop
        found.format = registry.load("formats", str(metadata["format"]))
        if found.by_record and not found.format.caps.reads_by_library:
            access = metadata["access"]
            found.tell_of_index(f"says access={access!r}; its format has 'range' only")
    except (KeyError, TypeError, ValueError, OptionError) as error:
        found.tell_of_index(f"its metadata does not parse ({error})")
    if first != len(found.index):
        found.tell_of_index(f"its shards have {first} samples, the pack {len(found.index)}")
