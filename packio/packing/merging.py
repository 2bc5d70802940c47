"""Merging: several packs as one, by copying their samples, or by linking to their shards."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packio import __version__, registry
from packio.errors import OptionError, OutputError, OutputExistsError
from packio.formats import Format
from packio.index import columns as made
from packio.index import indexfile
from packio.packing import sourcing
from packio.packing.making import pack
from packio.packing.report import PackReport
from packio.packing.run import assembly
from packio.packs import packs, pixel_statistics
from packio.sample.recipe import Recipe, merged
from packio.sample.relabelling import Relabelling, all_classes
from packio.sources import _packs
from packio.storage import workshop

if TYPE_CHECKING:
    import numpy as np

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
        OptionError: keys that are there twice; labels, splits or fields of different kinds; other
            formats to link.
        OutputExistsError: something is at ``out``.
        OutputError: the file system cannot link.
    """
    if by not in _MODES:
        raise OptionError(f"by={by!r}: expected one of {', '.join(_MODES)}")
    if len(sources) < 2:
        raise OptionError(f"{len(sources)} packs: expected at least two to merge")
    with ExitStack() as stack:
        opened = [stack.enter_context(packs.open(source)) for source in sources]
        _packs.check_alike(opened)
        _check_keys(opened)
        if by == "copy":
            classes = sourcing.class_names(options.pop("classes_from", None))
            return pack(_packs.listing(opened, classes), out, **options)
        if options:
            raise OptionError(f"{', '.join(sorted(options))}: no option of merging by link")
        return _linked(Path(os.path.abspath(out)), opened)


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


def _linked(out: Path, opened: Sequence[packs.Pack]) -> PackReport:
    """Link the shards of packs into one folder, under one index."""
    began = time.monotonic()
    container = _format(out, opened)
    if os.path.lexists(out):
        raise OutputExistsError(f"{out}: exists; choose another name")
    with workshop.opened(out) as shop:
        if os.path.lexists(out):
            raise OutputExistsError(f"{out}: made by another run just now; choose another name")
        shop.built.mkdir()
        shards: list[dict[str, Any]] = []
        tables = []
        classes = all_classes(one.classes for one in opened)
        for one in opened:
            renamed = _renamed(one, out, len(shards), container)
            _link(one, renamed, shop.built)
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
        metadata = _metadata(opened, classes, shards, split_names)
        digest = indexfile.write(shop.built / indexfile.INDEX_NAME, columns, metadata)
        shop.publish()
    packed, size = len(columns["image/offset"]), int(columns["file_bytes"].sum())
    return PackReport(
        out, opened[0].metadata["format"], packed, packed, (), len(classes),
        int(columns["image/length"].sum()), size, time.monotonic() - began, digest,
    )  # fmt: skip


def _format(out: Path, opened: Sequence[packs.Pack]) -> Format:
    names = {one.metadata["format"] for one in opened}
    if len(names) > 1:
        raise OptionError(f"packs of different formats, {', '.join(sorted(names))}: copy them")
    container: Format = registry.load("formats", names.pop())
    if not container.caps.writes or not all(map(_is_ours, opened)):
        raise OptionError("packs that others wrote are not linked: copy them")
    if out.suffix.lower() not in container.caps.suffixes:
        raise OptionError(f"{out}: the shards' suffix is {container.caps.suffixes[0]}; name it so")
    return container


def _is_ours(one: packs.Pack) -> bool:
    """Whether its index lies beside the shards; that of what others wrote is in the cache."""
    name = one.index_file.files()[0][0]
    return one.access == "range" and os.path.lexists(one.index_file.path.parent / name)


def _renamed(one: packs.Pack, out: Path, first: int, container: Format) -> dict[str, str]:
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
            elif not container.caps.is_directory and name.startswith(f"{stem}."):
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
    """A pack's columns, with the new names in its table of files."""
    names = [name for name, _, _ in one.index_file.files()]
    kept = [i for i, name in enumerate(names) if name in renamed]
    chosen = made.chosen_files(table, kept)
    data, starts = made.ragged([os.fsencode(renamed[names[i]]) for i in kept])
    return {**table, **chosen, "file_path_data": data, "file_path_offsets": starts}


def _metadata(
    opened: Sequence[packs.Pack], classes: list[str], shards: list[Any], split_names: list[str]
) -> dict[str, Any]:
    found = [one.metadata for one in opened]
    recipe = merged([Recipe.of(metadata) for metadata in found])
    metadata: dict[str, Any] = {
        "version": indexfile.VERSION,
        "format": found[0]["format"],
        "access": "range",
        "fields": assembly.all_fields([one.fields for one in opened]),
        "classes": classes,
        "counts": {
            n: sum(m["counts"][n] for m in found) for n in ("found", "packed", "skipped")
        },
        "source": {"kind": recipe.source or "merge"},
        "recipe": recipe.as_json(),
        "merged": [one.digest for one in opened],
        "shards": shards,
        "versions": {
            **{n: v for m in reversed(found) for n, v in m.get("versions", {}).items()},
            "packio": __version__,
        },
    }  # fmt: skip
    more = {
        "splits": split_names,
        "statistics": pixel_statistics.joined(opened),
        "identity": [identity for m in found for identity in m.get("identity", [])],
    }
    return metadata | {name: value for name, value in more.items() if value}
