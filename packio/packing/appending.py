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
from packio.index.metadata import origins_of
from packio.packing import sourcing
from packio.packing.fields import journal
from packio.packing.plan import growth, levelled, planning, renamed
from packio.packing.publish import adding
from packio.packing.run.running import Means, Run
from packio.packs import locating, opening
from packio.sample import levels
from packio.sample.recipe import Recipe
from packio.sources import FRAMES, Context, Listing, listed, wanted_fields
from packio.storage import workshop
from packio.system import locks
from packio.system.files import absolute, beyond_link
from packio.system.progress import ProgressCallback


@dataclasses.dataclass(frozen=True, slots=True)
class AppendReport:
    """What appending did.

    Attributes:
        out: The pack.
        added: Samples that are new in it.
        unchanged: Samples of the source that the pack has already, with the same contents.
        changed: Keys of samples whose bytes or annotations differ in the source now; the pack keeps
            what it has.
        deleted: Keys of samples that the source has no more; the pack keeps them.
        skipped: Samples that could not be added, with on_error="skip".
        new_classes: Names of new classes; their numbers follow those of the old classes.
        total: Samples in the pack now.
        digest: Hexadecimal SHA-256 of the new index.
        seconds: Duration of the whole run.
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
    shard_size: int | str | None = None,
    num_workers: int | None = None,
    on_error: str = "raise",
    fields: Mapping[str, Any] | None = None,
    progress: ProgressCallback | None = None,
    **options: Any,
) -> AppendReport:
    """Add the new samples of a source to a pack of shards. A second run adds nothing more.

    New samples are chosen and made by the recipe of the pack: its encoding, levels, patterns, limit
    and splits. Labels go by class name; new classes get the numbers that follow.

    Args:
        path: A pack that is a folder of shards.
        source: As `pack` takes. It may be the source of before, grown, or one with other keys.
        source_kind: Name of the source's module, if the path does not say it.
        shard_size: Source bytes of a new shard; None takes the size of the pack's largest shard.
        num_workers: Number of processes that write shards.
        on_error: "raise": add nothing if a new image is bad. "skip": leave bad images out.
        fields: Named fields to take from the source, as `pack` takes them; None takes those of the
            pack's recipe.
        progress: Called with a `Progress` about ten times a second, and at the end.
        options: Options of the source's module. An option that is not given has the value that it
            had when the pack was made.

    Raises:
        OptionError: the pack is a single file, was merged of packs that were made in different
            ways, or has labels or splits of another kind.
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
    if not out.is_dir():  # say so before a workshop is made beside it
        with _opened(out) as pack:
            _check_sharded(pack)
    journal.check_none_left(out, "appending")
    was_killed = os.path.lexists(out.with_name(out.name + indexfile.APPENDING_SUFFIX))
    with (
        workshop.opened(out, suffix=indexfile.APPENDING_SUFFIX) as shop,
        locks.changing(out / indexfile.INDEX_NAME),
        _opened(out) as pack,
    ):
        _check_sharded(pack)
        if was_killed:
            adding.undo_killed(pack, shop.built)
        recipe = _recipe(pack)
        listing = _listed(
            sourcing.located(source, out), out, source_kind, recipe, options, fields, pack
        )
        grown = growth.compared(pack, listing, recipe)
        added = adding.Added(0, 0, pack.digest, [])
        if grown.new.keys or grown.new_classes:
            plan = planning.make(
                grown.new, pack.metadata["format"], recipe, shard_size=shard_size or _largest(pack)
            )
            means = Means(workers=planning.workers(plan, num_workers), progress=progress)
            run = Run(
                plan, pack.index_file.path.parent, means, began, skip=on_error == "skip",
                first=adding.first_number(pack),
            )  # fmt: skip
            shards = run.write(shop) if grown.new.keys else []
            names = [run.name(number) for number in range(len(shards))]
            added = adding.add(pack, names, shards, grown, shop.built)
            added.warnings.extend(
                _without(pack, [name for shard in shards for name in shard.fields])
            )
        shop.keep = False
        return AppendReport(
            out, added.samples, grown.known - len(grown.changed), tuple(grown.changed),
            tuple(grown.deleted), added.skipped, tuple(grown.new_classes),
            len(pack) + added.samples, added.digest, time.monotonic() - began,
            (*grown.new.warnings, *added.warnings),
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


def _without(pack: opening.Pack, there: Collection[str]) -> list[str]:
    """Warn of fields of the pack that none of the new samples has."""
    return [
        f"the new samples have no {name}; to add it to them: packio add "
        f"{shlex.quote(str(pack.path))} --field {name}=FROM --only-new"
        for name in pack.fields
        if name not in there and not levels.divisor_of(name)
    ]


def _opened(out: Path) -> opening.Pack:
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


def _listed(
    source: Any, out: Path, source_kind: str | None, recipe: Recipe, options: dict[str, Any],
    fields: Mapping[str, Any] | None, pack: opening.Pack,
) -> Listing:  # fmt: skip
    """List the whole source, with the options that it had when the pack was made.

    Its fields get the names that the pack has for them. Fields that the pack has lost are asked
    for, too, and left out: their files or columns would be taken for something else.
    """
    reader = planning.source_of(source, source_kind)
    sourcing.check_options(options, reader)

    def found(fields: Mapping[str, Any]) -> Listing:
        context = Context(
            allow_empty=True, scratch=sourcing.scratch(out), fields=wanted_fields(fields),
            options=options,
        )  # fmt: skip
        return levelled.bare(listed(reader, source, context))

    before = recipe.reading if reader.name == recipe.source else {}
    known = {*reader.options, *FRAMES}
    options = {**{n: v for n, v in before.items() if n in known}, **options}
    asked, lost = _fields_asked(before.get("fields") or {}, reader.name, fields, pack)
    try:
        listing = found({**lost, **asked})
    except OptionError:
        if not lost:
            raise
        listing = found(asked)  # nothing is left of what the pack has lost
    told = tuple(f"have no file for {name!r}" for name in lost.keys() - asked.keys())
    listing.warnings[:] = [line for line in listing.warnings if not line.endswith(told)]
    return renamed.as_in_pack(
        listing, renamed.became_of(listing, reader.name, pack), fields or ()
    )  # fmt: skip


def _fields_asked(
    before: Mapping[str, Any], reader: str, fields: Mapping[str, Any] | None, pack: opening.Pack
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Fields to ask a source for; and those that may be asked for, too, to be left out."""
    if reader == "pack":  # the recipe's names are those of another pack, or of a list
        return (fields, {}) if fields is not None else ({}, before)
    became = origins_of(pack.metadata)
    lost = {name: origin for name, origin in before.items() if became.get(name, name) is None}
    if fields is not None:
        return fields, lost
    return {name: origin for name, origin in before.items() if name not in lost}, lost


def _largest(pack: opening.Pack) -> int:
    """Bytes of the images of the pack's largest shard."""
    lengths = pack.index_file.column("image/length").array()
    edges = np.cumsum([0, *(int(shard["samples"]) for shard in pack.metadata["shards"])])
    return max(1, *(int(lengths[a:b].sum()) for a, b in itertools.pairwise(edges)))
