"""`pack`: a source is listed, planned, written into shards, indexed and published."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from packio.errors import OptionError
from packio.index.indexfile import INDEX_NAME, INDEX_SUFFIX
from packio.packing import sourcing
from packio.packing.images.levels import Levels, resolve
from packio.packing.plan import advising, planning
from packio.packing.publish import remote, target
from packio.packing.report import PackReport, make_listing_callback
from packio.packing.run import sameness
from packio.packing.run.running import Means, Run, check_journal, journal_of
from packio.packs import opening
from packio.storage import urls, workshop
from packio.storage.remote import advise_on_place
from packio.system import locks
from packio.system.files import absolute
from packio.system.progress import ProgressCallback


def pack(
    source: Any,
    out: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002 (the public name)
    source_kind: str | None = None,
    shards: int = 1,
    shard_size: int | str | None = None,
    classes_from: str | os.PathLike[str] | Sequence[str] | None = None,
    num_workers: int | None = None,
    threads: int | None = None,
    memory: int | str | None = None,
    engine: str | Executor = "local",
    part: tuple[int, int] | None = None,
    finish: bool = False,
    on_error: str = "raise",
    quarantine: str | os.PathLike[str] | None = None,
    seek_points: bool = True,
    check: str = "header",
    max_errors: int | None = None,
    stats: int | None = None,
    levels: int | str | None = None,
    levels_quality: int | None = None,
    levels_crop: int | None = None,
    fields: Mapping[str, Any] | None = None,
    resume: bool = True,
    overwrite: bool = False,
    progress: ProgressCallback | None = None,
    **options: Any,
) -> PackReport:
    """Pack images from folders, tables, archives, packs or datasets into one container.

    The bytes of each image stay as they are, unless an option says otherwise. The same source gives
    the same pack, on any number of workers and any engine. Nothing is at ``out`` until the pack is
    complete, checked and on disk. A run that is cut short leaves ``out.packio-tmp``; the next run
    takes over the shards in it.

    Args:
        source: A path that a module of `packio.sources` recognises, as a folder of class folders of
            images; a pack; a sequence of `Sample`; or a dataset.
        out: The pack to make. Its suffix says the format, as ``.lmdb``. At a URL, as
            ``s3://bucket/train.tar``, the pack is built in the user's cache (``PACKIO_CACHE_DIR``),
            then uploaded file by file, the index last.
        format: Name of the format, if the suffix does not say it.
        source_kind: Name of the source's module, if the path does not say it.
        shards: Number of shards. With more than one, ``out`` is a folder of shards.
        shard_size: Source bytes of a shard, as 256 << 20 or "256MB", instead of a number;
            ``out`` is then always a folder.
        classes_from: A pack, a text file with one class a line, or a list of names. Labels are
            positions in these names, so that train and val agree.
        num_workers: Number of processes that write shards; None takes one for each processor.
        threads: Number of threads in each process that read and encode; None takes as many as keep
            the process busy.
        memory: Bytes of source files that may be in memory at a time, in all processes together.
        engine: Where shards are written: "local", "ray", "ray:ADDRESS", or any
            `concurrent.futures.Executor` whose workers see the same files. See ``docs/cluster.md``.
        part: (i, n) writes the i-th of n parts of the shards and publishes nothing, for array jobs.
        finish: Put the parts together, once all parts are written.
        on_error: "raise": check all images, list the bad ones, pack nothing. "skip": leave bad
            images out and list them in ``out.skipped.jsonl``. "quarantine": also copy them.
        quarantine: Folder for copies of bad images, outside the source. If a sample has several
            files, as an image and a mask, all of them are copied.
        seek_points: Keep in the index where the decoding of a JPEG may begin (0.3 % of its bytes),
            so that the native core decodes only the part that a crop needs.
        check: "header" reads the header of each image; "decode" decodes each image whole.
        max_errors: Stop when more images than this are bad.
        stats: Measure mean and standard deviation of the channels on this many images, and keep
            them in the index; 0 measures all images.
        levels: Store smaller JPEGs of each large image beside it, at most this number, from which
            ``fidelity="fast"`` makes crops; "auto": those that pay; 0: none. None: none, or those
            that a pack as the source has. See ``docs/levels.md``.
        levels_quality: Quality of these JPEGs, 1 to 100; None: 85.
        levels_crop: Side of the crops that training takes, pixels; None: 224. The smallest level
            has a short side of 1.4 to 2.8 times as many pixels.
        fields: Named fields to take from the source. Name → column of a table, name of a value in
            a dataset, ending or folder of files beside images; or (column, kind), with a kind of
            "image", "mask", "array", "text" or "bytes".
        resume: Take over the shards that an earlier run finished; False begins anew.
        overwrite: Replace ``out``, a pack or a file, in one step once the new pack is complete.
        progress: Called with a `Progress` about ten times a second, and at the end.
        options: ``boxes_frame``, "upright" or "stored": where boxes and masks lie; not given: their
            sizes say it, else they are upright. ``rescale_boxes``: scale boxes to their images,
            where annotations give other sizes.
            Arguments of `packio.packing.images.encode.Encoding` (encode, resize, quality, …)
            and of `packio.packing.plan.choosing.Choice` (include, exclude, dedupe, shuffle, limit,
            split, seed), and options of the source's module and of the format's writer.

    Returns:
        A report. ``up_to_date`` is True if ``out`` was there already, made by the same plan.

    Raises:
        SourceError: there is nothing to pack, or the layout makes no sense.
        BadImagesError: some images cannot be packed.
        OutputExistsError: ``out`` exists and is not what this call would make.
        OutputError: writing fails, as on a full disk.
        ReadError: a node of a Ray cluster does not see what this process sees.
        LockedError: another process is packing into ``out``.
        OptionError: the value of an argument makes no sense.
    """
    began = time.monotonic()
    shard_size = sourcing.byte_count("shard_size", shard_size)
    memory = sourcing.byte_count("memory", memory)
    sourcing.check_positive(
        num_workers=num_workers, threads=threads, memory=memory, shards=shards,
        shard_size=shard_size,
    )  # fmt: skip
    _check(out, on_error, quarantine, shards, shard_size, part, finish=finish, resume=resume)
    out, skip = urls.absolute(out), on_error != "raise"
    source = sourcing.locate_source(source, out, quarantine, whole=engine != "local")
    if part is None:
        workshop.tidy(out, keep=resume)
    format_name = sourcing.find_format(out, format)
    listing, recipe = sourcing.list_source(
        source, out, source_kind, format_name, classes_from, options, skip=skip, fields=fields,
        found=make_listing_callback(progress, began),
    )  # fmt: skip
    recipe = dataclasses.replace(recipe, check=check, stats=stats, seek_points=seek_points)
    listing, recipe = resolve(listing, recipe, Levels.asked(levels, levels_quality, levels_crop))
    plan = planning.make(listing, format_name, recipe, shards=shards, shard_size=shard_size)
    means = Means(
        engine, planning.count_workers(plan, num_workers), threads, memory, max_errors, part,
        finish, None if quarantine is None else Path(os.path.realpath(quarantine)), progress,
    )  # fmt: skip
    is_made = functools.partial(sameness.is_made_by, plan, skip)
    make = functools.partial(_make, plan, is_made, means, began, skip=skip)
    if (url := urls.of(out)) is not None:
        report = remote.pack_to(url, plan, is_made, began, make, resume=resume, overwrite=overwrite)
    else:
        report = make(out, overwrite=overwrite)
        if (advice := advise_on_place(out, plan.format)) is not None:
            report = dataclasses.replace(report, warnings=(*report.warnings, advice))
    return report


def dry_run(
    source: Any,
    out: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002 (the public name)
    source_kind: str | None = None,
    shards: int = 1,
    shard_size: int | str | None = None,
    classes_from: str | os.PathLike[str] | Sequence[str] | None = None,
    check: str = "header",
    levels: int | str | None = None,
    levels_quality: int | None = None,
    levels_crop: int | None = None,
    fields: Mapping[str, Any] | None = None,
    **options: Any,
) -> advising.DryRun:
    """Report what `pack` would do with the same arguments, and how other encodings compare.

    Nothing is written. Some of the images, drawn at random, are decoded, and encoded in a few ways.
    With `levels`, the report tells what they cost and bring.
    """
    shard_size = sourcing.byte_count("shard_size", shard_size)
    sourcing.check_positive(shards=shards, shard_size=shard_size)
    _check(out, shards=shards, shard_size=shard_size)
    out = absolute(out)
    if isinstance(source, os.PathLike) or (isinstance(source, str) and os.path.lexists(source)):
        source = Path(source)
    format_name = sourcing.find_format(out, format)
    listing, recipe = sourcing.list_source(
        source, out, source_kind, format_name, classes_from, options, skip=True, fields=fields
    )
    recipe = dataclasses.replace(recipe, check=check, seek_points=False)
    listing, recipe = resolve(listing, recipe, Levels.asked(levels, levels_quality, levels_crop))
    return advising.dry_run(
        planning.make(listing, format_name, recipe, shards=shards, shard_size=shard_size)
    )


def _check(
    out: str | os.PathLike[str], on_error: str = "raise",
    quarantine: str | os.PathLike[str] | None = None, shards: int = 1,
    shard_size: int | None = None, part: tuple[int, int] | None = None, *, finish: bool = False,
    resume: bool = True,
) -> None:  # fmt: skip
    """Refuse arguments that do not go together."""
    if on_error not in ("raise", "skip", "quarantine"):
        raise OptionError(f"on_error={on_error!r}: expected 'raise', 'skip' or 'quarantine'")
    if on_error == "quarantine" and quarantine is None:
        raise OptionError(
            f"on_error={on_error!r}: say quarantine= as well, the folder for copies of bad images"
        )
    if quarantine is not None and on_error != "quarantine":
        raise OptionError(
            f"quarantine={os.fspath(quarantine)!r}: say on_error='quarantine' as well; now it is "
            f"{on_error!r}"
        )
    if shard_size is not None and shards != 1:
        raise OptionError(f"shards={shards}, shard_size={shard_size}: expected one of the two")
    if part is not None and not (1 <= part[0] <= part[1] and not finish):
        raise OptionError(
            f"part={part}, finish={finish}: expected (i, n) with 1 <= i <= n, or finish"
        )
    if finish and not resume:
        raise OptionError("finish=True, resume=False: finishing needs the parts that are written")
    if urls.of(out) is not None and (part is not None or finish):
        raise OptionError(f"{out}: parts are written to a folder that all jobs see, not to a URL")


def _make(
    plan: planning.Plan, is_made: Callable[[opening.Pack], bool], means: Means, began: float,
    out: Path, *, skip: bool, overwrite: bool = False,
) -> PackReport:  # fmt: skip
    """Carry out a plan, unless its pack is at `out` already."""
    with contextlib.ExitStack() as held:
        for index in (out / INDEX_NAME, out.with_name(out.name + INDEX_SUFFIX)):
            if overwrite:
                held.enter_context(locks.changing(index))
        while True:
            found = target.find(plan, out, is_made, began, overwrite=overwrite)
            if found.report is not None:
                return found.report
            if means.finish:  # before opening the workshop, which clears shards of another plan
                journal = journal_of(plan, workshop.Workshop.of(out).shards)
                check_journal(plan, out, journal, skip=skip)
            run = Run(plan, out, means, began, skip=skip)
            with workshop.opened(out, shared=means.part is not None) as shop:
                if overwrite or not os.path.lexists(out):
                    report = run.into(shop)
                    return report if means.part else report.with_lost(found.lost)
                shop.keep = False  # another run made the pack just now: compare
