"""Class names of the shards of a pack that was merged by link, in a file beside the shards.

Merging by link changes no byte of a shard. The labels in a shard stay positions in the class names
of the pack that the shard comes from; only the index has the labels of the merged pack. When the
index is lost, this file tells how to move the labels of each shard again.

The file is ``shard-classes.json``: the class names of the merged pack, and those of each shard.
Example: ``{"classes": ["cat", "dog", "bird"], "shards": {"all-00001.tar": ["bird", "cat"]}}``. A
shard that is not listed, as one that was appended, has labels in the merged pack's class names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from packio.errors import IntegrityError
from packio.index.layout import canonical_json
from packio.sample.relabelling import Relabelling
from packio.system import files

if TYPE_CHECKING:
    from packio.packs.opening import Pack

FILE_NAME = "shard-classes.json"


class ShardClasses(NamedTuple):
    """What the file says."""

    classes: list[str]  # of the merged pack
    shards: dict[str, list[str]]  # name of a shard → the class names that its labels stand for

    def relabelling(self, shard: str) -> Relabelling:
        """What moves the labels that are stored in a shard to the merged pack's class names."""
        return Relabelling(self.shards.get(shard, self.classes), self.classes, shard)


def of(pack: Pack) -> dict[str, list[str]]:
    """Name of each shard of a pack → the class names that the labels in the shard stand for."""
    names = [str(shard["name"]) for shard in pack.metadata["shards"]]
    found = read(pack.index_file.path.parent, names)
    return {name: found.shards.get(name, pack.classes) if found else pack.classes for name in names}


def write(folder: Path, classes: Sequence[str], shards: Mapping[str, Sequence[str]]) -> list[str]:
    """Write the file if the labels of any shard stand for other class names than the pack's.

    Args:
        folder: Of the merged pack.
        classes: Of the merged pack.
        shards: Name of each shard → the class names that the labels in it stand for.

    Returns:
        Names of the files written: one or none.
    """
    others = {name: list(names) for name, names in shards.items() if list(names) != list(classes)}
    if not others:
        return []
    text = canonical_json({"classes": list(classes), "shards": others})
    (folder / FILE_NAME).write_text(text + "\n", encoding="ascii")
    return [FILE_NAME]


def extended(pack: Pack, classes: Sequence[str], folder: Path) -> list[str]:
    """Write the file of a pack for other class names of the whole; the shards keep theirs.

    Args:
        pack: A pack in a folder.
        classes: Its class names, and perhaps new ones behind them.
        folder: Where the file goes.

    Returns:
        Names of the files written: one, or none if the pack has no such file.
    """
    out, names = pack.index_file.path.parent, [str(s["name"]) for s in pack.metadata["shards"]]
    if (found := read(out, names)) is not None:
        return write(folder, classes, found.shards)
    if any(name == FILE_NAME for name, _, _ in pack.index_file.files()):
        raise IntegrityError(f"{out / FILE_NAME}: missing; it names the labels; restore it")
    return []


def read(folder: Path, shards: Sequence[str]) -> ShardClasses | None:
    """Read the file; None if there is none, or if it lists none of these shards."""
    path = folder / FILE_NAME
    try:
        content = json.loads(files.content(path))
        found = ShardClasses(_names(content["classes"]), {
            name: _names(names) for name, names in content["shards"].items()
        })  # fmt: skip
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise IntegrityError(
            f"{path}: cannot be read ({error}); without this file the labels of the shards would "
            "get wrong names; restore it"
        ) from error
    return found if found.shards.keys() & set(shards) else None


def _names(value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise TypeError(f"{value!r:.60} is no list of class names")
    return value
