"""Indexing: make an index of a container that has none, so that packio can open the container.

Either others wrote the container, or its index is lost. packio walks the container once, reads each
sample, takes its header and checksum, and writes all of this into an index file. Opening such a
container puts the index into the user's cache, under the identity of the container's files: device,
inode, size and modification time of each. Only `reindex` writes beside the data.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import shlex
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from packio import __version__, registry
from packio.errors import (
    CannotCreateError,
    IntegrityError,
    NotAPackError,
    OptionError,
    PackioError,
    UnfinishedPackError,
)
from packio.formats import Format, Reading
from packio.formats.blobs.ranges import refuse_unread
from packio.images import native
from packio.index import columns as made
from packio.index import indexfile
from packio.index.indexfile import INDEX_NAME, INDEX_SUFFIX, PROGRESSIVE, Index
from packio.packs.collecting import SampleCollector, check_label, index_metadata, remarks_of
from packio.packs.querying import selections
from packio.packs.recognising import Container, files_of, find, list_added_containers
from packio.sample import labelling
from packio.sample.recipe import Recipe
from packio.system import isolation, locks
from packio.system.files import cache_folder, check_folder_of

# A container whose library hangs is given up after two minutes, and a second for each megabyte.
_SECONDS, _SECONDS_A_BYTE = 120, 1e-6
_OF_PACKING = ("plan", "recipe")  # metadata that an index made from files alone lacks

Content = tuple[dict[str, np.ndarray], dict[str, Any]]  # columns and metadata of an index


def cache_index(path: Path, reading: Reading) -> tuple[Path, Path]:
    """The index of a bare container, from the user's cache, made if it is not there yet."""
    problem = "no index, and no container that packio knows; a pack was expected"
    container = _find_known(path, problem)
    index = cache_folder("indexes") / f"{_fingerprint(container, reading)}{INDEX_SUFFIX}"
    make_once(index, path, functools.partial(make, path, container, reading, index))
    return index, container.root


def _find_known(path: Path, problem: str) -> Container:
    """Recognise a container; raise the problem if it is none."""
    if (container := find(path)) is not None:
        return container
    refuse_unread(path)
    more = f"to pack images: packio pack {shlex.quote(str(path))} OUT.lmdb"
    if selections.is_selection(path):
        more = "a selection has no index of its own: select again"
    raise NotAPackError(f"{path}: {problem}; {more}")


def make_once(place: Path, path: Path, make: Callable[[], object]) -> Path:
    """An index in the user's cache; made if it is not there, or damaged. Of many, one makes it."""
    try:
        if not _is_own(place):
            place.parent.mkdir(parents=True, exist_ok=True)
            with locks.file_lock(place.with_suffix(".lock")):
                if not _is_own(place):  # again: another process may have made it
                    make()
    except OSError as error:
        if error.filename is None or not str(error.filename).startswith(str(place.parent)):
            raise
        raise CannotCreateError(
            f"{error.filename}: {error.strerror}; the index of {path} goes there; name another "
            "folder by PACKIO_CACHE_DIR"
        ) from error
    return place


def _is_own(place: Path) -> bool:
    """Whether this user wrote an index, and it is whole."""
    try:
        return place.stat().st_uid == os.geteuid() and indexfile.is_whole(place)
    except FileNotFoundError:
        return False


def reindex(path: Path, place: Path | None, reading: Reading, *, seek_points: bool) -> Path:
    """Index a container on a disk anew; see `packio.reindex`."""
    if place is not None:
        if place.is_dir():
            raise CannotCreateError(f"{place}: a folder; expected the name of an index file")
        check_folder_of(place)
    if not os.path.lexists(path):
        raise NotAPackError(f"{path}: does not exist; a container was expected")
    container = _find_known(path, "no container that packio knows")
    index = path / INDEX_NAME if path.is_dir() else path.with_name(path.name + INDEX_SUFFIX)
    index = place or index
    with locks.changing(index):
        rest = path.with_name(f"{path.name}{indexfile.APPENDING_SUFFIX}")
        if place is None and os.path.lexists(rest):  # its shards may be there in part
            raise UnfinishedPackError(
                f"{path}: an append to it was cut short ({rest.name} is there); run the same "
                "`packio append` again, or delete that folder to index all that is there by now"
            )
        is_restored = _write_anew(path, container, reading, index, seek_points=seek_points)
    if is_restored:
        with locks.changing(index):  # which is another file by now
            _change_seek_points(path, index, wanted=seek_points)
    return index


def _write_anew(
    path: Path, container: Container, reading: Reading, index: Path, *, seek_points: bool
) -> bool:
    """Write an index anew; return whether it was made of the old index."""
    restored, loss = carry_over(index, container, reading)
    if restored is not None:
        indexfile.write(index, *restored)
        return True
    make(path, container, reading, index, seek_points=seek_points)
    for remark in remarks_of(Index(index).metadata):
        warnings.warn(f"{path}: {remark}", stacklevel=4)
    if left_out := list_added_containers(container):
        shown = ", ".join(left_out[:3]) + (" …" if len(left_out) > 3 else "")
        warnings.warn(
            f"{path}: fields that were added later are left out, as only the lost index told of "
            f"them: {shown}; remove these and add the fields again: packio add",
            stacklevel=4,
        )
    if loss:
        warnings.warn(loss, stacklevel=4)
    return False


def make(
    path: Path, container: Container, reading: Reading, index: Path, *, seek_points: bool = False
) -> None:
    """Write the index of a container, from what the container alone says.

    The container is read in a process of its own if its library may crash.
    """
    if not registry.load("formats", container.format).caps.dies_of_damage:
        indexfile.write(index, *_build(container, reading, seek_points=seek_points))
        return
    size = sum(file.stat().st_size for _, file in files_of(container))
    isolation.run(
        "packio.packs.indexing:make_here", str(path), str(index), dataclasses.asdict(reading),
        seek_points,
        where=path, seconds=_SECONDS + size * _SECONDS_A_BYTE,
    )  # fmt: skip


def make_here(path: str, index: str, reading: dict[str, Any], seek_points: bool) -> None:
    """Write the index of a container in this process; see `make`."""
    container = find(Path(path))
    if container is not None:
        indexfile.write(
            Path(index), *_build(container, Reading(**reading), seek_points=seek_points)
        )


def _fingerprint(container: Container, reading: Reading) -> str:
    digest = hashlib.sha256(f"{__version__} {container.format} {reading}".encode())
    digest.update("\0".join(container.shards).encode("utf-8", "surrogateescape"))
    for name, path in files_of(container):
        s = path.stat()
        state = f"{s.st_dev} {s.st_ino} {s.st_size} {s.st_mtime_ns} {s.st_ctime_ns}"
        digest.update(f"{name}\0{state}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _build(container: Container, reading: Reading, *, seek_points: bool) -> Content:
    form: Format = registry.load("formats", container.format)
    root = container.root
    files = [name for name, _ in files_of(container)]
    for only_labelled in (False, True):
        samples = SampleCollector(
            root, files, form, reading.label_offset, seek_points=seek_points,
            only_labelled=only_labelled,
        )  # fmt: skip
        counts = [
            samples.add_shard(n, form.scan(root / n, reading), form.reader(root / n, reading))
            for n in container.shards
        ]
        if not samples.lacks_labels:
            break
    if not len(samples):
        shown = root / container.shards[0] if len(container.shards) == 1 else root
        raise samples.left_out.no_images(shown, container.format)
    identity = [form.identity(root / n) for n in container.shards]
    columns = samples.columns()
    metadata = index_metadata(
        container.format, reading, list(zip(container.shards, counts, strict=True)),
        samples.left_out, samples.least_label, columns, fields=samples.fields,
        access=container.format if samples.by_library else "range", classes=samples.classes,
        identity=identity if any(each is not None for each in identity) else None,
        remarks=samples.remarks() or None,
    )  # fmt: skip
    return columns, metadata


def _change_seek_points(path: Path, index: Path, *, wanted: bool) -> None:
    """Write an index anew, with seek points or without, unless it is so already."""
    old = Index(index)
    if wanted == ("seek_data" in old) or (wanted and native.why_not()):
        return
    names = [n for n in old.column_names if n not in ("seek_data", "seek_offsets")]
    table = {name: old.column(name).array() for name in names}
    if wanted:
        from packio.packs import opening

        with opening.open(path, index=index) as pack:
            found = [
                native.seek_points(pack.read(row))
                if row.encoding == "jpeg" and not row.flags & PROGRESSIVE else b""
                for row in map(pack.row, range(len(pack)))
            ]  # fmt: skip
        if not any(found):
            return
        table["seek_data"], table["seek_offsets"] = made.join_values(found)
    indexfile.write(index, table, old.metadata)


def carry_over(path: Path, container: Container, reading: Reading) -> tuple[Content | None, str]:
    """The content of an old index, brought up to date."""
    if not path.is_file():
        return None, ""
    try:
        old = Index(path)
        if not any(old.metadata.get(name) for name in _OF_PACKING):
            return None, ""  # it was made from the container alone, too
    except PackioError as error:
        return None, f"{path}: nothing of the old index is kept: {error}"
    why = f"{', '.join(reading.names())} was given"
    if reading.names().keys() <= {"label"}:
        try:
            content = _update(old, container)
        except IntegrityError as error:
            content, why = None, f"the old index is damaged ({error})"
        else:
            why = "the files are not those that the old index describes"
        if content is not None:
            if reading.label is not None:
                content = _relabel(content, reading.label, path)
            return _shift_labels(content, reading.label_offset, path), ""
    return None, (
        f"{path}: {why}, so the new index has only what the container holds; class names, splits, "
        "keys, metadata and the recipe of the old index may be missing"
    )


def _update(old: Index, container: Container) -> Content | None:
    """Columns and metadata of an old index, if it describes the container as it is now."""
    names = _new_names(old, container)
    if names is None:
        return None
    table = {n: old.column(n).array() for n in old.column_names}
    used = 1 + max(int(table[n].max(initial=0)) for n in table if n.endswith("/file"))
    files = [names.get(name, name) for name, _, _ in old.files()]
    kept = [i for i, name in enumerate(files) if i < used or (container.root / name).is_file()]
    try:
        found = made.file_columns(container.root, [files[i] for i in kept])
    except OSError:  # a file is missing
        return None
    if not np.array_equal(found["file_digest"][:used], table["file_digest"][:used]):
        return None
    form, metadata = registry.load("formats", container.format), dict(old.metadata)
    shards = [{**s, "name": names.get(s["name"], s["name"])} for s in metadata["shards"]]
    metadata |= {
        "version": indexfile.VERSION, "fields": old.fields,
        "recipe": Recipe.from_metadata(metadata).as_json(), "shards": shards,
    }  # fmt: skip
    if "identity" in metadata:
        metadata["identity"] = [form.identity(container.root / s["name"]) for s in shards]
    return table | found, metadata


def _new_names(old: Index, container: Container) -> dict[str, str] | None:
    """Old names of files → new ones, if a pack of one file was renamed; None if shards differ."""
    shards = [str(shard["name"]) for shard in old.metadata["shards"]]
    if old.metadata.get("format") != container.format:
        return None
    if sorted(shards) == sorted(container.shards):
        return {}
    if len(shards) != 1 or len(container.shards) != 1 or "." in (*shards, *container.shards):
        return None
    (before,), (now,) = shards, container.shards
    stems = os.path.splitext(before)[0] + ".", os.path.splitext(now)[0] + "."
    return {
        name: now + name[len(before) :]
        if name.startswith(before)
        else stems[1] + name.removeprefix(stems[0])
        for name, _, _ in old.files()
        if name.startswith((before, stems[0]))
    }


def _relabel(content: Content, name: str, path: Path) -> Content:
    """The content with labels that are a member of the metadata; "" takes none."""
    table, metadata = content
    table = {column: values for column, values in table.items() if column != "label"}
    if metadata.get("classes") and "boxes/labels" in table:
        raise OptionError(f"{path}: label_col={name!r}: its boxes have classes already")
    data, starts = (table.get(f"meta_{part}", np.zeros(0, "u1")) for part in ("data", "offsets"))
    found = labelling.labels_of_meta(
        (json.loads(text) if text else {} for text in made.split_values(data, starts)), name,
        lambda i: f"{path}" if i is None else f"{path}: sample {i}",
    )  # fmt: skip
    if found.missing:
        raise OptionError(
            f"{next(iter(found.missing.values()))} ({len(found.missing)} in all); to leave these "
            f"out: packio pack PACK OUT --label-col {shlex.quote(name)} --on-error skip"
        )
    if found.values is not None:
        table["label"] = np.asarray(found.values)
    metadata = {n: value for n, value in metadata.items() if n != "labels"}
    options = {**metadata.get("options", {}), "label": name}
    return table, {**metadata, "classes": [*found.classes], "options": options}


def _shift_labels(content: Content, offset: int, path: Path) -> Content:
    """The content with an offset added to the container's labels, if they are ints."""
    table, metadata = content
    label, before = table.get("label"), (metadata.get("labels") or {}).get("offset", 0)
    if offset == before or label is None or label.ndim != 1:
        return content
    if metadata.get("classes"):
        raise OptionError(
            f"{path}: its labels have class names ({len(metadata['classes'])}), and label_offset "
            "would give every label the name of another class; leave it out"
        )
    least = int(label.min()) - before
    own = label - before  # as the container has them
    for found in (least, int(own.max()), *np.sort(own[own >= 0])[:1].tolist()):
        check_label(found, offset, path)
    return (
        {**table, "label": label + (offset - before)},
        {**metadata, "labels": {"min": least, "offset": offset}},
    )
