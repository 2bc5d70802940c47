"""Fields join a pack, or leave it: a new index takes the place of the old one in one step."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import numpy as np

from packio.errors import OutputExistsError
from packio.formats import added_shard
from packio.index import columns as made
from packio.index import indexfile
from packio.index.metadata import ORIGINS, origins_of
from packio.index.pieces import Content
from packio.packing.fields import containers, parts
from packio.packing.fields.containers import Placed
from packio.packing.publish import assembly
from packio.packing.run import stat_cache
from packio.packs import opening
from packio.sample import origins
from packio.sample.recipe import Recipe
from packio.storage.workshop import Workshop
from packio.system import files, locks

_REMOVING = "removing.packio"  # in the journal: names of files that nothing refers to any more


def add(pack: opening.Pack, name: str, kind: str, found: Sequence[Placed], shop: Workshop) -> str:
    """Move containers into a pack, then put an index with the field in place; return its digest."""
    old = _columns(pack)
    data = assembly.data_files(old)
    counts = [one.finished.data_files for one in found]
    bases = itertools.accumulate(counts, initial=data)
    columns: dict[str, Content] = dict(old)
    parts_of = [(one.first, one.stop, base, one.finished.columns)
                for one, base in zip(found, bases, strict=False)]  # fmt: skip
    for column, example in found[0].finished.columns.items():
        whole = np.full(len(pack), -1 if column == "offset" else 0, example.dtype)
        if (before := old.get(f"{name}/{column}")) is not None:
            whole = before.copy()
        for first, stop, base, own in parts_of:
            is_file = column == "file"
            whole[first:stop] = (
                np.where(own["offset"] < 0, 0, own[column] + base) if is_file else own[column]
            )
        columns[f"{name}/{column}"] = whole
    tables = [old, *(one.finished.files for one in found)]
    columns |= made.joined_files(tables, [data, *counts])
    moved = [path for one in found for path in one.finished.moved]
    return _published(pack, columns, {**pack.fields, name: kind}, name, moved, shop)


def drop(pack: opening.Pack, name: str, shop: Workshop) -> tuple[str, list[str], int]:
    """Put an index without a field in place, then remove the files that held nothing else.

    Returns:
        The new digest, the names of the files that were removed, and the bytes of values that stay
        in files that hold other fields, too.
    """
    old = _columns(pack)
    listed = pack.index_file.files()
    names = [file for file, _, _ in listed]
    data = assembly.data_files(old)
    removed = _removable(pack, name, old, names)
    kept = [i for i, file in enumerate(names) if file not in removed]
    columns = {n: c for n, c in old.items() if not n.startswith(f"{name}/")}
    columns |= made.chosen_files(columns, kept)
    numbers = np.zeros(data, np.uint32)  # old number of a file → new number
    still = [i for i in kept if i < data]
    numbers[still] = np.arange(len(still), dtype=np.uint32)
    for column in [n for n in columns if n.endswith("/file")]:
        columns[column] = numbers[columns[column]]
    stay = np.isin(old[f"{name}/file"], still) & (old[f"{name}/offset"] >= 0)
    remaining = int(old[f"{name}/length"][stay].sum())
    fields = {n: k for n, k in pack.fields.items() if n != name}
    shop.shards.mkdir(exist_ok=True)
    parts.write_whole(shop.shards / _REMOVING, json.dumps(sorted(removed)).encode())
    digest = _published(pack, columns, fields, name, [], shop)
    with opening.Pack(pack.path, expect_digest=digest) as now:
        remove_noted(now, shop)
    return digest, sorted(removed), remaining


def _removable(
    pack: opening.Pack, name: str, old: Mapping[str, np.ndarray], names: Sequence[str]
) -> set[str]:
    """Files of the containers that hold this field and nothing else, and their sidecars."""
    kind = pack.fields[name]
    apart = [
        added_shard(pack.format, shard, name, kind)
        for shard, _, _ in containers.rows_of_shards(pack)
    ]
    others = [c for n, c in old.items() if n.endswith("/file") and n != f"{name}/file"]
    used = {names[i] for column in others for i in np.unique(column).tolist()}
    found = set()
    for path in apart:
        stem = path.rpartition(".")[0]
        begin = f"{path}/" if pack.format.caps.is_directory else f"{stem}."
        found |= {file for file in names if file.startswith(begin) and file not in used}
    return found


def _columns(pack: opening.Pack) -> dict[str, np.ndarray]:
    return assembly.columns_of(pack.index_file)


def _metadata(pack: opening.Pack, fields: Mapping[str, str], changed: str) -> dict[str, Any]:
    metadata, became = dict(pack.metadata), origins_of(pack.metadata)
    is_filled = changed in pack.fields and changed in fields  # its values stay, others joined them
    metadata |= {
        "version": indexfile.VERSION,
        "fields": dict(fields),
        "recipe": Recipe.of(metadata).as_json(),
        ORIGINS: (origins.filled if is_filled else origins.without)(became, changed),
    }
    return metadata


def _published(
    pack: opening.Pack, columns: Mapping[str, Content], fields: Mapping[str, str], changed: str,
    names: Sequence[str], shop: Workshop,
) -> str:  # fmt: skip
    place = pack.index_file.path
    index = shop.built / place.name
    digest = indexfile.write(index, columns, _metadata(pack, fields, changed))
    with locks.changing(index):  # before others see it
        files.sync_tree(shop.built)
        folders = set()
        for name in names:
            target = place.parent / name
            target.parent.mkdir(parents=True, exist_ok=True)
            (shop.built / name).replace(target)
            folders.add(target.parent)
        for folder in folders | {folder.parent for folder in folders}:
            files.sync(folder)
        index.replace(place)
        files.sync(place.parent)
    stat_cache.save(digest, stat_cache.load(pack.digest, len(pack)))
    return digest


def undo_killed(pack: opening.Pack, shop: Workshop) -> bool:
    """Finish or take back what a run that was killed has done to a pack.

    Containers that it has moved into the pack, before its index came, go back into the workshop.
    Files that it had to remove, after its index came, are removed.

    Returns:
        Whether the field of the journal has joined the pack: nothing is left to go on with.
    """
    has_joined = False
    shop.shards.mkdir(exist_ok=True)
    listed = {name for name, _, _ in pack.index_file.files()}
    root = pack.index_file.path.parent
    for path in sorted(shop.shards.glob("container-*.packio")):
        one = containers.finished(shop.shards, int(path.name.split("-")[1].partition(".")[0]))
        if one is None or listed & {*one.names}:
            has_joined |= one is not None
            continue
        for name in one.moved:
            there, back = root / name, shop.built / name
            if os.path.lexists(there) and not os.path.lexists(back):
                back.parent.mkdir(parents=True, exist_ok=True)
                there.rename(back)
    remove_noted(pack, shop)
    return has_joined


def remove_noted(pack: opening.Pack, shop: Workshop) -> None:
    """Remove the files of a field that was dropped, unless the index lists them."""
    note = shop.shards / _REMOVING
    if not note.exists():
        return
    listed = {name for name, _, _ in pack.index_file.files()}
    root = pack.index_file.path.parent
    for name in json.loads(note.read_text()):
        if name not in listed:
            (root / name).unlink(missing_ok=True)
            _remove_empty((root / name).parent, root, pack.format.caps.leaves)
    note.unlink()


def _remove_empty(folder: Path, root: Path, leaves: Sequence[str]) -> None:
    """Remove a folder, and those above it, if nothing but what libraries leave is in them."""
    while folder != root and root in folder.parents:
        try:
            names = os.listdir(folder)
            if set(names) <= {*leaves}:
                for name in names:
                    (folder / name).unlink()
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent


def check_free(pack: opening.Pack, name: str, paths: Sequence[str]) -> None:
    """Refuse to write where something is that does not leave the pack with an old field."""
    root, gone = pack.index_file.path.parent, set[str]()
    if name in pack.fields:
        names = [file for file, _, _ in pack.index_file.files()]
        gone = _removable(pack, name, _columns(pack), names)
    for path in paths:
        if os.path.lexists(root / path) and not _goes(root, path, gone, pack.format.caps.leaves):
            raise OutputExistsError(
                f"{root / path}: exists, and is no part of {pack.path}; remove it, or choose "
                "another name for the field"
            )


def _goes(root: Path, path: str, gone: AbstractSet[str], leaves: Sequence[str]) -> bool:
    """Tell whether all that is at a path is removed when the files `gone` are."""
    if path in gone or not os.path.isdir(root / path) or os.path.islink(root / path):
        return path in gone
    found = [f"{path}/{name}" for name in os.listdir(root / path) if name not in leaves]
    return bool(found) and all(_goes(root, name, gone, leaves) for name in found)
