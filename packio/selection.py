"""Some samples of a pack: those of some classes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator

import numpy as np

from packio import packs
from packio.errors import OptionError

_CHUNK = 4096  # samples whose index rows are looked at together


def selected(pack: packs.Pack, classes: Iterable[str] | None = None) -> Iterator[np.ndarray]:
    """Go through the indices of a pack, or of some of its classes, in chunks of at most 4,096.

    Args:
        pack: The pack.
        classes: Names of classes; None takes all samples. In a pack with vectors as labels, a
            sample is of every class whose entry is above 0.

    Returns:
        An iterator of (n,) int64 arrays, n > 0, ascending.

    Raises:
        OptionError: the pack has no class of such a name.
    """
    wanted = None if classes is None else [class_index(pack, name) for name in classes]
    return _chunks(pack, wanted)


def _chunks(pack: packs.Pack, wanted: list[int] | None) -> Iterator[np.ndarray]:
    for start in range(0, len(pack), _CHUNK):
        rows = np.arange(start, min(start + _CHUNK, len(pack)))
        if wanted is not None:
            labels = pack.take_labels(rows)
            rows = rows[
                np.isin(labels, wanted) if labels.ndim == 1 else (labels[:, wanted] > 0).any(axis=1)
            ]
        if len(rows):
            yield rows


def class_index(pack: packs.Pack, name: str) -> int:
    """Look up a class by name.

    Raises:
        OptionError: there is none; the message has names that are near.
    """
    names = pack.classes if "label" in pack.index_file else []
    if name in names:
        return names.index(name)
    if not names:
        raise OptionError(f"{pack.path}: no class {name!r}; the pack has no classes")
    near = difflib.get_close_matches(name, names, 3) or [*names[:3], "…"][: len(names)]
    raise OptionError(
        f"{pack.path}: no class {name!r} among {len(names)}; there are: {', '.join(near)}"
    )
