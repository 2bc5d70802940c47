"""What a new index takes from an old one: facts that packing knew, and that no container holds.

Class names, splits, keys, metadata, the recipe and the counts are only in the index. If the files
are still those that the old index describes, byte for byte, everything in the old index is true.
"""

from __future__ import annotations

import itertools
import json
import os
import shlex
from pathlib import Path
from typing import Any

import numpy as np

from packio import registry
from packio.errors import IntegrityError, OptionError, PackioError
from packio.formats import Reading
from packio.index import columns as made
from packio.index import indexfile
from packio.index.indexfile import Index
from packio.packs.collecting import check_label
from packio.packs.recognising import Container
from packio.sample import labelling
from packio.sample.recipe import Recipe

_OF_PACKING = ("plan", "recipe")  # metadata that an index made from files alone lacks

Content = tuple[dict[str, np.ndarray], dict[str, Any]]  # columns and metadata of an index


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
            content = _content(old, container)
        except IntegrityError as error:
            content, why = None, f"the old index is damaged ({error})"
        else:
            why = "the files are not those that the old index describes"
        if content is not None:
            if reading.label is not None:
                content = _relabelled(content, reading.label, path)
            return _moved(content, reading.label_offset, path), ""
    return None, (
        f"{path}: {why}, so the new index has only what the container holds; class names, splits, "
        "keys, metadata and the recipe of the old index may be missing"
    )


def _content(old: Index, container: Container) -> Content | None:
    """Columns and metadata of an old index, if it describes the container as it is now."""
    names = _new_names(old, container)
    if names is None:
        return None
    table = {n: old.column(n).array() for n in old.column_names}
    used = 1 + max(int(table[n].max(initial=0)) for n in table if n.endswith("/file"))
    files = [names.get(name, name) for name, _, _ in old.files()]
    kept = [i for i, name in enumerate(files) if i < used or (container.root / name).is_file()]
    try:
        found = made.of_files(container.root, [files[i] for i in kept])
    except OSError:  # a file is missing
        return None
    if not np.array_equal(found["file_digest"][:used], table["file_digest"][:used]):
        return None
    form, metadata = registry.load("formats", container.format), dict(old.metadata)
    shards = [{**s, "name": names.get(s["name"], s["name"])} for s in metadata["shards"]]
    metadata |= {
        "version": indexfile.VERSION,
        "fields": old.fields,
        "recipe": Recipe.of(metadata).as_json(),
        "shards": shards,
    }
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


def _relabelled(content: Content, name: str, path: Path) -> Content:
    """The content with labels that are a member of the metadata; "" takes none."""
    table, metadata = content
    table = {column: values for column, values in table.items() if column != "label"}
    if metadata.get("classes") and "boxes/labels" in table:
        raise OptionError(f"{path}: label_col={name!r}: its boxes have classes already")
    data, starts = (table.get(f"meta_{part}", np.zeros(0, "u1")) for part in ("data", "offsets"))
    texts = (data[a:b].tobytes() for a, b in itertools.pairwise(starts.tolist()))
    found = labelling.labels_of_meta(
        (json.loads(text) if text else {} for text in texts), name,
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


def _moved(content: Content, offset: int, path: Path) -> Content:
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
