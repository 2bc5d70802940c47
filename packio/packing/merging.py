"""`merge`: several packs become one pack, of copied samples or of linked shards."""

from __future__ import annotations

import dataclasses
import errno
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packio import registry
from packio.errors import OptionError, OutputError, OutputExistsError, PackioError
from packio.formats import Format
from packio.index import columns as made
from packio.index import indexfile
from packio.index.metadata import origins_of
from packio.packing import sourcing
from packio.packing.making import pack
from packio.packing.plan import existing, shared_keys
from packio.packing.publish import assembly
from packio.packing.report import PackReport
from packio.packs import opening, pixel_statistics, shard_classes
from packio.sample import origins
from packio.sample.recipe import Recipe, merged
from packio.sample.relabelling import Relabelling, all_classes
from packio.sources import _packs
from packio.sources.pack import renamed
from packio.storage import workshop
from packio.system.files import absolute

if TYPE_CHECKING:
    import numpy as np

_MODES = ("copy", "link")


def merge(
    out: str | os.PathLike[str],
    sources: Sequence[str | os.PathLike[str]],
    *,
    by: str = "copy",
    prefix: bool | Sequence[str] = False,
    **options: Any,
) -> PackReport:
    """Make one pack of several. Labels go by class name; no two packs may share a key.

    Args:
        out: The pack to make; its suffix says the format.
        sources: Packs.
        by: "copy" writes every sample anew, into any format. "link" makes a folder of shards that
            are hard links to the shards of the sources, which have the format of ``out``. No sample
            is read or copied, and the sources can be deleted afterwards.
            The labels in the shards stay as they are, and readers other than packio see those; the
            index has the labels of the new pack.
        prefix: What to put before the keys of each pack, to copy packs that share keys: True puts
            the pack's name without its suffix and a slash, as ``monday/``; or a text for each pack.
        options: As `pack` takes, to copy.

    Raises:
        OptionError: two packs share a key; there is not a prefix for each pack; labels, splits or
            fields are of different kinds; or packs to link have another format.
        OutputExistsError: ``out`` exists and was not made of the same packs.
        OutputError: the file system cannot link.
    """
    if by not in _MODES:
        raise OptionError(f"by={by!r}: expected one of {', '.join(_MODES)}")
    if len(sources) < 2:
        count = f"{len(sources)} pack{'' if len(sources) == 1 else 's'}"
        raise OptionError(f"{count}: expected at least two to merge")
    with ExitStack() as stack:
        opened = [stack.enter_context(opening.open_silently(source)) for source in sources]
        _packs.check_alike(opened)
        prefixes = _prefixes(opened, prefix)
        _check_keys(opened, prefixes)
        if by == "copy":
            classes = sourcing.class_names(options.pop("classes_from", None))
            listing = renamed(_packs.listing(opened, classes), opened, options.get("fields"))
            return pack(_packs.prefixed(listing, prefixes), out, **options)
        if any(prefixes):
            raise OptionError(
                "prefix= changes keys, which linking keeps: copy the packs, by='copy'"
            )
        if options:
            raise OptionError(f"{', '.join(sorted(options))}: no option of merging by link")
        return _linked(absolute(out), opened)


def _prefixes(opened: Sequence[opening.Pack], asked: bool | Sequence[str]) -> list[bytes]:
    """What to put before the keys of each pack."""
    if isinstance(asked, bool):
        names = [Path(one.path).stem for one in opened]
        return [os.fsencode(f"{name}/") if asked else b"" for name in names]
    if isinstance(asked, str) or not all(isinstance(text, str) for text in asked):
        raise OptionError(f"prefix={asked!r}: expected True, or a list with a text for each pack")
    if len(asked) != len(opened):
        raise OptionError(f"prefix={asked!r}: {len(asked)} texts for {len(opened)} packs")
    return [os.fsencode(text) for text in asked]


def _check_keys(opened: Sequence[opening.Pack], prefixes: Sequence[bytes]) -> None:
    """Refuse packs that share a key."""
    shared = shared_keys.first([one.index_file for one in opened], prefixes)
    if shared is None:
        return
    remedy = (
        "put the name of each pack before its keys by prefix=True, which copies; or leave samples "
        "out first: packio select, then merge the selections by copying"
    )
    if any(prefixes):
        remedy = "give each pack a prefix of its own (prefix=[...]), or rename one of the packs"
    raise OptionError(
        f"{os.fsdecode(shared.key)!r} is in {opened[shared.one].path} and in "
        f"{opened[shared.other].path}; no key may be there twice; {remedy}"
    )


def _linked(out: Path, opened: Sequence[opening.Pack]) -> PackReport:
    """Link the shards of packs into one folder, under one index."""
    began = time.monotonic()
    container = _format(out, opened)
    workshop.tidy(out)
    if os.path.lexists(out):
        return _report(out, opened, began, up_to_date=True)
    with workshop.opened(out) as shop:
        if os.path.lexists(out):
            raise OutputExistsError(f"{out}: made by another run just now; choose another name")
        shop.built.mkdir()
        shards: list[dict[str, Any]] = []
        tables = []
        classes = all_classes(one.classes for one in opened)
        of_shards: dict[str, list[str]] = {}  # the class names that the labels in a shard stand for
        for one in opened:
            renamed = _renamed(one, out, len(shards), container)
            _link(one, renamed, shop.built)
            of_shards |= {renamed[n]: c for n, c in shard_classes.of(one).items()}
            table = _files(one, assembly.columns_of(one.index_file), renamed)
            tables.append(Relabelling(one.classes, classes, str(one.path)).columns(table))
            shards += [{**s, "name": renamed[s["name"]]} for s in one.metadata["shards"]]
        counts = [assembly.data_files(table) for table in tables]
        columns = made.joined(assembly.alike(tables, str(out)), counts)
        splits, split_names = _packs.joined_splits(opened)
        if splits is not None:
            columns["split"] = splits
        names = [shard["name"] for shard in shards]
        columns = assembly.with_sidecars(columns, container, shop.built, names)
        named = shard_classes.write(shop.built, classes, of_shards)
        columns = assembly.with_files(columns, shop.built, named)
        metadata = _metadata(opened, classes, shards, split_names)
        indexfile.write(shop.built / indexfile.INDEX_NAME, columns, metadata)
        shop.publish()
    return _report(out, opened, began)


def _report(
    out: Path, opened: Sequence[opening.Pack], began: float, *, up_to_date: bool = False
) -> PackReport:
    """Report of the pack that was made by linking these packs."""
    try:
        with opening.open(out) as pack:
            digests = [one.digest for one in opened]
            if pack.metadata.get("merged") == digests and len(pack) == sum(map(len, opened)):
                size = pack.index_file.column("image/length").total()
                return PackReport(
                    out, pack.metadata["format"], len(pack), len(pack), (), len(pack.classes),
                    size, existing.pack_bytes(pack), time.monotonic() - began,
                    pack.digest, up_to_date,
                )  # fmt: skip
    except PackioError as error:
        raise OutputExistsError(f"{out}: exists ({error}); choose another name") from error
    raise OutputExistsError(f"{out}: exists; choose another name")


def _format(out: Path, opened: Sequence[opening.Pack]) -> Format:
    names = {one.metadata["format"] for one in opened}
    if len(names) > 1:
        raise OptionError(f"packs of different formats, {', '.join(sorted(names))}: copy them")
    container: Format = registry.load("formats", names.pop())
    for one in opened:
        if "selection" in one.metadata:
            raise OptionError(
                f"{one.path}: a selection, which has no files to link: copy its samples, by='copy'"
            )
    if not container.caps.writes or not all(map(_is_ours, opened)):
        raise OptionError("packs that others wrote are not linked: copy them")
    if out.suffix.lower() not in container.caps.suffixes:
        raise OptionError(f"{out}: the shards' suffix is {container.caps.suffixes[0]}; name it so")
    return container


def _is_ours(one: opening.Pack) -> bool:
    """Tell whether packio wrote a pack. The index of a foreign container lies in the cache."""
    name = one.index_file.files()[0][0]
    if one.metadata.get("left_out"):
        return False
    return one.access == "range" and os.path.lexists(one.index_file.path.parent / name)


def _renamed(one: opening.Pack, out: Path, first: int, container: Format) -> dict[str, str]:
    """Old name of each shard and file → its new name; sidecars of the whole pack are left out."""
    renamed: dict[str, str] = {}
    shards = [str(shard["name"]) for shard in one.metadata["shards"]]
    files = [name for name, _, _ in one.index_file.files()]
    for i, shard in enumerate(shards):
        new = f"{out.stem}-{first + i:05d}{out.suffix}"
        renamed[shard] = new
        if shard == ".":
            renamed |= {name: f"{new}/{name}" for name in files}
            continue
        stem, new_stem = (n.rpartition(".")[0] for n in (shard, new))
        for name in files:
            if name == shard or name.startswith(f"{shard}/"):
                renamed[name] = new + name[len(shard) :]
            elif not container.caps.is_directory and name.startswith(f"{stem}."):
                renamed[name] = new_stem + name[len(stem) :]
    return renamed


def _link(one: opening.Pack, renamed: dict[str, str], built: Path) -> None:
    root = one.index_file.path.parent
    for name, _, _ in one.index_file.files():
        if name not in renamed:
            continue
        target = built / renamed[name]
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(root / name, target)
        except OSError as error:
            if error.errno in (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
                raise OutputError(
                    f"{root / name}: cannot be linked to {target.parent}: {error.strerror}; "
                    "copy instead: --by copy"
                ) from error
            raise


def _files(
    one: opening.Pack, table: dict[str, np.ndarray], renamed: dict[str, str]
) -> dict[str, np.ndarray]:
    """A pack's columns, with the new names in its table of files."""
    names = [name for name, _, _ in one.index_file.files()]
    kept = [i for i, name in enumerate(names) if name in renamed]
    chosen = made.chosen_files(table, kept)
    data, starts = made.ragged([os.fsencode(renamed[names[i]]) for i in kept])
    return {**table, **chosen, "file_path_data": data, "file_path_offsets": starts}


def _metadata(
    opened: Sequence[opening.Pack], classes: list[str], shards: list[Any], split_names: list[str]
) -> dict[str, Any]:
    found = [one.metadata for one in opened]
    recipe = merged([Recipe.of(metadata) for metadata in found])
    return assembly.metadata(
        found[0]["format"], assembly.all_fields([one.fields for one in opened]), classes, shards,
        dataclasses.replace(recipe, source=recipe.source or "merge"),
        {n: sum(m["counts"][n] for m in found) for n in ("found", "packed", "skipped")},
        {n: v for m in reversed(found) for n, v in m.get("versions", {}).items()},
        merged=[one.digest for one in opened],
        splits=split_names,
        statistics=pixel_statistics.joined(opened),
        identity=[identity for m in found for identity in m.get("identity", [])],
        origins=origins.together(list(map(origins_of, found))),
    )  # fmt: skip
