"""Appending: new samples of a source become new shards of a pack, which stays readable meanwhile.

Samples are told apart by their keys. Samples that the pack has stay as they are. New samples are
chosen and made as the pack's recipe says, and written to shards beside the old ones. Then a new
index takes the place of the old index in one step. Until then nothing changes for readers.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import shlex
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from packio.errors import NotAPackError, OptionError, PackioError, UnfinishedPackError
from packio.index import indexfile
from packio.index.layout import origins_of
from packio.packing import sourcing
from packio.packing.fields.job import check_none_left
from packio.packing.images.levels import without_levels
from packio.packing.plan import planning
from packio.packing.plan.growth import Growth, changed_keys, find_growth
from packio.packing.publish import adding
from packio.packing.run import sameness
from packio.packing.run.running import Means, Run
from packio.packs import locating, opening
from packio.sample import levels
from packio.sample.recipe import Recipe
from packio.sources import FRAMES, Context, Listing, Source, listed, wanted_fields
from packio.sources.pack import PackListing
from packio.storage import workshop
from packio.system import locks
from packio.system.files import absolute, beyond_link
from packio.system.progress import ProgressCallback

_ROOTS = ("root", "folder")  # options of sources that say which folder keys are relative to


@dataclasses.dataclass(frozen=True, slots=True)
class AppendReport:
    """What appending did.

    Attributes:
        out: The pack.
        added: Samples that are new in it.
        known: Samples of the source that the pack had already, by their keys.
        changed: Keys of such samples whose bytes or annotations differ in the source now; the pack
            keeps what it has. None if they were not compared: `compare` does.
        deleted: Keys of samples that the source does not have; the pack keeps them.
        skipped: Samples that could not be added, with on_error="skip".
        new_classes: Names of new classes; their numbers follow those of the old classes.
        total: Samples in the pack now.
        digest: Hexadecimal SHA-256 of the index.
        seconds: Duration of the whole run.
        warnings: One line each.
    """

    out: Path
    added: int
    known: int
    changed: tuple[str, ...] | None
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
    shard_size: int | str | None = None,
    num_workers: int | None = None,
    on_error: str = "raise",
    fields: Mapping[str, Any] | None = None,
    compare: bool = False,
    progress: ProgressCallback | None = None,
    **options: Any,
) -> AppendReport:
    """Add the new samples of a source to a pack of shards. A second run adds nothing more.

    A sample is new if the pack does not have its key. New samples are chosen and made by the recipe
    of the pack: its encoding, levels, patterns, limit and splits. Labels go by class name; new
    classes get the numbers that follow.

    Args:
        path: A pack that is a folder of shards.
        source: As `pack` takes. It may be the source of before, grown, or one with other keys.
        source_kind: Name of the source's module, if the path does not say it.
        shard_size: Source bytes of a new shard; None takes the size of the pack's largest shard.
        num_workers: Number of processes that write shards.
        on_error: "raise": add nothing if a new image is bad. "skip": leave bad images out.
        fields: Named fields to take from the source, as `pack` takes them; None takes those of the
            pack's recipe.
        compare: Add nothing: compare the samples that both have, by CRC32C and annotations, and
            list those that differ.
        progress: Called with a `Progress` about ten times a second, and at the end.
        options: Options of the source's module. An option that is not given has the value that it
            had when the pack was made.

    Raises:
        OptionError: the pack is a single file, was merged of packs that were made in different
            ways, or has labels or splits of another kind; or the keys of the source are relative to
            another folder now.
        OutputExistsError: `add_field` was cut short, and what a callable made would be lost.
        SourceError, BadImagesError, OutputError, LockedError: see `pack`.
    """
    began = time.monotonic()
    if on_error not in ("raise", "skip"):
        raise OptionError(f"on_error={on_error!r}: expected 'raise' or 'skip'")
    shard_size = sourcing.byte_count("shard_size", shard_size)
    sourcing.check_positive(num_workers=num_workers, shard_size=shard_size)
    out = beyond_link(absolute(path))
    _refuse_swapped(out, source)
    source = sourcing.locate_source(source, out)

    def compare_keys(pack: opening.Pack) -> Growth:
        reader = sourcing.find_source(source, source_kind)
        listing = _list_again(reader, source, out, options, fields, pack)
        roots = [name for name in _ROOTS if name in reader.options]
        return find_growth(pack, listing, _recipe(pack), roots)

    if compare or not out.is_dir():  # say so before a workshop is made beside it
        with _open_pack(out) as pack:
            _check_sharded(pack)
            growth = compare_keys(pack)
            changed = tuple(changed_keys(pack, growth, _recipe(pack)))
            return _report(pack, growth, adding.Added(0, 0, pack.digest, []), began, changed)
    check_none_left(out, "appending")
    was_killed = os.path.lexists(out.with_name(out.name + indexfile.APPENDING_SUFFIX))
    with (
        workshop.opened(out, suffix=indexfile.APPENDING_SUFFIX) as shop,
        locks.changing(out / indexfile.INDEX_NAME),
        _open_pack(out) as pack,
    ):
        _check_sharded(pack)
        if was_killed:
            adding.undo_killed(pack, shop.built)
        growth = compare_keys(pack)
        added = adding.Added(0, 0, pack.digest, [])
        if growth.new.keys or growth.new_classes:
            plan = planning.make(
                growth.new, pack.metadata["format"], _recipe(pack),
                shard_size=shard_size or _largest_shard(pack),
            )  # fmt: skip
            means = Means(workers=planning.count_workers(plan, num_workers), progress=progress)
            run = Run(
                plan, pack.index_file.path.parent, means, began, skip=on_error == "skip",
                first=adding.first_number(pack),
            )  # fmt: skip
            shards = run.write(shop) if growth.new.keys else []
            names = [run.name(number) for number in range(len(shards))]
            added = adding.add(pack, names, shards, growth, shop.built)
            added.warnings.extend(
                _warn_of_lacking(pack, [name for shard in shards for name in shard.fields])
            )
        shop.keep = False
        return _report(pack, growth, added, began, None)


def _report(
    pack: opening.Pack, growth: Growth, added: adding.Added, began: float,
    changed: tuple[str, ...] | None,
) -> AppendReport:  # fmt: skip
    return AppendReport(
        pack.path, added.samples, len(growth.rows), changed, tuple(map(os.fsdecode, growth.gone)),
        added.skipped, tuple(growth.new_classes), len(pack) + added.samples, added.digest,
        time.monotonic() - began, (*growth.new.warnings, *added.warnings),
    )  # fmt: skip


def _refuse_swapped(out: Path, source: Any) -> None:
    """Refuse a source and a pack in the wrong order."""
    is_path = isinstance(source, (str, os.PathLike))
    if not is_path or locating.has_index(out) or not locating.has_index(Path(source)):
        return
    try:
        opening.open(out).close()
    except NotAPackError as error:
        if not os.path.lexists(out):
            raise
        raise OptionError(f"{error}; {source} is a pack: name it first, then the source") from error
    except PackioError:  # it is told below
        return


def _warn_of_lacking(pack: opening.Pack, there: Collection[str]) -> list[str]:
    """Warn of fields of the pack that none of the new samples has."""
    return [
        f"the new samples have no {name}; to add it to them: packio add "
        f"{shlex.quote(str(pack.path))} --field {name}=FROM --only-new"
        for name in pack.fields
        if name not in there and not levels.divisor_of(name)
    ]


def _open_pack(out: Path) -> opening.Pack:
    """Open the pack."""
    try:
        return opening.open(out)
    except UnfinishedPackError:
        workshop.check_idle(out)
        raise


def _check_sharded(pack: opening.Pack) -> None:
    if chosen := pack.metadata.get("selection"):
        raise OptionError(f"{pack.path}: a selection; append to its pack, {chosen['pack']}")
    names = [str(shard["name"]) for shard in pack.metadata["shards"]]
    if pack.path.is_dir() and "." not in names and pack.index_file.path.parent == pack.path:
        return
    raise OptionError(
        f"{pack.path}: not a folder of shards, which appending needs; make one of it: "
        f"packio convert {shlex.quote(str(pack.path))} NEW{pack.path.suffix} --shard-size 1GB"
    )


def _recipe(pack: opening.Pack) -> Recipe:
    recipe = Recipe.of(pack.metadata)
    if recipe.is_mixed:
        raise OptionError(
            f"{pack.path}: merged of packs that were encoded or chosen in different ways, so it is "
            "unknown how new samples shall be made; pack them on their own, then merge"
        )
    return recipe


def _list_again(
    reader: Source, source: Any, out: Path, options: Mapping[str, Any],
    fields: Mapping[str, Any] | None, pack: opening.Pack,
) -> Listing:  # fmt: skip
    """List the whole source, with the options that it had when the pack was made.

    A source of the pack's kind gives its fields under the names that the pack has for them now.
    Fields that the pack has lost are asked for, too, and left out: their files or columns would be
    taken for something else, as images of depth for samples.
    """
    sourcing.check_options(options, reader)
    recipe = _recipe(pack)
    is_alike = reader.name == recipe.source != "pack"  # a pack may have the names of now
    before = recipe.reading if reader.name == recipe.source else {}
    known = {*reader.options, *FRAMES}
    options = {**{n: v for n, v in before.items() if n in known}, **options}
    became = origins_of(pack.metadata) if is_alike else {}
    given = before.get("fields") or {}
    lost = {n: o for n, o in given.items() if not is_alike or became.get(n, n) is None}
    if fields is not None:
        asked, lost = fields, lost if is_alike else {}
    else:
        asked = {name: origin for name, origin in given.items() if name not in lost}

    def found(fields: Mapping[str, Any]) -> Listing:
        context = Context(
            allow_empty=True, scratch=sourcing.scratch_folder(out), fields=wanted_fields(fields),
            options=options,
        )  # fmt: skip
        return without_levels(listed(reader, source, context))

    try:
        listing = found({**lost, **asked})
    except OptionError:
        if not lost:
            raise
        listing = found(asked)  # nothing is left of what the pack has lost
    told = tuple(f"have no file for {name!r}" for name in lost.keys() - asked.keys())
    listing.warnings[:] = [line for line in listing.warnings if not line.endswith(told)]
    if isinstance(listing, PackListing):  # of a container of others, as the pack was made of
        (one,) = (source.metadata for source in listing.packs)
        if "recipe" not in one and Recipe.of(one).source == recipe.source:
            became = origins_of(pack.metadata)
    return sameness.as_in_pack(listing, became, fields or ())


def _largest_shard(pack: opening.Pack) -> int:
    """Bytes of the images of the pack's largest shard."""
    lengths = pack.index_file.column("image/length").array()
    edges = np.cumsum([0, *(int(shard["samples"]) for shard in pack.metadata["shards"])])
    return max(1, *(int(lengths[a:b].sum()) for a, b in itertools.pairwise(edges)))
