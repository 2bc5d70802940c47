"""Packing: source → listing → plan → shards → index → published."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from packio.errors import DecodeError, OptionError, OutputExistsError
from packio.index.indexfile import INDEX_NAME
from packio.packing import sourcing
from packio.packing.plan import advising, existing
from packio.packing.plan import plan as planning
from packio.packing.publish import remote
from packio.packing.report import PackReport, listing_told
from packio.packing.run.journal import Journal
from packio.packing.run.reading import Treatment
from packio.packing.run.running import Means, Run
from packio.sources import Listing
from packio.storage import filesystems, urls, workshop
from packio.system import processors
from packio.system.progress import ProgressCallback

_WORTH_PROCESSES = 64 << 20  # bytes; starting one takes about as long as packing this many


def pack(
    source: Any,
    out: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002 (the public name)
    source_kind: str | None = None,
    shards: int = 1,
    shard_size: int | None = None,
    classes_from: str | os.PathLike[str] | Sequence[str] | None = None,
    num_workers: int | None = None,
    threads: int | None = None,
    memory: int | None = None,
    engine: str | Executor = "local",
    part: tuple[int, int] | None = None,
    finish: bool = False,
    on_error: str = "raise",
    quarantine: str | os.PathLike[str] | None = None,
    seekable: bool = False,
    check: str = "header",
    max_errors: int | None = None,
    stats: int | None = None,
    fields: sourcing.Wanted | None = None,
    resume: bool = True,
    overwrite: bool = False,
    progress: ProgressCallback | None = None,
    **options: Any,
) -> PackReport:
    """Pack images, byte for byte unless told otherwise: folders, tables, archives, packs, datasets.

    The same source gives the same bytes, on any number of workers and any engine. Until all of it
    is written, checked and synced nothing is at ``out``; a run that is cut short leaves
    ``out.packio-tmp``, from which the next one goes on.

    Args:
        source: A path that a module of `packio.sources` recognises, as a folder of class folders of
            images; a pack; a sequence of `Sample`; a dataset.
        out: The pack to make; its suffix says the format, as ``.lmdb``. At a URL, as
            ``s3://bucket/train.tar``, it appears file by file, the index last; it is built in the
            user's cache (``PACKIO_CACHE_DIR``) first.
        format: Name of the format, where the suffix does not say it.
        source_kind: Name of the source's module, where the path does not say it.
        shards: How many shards to make; with more than one, ``out`` is a folder of them.
        shard_size: Source bytes of a shard, instead; ``out`` is then always a folder.
        classes_from: A pack, a text file with one class a line, or a list of names that gives the
            labels, so that train and val agree.
        num_workers: Processes that write shards, one each at a time; None takes one a processor.
        threads: That read and encode, in each process; None takes as many as keep it busy.
        memory: Bytes of source files that may be in memory at a time, in all processes together.
        engine: Where shards are written: "local", "ray", "ray:ADDRESS", or any
            `concurrent.futures.Executor` whose workers see the same files.
        part: (i, n): write the i-th of n parts of the shards, and publish nothing; for array jobs.
        finish: Put the parts together, once all are written.
        on_error: "raise": check everything, list all that is bad, pack nothing. "skip": leave bad
            images out, listed in ``out.skipped.jsonl``. "quarantine": copy them, too.
        quarantine: Folder for copies of bad images.
        seekable: Put restart markers into JPEGs, without loss (1 % more bytes), so that the reader
            decodes only the part that a crop needs.
        check: "header", or "decode": decode every image, to see that all of it is sound.
        max_errors: Stop when more images than this are bad.
        stats: Measure mean and standard deviation of so many images' channels, and keep them in the
            index; 0 measures all images.
        fields: Named fields to take from the source: name → column of a table, name of a value in
            a dataset, folder or suffix beside images; or (that, kind), with a kind of "image",
            "mask", "array", "text" or "bytes".
        resume: Go on from what an earlier run finished; False begins anew.
        overwrite: Replace ``out``, a pack or a file, in one step once the new pack is complete.
        progress: Called with a `Progress` about ten times a second, and at the end.
        options: What `packio.packing.images.encode.Encoding` takes (encode, resize, quality, …);
            what `packio.packing.plan.choosing.Choice` takes (include, exclude, dedupe, shuffle,
            limit, split, seed); what the source's module and the format's writer take by their
            ``OPTIONS``.

    Returns:
        A report; its ``up_to_date`` tells that ``out`` was there already, made by the same plan.

    Raises:
        SourceError: nothing to pack, or a layout that makes no sense.
        BadImagesError: some images cannot be packed.
        OutputExistsError: ``out`` exists and is not what this call would make.
        OutputError: writing fails, as on a full disk.
        LockedError: another process is packing into ``out``.
        OptionError: an argument that cannot be meant.
    """
    began = time.monotonic()
    skip = _check(
        on_error, quarantine, num_workers, shards, shard_size, part, finish=finish, resume=resume
    )
    out = urls.absolute(out)
    if isinstance(out, urls.Url) and (part is not None or finish):
        raise OptionError(f"{out}: parts are written to a folder that all jobs see, not to a URL")
    source = sourcing.located(source, out)
    if part is None:
        workshop.tidy(out, keep=resume)
    plan = _planned(
        source, out, format, source_kind, classes_from, options, skip=skip, check=check,
        seekable=seekable, shards=shards, shard_size=shard_size, stats=stats, fields=fields,
        found=listing_told(progress, began),
    )  # fmt: skip
    means = Means(
        engine, _workers(num_workers, plan), threads, memory, max_errors, part, finish, progress
    )
    make = functools.partial(_make, plan, means, began, skip=skip)
    if isinstance(out, urls.Url):
        report = remote.pack_to(
            out, plan, began, make, skip=skip, resume=resume, overwrite=overwrite
        )
    else:
        report = make(out, overwrite=overwrite)
        if (advice := filesystems.advice(out, plan.format)) is not None:
            report = dataclasses.replace(report, warnings=(*report.warnings, advice))
    if quarantine is not None and not report.up_to_date:
        copied = _quarantine(plan.listing, report, Path(quarantine))
        report = dataclasses.replace(report, quarantined=copied)
    return report


def dry_run(
    source: Any,
    out: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002 (the public name)
    source_kind: str | None = None,
    shards: int = 1,
    shard_size: int | None = None,
    classes_from: str | os.PathLike[str] | Sequence[str] | None = None,
    check: str = "header",
    fields: sourcing.Wanted | None = None,
    **options: Any,
) -> advising.DryRun:
    """Tell what `pack` would do with the same arguments, and what other encodings would bring.

    Nothing is written. A sample of the images is read, decoded, and encoded in a few ways.

    Raises:
        SourceError, OptionError: see `pack`.
    """
    _check("raise", None, None, shards, shard_size, None)
    if isinstance(source, os.PathLike) or (isinstance(source, str) and os.path.lexists(source)):
        source = Path(source)
    plan = _planned(
        source, Path(os.path.abspath(out)), format, source_kind, classes_from, options, skip=True,
        check=check, seekable=False, shards=shards, shard_size=shard_size, stats=None,
        fields=fields,
    )  # fmt: skip
    return advising.dry_run(plan)


def _planned(
    source: Any, out: Path, format_: str | None, source_kind: str | None, classes_from: Any,
    options: dict[str, Any], *, skip: bool, check: str, seekable: bool, shards: int,
    shard_size: int | None, stats: int | None, fields: sourcing.Wanted | None = None,
    found: Callable[[int], None] = lambda _: None,
) -> planning.Plan:  # fmt: skip
    """Decide what is packed, and what is done to each sample."""
    format_name = planning.format_of(out, format_)
    listing, recipe = sourcing.listed(
        source, out, source_kind, format_name, classes_from, options, skip=skip, fields=fields,
        found=found,
    )  # fmt: skip
    recipe = dataclasses.replace(recipe, check=check, seekable=seekable, stats=stats)
    Treatment.of(recipe)  # refuses what cannot be meant
    return planning.make(listing, format_name, recipe, shards=shards, shard_size=shard_size)


def _make(
    plan: planning.Plan, means: Means, began: float, out: Path, *, skip: bool,
    overwrite: bool = False,
) -> PackReport:  # fmt: skip
    """Carry out a plan, unless its pack is there."""
    with existing.locked(out / INDEX_NAME) if overwrite else contextlib.nullcontext():
        if overwrite:
            existing.check_replaceable(out)
        elif (done := existing.report(plan, out, began, skip=skip)) is not None:
            return done
        if means.finish:  # before the workshop is opened, which clears what it cannot use
            Journal(workshop.Workshop.of(out).shards, plan, out).check()
        run = Run(plan, out, means, began, skip=skip)
        with workshop.opened(out, shared=means.part is not None) as shop:
            if not overwrite and os.path.lexists(out):
                raise OutputExistsError(
                    f"{out}: made by another run just now; run again to compare"
                )
            return run.into(shop)


def _check(
    on_error: str, quarantine: object, num_workers: int | None, shards: int,
    shard_size: int | None, part: tuple[int, int] | None, *, finish: bool = False,
    resume: bool = True,
) -> bool:  # fmt: skip
    """Check some arguments; tell whether bad images are left out."""
    if on_error not in ("raise", "skip", "quarantine"):
        raise OptionError(f"on_error={on_error!r}: expected 'raise', 'skip' or 'quarantine'")
    if (on_error == "quarantine") != (quarantine is not None):
        raise OptionError(
            f"on_error={on_error!r}, quarantine={quarantine!r}: expected 'quarantine' and a folder"
        )
    if num_workers is not None and num_workers < 1:
        raise OptionError(f"num_workers={num_workers}: expected at least 1")
    if shards < 1 or (shard_size is not None and (shard_size < 1 or shards != 1)):
        raise OptionError(
            f"shards={shards}, shard_size={shard_size}: expected a positive one of the two"
        )
    if part is not None and not (1 <= part[0] <= part[1] and not finish):
        raise OptionError(
            f"part={part}, finish={finish}: expected (i, n) with 1 <= i <= n, or finish"
        )
    if finish and not resume:
        raise OptionError("finish=True, resume=False: finishing needs the parts that are written")
    return on_error != "raise"


def _workers(num_workers: int | None, plan: planning.Plan) -> int:
    """Processes to use: none of their own for what takes a moment, or cannot be sent to them."""
    wanted = num_workers or processors.usable()
    if len(plan.shards) == 1 or not planning.portable(plan.listing):
        return 1
    if num_workers is None and plan.total_bytes < _WORTH_PROCESSES:
        return 1
    return wanted


def _quarantine(listing: Listing, report: PackReport, folder: Path) -> int:
    """Copy what can be read of the bad samples into a folder, under their keys; count them."""
    positions = {key: i for i, key in enumerate(listing.keys)}
    copied = 0
    with listing.opened() as read:
        for skip in report.skipped:
            target = Path(os.path.normpath(folder / os.fsdecode(skip.key).lstrip("/")))
            if skip.key not in positions or folder not in target.parents:
                continue
            with contextlib.suppress(OSError, DecodeError):
                data = read(positions[skip.key]).image.data
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
                copied += 1
    return copied
