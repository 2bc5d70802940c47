"""The index of a selection: the rows of its samples out of the pack's index.

It is made once, piece by piece, and kept in the user's cache (``selections``), under the digests of
the selection and of the pack's index. All else of the pack, as its files and its format, is that of
the whole pack.
"""

from __future__ import annotations

import functools
import hashlib
import shlex
from pathlib import Path
from typing import Any

import numpy as np

from packio import __version__
from packio.errors import IntegrityError, NotAPackError, OptionError
from packio.index import columns as made
from packio.index import indexfile
from packio.index.building import RAW_CRCS
from packio.index.column import Content, to_pieces
from packio.index.columns import OF_FILES, RAGGED
from packio.index.indexfile import INDEX_SUFFIX, Index
from packio.packs import indexing, locating
from packio.packs.querying import selections
from packio.packs.querying.selections import MARK, SOURCE_COLUMN, Selection
from packio.storage import remote
from packio.system.files import cache_folder

# Metadata of a pack that are not true of some of its samples.
_OF_THE_WHOLE = ("plan", "statistics", "remarks", "left_out")
_SHOWN = 12  # digits of a digest


def resolve_selection(
    path: Path, pack: Path | None = None, *, by_key: bool = False
) -> tuple[Path, Path]:
    """The index of a selection, and the folder that the paths in the index are relative to."""
    selection = selections.read_selection(path)
    whole = pack or selection.pack_path()
    if selections.is_selection(whole):
        raise NotAPackError(
            f"{path}: a selection of {whole}, which is a selection; expected a pack"
        )
    try:
        place, root = locating.resolve_pack(whole)
    except NotAPackError as error:
        raise type(error)(
            f"{error}; {path} is a selection of it: say where the pack is by packio.open("
            f"{path.name!r}, pack=…)"
        ) from error
    index = remote.open_index(place)
    if index.digest == selection.index_digest:
        by_key = False
        if len(index) != selection.samples:
            raise IntegrityError(
                f"{path}: says that {whole} has {selection.samples} samples, it has {len(index)}; "
                "the file is forged or damaged: select again"
            )
    elif not by_key:
        raise IntegrityError(
            f"{path}: a selection of {whole}, which is another pack now (digest "
            f"{index.digest[:_SHOWN]}…, the selection says {selection.index_digest[:_SHOWN]}…); "
            "select again, or take the samples by their keys: packio select "
            f"{shlex.quote(str(whole))} --keys-of {shlex.quote(str(path))} -o NEW.selection, or "
            "packio.open(…, by_key=True)"
        )
    name = str(whole) if pack is not None else selection.pack
    asked = f"{__version__}\0{selection.digest}\0{index.digest}\0{by_key}\0{name}"
    digest = hashlib.sha256(asked.encode("utf-8", "surrogateescape")).hexdigest()
    place = cache_folder("selections") / f"{digest}{INDEX_SUFFIX}"
    write = functools.partial(_write, place, selection, index, whole, name, by_key=by_key)
    return indexing.make_once(place, path, write), root


def _write(
    place: Path, selection: Selection, index: Index, whole: Path, name: str, *, by_key: bool
) -> None:
    """Write the index of a selection, whose keys are compared with those of the pack."""
    if by_key:
        where = f"{selection.path}: {whole} has changed, and lacks samples; select again"
        positions = np.sort(selections.find_keys(index, selection.keys(), where))
    else:
        positions = selection.positions()
    columns = _columns(index, positions)
    own = columns["key_data"], columns["key_offsets"]
    if not by_key and not all(map(np.array_equal, own, selection.key_columns())):
        raise IntegrityError(
            f"{selection.path}: its keys are not those of the samples in {whole}; the file is "
            "forged or damaged: select again"
        )
    said = {
        "pack": name, "digest": index.digest, "samples": len(index),
        "expression": selection.expression,
    }  # fmt: skip
    indexfile.write(place, columns, _metadata(index, positions, said))


def _columns(index: Index, positions: np.ndarray) -> dict[str, Any]:
    """The columns of some samples; the keys as arrays, which their order needs at once."""
    result: dict[str, Content] = {}
    ragged = set(RAGGED.values())
    for name in index.column_names:
        column, part = index.column(name), name.partition("/")[0]
        if name in OF_FILES:
            result[name] = column.array()
        elif name in RAGGED:
            result[name] = selections.gather_offsets(index, name, positions)
        elif name in ragged or part == "boxes":
            result[name] = selections.gather_values(index, name, positions)
        elif name in ("key_order", RAW_CRCS, SOURCE_COLUMN):
            continue
        elif column.shape[0] == len(index):
            result[name] = selections.gather(index, name, positions)
    keys = {n: to_pieces(result[n]).array() for n in ("key_data", "key_offsets")}
    ordered, all_differ = made.joined_key_columns(*keys.values())
    if not all_differ:
        raise IntegrityError(
            f"{index.path}, or its selection, has a key twice; packio reindex, or select again"
        )
    return {**result, **keys, **ordered, SOURCE_COLUMN: positions}


def _metadata(index: Index, positions: np.ndarray, said: dict[str, Any]) -> dict[str, Any]:
    metadata = {n: v for n, v in index.metadata.items() if n not in _OF_THE_WHOLE}
    shards = metadata.get("shards", [])
    ends = np.cumsum([shard["samples"] for shard in shards], dtype=np.int64)
    if len(ends) and int(ends[-1]) != len(index):
        raise OptionError(f"{index.path}: its shards do not have the {len(index)} samples it has")
    counts = np.diff(np.searchsorted(positions, ends), prepend=0).tolist()
    return metadata | {
        "version": indexfile.VERSION,
        "fields": index.fields,
        "shards": [{**s, "samples": n} for s, n in zip(shards, counts, strict=True)],
        "counts": {"found": len(positions), "packed": len(positions), "skipped": 0},
        MARK: said,
    }
