"""Appending: new samples of a source become new shards of a pack, which stays readable meanwhile.

Samples are told apart by their keys. Samples that the pack has stay as they are. New samples are
chosen and made as the pack's recipe says, and written to shards beside the old ones. Then a new
index takes the place of the old index in one step. Until then nothing changes for readers.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packio.errors import NotAPackError, OptionError
from packio.index import columns as made
from packio.index import indexfile
from packio.index.column import Content
from packio.packing import assembly, planning, sourcing
from packio.packing.fields.job import check_none_left
from packio.packing.growth import Growth, find_changed_keys, find_growth
from packio.packing.run.running import Run
from packio.packing.run.shards import RunOptions
from packio.packs import locating, opening
from packio.packs.collecting import join_fields
from packio.sample import levels
from packio.sample.recipe import Recipe
from packio.sample.relabelling import Relabelling
from packio.storage import workshop
from packio.system import files, locks
from packio.system.files import absolute, beyond_link
from packio.system.progress import ProgressCallback


@dataclasses.dataclass(frozen=True, slots=True)
class AppendReport:
    """What `append` did, or would do: see `new`, which only ``compare`` counts."""

    out: Path  # the pack
    added: int  # samples that are new in it
    known: int  # samples of the source that the pack had already, by their keys
    # Keys of such samples whose bytes or annotations differ in the source now; the pack keeps what
    # it has. None if they were not compared: `compare` does.
    changed: tuple[str, ...] | None
    deleted: tuple[str, ...]  # keys that only the pack has; it keeps their samples
    skipped: int  # samples that could not be added, with on_error="skip"
    new_classes: tuple[str, ...]  # their numbers follow those of the old classes
    total: int  # samples in the pack now
    digest: str  # hexadecimal SHA-256 of the index
    seconds: float  # of the whole run
    warnings: tuple[str, ...] = ()  # one line each
    new: int = 0  # samples that the pack lacks: where `compare` is said, appending would add them


def append(
    path: str | os.PathLike[str], source: Any, *, source_kind: str | None = None,
    shard_size: int | str | None = None, num_workers: int | None = None, on_error: str = "raise",
    fields: Mapping[str, Any] | None = None, compare: bool = False,
    progress: ProgressCallback | None = None, **options: Any,
) -> AppendReport:  # fmt: skip
    """Add the new samples of a source to a pack of shards. A second run adds nothing more.

    A sample is new if the pack does not have its key. New samples are chosen and made by the recipe
    of the pack: its encoding, levels, splits, the names that it took, and how many of them. Labels
    go by class name; new classes get the numbers that follow.

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
        OutputExistsError: `add_field` was cut short; appending would lose the values that it has.
        SourceError, BadImagesError, OutputError, LockedError: see `pack`.
    """
    began = time.monotonic()
    if on_error not in ("raise", "skip"):
        raise OptionError(f"on_error={on_error!r}: expected 'raise' or 'skip'")
    shard_size = sourcing.byte_count("shard_size", shard_size)
    sourcing.check_positive(num_workers=num_workers, shard_size=shard_size)
    out = beyond_link(absolute(path))
    source = sourcing.locate_source(source, out)

    def compare_keys(pack: opening.Pack) -> Growth:
        return find_growth(pack, source, source_kind, out, options, fields)

    if compare or not locating.has_index(out):  # say so before a workshop is made beside it
        with _open_pack(out, source) as pack:
            _check_sharded(pack)
            growth = compare_keys(pack)
            report = _report(pack, growth, began, tuple(find_changed_keys(pack, growth)))
            return dataclasses.replace(report, new=len(growth.new.keys))
    check_none_left(out, "appending")
    was_killed = os.path.lexists(out.with_name(out.name + indexfile.APPENDING_SUFFIX))
    with (
        workshop.open_workshop(out, suffix=indexfile.APPENDING_SUFFIX) as shop,
        locks.changing(out / indexfile.INDEX_NAME),
        _open_pack(out, source) as pack,
    ):
        _check_sharded(pack)
        if was_killed:
            _undo_killed(pack, shop.built)
        growth = compare_keys(pack)
        report = _report(pack, growth, began)
        if growth.new.keys or growth.new_classes:
            plan = planning.make(
                growth.new, pack.metadata["format"], growth.recipe,
                shard_size=shard_size or _largest_shard(pack),
            )  # fmt: skip
            run_options = RunOptions(
                skip=on_error == "skip", workers=planning.count_workers(plan, num_workers),
                progress=progress, began=began,
            )  # fmt: skip
            place = pack.index_file.path.parent
            run = Run(plan, place, run_options, shop, first=_first_number(pack))
            shards = run.write() if growth.new.keys else []
            names = [run.name(number) for number in range(len(shards))]
            report = _add(pack, names, shards, growth, shop.built, report)
        shop.keep = False
        return dataclasses.replace(report, seconds=time.monotonic() - began)


def _report(
    pack: opening.Pack, growth: Growth, began: float, changed: tuple[str, ...] | None = None
) -> AppendReport:
    """The report of a run that has added nothing."""
    return AppendReport(
        pack.path, 0, len(growth.rows), changed, tuple(map(os.fsdecode, growth.gone)), 0,
        tuple(growth.new_classes), len(pack), pack.digest, time.monotonic() - began,
        tuple(growth.new.warnings),
    )  # fmt: skip


def _open_pack(out: Path, source: Any) -> opening.Pack:
    try:
        return sourcing.open_to_change(out)
    except NotAPackError as error:
        is_path = isinstance(source, (str, os.PathLike))
        if is_path and os.path.lexists(out) and locating.has_index(Path(source)):
            raise OptionError(
                f"{error}; {source} is a pack: name it first, then the source"
            ) from error
        raise


def _check_sharded(pack: opening.Pack) -> None:
    if chosen := pack.metadata.get("selection"):
        raise OptionError(f"{pack.path}: a selection; append to its pack, {chosen['pack']}")
    if pack.path.is_dir() and "." not in _shards(pack) and pack.index_file.path.parent == pack.path:
        return
    raise OptionError(
        f"{pack.path}: not a folder of shards, which appending needs; make one of it: "
        f"packio convert {shlex.quote(str(pack.path))} NEW{pack.path.suffix} --shard-size 1GB"
    )


def _largest_shard(pack: opening.Pack) -> int:
    """Bytes of the images of the pack's largest shard."""
    lengths = pack.index_file.column("image/length").array()
    edges = np.cumsum([0, *(int(shard["samples"]) for shard in pack.metadata["shards"])])
    return max(1, *(int(lengths[a:b].sum()) for a, b in itertools.pairwise(edges)))


def _first_number(pack: opening.Pack) -> int:
    numbers = []
    for name in _shards(pack):
        digits = (name.rpartition(".")[0] or name).rpartition("-")[2]
        if not digits.isdigit():
            raise OptionError(f"{name}: the shards of the pack are not numbered; convert it first")
        numbers.append(int(digits))
    return 1 + max(numbers)


def _add(
    pack: opening.Pack, names: Sequence[str], shards: Sequence[indexfile.Index], growth: Growth,
    built: Path, report: AppendReport,
) -> AppendReport:  # fmt: skip
    """Write an index over old and new shards, and move index and new shards into the pack."""
    out = pack.index_file.path.parent
    full = [(n, s) for n, s in zip(names, shards, strict=True) if s.metadata["samples"]]
    skipped = len(assembly.list_skipped(shards)) + len(growth.new.unlisted)
    if not full and not growth.new_classes:
        return dataclasses.replace(report, skipped=skipped)
    built.mkdir(exist_ok=True)
    whole = _whole_sidecars(pack)
    columns = _columns(pack, full, growth, whole, built)
    index = built / indexfile.INDEX_NAME
    digest = indexfile.write(index, columns, _metadata(pack, full, growth))
    # The old index names neither the new shards nor the files of the whole pack as they are now:
    # these come last. `_undo_killed` takes both back after a kill before the new index came.
    paths = sorted(built.iterdir(), key=lambda path: (path.name in whole, path.name))
    for path in paths:
        if path.is_dir():
            files.remove(out / path.name)  # of an append that was cut short
    assembly.publish(built, out, [p.name for p in paths if p != index], indexfile.INDEX_NAME)
    count = sum(shard.metadata["samples"] for _, shard in full)
    there = {name for shard in shards for name in shard.fields}
    warnings = (
        *report.warnings,
        *assembly.deep_pixels([shard.column("image/dtype").array() for _, shard in full]),
        *assembly.list_remarks(shards),
        *(
            f"the new samples have no {name}; to add it to them: packio add "
            f"{shlex.quote(str(pack.path))} --field {name}=FROM --only-new"
            for name in pack.fields
            if name not in there and not levels.divisor_of(name)
        ),
    )
    return dataclasses.replace(
        report, added=count, skipped=skipped, total=len(pack) + count, digest=digest,
        warnings=warnings,
    )  # fmt: skip


def _undo_killed(pack: opening.Pack, built: Path) -> None:
    """Take back what an append that was killed before its new index came has moved into a pack."""
    out = pack.index_file.path.parent
    built.mkdir(exist_ok=True)
    first, numbered = _first_number(pack), re.compile(rf"{re.escape(out.stem)}-(\d+)(\.|$)")
    for path in list(out.iterdir()):
        found = numbered.match(path.name)
        if found and int(found[1]) >= first:
            files.remove(built / path.name)
            path.rename(built / path.name)
    whole = _whole_sidecars(pack)  # written anew, if they are not as the index lists them
    listed = {name: digest for name, _, digest in pack.index_file.files() if name in whole}
    if all((out / name).is_file() and made.sha256(out / name) == listed[name] for name in whole):
        return
    for name in whole:  # some were not moved into the pack
        files.remove(built / name)
    for name in pack.format.finish(built, _shards(pack)):
        files.sync(built / name)
        (built / name).replace(out / name)
    files.sync(out)


def _shards(pack: opening.Pack) -> dict[str, Path]:
    names = [str(shard["name"]) for shard in pack.metadata["shards"]]
    return {name: pack.index_file.path.parent / name for name in names}


def _whole_sidecars(pack: opening.Pack) -> set[str]:
    """Files that belong to the whole pack, not to one of its shards."""
    shards = _shards(pack)  # a shard's file is the shard, lies in it, or is a sidecar of its name
    begins = tuple(b for s in shards for b in (f"{s}/", f"{s.rpartition('.')[0] or s}."))
    names = {name for name, _, _ in pack.index_file.files()}
    return {name for name in names.difference(shards) if not name.startswith(begins)}


def _columns(
    pack: opening.Pack, full: Sequence[tuple[str, indexfile.Index]], growth: Growth,
    whole: set[str], built: Path,
) -> dict[str, Content]:  # fmt: skip
    old = assembly.columns_of(pack.index_file)
    data = assembly.data_files(old)
    paths = [name for name, _, _ in pack.index_file.files()]
    old |= made.take_files(old, [i for i, path in enumerate(paths) if path not in whole])
    classes = [*pack.classes, *growth.new_classes]
    old = Relabelling(pack.classes, classes, str(pack.path)).columns(old)
    new, _ = assembly.split_identities([assembly.columns_of(s) for _, s in full])
    tables = assembly.alike([old, *new], str(pack.path))
    columns = made.join_tables(tables, [data, *(s.metadata["files"] for _, s in full)])
    shards = _shards(pack) | {name: built / name for name, _ in full}
    return assembly.add_sidecars(columns, pack.format, built, shards)


def _metadata(
    pack: opening.Pack, full: Sequence[tuple[str, indexfile.Index]], growth: Growth
) -> dict[str, Any]:
    metadata, new = dict(pack.metadata), assembly.describe_shards(full)
    counts, added = metadata["counts"], sum(shard["samples"] for shard in new)
    plans = [str(metadata.get("plan")), *(s.metadata["plan"] for _, s in full)]
    metadata |= {
        "version": indexfile.VERSION,
        "fields": join_fields([pack.fields, *(s.fields for _, s in full)]),
        "shards": [*metadata["shards"], *new],
        "classes": [*pack.classes, *growth.new_classes],
        # What could not be added is told each time, and counted once: by the run that packed.
        "counts": {
            **counts, "found": counts["found"] + added, "packed": counts["packed"] + added,
        },
        "recipe": Recipe.from_metadata(metadata).as_json(),
        "plan": hashlib.sha256(" ".join(plans).encode()).hexdigest(),
    }  # fmt: skip
    if growth.split_names:
        metadata["splits"] = growth.split_names
    if "identity" in metadata:
        metadata["identity"] = [*metadata["identity"], *(s.metadata["identity"] for _, s in full)]
    return metadata
