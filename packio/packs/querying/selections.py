"""Selections: files that name some samples of a pack, and are packs without bytes of their own.

A selection is a safetensors file, as an index is (`packio.index.indexfile`): columns and their
checksums. Samples are in the order of the pack, each once. The columns:

* ``positions`` int64: of the samples in the pack, ascending;
* ``key_data`` uint8, ``key_offsets`` int64: their keys, end to end, and N+1 offsets;
* ``checksums`` uint32: CRC32C of the header, then of each 1 MiB of every other column.

The header's ``__metadata__`` has one key, ``packio``, canonical JSON: ``selection`` (version of
this format: 1), ``pack`` (path of the pack, relative to the folder of the selection, or its URL,
without credentials),
``digest`` (of the pack's index, `Index.digest`), ``samples`` (of the whole pack), ``expression``
(what was selected, if it was an expression; of a selection of a selection both, as "width > 9; then
class = 'cat'") and ``versions``.

To open a selection, packio takes the rows of its samples out of the pack's index, once, into an
index in the user's cache; see `packio.packs.querying.selected`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shlex
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packio import __version__
from packio.errors import (
    CannotCreateError,
    IntegrityError,
    KeyNotFoundError,
    NotAPackError,
    OptionError,
    OutputExistsError,
    VersionError,
)
from packio.index import indexfile, layout
from packio.index.column import Column, Content, Pieces
from packio.index.columns import RAGGED, split_values
from packio.index.indexfile import Index
from packio.storage import urls
from packio.system import files
from packio.system.files import cache_folder

VERSION = 1
MARK = "selection"  # in the metadata of a selection, and of the index that is made of it
SOURCE_COLUMN = "selected_positions"  # of the index that is made of a selection
_COLUMNS = {"positions": "<i8", "key_offsets": "<i8", "key_data": "u1"}
_START = b'{"__metadata__":{"packio":"'  # of the header of what packio writes
_LONGEST_HEADER = 1 << 20  # bytes
_MOST = 1 << 17  # rows of a piece that is gathered
_SPAN = 1 << 18  # rows of the index that the rows of a piece are among
_FEW = 1000  # keys that are found one by one, by bisection; of more, all keys are gone through
_SHOWN = 3


@dataclasses.dataclass(frozen=True)
class Selection:
    """A selection, read."""

    path: Path
    pack: str  # its path as the file has it: relative to the folder of the file; or its URL
    index_digest: str
    samples: int  # of the whole pack
    expression: str | None
    digest: str  # hexadecimal SHA-256 that identifies the selection
    columns: dict[str, Column]

    def __len__(self) -> int:
        return len(self.columns["positions"])

    def pack_path(self) -> Path:
        """Path of the pack, absolute; or its URL, if the selection was made by this user here."""
        place = urls.parse(self.pack)
        if place is None:
            return _pack_from(self.path.parent, self.pack)
        if not _mark_of_own(self.digest).is_file():
            raise NotAPackError(
                f"{self.path}: a selection of {place}, made elsewhere; opening a file asks no URL. "
                f"If you trust that URL: packio.open({self.path.name!r}, pack={str(place)!r}), or "
                f"packio select {shlex.quote(str(place))} --keys-of "
                f"{shlex.quote(str(self.path))} -o NEW.selection"
            )
        return place

    def positions(self) -> np.ndarray:
        """Positions of the samples in the pack, checked."""
        found = self.columns["positions"].array()
        if len(found) and (
            found[0] < 0 or found[-1] >= self.samples or (found[1:] <= found[:-1]).any()
        ):
            raise IntegrityError(
                f"{self.path}: its positions do not ascend within 0..{self.samples - 1}; the file "
                "is forged or damaged: select again"
            )
        return found

    def key_columns(self) -> tuple[np.ndarray, np.ndarray]:
        """The keys end to end, and N+1 offsets, checked."""
        ends, data = self.columns["key_offsets"].array(), self.columns["key_data"].array()
        if (
            len(ends) != len(self) + 1 or ends[0] != 0 or ends[-1] != len(data)
            or (ends[1:] < ends[:-1]).any()
        ):  # fmt: skip
            raise IntegrityError(f"{self.path}: its keys do not add up; select again")
        return data, ends

    def keys(self) -> list[bytes]:
        return list(split_values(*self.key_columns()))


def is_selection(path: Path) -> bool:
    """Tell whether a file is a selection, by its header."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return False
        with path.open("rb") as file:
            head = file.read(8 + len(_START))
            size = int.from_bytes(head[:8], "little")
            if head[8:] != _START or size > _LONGEST_HEADER:
                return False
            header = json.loads(head[8:] + file.read(size - len(_START)))
        return MARK in json.loads(header["__metadata__"]["packio"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def read_selection(path: Path) -> Selection:
    """Read a selection. Damage in a column is told when its bytes are touched."""
    whole, length = layout.content(path, is_one_of_many=False)
    header, columns, digest = layout.read_columns(whole, path, length)
    said = _metadata(header, path)
    for name, code in _COLUMNS.items():
        if name not in columns or columns[name].dtype != code or len(columns[name].shape) != 1:
            raise NotAPackError(f"{path}: column {name} is missing, or of another type")
    return Selection(
        path, said["pack"], said["digest"], said["samples"], said.get("expression"), digest,
        columns,
    )  # fmt: skip


def _metadata(header: dict[str, Any], path: Path) -> dict[str, Any]:
    try:
        said = json.loads(header["__metadata__"]["packio"])
        version = said[MARK]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise NotAPackError(f"{path}: no selection of packio's ({error})") from error
    if type(version) is int and version > VERSION:
        raise VersionError(
            f"{path}: selection version {version}, this packio reads up to {VERSION}; update it: "
            "pip install -U packio"
        )
    pack, count = said.get("pack"), said.get("samples")
    is_right = (
        type(version) is int and version >= 1 and isinstance(pack, str) and isinstance(
            said.get("digest"), str) and type(count) is int and 0 <= count < 1 << 63
        and isinstance(said.get("expression"), str | None)
    )  # fmt: skip
    if not is_right or pack in ("", ".", "..") or "\0" in pack or pack.startswith("/"):
        raise NotAPackError(
            f"{path}: its metadata are not those of a selection; expected the relative path of a "
            "pack, the digest of its index and its number of samples; select again"
        )
    return said  # type: ignore[no-any-return]  # parsed JSON


def write(
    out: Path, index: Index, pack: Path, positions: np.ndarray, *, expression: str | None = None,
    overwrite: bool = False,
) -> None:  # fmt: skip
    """Write a selection, all of it or nothing. Paths are absolute; positions ascend, each once.

    The index may be one made of another selection, with another pack behind it.
    """
    files.check_folder_of(out)
    if os.path.lexists(out) and not is_selection(out):
        raise OutputExistsError(f"{out}: exists, and is no selection; choose another name")
    if os.path.lexists(out) and not overwrite:
        raise OutputExistsError(f"{out}: exists; choose another name, or say overwrite=True")
    digest, samples = index.digest, len(index)
    columns: dict[str, Content] = {
        "key_data": gather_values(index, "key_data", positions),
        "key_offsets": gather_offsets(index, "key_offsets", positions),
    }
    if MARK in index.metadata:
        if SOURCE_COLUMN not in index:
            raise IntegrityError(f"{index.path}: no column {SOURCE_COLUMN}; open the pack anew")
        before = index.metadata[MARK]
        digest, samples = before["digest"], before["samples"]
        if expression is not None and before.get("expression") is not None:
            expression = f"{before['expression']}; then {expression}"
        pack = urls.parse(before["pack"]) or _pack_from(pack.parent, before["pack"])
        positions = index.column(SOURCE_COLUMN).take(positions)
    place = _relative(pack, out) if urls.parse(pack) is None else str(pack)
    metadata = {
        MARK: VERSION, "pack": place, "digest": digest, "samples": samples,
        "expression": expression, "versions": {"packio": __version__},
    }  # fmt: skip
    try:
        written = indexfile.write(out, {"positions": positions, **columns}, metadata)
    except OSError as error:
        raise CannotCreateError(f"{out}: {error.strerror or error}") from error
    if urls.parse(pack) is not None:
        with contextlib.suppress(OSError):
            cache_folder("selections").mkdir(parents=True, exist_ok=True)
            _mark_of_own(written).touch()


def _mark_of_own(digest: str) -> Path:
    """File that tells that a selection of a pack at a URL was made here."""
    return cache_folder("selections") / f"{digest}.made-here"


def _pack_from(folder: Path, name: str) -> Path:
    """Path of a pack whose path from a folder is known; links may lead to the folder."""
    found = Path(os.path.normpath(folder / name))
    through_links = Path(os.path.realpath(folder / name))
    return through_links if through_links.exists() and not found.exists() else found


def _relative(pack: Path, out: Path) -> str:
    """Path of a pack from the folder of a selection."""
    found = os.path.relpath(pack, out.parent)
    if os.path.realpath(out.parent / found) != os.path.realpath(pack):  # a link leads to the folder
        found = os.path.relpath(os.path.realpath(pack), os.path.realpath(out.parent))
    if os.path.realpath(pack) == os.path.realpath(out):
        raise OptionError(f"{out}: is the pack itself; choose another name")
    if found == ".":
        raise OptionError(f"{out}: lies within the pack {pack}; choose another place")
    return found


def gather(index: Index, name: str, rows: np.ndarray) -> Pieces:
    """Some rows of a column, piece by piece; they ascend, and none is there twice."""
    column = index.column(name)
    return Pieces(
        column.dtype, (len(rows), *column.shape[1:]), lambda: map(column.take, _groups(rows))
    )


def gather_offsets(index: Index, name: str, rows: np.ndarray) -> np.ndarray:
    """The n+1 offsets of what `gather_values` gathers."""
    lengths = [lengths for _, lengths in _lengths(index, name, rows)]
    return np.concatenate([np.zeros(1, np.int64), *lengths]).cumsum()


def gather_values(index: Index, name: str, rows: np.ndarray) -> Pieces:
    """The values of some rows, of different lengths, end to end, as ``key_data``."""
    top = name.partition("/")[0]  # boxes/labels lie as boxes do
    offsets = next(key for key, value in RAGGED.items() if value == top)
    column = index.column(name)

    def make() -> Iterator[np.ndarray]:
        for starts, lengths in _lengths(index, offsets, rows):
            first, ends = int(starts[0]), lengths.cumsum()
            places = np.repeat(starts - first - ends + lengths, lengths) + np.arange(ends[-1])
            yield column.span(first, int(starts[-1] + lengths[-1]))[places]

    count = int(gather_offsets(index, offsets, rows)[-1])
    return Pieces(column.dtype, (count, *column.shape[1:]), make)


def _groups(rows: np.ndarray) -> Iterator[np.ndarray]:
    """The rows, in groups that lie close together."""
    start = 0
    while start < len(rows):
        near = int(np.searchsorted(rows, rows[start] + _SPAN))
        stop = min(start + _MOST, near)
        yield rows[start:stop]
        start = stop


def _lengths(index: Index, name: str, rows: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Where the values of each group of rows begin, and how long they are."""
    for group in _groups(rows):
        first = int(group[0])
        ends = index.offsets(name, first, int(group[-1]) + 1)
        yield ends[group - first], ends[group - first + 1] - ends[group - first]


def find_keys(
    index: Index, wanted: Sequence[bytes], where: object, *, shown: bool = False
) -> np.ndarray:
    r"""Positions of some keys, (n,) int64, in their order.

    Shown keys may be as Arrow's text has them: bytes that are not UTF-8 as ``\xNN``.
    """
    places: dict[bytes, int] = {}
    if len(wanted) <= _FEW:
        for key in dict.fromkeys(wanted):
            with contextlib.suppress(KeyNotFoundError):
                places[key] = index.find(key)
    else:
        asked = set(wanted)
        places = {key: row for row, key in enumerate(index.every_key()) if key in asked}
    if shown and (asked := {key for key in wanted if key not in places and b"\\x" in key}):
        for row, key in enumerate(index.every_key()):
            if not key.isascii() and (text := _shown_key(key)) in asked:
                places.setdefault(text, row)
    if missing := [key for key in wanted if key not in places]:
        first_ones = ", ".join(repr(os.fsdecode(key)) for key in missing[:_SHOWN])
        raise KeyNotFoundError(
            f"{where}: {len(missing)} of {len(wanted)} keys are not in the pack: {first_ones}"
        )
    return np.array([places[key] for key in wanted], np.int64)


def _shown_key(key: bytes) -> bytes:
    return key.decode("utf-8", "backslashreplace").encode()


def compare_keys(
    index: Index, positions: np.ndarray, expected: Sequence[bytes], where: object
) -> None:
    """Compare the keys at some positions with those of a table, which may be shown as text."""
    for position, key in zip(positions.tolist(), expected, strict=True):
        own = index.key(position)
        if key not in (own, _shown_key(own)):
            raise OptionError(
                f"{where}: sample {position} has the key {os.fsdecode(own)!r}, the table says "
                f"{os.fsdecode(key)!r}: the table is of another pack, or the pack has changed; "
                "leave the column index out to go by keys"
            )
