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

from packio.errors import (
    IntegrityError,
    LockedError,
    NotAPackError,
    OptionError,
    PackioError,
    VersionError,
)
from packio.index import indexfile
from packio.inspecting.verifying.container import decode_values, walk
from packio.inspecting.verifying.files import check_files, find_strangers
from packio.inspecting.verifying.findings import (
    Damage,
    Findings,
    Meter,
    VerifyReport,
    of_file,
    strip_path,
)
from packio.inspecting.verifying.index import check_index, locate_index, open_index
from packio.packs import locating
from packio.packs.querying import selections
from packio.storage import urls
from packio.system import locks, processors
from packio.system.files import absolute
from packio.system.pools import ThreadPool
from packio.system.progress import ProgressCallback

__all__ = ["Damage", "VerifyReport", "verify"]

_PATIENCE, _STEP = 5.0, 0.1  # seconds to wait for another process that changes the pack


def verify(
    path: str | os.PathLike[str],
    *,
    decode: bool = False,
    structure: bool | Literal["always"] = True,
    index: str | os.PathLike[str] | None = None,
    num_workers: int | None = None,
    progress: ProgressCallback | None = None,
) -> VerifyReport:
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
    if (url := urls.of(path)) is not None:
        raise OptionError(
            f"{url}: a pack at a URL is not verified; reading it checks each sample. "
            "Copy the pack to a disk, and verify the copy"
        )
    path, whole, root = Path(path), absolute(path), None
    is_selection = index is None and locating.is_selection(whole)
    if index is not None:
        index_path, root = locating.with_index(whole, urls.absolute(index))
    else:
        index_path = whole if is_selection else locate_index(whole)
    try:
        if is_selection:
            structure = False  # its pack has more samples than it names
            index_path, root = _locate_selection(path, whole)
        known = open_index(index_path)
    except (NotAPackError, IntegrityError, VersionError) as error:
        place = whole if is_selection else index_path
        damages = (of_file(place.name, strip_path(error, place)),)
        return VerifyReport(path, "", 0, 0, 0, damages, (), time.monotonic() - began)
    found = Findings(known, whole, Meter(len(known), progress, began), root)
    size = _check(found, num_workers or min(16, processors.usable()), decode, structure)
    if _is_changing(found):
        return verify(
            path, decode=decode, structure=structure, index=index, num_workers=num_workers,
            progress=progress,
        )  # fmt: skip
    return VerifyReport(
        path, str(known.metadata.get("format")), len(known), len(found.table), size,
        tuple(found.sorted_damages()), tuple(found.warnings), time.monotonic() - began,
    )  # fmt: skip


def _locate_selection(path: Path, whole: Path) -> tuple[Path, Path]:
    """Check a selection; return the index of its samples and the folder of its pack's files."""
    selection = selections.read(whole)
    selection.positions()
    selection.keys()
    index_path, root = locating.selection(whole)
    if urls.of(root) is not None:
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
    """Tell whether damages come of another process that has changed the pack meanwhile."""
    if not found.damages:
        return False
    if _is_other(found.index.path, found.index.digest):
        return True
    rest = f"{found.path.name}{indexfile.APPENDING_SUFFIX}"
    if os.path.lexists(found.path.with_name(rest)):
        found.warnings.append(
            f"{rest} is there: an append was cut short; run it again to have all as it should be"
        )
    return False


def _is_other(index: Path, digest: str) -> bool:
    """Tell whether an index was replaced; wait while a process changes its pack, but not long."""
    until = time.monotonic() + _PATIENCE
    while True:
        with contextlib.suppress(LockedError):
            with locks.changing(index):
                pass
            break
        if time.monotonic() > until:
            break
        time.sleep(_STEP)
    with contextlib.suppress(PackioError, OSError):
        return indexfile.Index(index).digest != digest
    return False
