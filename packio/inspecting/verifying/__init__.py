"""Verifying: every byte of a pack against its index; all damages are told, not only the first.

The index is checked first (CRC32C of each block of each column), then each file is read once, from
its beginning to its end: size and SHA-256 of the whole, CRC32C of each record and mask in it. So
every flipped bit is found, and one in a record is told with the record's key; records that are no
ranges of bytes (compressed ones) are covered by the SHA-256 of their files. Where a file is not as
it was written, its format walks what lies around the records. Memory: a few MiB a thread, and about
60 bytes for each sample of the files that are being read.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Literal

from packio.errors import IntegrityError, NotAPackError, OptionError, VersionError
from packio.inspecting.verifying.files import check_files, look_for_strangers
from packio.inspecting.verifying.findings import Findings, Meter
from packio.inspecting.verifying.index import check_index, located, opened
from packio.inspecting.verifying.rebuilding import Rebuilt, rebuild
from packio.inspecting.verifying.records import decode_images
from packio.inspecting.verifying.report import Damage, VerifyReport, of_file, without
from packio.inspecting.verifying.structure import walk
from packio.system import processors
from packio.system.pools import ThreadPool
from packio.system.progress import ProgressCallback

__all__ = ["Damage", "VerifyReport", "verify"]


def verify(
    path: str | os.PathLike[str],
    *,
    decode: bool = False,
    structure: bool | Literal["always"] = True,
    rebuild_index: bool = False,
    num_workers: int | None = None,
    progress: ProgressCallback | None = None,
) -> VerifyReport:
    """Check all of a pack: index, files, records, masks; report everything that is damaged.

    Args:
        path: A pack.
        decode: Decode every image as well; only this tells of images that were bad when packed.
        structure: Walk the container by its own format where a file is not as it was written, to
            tell what is wrong in it; "always" walks intact files too.
        rebuild_index: Where the index is missing or damaged, make it anew of what the container
            holds, once all of that has been walked and decoded and nothing is wrong with it; the
            warnings tell what cannot be restored. An index whose checksums hold is left alone.
        num_workers: Threads; None takes one for each processor, at most 16.
        progress: Called with a `Progress` about ten times a second, from any of the threads.

    Returns:
        A report; its ``ok`` tells whether the pack is as it was written.

    Raises:
        NotAPackError: nothing there, or nothing that could be a pack.
        UnfinishedPackError: packing into this path was interrupted or is going on.
        ReadError: the index cannot be read.
        OptionError: an argument that cannot be meant.
        OSError: the new index cannot be written.
    """
    began = time.monotonic()
    if num_workers is not None and num_workers < 1:
        raise OptionError(f"num_workers={num_workers}: expected at least 1")
    if structure not in (True, False, "always"):
        raise OptionError(f"structure={structure!r}: expected True, False or 'always'")
    path, absolute = Path(path), Path(os.path.abspath(path))
    index_path, threads = located(absolute), num_workers or min(16, processors.usable())
    made = Rebuilt()
    if rebuild_index:
        made = rebuild(absolute, index_path, threads, Meter(0, progress, began))
    damages = made.damages
    try:
        index = opened(index_path)
    except (NotAPackError, IntegrityError, VersionError) as error:
        damages = damages or (of_file(index_path.name, without(error, index_path)),)
    if damages:
        seconds = time.monotonic() - began
        return VerifyReport(path, "", 0, 0, 0, damages, made.warnings, seconds)
    found = Findings(index, absolute, Meter(len(index), progress, began))
    size = _check(found, threads, decode=decode and not made.done, structure=structure)
    return VerifyReport(
        path, str(index.metadata.get("format")), len(index), len(found.table), size,
        tuple(found.sorted_damages()), (*made.warnings, *found.warnings),
        time.monotonic() - began, made.done,
    )  # fmt: skip


def _check(
    found: Findings, threads: int, *, decode: bool, structure: bool | Literal["always"]
) -> int:
    """Check everything that can be checked; return how many bytes were read."""
    whole = check_index(found)
    with ThreadPool(threads, "packio-verify") as pool:
        size = check_files(found, pool)
        if structure and whole:
            walk(found, always=structure == "always")
        if decode and whole:
            decode_images(found, pool)
    look_for_strangers(found)
    return size
