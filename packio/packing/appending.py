"""Appending: new samples of a source become new shards of a pack, which stays readable meanwhile.

Samples are told apart by their keys. Those that the pack has stay as they are. New samples are
chosen and made as the pack's recipe says, and written to shards beside the old ones. Then a new
index takes the place of the old index in one step. Until then nothing changes for readers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio import registry
from packio.errors import OptionError
from packio.index import columns as made
from packio.index import indexfile
from packio.packing import sourcing
from packio.packing.plan import existing, seen
from packio.packing.plan import plan as planning
from packio.packing.plan.choosing import Choice
from packio.packing.plan.relabelled import relabelled
from packio.packing.run import assembly
from packio.packing.run.reading import Treatment
from packio.packing.run.running import Means, Run
from packio.packs import packs
from packio.sample.recipe import Recipe
from packio.sample.relabelling import Relabelling, all_classes
from packio.sources import Context, Listing, listed, wanted_fields
from packio.storage import workshop
from packio.system import files, processors
from packio.system.progress import ProgressCallback

SUFFIX = ".packio-append"  # of the workshop: unlike that of packing, it does not bar readers


@dataclasses.dataclass(frozen=True, slots=True)
class AppendReport:
    """What appending did.

    Attributes:
        out: The pack.
        added: Samples that are new in it.
        unchanged: Samples of the source that it has already.
        changed: Keys of samples whose bytes or annotations differ in the source now; the pack keeps
            what it has.
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
    fields: sourcing.Wanted | None = None,
    progress: ProgressCallback | None = None,
    **options: Any,
) -> AppendReport:
    """Add what is new in a source to a pack of shards; running it again adds nothing more.

    New samples are chosen and made by the recipe of the pack: its encoding, patterns, limit and
    splits. Labels go by class name; new classes come behind the old ones.

    Args:
        path: A pack that is a folder of shards.
        source: As `pack` takes; the same one as before, grown, or one with other keys.
        source_kind: Name of the source's module, where the path does not say it.
        shard_size: Source bytes of a new shard; None: what the largest shard of the pack has.
        num_workers: Processes that write shards.
        on_error: "raise": add nothing where a new image is bad. "skip": leave it out.
        fields: Named fields to take from the source, as `pack` takes them; None: as the pack's
            recipe says.
        progress: Called with a `Progress` about ten times a second, and at the end.
        options: What the source's module takes by its ``options``; what is not given is as it was
            when the pack was made.

    Raises:
        OptionError: the pack is a single file, was merged of packs that were made in different
            ways, or has labels or splits of another kind.
        SourceError, BadImagesError, OutputError, LockedError: see `pack`.
    """
    began = time.monotonic()
    if on_error not in ("raise", "skip"):
        raise OptionError(f"on_error={on_error!r}: expected 'raise' or 'skip'")
    out = Path(os.path.abspath(path))
    if not out.is_dir():  # say so before a workshop is made beside it
        with packs.open(out) as pack:
            _check_sharded(pack)
    with (
        workshop.opened(out, suffix=SUFFIX) as shop,
        existing.locked(out / indexfile.INDEX_NAME),
        packs.open(out) as pack,
    ):
        _check_sharded(pack)
        recipe = _recipe(pack)
        listing = _listed(sourcing.located(source, out), out, source_kind, recipe, options, fields)
        change = _compared(pack, listing, recipe)
        added, skipped, digest = 0, 0, pack.digest
        if change.new.keys or change.new_classes:
            means = Means(workers=_workers(num_workers, listing), progress=progress)
            plan = planning.make(
                change.new, pack.metadata["format"], recipe, shard_size=shard_size or _largest(pack)
            )
            added, skipped, digest = _written(
                shop, pack, plan, change, means, began, skip=on_error == "skip"
            )
        shop.keep = False
        return AppendReport(
            out, added, change.known - len(change.changed), tuple(change.changed),
            tuple(change.deleted), skipped, tuple(change.new_classes), len(pack) + added, digest,
            time.monotonic() - began, tuple(change.new.warnings),
        )  # fmt: skip


def _check_sharded(pack: packs.Pack) -> None:
    names = [str(shard["name"]) for shard in pack.metadata["shards"]]
    if pack.path.is_dir() and "." not in names and pack.index_file.path.parent == pack.path:
        return
    raise OptionError(
        f"{pack.path}: not a folder of shards, which appending needs; make one of it: "
        f"packio convert {pack.path} NEW{pack.path.suffix} --shard-size 1GB"
    )


def _recipe(pack: packs.Pack) -> Recipe:
    recipe = Recipe.of(pack.metadata)
    if recipe.is_mixed:
        raise OptionError(
            f"{pack.path}: merged of packs that were encoded or chosen in different ways, so it is "
            "unknown how new samples shall be made; pack them on their own, then merge"
        )
    return recipe


def _listed(
    source: Any, out: Path, source_kind: str | None, recipe: Recipe, options: dict[str, Any],
    fields: sourcing.Wanted | None,
) -> Listing:  # fmt: skip
    """List the whole source, read as it was when the pack was made."""
    reader = planning.source_of(source, source_kind)
    before: dict[str, Any] = {}
    if reader.name == recipe.source:
        before = {n: v for n, v in recipe.reading.items() if n in reader.options}
        fields = recipe.reading.get("fields") if fields is None else fields
    context = Context(
        allow_empty=True, scratch=sourcing.scratch(out), fields=wanted_fields(fields),
        options={**before, **options},
    )  # fmt: skip
    return listed(reader, source, context)


class _Change(NamedTuple):
    """How a source differs from a pack."""

    new: Listing  # the samples to add, with labels and splits as the pack will count them
    known: int  # samples of the source that the pack has
    changed: list[str]
    deleted: list[str]
    new_classes: list[str]
    split_names: list[str]


def _compared(pack: packs.Pack, listing: Listing, recipe: Recipe) -> _Change:
    """Compare keys; compare bytes and annotations of samples that both have."""
    classes = all_classes([pack.classes, listing.classes])
    _check_labels(pack, listing)
    listing = relabelled(listing, classes, str(listing.root or "the source"))
    keys = {pack.key_bytes(i) for i in range(len(pack))}
    common = listing.take([i for i, key in enumerate(listing.keys) if key in keys])
    changed = existing.changed(
        common, pack.index_file, seen.load(pack.digest, len(pack)), Treatment.of(recipe)
    )
    new = Choice.made(recipe.choice).of_new(listing, keys)
    new, split_names = _with_splits_of(pack, new)
    return _Change(
        new, len(common.keys), sorted(map(os.fsdecode, changed)),
        sorted(map(os.fsdecode, keys - set(listing.keys))), classes[len(pack.classes) :],
        split_names,
    )  # fmt: skip


def _check_labels(pack: packs.Pack, listing: Listing) -> None:
    """Refuse labels of another kind than those of the pack.

    Raises:
        OptionError: ints and vectors, vectors of another length, or only one has labels or names.
    """
    if not listing.keys:
        return
    old = pack.labels
    new = None if listing.labels is None else np.asarray(listing.labels)
    named = bool(pack.classes), bool(listing.classes)
    kinds = [None if x is None else x.shape[1:] for x in (old, new)]
    if all(named):  # names bring vectors of other lengths in line
        kinds = [None if kind is None else (len(kind),) for kind in kinds]
    if kinds[0] != kinds[1]:
        raise OptionError(
            f"{pack.path}: labels of shape {kinds[0]}, the source's are {kinds[1]}; "
            "expected the same kind"
        )
    if named == (False, True) and (old is not None or "boxes/labels" in pack.index_file):
        raise OptionError(
            f"{pack.path}: its labels are numbers without class names, the source's have names; "
            f"name them first: packio pack {pack.path} NEW{pack.path.suffix} --classes-from"
        )


def _with_splits_of(pack: packs.Pack, listing: Listing) -> tuple[Listing, list[str]]:
    """Count the splits of new samples as the pack does; return them, and the names of all."""
    old = list(pack.metadata.get("splits") or [])
    if not listing.keys or (listing.splits is None and not old):
        return listing, old
    if listing.splits is None or not old:
        raise OptionError(
            f"{pack.path}: has {'splits' if old else 'no splits'}, the source has "
            f"{'none' if old else 'some'}; expected both or neither"
        )
    names = all_classes([old, listing.split_names])
    table = np.array([names.index(name) for name in listing.split_names], np.uint8)
    splits = table[np.asarray(listing.splits)]
    return dataclasses.replace(listing, splits=splits, split_names=names), names


def _workers(num_workers: int | None, listing: Listing) -> int:
    return (num_workers or processors.usable()) if planning.portable(listing) else 1


def _largest(pack: packs.Pack) -> int:
    lengths = pack.index_file.column("image/length").array()
    edges = np.cumsum([0, *(int(shard["samples"]) for shard in pack.metadata["shards"])])
    sums = [int(lengths[a:b].sum()) for a, b in itertools.pairwise(edges)]
    return max(1, *sums)


def _written(
    shop: workshop.Workshop, pack: packs.Pack, plan: planning.Plan, change: _Change, means: Means,
    began: float, *, skip: bool,
) -> tuple[int, int, str]:  # fmt: skip
    """Write the new shards and the new index, and move them into the pack.

    Returns:
        How many samples were added, how many are bad, and the pack's new digest.
    """
    first = 1 + max(_number(str(shard["name"])) for shard in pack.metadata["shards"])
    run = Run(plan, pack.index_file.path.parent, means, began, skip=skip, first=first)
    finished = run.write(shop) if plan.listing.keys else []
    full = [(run.name(n), s) for n, s in enumerate(finished) if s.metadata["samples"]]
    skipped = len(assembly.skipped(finished))
    shop.built.mkdir(exist_ok=True)
    whole = _whole_sidecars(pack)
    columns, identities = _columns(pack, full, change, whole, shop.built)
    metadata = _metadata(pack, full, change, skipped + len(plan.listing.unlisted))
    index = shop.built / indexfile.INDEX_NAME
    digest = indexfile.write(index, columns, metadata)
    with existing.locked(index):  # before others see it
        _publish(shop.built, pack.index_file.path.parent, whole)
    seen.save(digest, identities)
    return sum(s.metadata["samples"] for _, s in full), skipped, digest


def _number(name: str) -> int:
    """Number of a shard, by its name."""
    digits = (name.rpartition(".")[0] or name).rpartition("-")[2]
    if not digits.isdigit():
        raise OptionError(f"{name}: the shards of the pack are not numbered; convert it first")
    return int(digits)


def _whole_sidecars(pack: packs.Pack) -> set[str]:
    """Files that belong to the whole pack, not to one of its shards."""
    shards = [str(shard["name"]) for shard in pack.metadata["shards"]]
    names = {name for name, _, _ in pack.index_file.files()}
    return {n for n in names if not any(_belongs(n, shard) for shard in shards)}


def _belongs(file: str, shard: str) -> bool:
    """Tell whether a file of a pack is a shard, lies in a shard, or is a sidecar of its name."""
    stem = shard.rpartition(".")[0] or shard
    return file == shard or file.startswith((f"{shard}/", f"{stem}."))


def _columns(
    pack: packs.Pack, full: Sequence[tuple[str, indexfile.Index]], change: _Change, whole: set[str],
    built: Path,
) -> tuple[assembly.Table, np.ndarray]:  # fmt: skip
    """Columns of the index as they will be, and the identities of all source files."""
    old = assembly.columns_of(pack.index_file)
    data = assembly.data_files(old)
    paths = [name for name, _, _ in pack.index_file.files()]
    old |= made.chosen_files(old, [i for i, path in enumerate(paths) if path not in whole])
    classes = [*pack.classes, *change.new_classes]
    old = Relabelling(pack.classes, classes, str(pack.path)).columns(old)
    new, identities = assembly.without_identities([assembly.columns_of(s) for _, s in full])
    tables = assembly.alike([old, *new], str(pack.path))
    columns = made.joined(tables, [data, *(s.metadata["files"] for _, s in full)])
    known = seen.load(pack.digest, len(pack))
    if identities is not None:
        known = np.concatenate([known, identities])
    container = registry.load("formats", pack.metadata["format"])
    names = [str(s["name"]) for s in pack.metadata["shards"]] + [n for n, _ in full]
    with _linked_beside(pack, built, whole):  # the format looks at all shards in one folder
        return assembly.with_sidecars(columns, container, built, names), known


@contextlib.contextmanager
def _linked_beside(pack: packs.Pack, built: Path, whole: set[str]) -> Iterator[None]:
    """Link the files of the old shards into the folder of the new ones, for a moment."""
    names = [name for name, _, _ in pack.index_file.files() if name not in whole]
    try:
        for name in names:
            (built / name).parent.mkdir(parents=True, exist_ok=True)
            (built / name).symlink_to(pack.index_file.path.parent / name)
        yield
    finally:
        for top in {name.partition("/")[0] for name in names}:
            files.remove(built / top)


def _metadata(
    pack: packs.Pack, full: Sequence[tuple[str, indexfile.Index]], change: _Change, skipped: int
) -> dict[str, Any]:
    metadata, new = dict(pack.metadata), assembly.of_shards(full)
    counts, added = metadata["counts"], sum(shard["samples"] for shard in new)
    plans = [str(metadata.get("plan")), *(s.metadata["plan"] for _, s in full)]
    metadata |= {
        "version": indexfile.VERSION,
        "fields": assembly.all_fields([pack.fields, *(s.fields for _, s in full)]),
        "shards": [*metadata["shards"], *new],
        "classes": [*pack.classes, *change.new_classes],
        "counts": {
            "found": counts["found"] + added + skipped, "packed": counts["packed"] + added,
            "skipped": counts["skipped"] + skipped,
        },
        "recipe": Recipe.of(metadata).as_json(),
        "plan": hashlib.sha256(" ".join(plans).encode()).hexdigest(),
    }  # fmt: skip
    if change.split_names:
        metadata["splits"] = change.split_names
    if "identity" in metadata:
        metadata["identity"] = [*metadata["identity"], *(s.metadata["identity"] for _, s in full)]
    metadata.pop("options", None)  # of version 1: the recipe says the same
    return metadata


def _publish(built: Path, out: Path, whole: set[str]) -> None:
    """Move the shards into the pack, then its sidecars, then the index over the old one."""
    files.sync_tree(built)
    names = sorted(path.name for path in built.iterdir())
    names.sort(key=lambda name: (name == indexfile.INDEX_NAME, name in whole))
    for name in names:
        target = out / name
        if (built / name).is_dir():
            files.remove(target)  # of an append that was cut short
        (built / name).replace(target)
    files.sync(out)
