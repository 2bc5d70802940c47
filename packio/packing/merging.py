"""Merging: several packs as one, by copying their samples, or by linking to their shards."""

from __future__ import annotations

import dataclasses
import errno
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from packio import __version__, registry
from packio.errors import OptionError, OutputError, OutputExistsError
from packio.index import columns as made
from packio.index import indexfile
from packio.packing import pack
from packio.packing.report import PackReport
from packio.packing.run import assembly
from packio.packs import packs
from packio.sample.sample import Sample
from packio.storage import workshop

_MODES = ("copy", "link")


def merge(
    out: str | os.PathLike[str],
    sources: Sequence[str | os.PathLike[str]],
    *,
    by: str = "copy",
    **options: Any,
) -> PackReport:
    """Make one pack of several. Classes are counted anew by name; no key may be there twice.

    Args:
        out: The pack to make; its suffix says the format.
        sources: Packs.
        by: "copy": write every sample anew, into any format. "link": a folder of shards that are
            hard links to the shards of the sources, all of the format of ``out``: nothing is read
            or copied, and the sources can be deleted afterwards.
        options: Of `pack`, where samples are copied.

    Raises:
        OptionError: keys that are there twice, labels of different kinds, other formats to link.
        OutputExistsError: something is at ``out``.
        OutputError: the file system cannot link.
    """
    if by not in _MODES:
        raise OptionError(f"by={by!r}: expected one of {', '.join(_MODES)}")
    if len(sources) < 2:
        raise OptionError(f"{len(sources)} packs: expected at least two to merge")
    with ExitStack() as stack:
        opened = [stack.enter_context(packs.open(source)) for source in sources]
        classes = _classes(opened)
        _check_keys(opened)
        if by == "copy":
            return pack(_Joined(opened, classes), out, classes_from=classes or None, **options)
        if options:
            raise OptionError(f"{', '.join(sorted(options))}: no option of merging by link")
        return _linked(Path(os.path.abspath(out)), opened, classes)


def _classes(opened: Sequence[packs.Pack]) -> list[str]:
    """Names of all classes: those of the first pack, then what the others have beyond them."""
    kinds = {None if p.labels is None else (p.labels.shape[1:], bool(p.classes)) for p in opened}
    if len(kinds) > 1:
        raise OptionError(
            "the packs have labels of different kinds (none, numbers, class names, vectors); "
            "only those of one kind can be merged"
        )
    return list(dict.fromkeys(name for p in opened for name in p.classes))


def _check_keys(opened: Sequence[packs.Pack]) -> None:
    seen: dict[bytes, int] = {}
    for number, one in enumerate(opened):
        for i in range(len(one)):
            key = one.key_bytes(i)
            if seen.setdefault(key, number) != number:
                raise OptionError(
                    f"{os.fsdecode(key)!r} is in {opened[seen[key]].path} and in {one.path}; "
                    "no key may be there twice"
                )


class _Joined(Sequence[Sample]):
    """The samples of several packs, one pack behind the other."""

    def __init__(self, opened: Sequence[packs.Pack], classes: Sequence[str]) -> None:
        self._packs = opened
        self._edges = np.cumsum([0, *map(len, opened)])
        numbers = {name: i for i, name in enumerate(classes)}
        self._labels = [[numbers[name] for name in one.classes] for one in opened]

    def __len__(self) -> int:
        return int(self._edges[-1])

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = int(np.searchsorted(self._edges, index, "right")) - 1
        sample = self._packs[number][index - int(self._edges[number])]
        if isinstance(sample.label, int) and self._labels[number]:
            return dataclasses.replace(sample, label=self._labels[number][sample.label])
        return sample


def _linked(out: Path, opened: Sequence[packs.Pack], classes: list[str]) -> PackReport:
    began = time.monotonic()
    container = _format(out, opened)
    if os.path.lexists(out):
        raise OutputExistsError(f"{out}: exists; choose another name")
    names: list[str] = []
    tables, counts, shards, identities = [], [], [], []
    with workshop.opened(out) as shop:
        shop.built.mkdir()
        for one in opened:
            renamed = _renamed(one, out, len(names), container)
            _link(one, renamed, shop.built)
            table = _relabelled(assembly.columns_of(one.index_file), one, classes)
            tables.append(table | _files(one, table, renamed))
            counts.append(assembly.data_files(table))
            new = [{**s, "name": renamed[s["name"]]} for s in one.metadata["shards"]]
            names += [s["name"] for s in new]
            shards += new
            identities += one.metadata.get("identity", [])
        tables = assembly.alike(tables)
        if len({tuple(sorted(table)) for table in tables}) > 1:
            raise OptionError("the packs have different fields: masks, boxes, meta")
        columns = made.joined(tables, counts)
        if hasattr(container, "finish"):
            more = made.of_files(shop.built, container.finish(shop.built, names))
            files = [len(columns["file_bytes"]), len(more["file_bytes"])]
            columns |= made.joined_files([columns, more], files)
        metadata = _metadata(opened, classes, shards, identities)
        digest = indexfile.write(shop.built / indexfile.INDEX_NAME, columns, metadata)
        shop.publish()
    packed, size = len(columns["image/offset"]), int(columns["file_bytes"].sum())
    return PackReport(
        out, opened[0].metadata["format"], packed, packed, (), len(classes),
        int(columns["image/length"].sum()), size, time.monotonic() - began, digest,
    )  # fmt: skip


def _format(out: Path, opened: Sequence[packs.Pack]) -> ModuleType:
    names = {one.metadata["format"] for one in opened}
    if len(names) > 1:
        raise OptionError(f"packs of different formats, {', '.join(sorted(names))}: copy them")
    container: ModuleType = registry.load("formats", names.pop())
    if not hasattr(container, "Writer") or not all(map(_is_ours, opened)):
        raise OptionError("packs that others wrote are not linked: copy them")
    if out.suffix.lower() not in container.SUFFIXES:
        raise OptionError(f"{out}: the shards' suffix is {container.SUFFIXES[0]}; name it so")
    return container


def _is_ours(one: packs.Pack) -> bool:
    """Whether its index lies beside the shards; that of what others wrote is in the cache."""
    name = one.index_file.files()[0][0]
    return one.access == "range" and os.path.lexists(one.index_file.path.parent / name)


def _renamed(one: packs.Pack, out: Path, first: int, container: ModuleType) -> dict[str, str]:
    """Old names of shards and files → new ones; sidecars of the whole pack are left out."""
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
            elif not container.IS_DIRECTORY and name.startswith(f"{stem}."):
                renamed[name] = new_stem + name[len(stem) :]
    return renamed


def _link(one: packs.Pack, renamed: dict[str, str], built: Path) -> None:
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
    one: packs.Pack, table: dict[str, np.ndarray], renamed: dict[str, str]
) -> dict[str, np.ndarray]:
    """A pack's table of files, with the new names."""
    names = [name for name, _, _ in one.index_file.files()]
    kept = [i for i, name in enumerate(names) if name in renamed]
    chosen = made.chosen_files(table, kept)
    data, starts = made.ragged([os.fsencode(renamed[names[i]]) for i in kept])
    return {**chosen, "file_path_data": data, "file_path_offsets": starts}


def _relabelled(
    table: dict[str, np.ndarray], one: packs.Pack, classes: Sequence[str]
) -> dict[str, np.ndarray]:
    if not one.classes or "label" not in table:
        return table
    numbers = {name: i for i, name in enumerate(classes)}
    mapped = np.array([numbers[name] for name in one.classes], np.int64)
    return {**table, "label": mapped[table["label"]]}


def _metadata(
    opened: Sequence[packs.Pack], classes: list[str], shards: list[Any], identities: list[Any]
) -> dict[str, Any]:
    counts = [one.metadata["counts"] for one in opened]
    metadata: dict[str, Any] = {
        "version": indexfile.VERSION,
        "format": opened[0].metadata["format"],
        "access": "range",
        "classes": classes,
        "counts": {n: sum(c[n] for c in counts) for n in ("found", "packed", "skipped")},
        "source": {"kind": "merge"},
        "options": {"merged": [one.digest for one in opened]},
        "shards": shards,
        "versions": {"packio": __version__},
    }
    return metadata | ({"identity": identities} if identities else {})
