"""Class names: the names that a source has, or the names that the user gives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from packio.errors import SourceError

_SPLITS = frozenset({"train", "training", "val", "valid", "validation", "test", "testing"})
_SHOWN = 5  # names in a message


def are_splits(folders: Iterable[str]) -> bool:
    """Tell whether folders are the splits of a dataset, as train and val, and so no classes."""
    found = {name.lower() for name in folders}
    return bool(found) and found <= _SPLITS


def names(where: str, found: Iterable[str], given: Sequence[str] | None) -> list[str]:
    """Return the names that give the labels: the given names, or the names found, sorted.

    Args:
        where: Begins the error's message.
        found: Names of the source's classes.
        given: Names to take instead, or None.

    Raises:
        SourceError: `given` lacks a name that was found.
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
