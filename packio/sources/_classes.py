"""Class names: those that a source has, or those that it is given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from packio.errors import SourceError

_SPLITS = frozenset({"train", "training", "val", "valid", "validation", "test", "testing"})
_SHOWN = 5  # names in a message


def are_splits(folders: Iterable[str]) -> bool:
    """Tell whether folders are the splits of a dataset, and so no classes."""
    found = {name.lower() for name in folders}
    return bool(found) and found <= _SPLITS


def names(where: str, found: Iterable[str], given: Sequence[str] | None) -> list[str]:
    """Names that give the labels.

    Args:
        where: Begins the error's message.
        found: Names of the source's classes; they are sorted.
        given: Names to take instead.

    Raises:
        SourceError: `given` lacks one of those found.
    """
    if given is None:
        return sorted(set(found))
    unknown = sorted(set(found) - set(given))
    if unknown:
        shown = ", ".join(ascii(name)[1:-1] for name in unknown[:_SHOWN])
        raise SourceError(
            f"{where}: {len(unknown)} class(es) that --classes-from does not name: {shown}"
        )
    return list(given)
