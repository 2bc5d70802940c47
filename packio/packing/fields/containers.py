"""Containers of a field that is added: one for each shard of the pack, in the pack's own format."""

from __future__ import annotations

import io
import itertools
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio import registry
from packio.formats import Format, Ranges
from packio.images import encodings
from packio.index import columns as made
from packio.index.building import FactColumns
from packio.index.columns import OF_FILES
from packio.packing.fields import parts
from packio.packs import opening
from packio.sample.fields import PIXELS
from packio.sample.record import IMAGE, Field, Record
from packio.system import files

_BATCH = 16 << 20  # bytes that are handed to the writer at once


class Task(NamedTuple):
    """A container to write.

    Attributes:
        number: Of the shard.
        path: Of the container, relative to the folder of the pack's index.
        format: Of the pack.
        name, kind: Of the field.
        first, stop: Rows of the shard.
        keys: Of these rows.
        folder: Of the journal.
        built: Where the container is written.
    """

    number: int
    path: str
    format: str
    name: str
    kind: str
    first: int
    stop: int
    keys: list[bytes]
    folder: Path
    built: Path


def record_path(folder: Path, number: int) -> Path:
    """Path of the note of a container that is finished."""
    return folder / f"container-{number:05d}.packio"


def write(task: Task) -> int:
    """Write a container, and note it; return its number of rows. No values: no container."""
    form: Format = registry.load("formats", task.format)
    path = task.built / task.path
    _clear(task, path)
    path.parent.mkdir(parents=True, exist_ok=True)
    count, facts = task.stop - task.first, FactColumns(task.kind, 0)
    size = sum(part.stat().st_size for _, _, part in _parts(task))
    inner = IMAGE if form.caps.fields_apart else task.name
    names: list[str] = []
    data_files = 0
    writer = form.writer(path, count=count, size=size, classes=())
    try:
        for records in _batches(task, inner, facts):
            writer.add(records)
        written = writer.close()
    finally:
        writer.abort()
    if inner in written.places and (written.places[inner].offset >= 0).any():
        places = _padded(written.places[inner], count)
        inside = task.path if form.caps.is_directory else os.path.dirname(task.path)
        names = [os.path.join(inside, n) for n in (*written.files, *written.sidecars)]
        data_files = len(written.files)
        files.sync_tree(path if path.is_dir() else path.parent)
    else:  # no sample of the shard has a value
        _clear(task, path)
        nothing = np.zeros(count, np.int64)
        places = Ranges(nothing.astype(np.uint32), nothing - 1, nothing)
    columns = {f"of_{name}": column for name, column in facts.columns(places).items()}
    columns |= made.of_files(task.built, names)
    content = io.BytesIO()
    place = np.frombuffer(os.fsencode(task.path), np.uint8)
    named: dict[str, Any] = {"data_files": np.array(data_files), "place": place, **columns}
    np.savez(content, **named)
    parts.write_whole(record_path(task.folder, task.number), content.getvalue())
    return count


def _clear(task: Task, path: Path) -> None:
    """Remove what a run that was killed left of the container."""
    is_directory = registry.load("formats", task.format).caps.is_directory
    stem = path.name if is_directory else path.name.rpartition(".")[0]
    for other in list(path.parent.iterdir()) if path.parent.is_dir() else []:
        if other == path or other.name.startswith(f"{stem}."):
            files.remove(other)


def _parts(task: Task) -> Iterator[tuple[int, int, Path]]:
    for first, stop, path in parts.there(task.folder):
        if first < task.stop and stop > task.first:
            yield first, stop, path


def _batches(task: Task, inner: str, facts: FactColumns) -> Iterator[list[Record[Field]]]:
    """Records of the rows of a shard, with the one field or without it."""
    batch, size = list[Record[Field]](), 0
    for first, stop, path in _parts(task):
        part = parts.read(path)
        if part is None:
            raise OSError(f"{path}: is damaged; run the command again")
        for row in range(max(first, task.first), min(stop, task.stop)):
            value = part.value(row - first)
            key = task.keys[row - task.first]
            if value is None:
                facts.add_absent()
                batch.append(Record(key, {}))
                continue
            known = encodings.read_facts(value) if task.kind in PIXELS else None
            field = Field(task.kind, value, known)
            facts.add(field)
            batch.append(Record(key, {inner: field}))
            size += len(value)
            if size >= _BATCH:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def _padded(places: Ranges, count: int) -> Ranges:
    """Places of all rows of a shard; the last ones may have no value."""
    more = count - len(places.offset)
    if not more:
        return places
    return Ranges(
        np.pad(places.file, (0, more)), np.pad(places.offset, (0, more), constant_values=-1),
        np.pad(places.length, (0, more)),
        None if places.split is None else np.pad(places.split, (0, more)),
    )  # fmt: skip


class Finished(NamedTuple):
    """A container that is written.

    Attributes:
        path: Of the container, relative to the folder of the pack's index.
        columns: Columns of the field, of the rows of its shard, as ``offset``.
        files: Columns of its table of files.
        data_files: Files with values; the others are sidecars.
    """

    path: str
    columns: dict[str, np.ndarray]
    files: dict[str, np.ndarray]
    data_files: int

    @property
    def names(self) -> list[str]:
        """Its files, relative to the folder of the pack's index."""
        data, starts = self.files["file_path_data"].tobytes(), self.files["file_path_offsets"]
        return [os.fsdecode(data[a:b]) for a, b in itertools.pairwise(starts)]

    @property
    def moved(self) -> list[str]:
        """What is moved into the pack: the container that is a folder, or all of its files."""
        names = self.names
        return [self.path] if names and names[0].startswith(f"{self.path}/") else names


class Placed(NamedTuple):
    """The container of a shard, and the rows of the shard: the first, and that behind the last."""

    first: int
    stop: int
    finished: Finished


def finished(folder: Path, number: int) -> Finished | None:
    """Read the note of a container; None if there is none, or not a whole one."""
    try:
        with np.load(record_path(folder, number), allow_pickle=False) as found:
            table = {name: found[name] for name in found.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile):
        return None
    count, place = int(table.pop("data_files")), os.fsdecode(table.pop("place").tobytes())
    of_files = {name: table.pop(name) for name in OF_FILES}
    columns = {name.removeprefix("of_"): column for name, column in table.items()}
    return Finished(place, columns, of_files, count)


def is_whole(one: Finished, root: Path) -> bool:
    """Tell whether all files of a container are in a folder, with their sizes."""
    for name, size in zip(one.names, one.files["file_bytes"].tolist(), strict=True):
        try:
            if (root / name).stat().st_size != size:
                return False
        except OSError:
            return False
    return True


def rows_of_shards(pack: opening.Pack) -> list[tuple[str, int, int]]:
    """Name, first row, and row behind the last, of each shard of a pack."""
    found, first = [], 0
    for shard in pack.metadata["shards"]:
        stop = first + int(shard["samples"])
        found.append((str(shard["name"]), first, stop))
        first = stop
    return found
