"""Packing: source → plan → shard → index → publish."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from packio import __version__, indexfile, packs, registry
from packio import columns as made
from packio.errors import (
    BadImagesError,
    OptionError,
    OutputError,
    OutputExistsError,
    PackioError,
    ReadError,
    SourceError,
)
from packio.packing import existing, publish
from packio.packing import plan as planning
from packio.packing import shards as shards_
from packio.packing.report import PackReport, Progress, ProgressCallback, Skip
from packio.sample import Sample
from packio.sources import Listing

_SHOWN = 10  # bad images that an error message lists
_PROGRESS_SECONDS = 0.1  # between two calls of the callback


def pack(
    source: str | os.PathLike[str] | Sequence[Sample],
    out: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002 (the public name)
    shards: int = 1,
    shard_size: int | None = None,
    classes_from: str | os.PathLike[str] | Sequence[str] | None = None,
    num_workers: int | None = None,
    on_error: str = "raise",
    overwrite: bool = False,
    progress: ProgressCallback | None = None,
) -> PackReport:
    """Pack images, byte for byte: a folder of them, another pack, or samples.

    The same source gives the same bytes. Until all of it is written, checked and synced nothing is
    at ``out``; a run that is killed leaves ``out.packio-tmp``, which the next run clears.

    Args:
        source: A folder of class folders of images, as torchvision's ImageFolder takes; a pack; or
            a sequence of `Sample`.
        out: The pack to make; its suffix says the format, as ``.lmdb``.
        format: Name of the format, where the suffix does not say it.
        shards: How many shards to make; with more than one, ``out`` is a folder of them.
        shard_size: Source bytes of a shard, instead; ``out`` is then always a folder.
        classes_from: A pack, a text file with one class a line, or a list of names that gives the
            labels, so that train and val agree.
        num_workers: Threads that read ahead; None takes 4 for each processor, at most 16.
        on_error: "raise": check everything, list all that is bad, pack nothing. "skip": leave bad
            images out, listed in ``out.skipped.jsonl``.
        overwrite: Replace ``out``, a pack or a file, in one step once the new pack is complete.
        progress: Called with a `Progress` about ten times a second, and at the end.

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
    began, clock = time.monotonic(), time.time_ns()
    if on_error not in ("raise", "skip"):
        raise OptionError(f"on_error={on_error!r}: expected 'raise' or 'skip'")
    if num_workers is not None and num_workers < 1:
        raise OptionError(f"num_workers={num_workers}: expected at least 1")
    if shards < 1 or (shard_size is not None and (shard_size < 1 or shards != 1)):
        raise OptionError(
            f"shards={shards}, shard_size={shard_size}: expected a positive one of the two"
        )
    out, skip = Path(os.path.abspath(out)), on_error == "skip"
    format_name = planning.format_of(out, format)
    if isinstance(source, (str, os.PathLike)):
        source = Path(source)
        _refuse_nesting(source, out)
    publish.tidy(out)
    listing = _listing(source, _classes(classes_from), skip=skip)
    plan = planning.make(
        listing, format_name, {"encode": "keep"}, shards=shards, shard_size=shard_size
    )
    if overwrite:
        existing.check_replaceable(out)
    elif (done := existing.report(plan, out, began, skip=skip)) is not None:
        return done
    _check_space(plan, out)
    run = _Run(plan, out, began, progress, num_workers or min(16, 4 * (os.cpu_count() or 1)))
    with publish.workshop(out) as shop:
        if not overwrite and os.path.lexists(out):
            raise OutputExistsError(f"{out}: made by another run just now; run again to compare")
        return run.into(shop, skip=skip, clock=clock)


def convert(
    source: str | os.PathLike[str], out: str | os.PathLike[str], **options: Any
) -> PackReport:
    """Turn a pack into another format, nothing decoded: bytes, labels, keys and all else are kept.

    Args:
        source: A pack.
        out: The pack to make; its suffix says the format.
        options: As `pack` takes.

    Raises:
        NotAPackError: the source is no pack.
        PackioError: see `pack`.
    """
    with packs.open(source) as opened:
        return pack(opened, out, **options)


class _Run:
    """One packing run, from a plan to a report."""

    def __init__(
        self,
        plan: planning.Plan,
        out: Path,
        began: float,
        progress: ProgressCallback | None,
        threads: int,
    ) -> None:
        self.plan, self.out, self.threads = plan, out, threads
        self._began, self._progress, self._called = began, progress, 0.0
        self._skip, self._digest, self._out_bytes = False, "", 0
        self._done = self._bytes = 0
        self._bad = len(plan.listing.unlisted)

    def into(self, shop: publish.Workshop, *, skip: bool, clock: int) -> PackReport:
        """Build the pack in a workshop and publish it.

        Args:
            shop: The workshop.
            skip: Leave bad images out.
            clock: When the source was looked at, nanoseconds since the epoch.
        """
        self._skip = skip
        container = registry.load("formats", self.plan.format)
        samples = shards_.Samples(self.plan)
        done = self._write_shards(shop, container, samples)
        skipped_file = self._list_skipped(shop, samples.skipped)
        if samples.skipped and not skip:
            raise _bad_images(self.out, samples.skipped, skipped_file)
        if not done:
            raise SourceError(
                f"{self.plan.listing.root or 'the source'}: none of {len(samples.skipped)} images "
                f"can be packed; the reasons are in {skipped_file}"
            )
        files = self._write_index(shop, container, samples, done)
        existing.stamp(shop.built / files[-1], clock)
        if self._is_folder(container):
            shop.publish()
        else:
            shop.publish(files, self._old_files())
        return self._report(samples, skipped_file)

    def _is_folder(self, container: ModuleType) -> bool:
        return container.IS_DIRECTORY or self.plan.is_sharded

    def _old_files(self) -> list[str]:
        """Files of the file pack that is replaced, if there is one."""
        index = self.out.name + indexfile.INDEX_SUFFIX
        try:
            old = indexfile.Index(self.out.with_name(index))
            return [*(name for name, _, _ in old.files() if "/" not in name), index]
        except PackioError:
            return []

    def _write_shards(
        self, shop: publish.Workshop, container: ModuleType, samples: shards_.Samples
    ) -> list[shards_.Shard]:
        if self.plan.is_sharded or not container.IS_DIRECTORY:
            shop.built.mkdir()
        done: list[shards_.Shard] = []
        for i, positions in enumerate(self.plan.shards):
            name = self.out.name
            if self.plan.is_sharded:
                name = f"{self.out.stem}-{i:05d}{self.out.suffix or container.SUFFIXES[0]}"
            elif container.IS_DIRECTORY:
                name = "."
            path, before = shop.built / name, len(samples.positions)
            written = shards_.write_shard(
                samples, positions, container, path, threads=self.threads, skip=self._skip,
                writing=self._skip or not samples.skipped, on_chunk=self._step,
            )  # fmt: skip
            if written is not None:
                done.append(shards_.Shard(name, len(samples.positions) - before, written))
            elif name != ".":
                publish.remove(path)
        return done

    def _write_index(
        self,
        shop: publish.Workshop,
        container: ModuleType,
        samples: shards_.Samples,
        done: list[shards_.Shard],
    ) -> list[str]:
        """Write the index; return the names of all files, the index last."""
        listing = self.plan.listing
        found = len(listing.keys) + len(listing.unlisted)
        skipped = len(samples.skipped)
        counts = {"found": found, "packed": len(samples.positions), "skipped": skipped}
        if counts["packed"] + counts["skipped"] != found:
            raise PackioError(f"{self.out}: the numbers do not add up: {counts}")
        files, sidecars = _file_names(container, done)
        if self._is_folder(container) and hasattr(container, "finish"):
            sidecars += container.finish(shop.built, [shard.name for shard in done])
        columns = samples.columns(done) | made.of_files(shop.built, files + sidecars)
        metadata = {
            "version": indexfile.VERSION,
            "format": self.plan.format,
            "access": "range",
            "classes": listing.classes,
            "counts": counts,
            "source": {"kind": listing.kind},
            "options": self.plan.options,
            "plan": self.plan.digest,
            "shards": [{"name": s.name, "samples": s.samples, **s.written.info} for s in done],
            "versions": {"packio": __version__},
        }
        if hasattr(container, "identity"):
            metadata["identity"] = [container.identity(shop.built / s.name) for s in done]
        index = indexfile.INDEX_NAME
        if not self._is_folder(container):
            index = self.out.name + indexfile.INDEX_SUFFIX
        self._digest = indexfile.write(shop.built / index, columns, metadata)
        size = (shop.built / index).stat().st_size
        self._out_bytes = int(columns["file_bytes"].sum()) + size
        return [*sidecars, *files, index]

    def _step(self, samples: int, size: int, bad: int) -> None:
        self._done += samples
        self._bytes += size
        self._bad += bad
        now = time.monotonic()
        if self._done == len(self.plan.listing.keys):
            self._report_progress("publishing")
        elif now - self._called >= _PROGRESS_SECONDS:
            self._called = now
            self._report_progress("checking" if self._bad and not self._skip else "reading")

    def _report_progress(self, stage: str) -> None:
        if self._progress is not None:
            total, seconds = len(self.plan.listing.keys), time.monotonic() - self._began
            self._progress(
                Progress(
                    self._done, total, self._bytes, self.plan.total_bytes, self._bad, seconds, stage
                )
            )

    def _list_skipped(self, shop: publish.Workshop, skipped: list[Skip]) -> Path | None:
        path = self.out.with_name(self.out.name + existing.SKIPPED_SUFFIX)
        if not skipped:
            path.unlink(missing_ok=True)  # of an earlier run
            return None
        temporary = shop.folder / "skipped"
        temporary.write_text("".join(json.dumps(s.as_json()) + "\n" for s in skipped))
        temporary.replace(path)
        return path

    def _report(self, samples: shards_.Samples, skipped_file: Path | None) -> PackReport:
        listing = self.plan.listing
        return PackReport(
            out=self.out,
            format=self.plan.format,
            found=len(listing.keys) + len(listing.unlisted),
            packed=len(samples.positions),
            skipped=tuple(samples.skipped),
            classes=len(listing.classes),
            source_bytes=samples.source_bytes,
            out_bytes=self._out_bytes,
            seconds=time.monotonic() - self._began,
            digest=self._digest,
            warnings=tuple(listing.warnings),
            skipped_file=skipped_file,
        )


def _listing(source: Path | Sequence[Sample], classes: list[str] | None, *, skip: bool) -> Listing:
    if not isinstance(source, Path):
        listing: Listing = registry.load("sources", "pack").of(source, classes=classes)
        return listing
    found: Listing = planning.source_of(source).listing(source, classes=classes, allow_empty=skip)
    return found


def _file_names(container: ModuleType, done: list[shards_.Shard]) -> tuple[list[str], list[str]]:
    """Files that samples are read from, and sidecars, relative to the pack's folder."""
    files: list[str] = []
    sidecars: list[str] = []
    for shard in done:
        prefix = f"{shard.name}/" if container.IS_DIRECTORY and shard.name != "." else ""
        files += [prefix + name for name in shard.written.files]
        sidecars += [prefix + name for name in shard.written.sidecars]
    return files, sidecars


def _classes(given: str | os.PathLike[str] | Sequence[str] | None) -> list[str] | None:
    if given is None:
        return None
    if not isinstance(given, (str, os.PathLike)):
        names = list(given)
    elif os.path.isfile(given) and not os.path.exists(f"{given}{indexfile.INDEX_SUFFIX}"):
        names = _listed_classes(Path(given))
    else:
        with packs.open(given) as other:
            names = other.classes
    if not names or len(set(names)) != len(names) or not all(isinstance(n, str) for n in names):
        raise OptionError(f"classes_from={given!r}: expected class names, each once")
    return names


def _listed_classes(path: Path) -> list[str]:
    try:
        text = path.read_text("utf-8-sig", "surrogateescape")
    except OSError as error:
        raise ReadError(f"{path}: {error.strerror}; a file of class names was expected") from error
    return [line.rstrip("\r") for line in text.split("\n") if line.strip()]


def _refuse_nesting(source: Path, out: Path) -> None:
    inside, outside = Path(os.path.realpath(out)), Path(os.path.realpath(source))
    if inside == outside or outside in inside.parents:
        raise OptionError(f"{out}: lies within the source {source}; choose another place")
    if inside in outside.parents:
        raise OptionError(f"{out}: the source {source} lies within it; choose another place")


def _check_space(plan: planning.Plan, out: Path) -> None:
    try:
        free = shutil.disk_usage(out.parent).free
    except OSError:  # the folder is missing: making the workshop says so
        return
    if plan.total_bytes > free:
        raise OutputError(
            f"{out}: needs at least {plan.total_bytes:,} bytes, {free:,} are free; make room first"
        )


def _bad_images(out: Path, skipped: list[Skip], listed: Path | None) -> BadImagesError:
    shown = [(os.fsdecode(s.key), s.reason) for s in skipped[:_SHOWN]]
    lines = "".join(f"\n  {ascii(key)[1:-1]}: {reason}" for key, reason in shown)
    more = f"\n  and {len(skipped) - _SHOWN} more" if len(skipped) > _SHOWN else ""
    error = BadImagesError(
        f"{out}: not packed, {len(skipped)} of the images are bad (all listed in {listed}); "
        f"mend them, or leave them out with --on-error skip:{lines}{more}"
    )
    error.skipped = tuple(shown)
    return error
