"""New shards join a pack: one index over the old shards and the new ones, then the moves."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from packio import registry
from packio.errors import OptionError
from packio.index import columns as made
from packio.index import indexfile
from packio.index.column import Content
from packio.packing.plan.growth import Growth
from packio.packing.publish import assembly
from packio.packs import opening
from packio.sample.recipe import Recipe
from packio.sample.relabelling import Relabelling
from packio.system import files, locks


class Added(NamedTuple):
    """What was added to a pack."""

    samples: int
    skipped: int  # samples that could not be added
    digest: str  # of the pack now
    warnings: list[str]


def first_number(pack: opening.Pack) -> int:
    """Number that the first new shard of a pack gets."""
    numbers = []
    for name in _shards(pack):
        digits = (name.rpartition(".")[0] or name).rpartition("-")[2]
        if not digits.isdigit():
            raise OptionError(f"{name}: the shards of the pack are not numbered; convert it first")
        numbers.append(int(digits))
    return 1 + max(numbers)


def add(
    pack: opening.Pack,
    names: Sequence[str],
    shards: Sequence[indexfile.Index],
    growth: Growth,
    built: Path,
) -> Added:
    """Write an index over old and new shards, and move index and new shards into the pack."""
    out = pack.index_file.path.parent
    full = [(n, s) for n, s in zip(names, shards, strict=True) if s.metadata["samples"]]
    skipped = len(assembly.skipped(shards)) + len(growth.new.unlisted)
    built.mkdir(exist_ok=True)
    whole = _whole_sidecars(pack)
    columns = _columns(pack, full, growth, whole, built)
    index = built / indexfile.INDEX_NAME
    digest = indexfile.write(index, columns, _metadata(pack, full, growth, skipped))
    with locks.changing(index):  # before others see it
        _publish(built, out, whole)
    deep = assembly.deep_pixels([shard.column("image/dtype").array() for _, shard in full])
    warnings = [*deep, *assembly.told(shards)]
    return Added(sum(s.metadata["samples"] for _, s in full), skipped, digest, warnings)


def undo_killed(pack: opening.Pack, built: Path) -> None:
    """Take back what an append that was killed before its new index came has moved into a pack."""
    out = pack.index_file.path.parent
    built.mkdir(exist_ok=True)
    first, numbered = first_number(pack), re.compile(rf"{re.escape(out.stem)}-(\d+)(\.|$)")
    for path in list(out.iterdir()):
        found = numbered.match(path.name)
        if found and int(found[1]) >= first:
            files.remove(built / path.name)
            path.rename(built / path.name)
    _restore_sidecars(pack, built)


def _restore_sidecars(pack: opening.Pack, built: Path) -> None:
    """Write the files of the whole pack anew, if they are not as the index lists them."""
    out, whole = pack.index_file.path.parent, _whole_sidecars(pack)
    listed = {name: digest for name, _, digest in pack.index_file.files() if name in whole}
    if all((out / name).is_file() and made.sha256(out / name) == listed[name] for name in whole):
        return
    container = registry.load("formats", pack.metadata["format"])
    for name in whole:  # some were not moved into the pack
        files.remove(built / name)
    with _linked_beside(pack, built, whole):
        for name in container.finish(built, _shards(pack)):
            files.sync(built / name)
            (built / name).replace(out / name)
    files.sync(out)


def _shards(pack: opening.Pack) -> list[str]:
    return [str(shard["name"]) for shard in pack.metadata["shards"]]


def _whole_sidecars(pack: opening.Pack) -> set[str]:
    """Files that belong to the whole pack, not to one of its shards."""
    names = {name for name, _, _ in pack.index_file.files()}
    return {n for n in names if not any(_belongs(n, shard) for shard in _shards(pack))}


def _belongs(file: str, shard: str) -> bool:
    """Tell whether a file of a pack is a shard, lies in a shard, or is a sidecar of its name."""
    stem = shard.rpartition(".")[0] or shard
    return file == shard or file.startswith((f"{shard}/", f"{stem}."))


def _columns(
    pack: opening.Pack, full: Sequence[tuple[str, indexfile.Index]], growth: Growth,
    whole: set[str], built: Path,
) -> dict[str, Content]:  # fmt: skip
    """Columns of the new index."""
    old = assembly.columns_of(pack.index_file)
    data = assembly.data_files(old)
    paths = [name for name, _, _ in pack.index_file.files()]
    old |= made.chosen_files(old, [i for i, path in enumerate(paths) if path not in whole])
    classes = [*pack.classes, *growth.new_classes]
    old = Relabelling(pack.classes, classes, str(pack.path)).columns(old)
    new, _ = assembly.without_identities([assembly.columns_of(s) for _, s in full])
    tables = assembly.alike([old, *new], str(pack.path))
    columns = made.joined(tables, [data, *(s.metadata["files"] for _, s in full)])
    container = registry.load("formats", pack.metadata["format"])
    with _linked_beside(pack, built, whole):  # the format looks at all shards in one folder
        names = [*_shards(pack), *(name for name, _ in full)]
        return assembly.with_sidecars(columns, container, built, names)


@contextlib.contextmanager
def _linked_beside(pack: opening.Pack, built: Path, whole: set[str]) -> Iterator[None]:
    """Link the files of the old shards into the folder of the new shards, for a moment.

    An index that `packio.reindex` made lists no sidecars of shards, which a format may want to see.
    """
    out = pack.index_file.path.parent
    names = {name for name, _, _ in pack.index_file.files() if name not in whole}
    stems = {shard.rpartition(".")[0] or shard for shard in _shards(pack)}
    for path in out.iterdir():
        ends = [match.start() for match in re.finditer(r"\.", path.name)]
        if path.is_file() and any(path.name[:end] in stems for end in ends):
            names.add(path.name)
    try:
        for name in names:
            (built / name).parent.mkdir(parents=True, exist_ok=True)
            (built / name).symlink_to(out / name)
        yield
    finally:
        for top in {name.partition("/")[0] for name in names}:
            files.remove(built / top)


def _metadata(
    pack: opening.Pack, full: Sequence[tuple[str, indexfile.Index]], growth: Growth, skipped: int
) -> dict[str, Any]:
    metadata, new = dict(pack.metadata), assembly.of_shards(full)
    counts, added = metadata["counts"], sum(shard["samples"] for shard in new)
    plans = [str(metadata.get("plan")), *(s.metadata["plan"] for _, s in full)]
    metadata |= {
        "version": indexfile.VERSION,
        "fields": assembly.all_fields([pack.fields, *(s.fields for _, s in full)]),
        "shards": [*metadata["shards"], *new],
        "classes": [*pack.classes, *growth.new_classes],
        "counts": {
            "found": counts["found"] + added + skipped, "packed": counts["packed"] + added,
            "skipped": counts["skipped"] + skipped,
        },
        "recipe": Recipe.of(metadata).as_json(),
        "plan": hashlib.sha256(" ".join(plans).encode()).hexdigest(),
    }  # fmt: skip
    if growth.split_names:
        metadata["splits"] = growth.split_names
    if "identity" in metadata:
        metadata["identity"] = [*metadata["identity"], *(s.metadata["identity"] for _, s in full)]
    return metadata


def _publish(built: Path, out: Path, whole: set[str]) -> None:
    """Move the shards into the pack, then its sidecars, then the index over the old one."""
    # The old index names neither the new shards nor the files of the whole pack as they are now;
    # so these are moved before the index. `undo_killed` takes them back after a kill in between.
    files.sync_tree(built)
    names = sorted(path.name for path in built.iterdir())
    names.sort(key=lambda name: (name == indexfile.INDEX_NAME, name in whole))
    for name in names:
        target = out / name
        if (built / name).is_dir():
            files.remove(target)  # of an append that was cut short
        (built / name).replace(target)
    files.sync(out)
