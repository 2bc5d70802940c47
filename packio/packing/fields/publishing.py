"""Fields join a pack, or leave it: a new index takes the place of the old one in one step."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

import numpy as np

from packio.errors import OutputExistsError
from packio.formats import name_added_shard
from packio.index import columns as made
from packio.index import indexfile
from packio.index.column import Content
from packio.index.columns import OF_FILES
from packio.index.indexfile import Index
from packio.index.layout import ORIGINS, origins_of
from packio.packing import assembly
from packio.packing.run import sameness
from packio.packs import opening
from packio.sample import origins
from packio.sample.recipe import Recipe
from packio.storage.journal import Journal
from packio.storage.workshop import Workshop
from packio.system import files

_REMOVING = "removing.packio"  # in the journal: names of files that nothing refers to any more


def list_moves(record: Index) -> list[str]:
    """What is moved into the pack: the container that is a folder, or all of its files."""
    names, container = [name for name, _, _ in record.files()], str(record.metadata["name"])
    return [container] if names and names[0].startswith(f"{container}/") else names


def rows_of_shards(pack: opening.Pack) -> list[tuple[str, int, int]]:
    """Name, first row, and row behind the last, of each shard of a pack."""
    found, first = [], 0
    for shard in pack.metadata["shards"]:
        stop = first + int(shard["samples"])
        found.append((str(shard["name"]), first, stop))
        first = stop
    return found


def add(
    pack: opening.Pack, name: str, kind: str, placed: Mapping[int, Index], shop: Workshop
) -> str:
    """Move the containers of some shards into a pack, then put an index with the field in place.

    Returns the digest of the index.
    """
    old, shards = assembly.columns_of(pack.index_file), rows_of_shards(pack)
    data, counts = assembly.data_files(old), [r.metadata.get("files", 0) for r in placed.values()]
    columns = dict(old)
    bases = itertools.accumulate(counts, initial=data)
    for (number, record), base in zip(placed.items(), bases, strict=False):
        rows = slice(*shards[number][1:])
        for full in record.column_names:  # none of the field, if no sample of the shard has a value
            if not full.startswith(f"{name}/"):
                continue
            column, own = full.rpartition("/")[2], record.column(full).array()
            if full not in columns:
                absent = -1 if column == "offset" else 0
                columns[full] = np.full(len(pack), absent, own.dtype)
            elif columns[full] is old.get(full):
                columns[full] = old[full].copy()  # the old index's own bytes may not change
            if column == "file":  # the files of this container follow those of all before it
                own = np.where(record.column(f"{name}/offset").array() < 0, 0, own + base)
            columns[full][rows] = own
    tables = [old, *({n: r.column(n).array() for n in OF_FILES} for r in placed.values())]
    of_files = made.join_files(tables, [data, *counts])
    paths = [path for record in placed.values() for path in list_moves(record)]
    fields = {**pack.fields, name: kind}
    return _publish(pack, {**columns, **of_files}, fields, name, paths, shop)


def drop(pack: opening.Pack, name: str, shop: Workshop) -> tuple[str, list[str], int]:
    """Put an index without a field in place, then remove the files that held nothing else.

    Returns the digest, the files removed, and the bytes of values that stay in other files.
    """
    old = assembly.columns_of(pack.index_file)
    data, removed = assembly.data_files(old), _list_removable(pack, name)
    kept = [i for i, (file, _, _) in enumerate(pack.index_file.files()) if file not in removed]
    columns = {n: c for n, c in old.items() if not n.startswith(f"{name}/")}
    columns |= made.take_files(columns, kept)
    numbers = np.zeros(data, np.uint32)  # old number of a file → new number
    still = [i for i in kept if i < data]
    numbers[still] = np.arange(len(still), dtype=np.uint32)
    for column in [n for n in columns if n.endswith("/file")]:
        columns[column] = numbers[columns[column]]
    stay = np.isin(old[f"{name}/file"], still) & (old[f"{name}/offset"] >= 0)
    remaining = int(old[f"{name}/length"][stay].sum())
    fields = {n: k for n, k in pack.fields.items() if n != name}
    shop.shards.mkdir(exist_ok=True)
    with files.replacing(shop.shards / _REMOVING) as file:  # for a run after one that was killed
        file.write(json.dumps(sorted(removed)).encode())
    digest = _publish(pack, columns, fields, name, [], shop)
    with opening.Pack(pack.path, expect_digest=digest) as now:
        remove_noted(now, shop)
    return digest, sorted(removed), remaining


def _list_removable(pack: opening.Pack, name: str) -> set[str]:
    """Files of the containers that hold this field and nothing else, and their sidecars."""
    index, caps = pack.index_file, pack.format.caps
    apart = [name_added_shard(pack.format, shard, name, pack.fields[name])
             for shard, _, _ in rows_of_shards(pack)]  # fmt: skip
    begins = tuple(f"{p}/" if caps.is_directory else f"{p.rpartition('.')[0]}." for p in apart)
    names = [file for file, _, _ in index.files()]
    others = [n for n in index.column_names if n.endswith("/file") and n != f"{name}/file"]
    used = {names[i] for n in others for i in np.unique(index.column(n).array()).tolist()}
    return {file for file in names if file.startswith(begins) and file not in used}


def _publish(
    pack: opening.Pack, columns: Mapping[str, Content], fields: Mapping[str, str], changed: str,
    names: Sequence[str], shop: Workshop,
) -> str:  # fmt: skip
    """Put an index with other fields in place of the old one, and the files that it names."""
    metadata, became = dict(pack.metadata), origins_of(pack.metadata)
    is_filled = changed in pack.fields and changed in fields  # its values stay, others joined them
    metadata |= {
        "version": indexfile.VERSION, "fields": dict(fields),
        "recipe": Recipe.from_metadata(metadata).as_json(),
        ORIGINS: (origins.mark_filled if is_filled else origins.remove)(became, changed),
    }  # fmt: skip
    place = pack.index_file.path
    index = shop.built / place.name
    digest = indexfile.write(index, columns, metadata)
    # `undo_killed` takes back what a kill left in between.
    assembly.publish(shop.built, place.parent, names, place.name)
    sameness.save(digest, sameness.load(pack.digest, len(pack)))
    return digest


def undo_killed(pack: opening.Pack, shop: Workshop) -> bool:
    """Finish or take back what a run that was killed has done to a pack.

    Containers that it has moved into the pack, before its index came, go back into the workshop.
    Files that it had to remove, after its index came, are removed. Tells whether the field of the
    journal has joined the pack: nothing is left to go on with.
    """
    has_joined = False
    shop.shards.mkdir(exist_ok=True)
    listed = {name: facts for name, *facts in pack.index_file.files()}
    root, journal = pack.index_file.path.parent, Journal(shop.shards)
    for path in sorted(shop.shards.glob("[0-9]*.packio")):
        record = journal.find(int(path.stem))
        if record is None:
            continue
        # A container of the field that this one was to replace may have the same name.
        if any(name in listed for name, *_ in record.files()):
            has_joined |= all(listed.get(name) == facts for name, *facts in record.files())
            continue
        for name in list_moves(record):
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
    root = pack.index_file.path.parent
    gone = _list_removable(pack, name) if name in pack.fields else set()
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
