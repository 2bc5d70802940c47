"""`pack`: a source is listed, planned, written into shards, indexed and published.

`merge` and `convert` are `pack` with packs as its source; `dry_run` ends at the plan.
"""

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
from packio.packing import planning, sourcing, target
from packio.packing.images.levels import Levels, resolve_levels
from packio.packing.planning import PackReport
from packio.packing.run.running import Run
from packio.packing.run.shards import RunOptions
from packio.packs import opening
from packio.sources.pack import PackListing, list_packs, prefix_keys, rename_fields
from packio.storage import urls, workshop
from packio.storage.remote import advise_on_place
from packio.system import locks
from packio.system.files import absolute
from packio.system.progress import Progress, ProgressCallback

LISTING_SECONDS = 0.5  # between two calls of a callback while a source is listed


def pack(
    source: Any, out: str | os.PathLike[str], *,
    format: str | None = None, source_kind: str | None = None,  # noqa: A002 (the public name)
    shards: int = 1, shard_size: int | str | None = None,
    classes_from: str | os.PathLike[str] | Sequence[str] | None = None,
    num_workers: int | None = None, threads: int | None = None, memory: int | str | None = None,
    engine: str | Executor = "local", part: tuple[int, int] | None = None, finish: bool = False,
    on_error: str = "raise", quarantine: str | os.PathLike[str] | None = None,
    seek_points: bool = True, check: str = "header", max_errors: int | None = None,
    stats: int | None = None, levels: int | str | None = None, levels_quality: int | None = None,
    levels_crop: int | None = None, fields: Mapping[str, Any] | None = None, resume: bool = True,
    overwrite: bool = False, progress: ProgressCallback | None = None, **options: Any,
) -> PackReport:  # fmt: skip
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
        quarantine: Folder for copies of bad images, outside source and output. If a sample has
            several files, as an image and a mask, all of them are copied.
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
            and of `packio.packing.choosing.Choice` (include, exclude, dedupe, shuffle, limit,
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
    memory = sourcing.byte_count("memory", memory)
    sourcing.check_positive(num_workers=num_workers, threads=threads, memory=memory)
    _check(out, on_error, quarantine, part, finish=finish, resume=resume)
    out, skip = urls.absolute(out), on_error != "raise"
    source = sourcing.locate_source(source, out, quarantine, whole=engine != "local")
    if part is None:
        workshop.tidy(out, keep=resume)
    plan = _plan(
        source, out, skip=skip, found=_make_listing_callback(progress, began), format=format,
        source_kind=source_kind, shards=shards, shard_size=shard_size, classes_from=classes_from,
        fields=fields, levels=levels, levels_quality=levels_quality, levels_crop=levels_crop,
        check=check, stats=stats, seek_points=seek_points, **options,
    )  # fmt: skip
    run_options = RunOptions(
        skip, engine, planning.count_workers(plan, num_workers), threads, memory, max_errors, part,
        finish, None if quarantine is None else Path(os.path.realpath(quarantine)), progress, began,
    )  # fmt: skip
    make = functools.partial(_make, plan, run_options)
    if (url := urls.parse(out)) is not None:
        if (found := target.find(plan, url, run_options, overwrite=overwrite)) is not None:
            return found
        lost = target.list_lost(plan, url) if overwrite else []
        report = target.pack_to(url, make, resume=resume, overwrite=overwrite)
        return dataclasses.replace(report, seconds=time.monotonic() - began).with_lost(lost)
    report = make(out, overwrite=overwrite)
    if (advice := advise_on_place(out, report.format)) is not None:
        report = dataclasses.replace(report, warnings=(*report.warnings, advice))
    return report


def _make_listing_callback(
    progress: ProgressCallback | None, began: float
) -> Callable[[int], None]:
    """The callback that a listing calls with the number of files found since the last call."""
    found, called = 0, time.monotonic()

    def tell(more: int) -> None:
        nonlocal found, called
        found, now = found + more, time.monotonic()
        if progress is not None and now - called >= LISTING_SECONDS:
            called = now
            progress(Progress(found, 0, 0, 0, 0, now - began, "listing"))

    return tell


def dry_run(source: Any, out: str | os.PathLike[str], **options: Any) -> planning.DryRun:
    """Report what `pack` would do with the same arguments, and how other encodings compare.

    Nothing is written. Some of the images, drawn at random, are decoded, and encoded in a few ways.
    With `levels`, the report tells what they cost and bring.
    """
    out = absolute(out)
    if isinstance(source, os.PathLike) or (isinstance(source, str) and os.path.lexists(source)):
        source = Path(source)
    return planning.dry_run(_plan(source, out, skip=True, seek_points=False, **options))


def _plan(
    source: Any, out: Path, *, skip: bool, found: Callable[[int], None] = lambda _: None,
    format: str | None = None, source_kind: str | None = None,  # noqa: A002 (the public name)
    shards: int = 1, shard_size: int | str | None = None, classes_from: Any = None,
    fields: Mapping[str, Any] | None = None, levels: int | str | None = None,
    levels_quality: int | None = None, levels_crop: int | None = None, check: str = "header",
    stats: int | None = None, seek_points: bool = True, **options: Any,
) -> planning.Plan:  # fmt: skip
    """List a source, and fix all that decides the bytes of its pack."""
    wanted = Levels.from_user(levels, levels_quality, levels_crop)
    shard_size = sourcing.byte_count("shard_size", shard_size)
    sourcing.check_positive(shards=shards, shard_size=shard_size)
    if shard_size is not None and shards != 1:
        raise OptionError(f"shards={shards}, shard_size={shard_size}: expected one of the two")
    name = sourcing.find_format(out, format)
    listing, recipe = sourcing.list_source(
        source, out, source_kind, name, classes_from, options, skip=skip, fields=fields, found=found
    )
    recipe = dataclasses.replace(recipe, check=check, stats=stats, seek_points=seek_points)
    listing, recipe = resolve_levels(listing, recipe, wanted)
    return planning.make(listing, name, recipe, shards=shards, shard_size=shard_size)


def _check(
    out: str | os.PathLike[str], on_error: str, quarantine: str | os.PathLike[str] | None,
    part: tuple[int, int] | None, *, finish: bool, resume: bool,
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
    if quarantine is not None and urls.parse(quarantine) is not None:
        raise OptionError(f"quarantine={os.fspath(quarantine)!r}: expected a folder on a disk")
    if quarantine is not None and urls.parse(out) is None:
        message = f"quarantine={os.fspath(quarantine)!r}: lies within {out}"
        places = [absolute(out), Path(os.path.realpath(out))]  # the output may be a link
        for own in (*places, *(workshop.Workshop.locate(place).folder for place in places)):
            sourcing.refuse_nesting(quarantine, own, message)
    if part is not None and not (1 <= part[0] <= part[1] and not finish):
        raise OptionError(
            f"part={part}, finish={finish}: expected (i, n) with 1 <= i <= n, or finish"
        )
    if finish and not resume:
        raise OptionError("finish=True, resume=False: finishing needs the parts that are written")
    if urls.parse(out) is not None and (part is not None or finish):
        raise OptionError(f"{out}: parts are written to a folder that all jobs see, not to a URL")


def _make(
    plan: planning.Plan, options: RunOptions, out: Path, *, overwrite: bool = False
) -> PackReport:
    """Carry out a plan, unless its pack is at `out` already."""
    with contextlib.ExitStack() as held:
        for index in (out / INDEX_NAME, out.with_name(out.name + INDEX_SUFFIX)):
            if overwrite:
                held.enter_context(locks.changing(index))
        while True:
            if (found := target.find(plan, out, options, overwrite=overwrite)) is not None:
                return found
            lost = target.list_lost(plan, out) if overwrite else []
            if options.finish:  # before opening the workshop, which clears shards of another plan
                Run(plan, out, options, workshop.Workshop.locate(out)).check_journal()
            with workshop.open_workshop(out, shared=options.part is not None) as shop:
                if overwrite or not os.path.lexists(out):
                    report = Run(plan, out, options, shop).make(overwrite=overwrite)
                    return report if options.part else report.with_lost(lost)
                shop.keep = False  # another run made the pack just now: compare


def merge(
    out: str | os.PathLike[str], sources: Sequence[str | os.PathLike[str]], *,
    prefix: bool | Sequence[str] = False, **options: Any,
) -> PackReport:  # fmt: skip
    """Make one pack of several. Labels go by class name; no two packs may share a key.

    Every sample is copied. To train on several packs without a copy, see `ConcatPacks`.

    Args:
        out: The pack to make; its suffix says the format.
        sources: Packs.
        prefix: What to put before the keys of each pack, for packs that share keys: True puts the
            pack's name without its suffix and a slash, as ``monday/``; or a text for each pack.
        options: As `pack` takes.

    Raises:
        OptionError: two packs share a key; there is not a prefix for each pack; or labels, splits
            or fields are of different kinds.
        PackioError: see `pack`.
    """
    if len(sources) < 2:
        count = f"{len(sources)} pack{'' if len(sources) == 1 else 's'}"
        raise OptionError(f"{count}: expected at least two to merge")
    with contextlib.ExitStack() as stack:
        packs = [stack.enter_context(opening.open_silently(source)) for source in sources]
        classes = sourcing.read_class_names(options.pop("classes_from", None))
        listing = rename_fields(list_packs(packs, classes), packs, options.get("fields"))
        prefixes = _prefixes(packs, prefix)
        listing = prefix_keys(listing, prefixes)
        _check_keys(listing, is_prefixed=any(prefixes))
        return pack(listing, out, **options)


def convert(
    source: str | os.PathLike[str], out: str | os.PathLike[str], *,
    index: str | os.PathLike[str] | None = None, **options: Any,
) -> PackReport:  # fmt: skip
    """Turn a pack into another format. Bytes, labels, keys and all else of a sample are kept.

    No image is decoded, unless an option asks for another encoding.

    Args:
        source: A pack.
        out: The pack to make; its suffix says the format.
        index: Path or URL of the source's index, if it is not beside the source.
        options: As `pack` takes. ``split="train"`` converts the samples of this split only; shares
            draw new splits.

    Raises:
        NotAPackError: the source is no pack.
        OptionError: the pack has no such split.
        PackioError: see `pack`.
    """
    reading = {n: options.pop(n) for n in ("trust_plain_pickle", "database") if n in options}
    with opening.open_silently(source, index=index, **reading) as opened:  # the report tells
        if isinstance(options.get("split"), str):
            positions = opened.split(options.pop("split")).tolist()
            classes = sourcing.read_class_names(options.pop("classes_from", None))
            found = rename_fields(list_packs([opened], classes), [opened], options.get("fields"))
            return pack(found.take(positions), out, **options)
        return pack(opened, out, **options)


def _prefixes(packs: Sequence[opening.Pack], asked: bool | Sequence[str]) -> list[bytes]:
    if isinstance(asked, bool):
        return [os.fsencode(f"{Path(one.path).stem}/") if asked else b"" for one in packs]
    if isinstance(asked, str) or not all(isinstance(text, str) for text in asked):
        raise OptionError(f"prefix={asked!r}: expected True, or a list with a text for each pack")
    if len(asked) != len(packs):
        raise OptionError(f"prefix={asked!r}: {len(asked)} texts for {len(packs)} packs")
    return [os.fsencode(text) for text in asked]


def _check_keys(listing: PackListing, *, is_prefixed: bool) -> None:
    if len(set(listing.keys)) == len(listing.keys):
        return
    owners = (one.path for one in listing.packs for _ in range(len(one)))
    first: dict[bytes, Path] = {}
    key, path = next(
        (key, path)
        for key, path in zip(listing.keys, owners, strict=True)
        if first.setdefault(key, path) is not path
    )
    remedy = (
        "give each pack a prefix of its own (prefix=[...]), or rename one of the packs"
        if is_prefixed
        else "put the name of each pack before its keys by prefix=True; or leave samples out "
        "first: packio select, then merge the selections"
    )
    raise OptionError(
        f"{os.fsdecode(key)!r} is in {first[key]} and in {path}; no key may be there twice; "
        f"{remedy}"
    )
