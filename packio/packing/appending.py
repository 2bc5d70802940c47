"""Appending: new samples of a source become new shards of a pack, which stays readable meanwhile.

Samples are told apart by their keys. Those that the pack has stay as they are; the new ones are
written to shards beside the old ones, and a new index takes the place of the old one in one step.
Until then, and for whoever has the pack open, nothing changes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packio import registry
from packio.errors import LockedError, OptionError
from packio.index import columns as made
from packio.index import indexfile
from packio.packing.images.encode import Encoding
from packio.packing.plan import existing, preflight
from packio.packing.plan import plan as planning
from packio.packing.plan.choosing import Choice
from packio.packing.run import assembly
from packio.packing.run.reading import Treatment
from packio.packing.run.running import Means, Run
from packio.packs import packs
from packio.sources import Listing
from packio.storage import workshop
from packio.system import files, processors
from packio.system.progress import ProgressCallback

SUFFIX = ".packio-append"  # of the workshop: unlike that of packing, it does not bar the pack


@dataclasses.dataclass(frozen=True, slots=True)
class AppendReport:
    """What appending did.

    Attributes:
        out: The pack.
        added: Samples that are new in it.
        unchanged: Samples of the source that it has already.
        changed: Keys of samples that the source now has otherwise; the pack keeps what it has.
        deleted: Keys of samples that the source has no more; the pack keeps them.
        skipped: Samples that could not be added, on_error="skip".
        new_classes: Names of classes that came behind those the pack had.
        total: Samples in the pack now.
        digest: Of the pack now.
        seconds: The whole run took.
        warnings: One line each.
    """

    out: Path
    added: int
    unchanged: int
    changed: tuple[str, ...]
    deleted: tuple[str, ...]
    skipped: int
    new_classes: tuple[str, ...]
    total: int
    digest: str
    seconds: float
    warnings: tuple[str, ...] = ()


def append(
    path: str | os.PathLike[str],
    source: Any,
    *,
    source_kind: str | None = None,
    shard_size: int | None = None,
    num_workers: int | None = None,
    on_error: str = "raise",
    progress: ProgressCallback | None = None,
    **options: Any,
) -> AppendReport:
    """Add what is new in a source to a pack of shards; running it again adds nothing more.

    Args:
        path: A pack that is a folder of shards.
        source: As `pack` takes; the same one as before, grown, or one with other keys.
        source_kind: Name of the source's module, where the path does not say it.
        shard_size: Source bytes of a new shard; None: what the largest shard of the pack has.
        num_workers: Processes that write shards.
        on_error: "raise": add nothing where a new image is bad. "skip": leave it out.
        progress: Called with a `Progress` about ten times a second, and at the end.
        options: What the source's module takes by its ``OPTIONS``. How images are encoded is as it
            was when the pack was made.

    Raises:
        OptionError: the pack is a single file, or has labels of another kind.
        SourceError, BadImagesError, OutputError, LockedError: see `pack`.
    """
    began, clock = time.monotonic(), time.time_ns()
    out = Path(os.path.abspath(path))
    with packs.open(out) as pack:
        _check_sharded(pack)
        reader = planning.source_of(_as_path(source, out), source_kind)
        listing = _listed(reader, source, on_error=on_error, options=options)
        change = _Change.between(pack, listing)
        if not change.new and not change.new_classes:
            with contextlib.suppress(LockedError):  # it is another run's
                workshop.tidy(out, keep=False, suffix=SUFFIX)
            return change.report(out, pack, began)
        work = _Work(pack, out, change, on_error, progress, began)
        with workshop.opened(out, suffix=SUFFIX) as shop:
            return work.into(shop, clock, num_workers, shard_size)


def _check_sharded(pack: packs.Pack) -> None:
    names = [str(shard["name"]) for shard in pack.metadata["shards"]]
    if pack.path.is_dir() and "." not in names and pack.index_file.path.parent == pack.path:
        return
    raise OptionError(
        f"{pack.path}: not a folder of shards, which appending needs; make one of it: "
        f"packio convert {pack.path} NEW{pack.path.suffix} --shard-size 1GB"
    )


def _as_path(source: Any, out: Path) -> Any:
    if isinstance(source, (str, os.PathLike)) and os.path.lexists(source):
        source = Path(source)
        preflight.refuse_nesting(source, out)
    return source


def _listed(reader: Any, source: Any, *, on_error: str, options: dict[str, Any]) -> Listing:
    unknown = sorted(set(options) - set(getattr(reader, "OPTIONS", ())))
    if unknown:
        raise OptionError(f"{', '.join(unknown)}: no option of {reader.__name__.split('.')[-1]}")
    if on_error not in ("raise", "skip"):
        raise OptionError(f"on_error={on_error!r}: expected 'raise' or 'skip'")
    if isinstance(source, (str, os.PathLike)):
        listing: Listing = reader.listing(Path(source), allow_empty=True, **options)
    else:
        listing = reader.of(source, **options)
    return listing


@dataclasses.dataclass(frozen=True)
class _Change:
    """How a source differs from a pack."""

    listing: Listing  # with labels as the pack counts them
    new: list[int]  # positions in the listing
    changed: list[str]
    deleted: list[str]
    classes: list[str]
    new_classes: list[str]

    @staticmethod
    def between(pack: packs.Pack, listing: Listing) -> _Change:
        """Compare keys, and the contents of files that have changed since the pack was made."""
        listing, classes, new_classes = _with_classes_of(pack, listing)
        keys = {pack.key_bytes(i): i for i in range(len(pack))}
        new = [i for i, key in enumerate(listing.keys) if key not in keys]
        common = listing.take([i for i, key in enumerate(listing.keys) if key in keys])
        treatment, index = _treatment(pack), pack.index_file
        clock = index.path.stat().st_mtime_ns
        changed = existing.changed(common, index, clock, treatment)
        deleted = keys.keys() - set(listing.keys)
        return _Change(
            listing, new, sorted(map(os.fsdecode, changed)), sorted(map(os.fsdecode, deleted)),
            classes, new_classes,
        )  # fmt: skip

    def report(
        self, out: Path, pack: packs.Pack, began: float, *, added: int = 0, skipped: int = 0
    ) -> AppendReport:
        """What it comes to, for a pack as it is now."""
        known = len(self.listing.keys) - len(self.new) - len(self.changed)
        return AppendReport(
            out, added, known, tuple(self.changed), tuple(self.deleted), skipped,
            tuple(self.new_classes), len(pack), pack.digest, time.monotonic() - began,
            tuple(self.listing.warnings),
        )  # fmt: skip


def _treatment(pack: packs.Pack) -> Treatment:
    """What was done to the samples when the pack was made."""
    names = {field.name for field in dataclasses.fields(Encoding)}
    options = pack.metadata.get("options") or {}
    encoding = Encoding(**{n: v for n, v in options.items() if n in names})
    return Treatment(encoding, options.get("check", "header"), bool(options.get("seekable")))


def _with_classes_of(pack: packs.Pack, listing: Listing) -> tuple[Listing, list[str], list[str]]:
    """Count labels as a pack does; classes that it has not come behind those it has."""
    old, labels = pack.labels, listing.labels
    kinds = [None if x is None else np.asarray(x).shape[1:] for x in (old, labels)]
    if kinds[0] != kinds[1] and len(listing.keys):
        raise OptionError(
            f"{pack.path}: labels of shape {kinds[0]}, the source's are {kinds[1]}; "
            "expected the same kind"
        )
    if not isinstance(labels, list) or bool(pack.classes) != bool(listing.classes):
        return listing, pack.classes, []
    new = [name for name in listing.classes if name not in set(pack.classes)]
    classes = pack.classes + new
    numbers = {name: i for i, name in enumerate(classes)}
    mapped = [numbers[name] for name in listing.classes]
    moved = [mapped[label] for label in labels] if listing.classes else labels
    return dataclasses.replace(listing, labels=moved, classes=classes), classes, new


class _Work:
    """Writing the new shards of a pack, and its new index."""

    def __init__(
        self, pack: packs.Pack, out: Path, change: _Change, on_error: str,
        progress: ProgressCallback | None, began: float,
    ) -> None:  # fmt: skip
        self._pack, self._out, self._change, self._began = pack, out, change, began
        self._skip, self._progress = on_error == "skip", progress
        self._container = registry.load("formats", pack.metadata["format"])
        self._names = [str(shard["name"]) for shard in pack.metadata["shards"]]

    def into(
        self, shop: workshop.Workshop, clock: int, num_workers: int | None, shard_size: int | None
    ) -> AppendReport:
        """Write the shards in a workshop; move them into the pack, the index last."""
        pack, change = self._pack, self._change
        options = pack.metadata.get("options") or {}
        writer_options = {
            name: options[name]
            for name in getattr(self._container, "OPTIONS", ())
            if name in options
        }
        listing = change.listing.take(change.new)
        shares = tuple((str(n), float(s)) for n, s in options.get("split") or ())
        if shares and listing.keys:
            listing = Choice(split=shares, seed=options.get("seed", 0)).of(listing)
        plan = planning.make(
            listing, pack.metadata["format"], options,
            shard_size=shard_size or _largest(pack), writer_options=writer_options,
        )  # fmt: skip
        treatment = _treatment(pack)
        workers = num_workers or processors.usable()
        if not planning.portable(listing):
            workers = 1
        means = Means(workers=workers, progress=self._progress)
        run = Run(plan, self._out, treatment, means, self._began, skip=self._skip,
                  first=1 + max(map(_number, self._names)))  # fmt: skip
        finished = run.write(shop) if listing.keys else []
        names = [run.name(number) for number in range(len(finished))]
        full = [(n, s) for n, s in zip(names, finished, strict=True) if s.metadata["samples"]]
        skipped = assembly.skipped(finished)
        shop.built.mkdir(exist_ok=True)
        self._write_index(shop.built, full, len(skipped) + len(listing.unlisted), clock)
        self._publish(shop.built)
        shop.keep = False
        with packs.open(self._out) as now:
            return change.report(self._out, now, self._began, added=len(now) - len(pack),
                                 skipped=len(skipped))  # fmt: skip

    def _write_index(
        self, built: Path, full: Sequence[tuple[str, indexfile.Index]], skipped: int, clock: int
    ) -> None:
        """Write the index of the whole pack as it will be."""
        pack, old = self._pack, assembly.columns_of(self._pack.index_file)
        paths = [name for name, _, _ in pack.index_file.files()]
        data = assembly.data_files(old)
        whole = set(self._finished_names())
        kept = [i for i, path in enumerate(paths) if path not in whole]
        old |= made.chosen_files(old, kept)
        tables = assembly.alike([old, *(assembly.columns_of(shard) for _, shard in full)])
        if len({tuple(sorted(table)) for table in tables}) > 1:
            raise OptionError(
                f"{self._out}: the new samples have other fields (masks, boxes, meta, labels) than "
                "those of the pack"
            )
        columns = made.joined(tables, [data, *(s.metadata["files"] for _, s in full)])
        metadata = dict(pack.metadata)
        new = [{"name": n, "samples": s.metadata["samples"], **s.metadata["info"]} for n, s in full]
        metadata["shards"] = [*metadata["shards"], *new]
        metadata["classes"] = self._change.classes
        counts, added = metadata["counts"], sum(s["samples"] for s in new)
        metadata["counts"] = {
            "found": counts["found"] + added + skipped, "packed": counts["packed"] + added,
            "skipped": counts["skipped"] + skipped,
        }  # fmt: skip
        if "identity" in metadata:
            more = [shard.metadata["identity"] for _, shard in full]
            metadata["identity"] = [*metadata["identity"], *more]
        parts = [str(metadata.get("plan")), *(s.metadata["plan"] for _, s in full)]
        metadata["plan"] = hashlib.sha256(" ".join(parts).encode()).hexdigest()
        sidecars = self._whole_sidecars(built, [name for name, _ in full])
        if sidecars:
            table = made.of_files(built, sidecars)
            columns |= made.joined_files(
                [columns, table], [len(columns["file_bytes"]), len(sidecars)]
            )
        indexfile.write(built / indexfile.INDEX_NAME, columns, metadata)
        before = self._pack.index_file.path.stat().st_mtime_ns  # changed files stay noticed
        existing.stamp(built / indexfile.INDEX_NAME, before if self._change.changed else clock)

    def _finished_names(self) -> list[str]:
        """Sidecars that concern the whole pack."""
        names = {name for name, _, _ in self._pack.index_file.files()}
        return sorted(n for n in names if not any(_belongs(n, shard) for shard in self._names))

    def _whole_sidecars(self, built: Path, new: Sequence[str]) -> list[str]:
        if not hasattr(self._container, "finish"):
            return []
        links = [self._out / name for name, _, _ in self._pack.index_file.files()]
        for path in links:  # `finish` looks at all shards in one folder
            target = built / path.relative_to(self._out)
            if not target.exists() and path.name not in self._finished_names():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(path)
        try:
            sidecars: list[str] = self._container.finish(built, [*self._names, *new])
        finally:
            for path in links:
                target = built / path.relative_to(self._out)
                if target.is_symlink():
                    target.unlink()
        return sidecars

    def _publish(self, built: Path) -> None:
        """Move the shards into the pack, then its sidecars, then the index over the old one."""
        files.sync_tree(built)
        names = sorted(path.name for path in built.iterdir())
        names.sort(key=lambda name: (name == indexfile.INDEX_NAME, name in self._finished_names()))
        for name in names:
            target = self._out / name
            if (built / name).is_dir():
                files.remove(target)  # of an append that was cut short
            (built / name).replace(target)
        files.sync(self._out)


def _belongs(file: str, shard: str) -> bool:
    """Tell whether a file of a pack is a shard's: it, in it, or a sidecar of its name."""
    stem = shard.rpartition(".")[0] or shard
    return file == shard or file.startswith((f"{shard}/", f"{stem}."))


def _number(name: str) -> int:
    """Of a shard, by its name."""
    digits = (name.rpartition(".")[0] or name).rpartition("-")[2]
    if not digits.isdigit():
        raise OptionError(f"{name}: the shards of the pack are not numbered; convert it first")
    return int(digits)


def _largest(pack: packs.Pack) -> int:
    lengths = pack.index_file.column("length").array()
    edges = np.cumsum([0, *(int(shard["samples"]) for shard in pack.metadata["shards"])])
    sums = [int(lengths[a:b].sum()) for a, b in itertools.pairwise(edges)]
    return max(1, *sums)
