"""Choose samples: by class, key or metadata, by a table that names them, or by indices.

A selection is a file of the samples that were chosen; it opens as a pack of them.
"""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
import functools
import json
import operator
import os
import re
import shlex
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from packio import registry
from packio.errors import KeyNotFoundError, OptionError
from packio.packs import opening
from packio.packs.querying import expressions, selections
from packio.packs.querying.columns import EXTRA
from packio.storage import urls
from packio.storage.local import FolderStore
from packio.system.files import absolute

if TYPE_CHECKING:
    import torch  # which takes seconds: commands that look at packs do without

_CHUNK = 4096  # samples whose index rows are read at a time
_TEXTS = 1 << 16  # samples whose keys or metadata are read at a time

_POSITIONS = ("index", "position")  # names of a column of positions
_KEYS = ("key_bytes", "key")  # names of a column of keys
# What turns a table into one of Arrow: a method of Polars and DuckDB. All others go by the Arrow
# PyCapsule interface, https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html
_METHODS = ("to_arrow_table", "to_arrow")
_CAPSULES = ("__arrow_c_stream__", "__arrow_c_array__")

Labels = str | int | Iterable[str | int]  # class names, indices
Keys = str | bytes | Iterable[str | bytes]  # keys, globs
_Sought = tuple[opening.Pack, np.ndarray]  # (N,) bool: the samples that may still match


def iterate_selected(
    pack: opening.Pack, classes: Iterable[str] | None = None, split: str | None = None
) -> Iterator[np.ndarray]:
    """Go through the indices of some classes and of a split, in chunks of at most 4,096.

    (n,) int64 each, n > 0, ascending. None takes all samples. In a pack with vectors as labels, a
    sample is of every class whose entry is above 0.
    """
    wanted = None if classes is None else [class_index(pack, name) for name in classes]
    return _select_chunks(pack, wanted, None if split is None else pack.split(split))


def _select_chunks(
    pack: opening.Pack, wanted: list[int] | None, positions: np.ndarray | None
) -> Iterator[np.ndarray]:
    count = len(pack) if positions is None else len(positions)
    for start in range(0, count, _CHUNK):
        rows = np.arange(start, min(start + _CHUNK, count))
        rows = rows if positions is None else positions[rows]
        if wanted is not None:
            rows = np.compress(_is_of(pack, rows, wanted), rows)
        if len(rows):
            yield rows


def _is_of(pack: opening.Pack, rows: np.ndarray, wanted: list[int]) -> np.ndarray:
    """Tell for each sample whether it is of one of the classes: (n,) bool."""
    labels = pack.take_labels(rows)
    if labels.ndim == 1:
        return np.isin(labels, wanted)
    matches: np.ndarray = np.any(labels[:, wanted] > 0, axis=1)
    return matches


def class_index(pack: opening.Pack, name: str) -> int:
    names = pack.classes if "label" in pack.index_file else []
    if name in names:
        return names.index(name)
    raise no_class(name, names, pack.path)


def no_class(name: str, names: Sequence[str], where: object) -> OptionError:
    """The error for a class that does not exist; its message has similar names."""
    if not names:
        return OptionError(f"{where}: no class {name!r}; its samples have no labels of classes")
    near = difflib.get_close_matches(name, names, 3) or [*names[:5], "…"][: len(names)]
    return OptionError(
        f"{where}: no class {name!r} among {len(names)}; there are: {', '.join(near)}"
    )


def matching(
    parts: Sequence[tuple[opening.Pack, np.ndarray, Labels | None]], key: Keys | None,
    meta: Mapping[str, Any], expression: str | None = None,
) -> list[np.ndarray]:  # fmt: skip
    """Tell which samples match all conditions that `Dataset.where` has: (n,) bool of each part.

    A part is a pack, the (n,) positions in it, in any order, and classes: None: any, []: none.
    """
    sought = []
    for pack, positions, label in parts:
        rows = np.zeros(len(pack), bool)
        rows[positions] = True
        if label is not None:
            _keep_labels(pack, rows, label)
        sought.append((pack, rows))
    if key is not None:
        _keep_keys(sought, key)
    if meta:
        _keep_meta(sought, meta)
    if expression is not None:
        find = functools.cache(lambda pack: expressions.matching(pack, expression))
        for pack, rows in sought:
            rows[:] = rows & np.isin(np.arange(len(rows)), find(pack))
    pairs = zip(parts, sought, strict=True)
    return [rows[positions] for (_, positions, _), (_, rows) in pairs]


def _keep_labels(pack: opening.Pack, rows: np.ndarray, label: Labels) -> None:
    if "label" not in pack.index_file:
        raise OptionError(f"label={label!r}: {pack.path} has no labels")
    each = _each(label, (str, int, np.integer), f"label={label!r}: expected names or numbers of "
                 "classes, one or a list of them")  # fmt: skip
    wanted = [class_index(pack, c) if isinstance(c, str) else operator.index(c) for c in each]
    for size in pack.index_file.column("label").shape[1:]:  # of vectors
        for number in wanted:
            if not 0 <= number < size:
                raise OptionError(f"label={number}: {pack.path} has labels 0..{size - 1}")
    positions = np.flatnonzero(rows)
    rows[:] = False
    for some in _select_chunks(pack, wanted, positions):
        rows[some] = True


def _keep_keys(sought: Sequence[_Sought], key: Keys) -> None:
    each = _each(key, (str, bytes), f"key={key!r}: expected keys or globs as 'cats/*', text or "
                 "bytes, one or a list of them; metadata alone take a function")  # fmt: skip
    whole = [k for k in each if not re.search(rb"[*?[]", os.fsencode(k))]
    places = _places([pack for pack, _ in sought], whole)
    texts = [k for k in each if isinstance(k, str) and k not in whole]
    raw = [k for k in each if isinstance(k, bytes) and k not in whole]
    match = fnmatch.fnmatchcase

    def test(data: list[bytes]) -> list[bool]:
        return [
            any(match(os.fsdecode(d), glob) for glob in texts) or any(match(d, g) for g in raw)
            for d in data
        ]

    for (pack, rows), positions in zip(sought, places, strict=True):
        named = np.zeros_like(rows)
        named[positions] = rows[positions]
        rows[:] = rows & ~named & bool(texts or raw)
        _keep(pack, "key", rows, test)
        rows[named] = True


def _each(given: Any, kinds: tuple[type, ...], message: str) -> list[Any]:
    if isinstance(given, kinds):
        return [given]
    values = list(given) if isinstance(given, Iterable) else [None]
    if all(isinstance(value, kinds) for value in values):
        return values
    raise OptionError(message)


def _places(found_in: Sequence[opening.Pack], keys: Sequence[str | bytes]) -> list[list[int]]:
    places: list[list[int]] = [[] for _ in found_in]
    for key in keys:
        missing: list[KeyNotFoundError] = []
        for pack, positions in zip(found_in, places, strict=True):
            try:
                positions.append(pack.find(key))
            except KeyNotFoundError as error:
                missing.append(error)
        if len(missing) == len(found_in):
            raise missing[0]
    return places


def _keep_meta(sought: Sequence[_Sought], meta: Mapping[str, Any]) -> None:
    have = [(pack, rows) for pack, rows in sought if "meta_data" in pack.index_file]
    if not have:
        raise OptionError(
            f"{next(iter(meta))}=: no metadata in {_paths(sought)}; expected a condition in SQL, "
            "label= or key="
        )
    seen: set[str] = set()
    tests = {n: v if callable(v) else functools.partial(operator.eq, v) for n, v in meta.items()}

    def test(data: list[bytes]) -> list[bool]:
        text = b"[" + b",".join(data) + b"]"
        values = cast("list[dict[str, Any]]", json.loads(text.decode("utf-8", "surrogatepass")))
        seen.update(*values)
        return [all(tests[name](value.get(name)) for name in tests) for value in values]

    there = any(rows.any() for _, rows in have)
    for pack, rows in sought:
        if "meta_data" in pack.index_file:
            _keep(pack, "meta", rows, test)
        elif not all(passes(None) for passes in tests.values()):
            rows[:] = False
    for name in meta:
        if there and name not in seen:
            near = difflib.get_close_matches(name, sorted(seen), 3) or sorted(seen)[:10]
            raise OptionError(
                f"{_paths(have)}: no metadata {name!r} in these samples; there are: "
                + ", ".join(near)
            )


def _paths(sought: Sequence[_Sought]) -> str:
    return ", ".join(str(path) for path in dict.fromkeys(pack.path for pack, _ in sought))


def _keep(
    pack: opening.Pack, column: str, rows: np.ndarray, test: Callable[[list[bytes]], Sequence[bool]]
) -> None:
    """Take the (N,) rows of a pack out, in place, whose text does not pass a test."""
    offsets = pack.index_file.column(f"{column}_offsets")
    data = pack.index_file.column(f"{column}_data")
    for start in range(0, len(rows), _TEXTS):
        some = np.flatnonzero(rows[start : start + _TEXTS])
        if not len(some):
            continue
        edges = offsets.span(start, min(start + _TEXTS, len(rows)) + 1)
        text = data.span(int(edges[0]), int(edges[-1])).tobytes()
        first, last = ((edges[some + i] - edges[0]).tolist() for i in (0, 1))
        texts = [text[a:b] for a, b in zip(first, last, strict=True)]
        rows[start + some] = test(texts)


def is_table(value: Any) -> bool:
    """Tell whether a value is a table, and not an array or a list of integers."""
    if isinstance(value, (list, tuple, np.ndarray, range)):
        return False
    if hasattr(value, "read_next_batch"):  # a stream of Arrow's, as DuckDB's arrow() gives
        return True
    has_names = hasattr(value, "columns") or hasattr(value, "column_names")
    return has_names and any(hasattr(value, n) for n in (*_METHODS, *_CAPSULES, "iloc", "schema"))


def read_positions(table: Any, pack: opening.Pack, chosen: np.ndarray | None) -> np.ndarray:
    """Find the samples that a table names, by ``key`` or by ``index``, the position in the pack.

    With both, the position counts, and the keys are compared: a table that was exported from
    another pack is refused. Returns (n,) int64 indices among the samples at the chosen positions.
    """
    positions = _find_positions(_arrow(table), pack)
    if chosen is None:
        return positions
    index_of = np.full(len(pack), -1)
    index_of[chosen[::-1]] = np.arange(len(chosen))[::-1]  # the first one, where there are several
    indices: np.ndarray = index_of[positions]
    if outside := np.count_nonzero(indices < 0):
        raise OptionError(
            f"subset: {outside} of {len(positions)} samples in the table are not in this part of "
            f"{pack.path}; take the whole dataset, or samples of the part only"
        )
    return indices


def _find_positions(table: Any, pack: opening.Pack) -> np.ndarray:
    names = list(table.column_names)
    position = next((name for name in _POSITIONS if name in names), None)
    key = next((name for name in _KEYS if name in names), None)
    if position is None and key is None:
        raise OptionError(
            f"subset: a table with the columns {', '.join(names)}; expected key, or index "
            "(position in the pack)"
        )
    wanted = None if key is None else table.column(key).to_pylist()
    if not all(isinstance(value, (str, bytes)) for value in wanted or ()):
        raise OptionError(
            f"subset: the column {key} has {table.column(key).type}; expected keys as text"
        )
    keys = [os.fsencode(value) for value in wanted or ()]
    if position is None:
        return selections.find_keys(pack.index_file, keys, pack.path, shown=True)
    column = table.column(position)
    numbers = np.asarray(column.to_numpy())
    if column.null_count or (len(numbers) and numbers.dtype.kind not in "iu"):
        raise OptionError(
            f"subset: the column {position} has {column.type}, {column.null_count} null; expected "
            "integers"
        )
    positions: np.ndarray = numbers.astype(np.int64)
    low, high = positions.min(initial=0), positions.max(initial=-1)
    if low < 0 or high >= len(pack):
        raise OptionError(
            f"subset: index {min(low, 0) or high} in the table; {pack.path} has {len(pack)} samples"
        )
    if wanted is not None:
        selections.compare_keys(pack.index_file, positions, keys, pack.path)
    return positions


def _arrow(table: Any) -> Any:
    arrow: Any = registry.require("pyarrow", EXTRA)
    for method in _METHODS:
        if callable(make := getattr(table, method, None)):
            table = make()
    if any(hasattr(table, name) for name in _CAPSULES):
        return arrow.table(table)
    return arrow.Table.from_pandas(table, preserve_index=False)


def check_indices(size: int, indices: Sequence[int] | np.ndarray | torch.Tensor) -> np.ndarray:
    """Check indices of samples, or a bool for each; returns (n,) int64, from 0 on."""
    wanted = np.asarray(indices)
    if wanted.dtype == bool and wanted.shape == (size,):
        return np.flatnonzero(wanted)
    if wanted.ndim != 1 or (len(wanted) and wanted.dtype.kind not in "iu"):
        raise OptionError(
            f"indices: {wanted.dtype} {wanted.shape}; expected a list of integers, or {size} bools"
            "; for keys: where(key=[…]), or a table with a column key"
        )
    bad = wanted[(wanted < -size) | (wanted >= size)]
    if len(bad):
        raise IndexError(
            f"index {bad[0]} is out of range: {size} samples; a sampler must be made of the same "
            "dataset, or of the same part of it"
        )
    chosen: np.ndarray = wanted.astype(np.int64)
    chosen[chosen < 0] += size
    return chosen


def several_indices(size: int, index: Any) -> Sequence[int] | np.ndarray | None:
    """Find the indices that a slice, list or array in brackets means; None: of one sample."""
    if isinstance(index, slice):
        return range(size)[index]
    if isinstance(index, (list, range)):
        has_bools = any(isinstance(i, (bool, np.bool_)) for i in index)
        return check_indices(size, index) if has_bools else index
    if getattr(index, "ndim", 0):  # an array or a tensor
        return check_indices(size, index)
    if isinstance(index, bool) or str(getattr(index, "dtype", "")) in ("bool", "torch.bool"):
        raise OptionError(f"index {index}: a bool; expected an int, or a list of ints or of bools")
    return None


@dataclasses.dataclass(frozen=True, slots=True)
class SelectionReport:
    """What was selected.

    Attributes:
        out: The selection.
        pack: The pack that it is of.
        selected: Number of samples in the selection.
        samples: Number of samples in the pack.
    """

    out: Path
    pack: Path
    selected: int
    samples: int


def select(
    pack: opening.Pack | str | os.PathLike[str],
    expression: str | None = None,
    *,
    out: str | os.PathLike[str],
    keys_of: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
) -> SelectionReport:
    """Save a selection of a pack: a small file that opens as a pack of the chosen samples.

    The file has positions and keys, and the digest of the pack's index. `packio.open`, datasets,
    `packio.pack`, `packio.convert` and the commands take it as a pack. The samples stay where they
    are: the file names the pack by its relative path.

    Args:
        pack: An open pack, or the path of one; it may be a selection.
        expression: A condition of SQL, as ``"width >= 512 AND class = 'cat'"``; see
            ``docs/queries.md``. Needs ``pip install 'packio[query]'``.
        out: The selection to write, as ``cats.selection``.
        keys_of: A selection, of this pack or of another, as of the same one before it changed; take
            the samples that have its keys. With an expression: those of them that match.
        overwrite: Replace a selection.

    Raises:
        OptionError: neither an expression nor a selection is given; the expression is none; no
            sample matches; or ``out`` ends as a pack or as a table.
        KeyNotFoundError: the pack lacks some of the keys.
        OutputExistsError: ``out`` exists.
        CannotCreateError: it cannot be written.
    """
    if isinstance(pack, (str, os.PathLike)):
        with opening.open(pack) as opened:
            return select(opened, expression, out=out, keys_of=keys_of, overwrite=overwrite)
    if expression is None and keys_of is None:
        raise OptionError(
            f"{pack.path}: say what to select: an expression, or keys_of='old.selection'"
        )
    found = np.arange(len(pack))
    if keys_of is not None:
        other = absolute(keys_of)
        if not selections.is_selection(other):
            raise OptionError(
                f"{other}: no selection; keys_of= takes a file that packio select wrote"
            )
        wanted = selections.read_selection(other).keys()
        found = np.unique(selections.find_keys(pack.index_file, wanted, pack.path))
    if expression is not None:
        found = np.intersect1d(found, expressions.matching(pack, expression))
        if not len(found):
            raise OptionError(f"{pack.path}: none of {len(pack)} samples has {expression!r}")
    return save(pack, found, out, expression=expression, overwrite=overwrite)


def save(
    pack: opening.Pack, positions: np.ndarray, out: str | os.PathLike[str], *,
    expression: str | None = None, overwrite: bool = False,
) -> SelectionReport:  # fmt: skip
    """Save samples at (n,) positions of a pack, in any order, which is not kept, as a selection."""
    if isinstance(pack.storage, FolderStore):
        raise OptionError(
            f"{pack.path}: an image folder; a selection is of a pack: packio pack makes one"
        )
    _check_suffix(Path(out))
    if not len(positions):
        raise OptionError(f"{os.fspath(out)}: no samples to select")
    steps = np.diff(positions)
    if (steps <= 0).any():
        ascending = np.unique(positions)
        if len(ascending) != len(positions):
            raise OptionError(
                f"{os.fspath(out)}: {len(positions) - len(ascending)} samples are there more than "
                "once; a selection has each sample once"
            )
        positions = ascending
        warnings.warn(
            f"{os.fspath(out)}: a selection has its samples in the order of the pack; the order of "
            "this dataset is not kept",
            stacklevel=3,
        )
    place, source = absolute(out), urls.absolute(pack.path)
    selections.write(
        place, pack.index_file, source, positions, expression=expression, overwrite=overwrite
    )
    return SelectionReport(Path(out), pack.path, len(positions), len(pack))


def _check_suffix(out: Path) -> None:
    """Refuse a name that others take for a pack or a table."""
    formats = registry.load_all("formats").values()
    of_packs = tuple(suffix for form in formats for suffix in form.caps.suffixes)
    chosen = out.with_suffix(".selection").name
    for suffixes, what, command in (
        (of_packs, "a pack", "convert"), (".parquet", "a table", "export"),
    ):  # fmt: skip
        if out.name.lower().endswith(suffixes):
            raise OptionError(
                f"{out}: ends as {what}; a selection has no bytes of images: name it {chosen}, and "
                f"for {what}: packio {command} {shlex.quote(chosen)} {shlex.quote(str(out))}"
            )
