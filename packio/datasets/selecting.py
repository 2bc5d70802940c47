"""Save a selection of a pack's samples: by an expression, by the keys of another, or as chosen."""

from __future__ import annotations

import dataclasses
import os
import shlex
import warnings
from pathlib import Path

import numpy as np

from packio import registry
from packio.errors import OptionError
from packio.packs import opening
from packio.packs.querying import expressions, selections
from packio.storage import urls
from packio.storage.local import FolderStore
from packio.system.files import absolute


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
    name = out.name.lower()
    formats = registry.load_all("formats").values()
    of_packs = tuple(suffix for form in formats for suffix in form.caps.suffixes)
    chosen = out.with_suffix(".selection").name
    if of_packs and name.endswith(of_packs):
        raise OptionError(
            f"{out}: ends as a pack, a selection has no bytes of images; name it {chosen}, and "
            f"for a pack of these samples: packio convert {shlex.quote(chosen)} "
            f"{shlex.quote(str(out))}"
        )
    if name.endswith(".parquet"):
        raise OptionError(
            f"{out}: ends as a table, a selection is none; name it {chosen}, and for a table: "
            f"packio export {shlex.quote(chosen)} {shlex.quote(str(out))}"
        )
