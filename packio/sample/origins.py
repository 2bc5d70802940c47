"""What became of the fields of a source: which of them are the fields of a pack, by which names.

An index's metadata keep what became of fields that were renamed, replaced or dropped under
``"origins"``: name in the source → name in the pack; or None, if the pack has no field of these
values. Fields that are not there have the same name in both. A field that is there with the same
name in both has also values that were added later.

Example: ``{"txt": "caption", "mask": None}``: the pack's captions are the source's ``txt``; its
masks, if it has any, were added after it was packed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

Origins = Mapping[str, "str | None"]
_T = TypeVar("_T")


def origin_of(name: str, origins: Origins) -> str | None:
    """Name in the source of a field of the pack; None if the source does not give its values."""
    for origin, given in origins.items():
        if given == name:
            return origin
    return None if name in origins else name


def rename(origins: Origins, names: Mapping[str, str]) -> dict[str, str | None]:
    """The origins of a pack whose fields have got other names, all at once: old name → new name."""
    moved = {origin_of(old, origins): new for old, new in names.items()}
    taken = {**dict.fromkeys(names.values()), **origins}  # None: not under these names any more
    found = {name: None if given in names.values() else given for name, given in taken.items()}
    found |= {origin: new for origin, new in moved.items() if origin is not None}
    return {name: given for name, given in found.items() if name != given}


def remove(origins: Origins, name: str) -> dict[str, str | None]:
    """The origins of a pack that has lost a field, or has got other values of it."""
    origin = origin_of(name, origins)
    return {name: None, **origins, **({} if origin is None else {origin: None})}


def mark_filled(origins: Origins, name: str) -> dict[str, str | None]:
    """The origins of a pack after samples that lacked a field have got values of it."""
    has_same_name = origin_of(name, origins) == name
    return {**origins, name: name} if has_same_name else dict(origins)


def intersect(each: Sequence[Origins]) -> dict[str, str | None]:
    """The origins of several packs as one: what is not the same in all is in none."""
    names = {name: None for origins in each for name in origins}
    given = {name: {origins.get(name, name) for origins in each} for name in names}
    return {name: found.pop() if len(found) == 1 else None for name, found in given.items()}


def take_fields(
    fields: Mapping[str, _T], origins: Origins, asked: Collection[str] = ()
) -> dict[str, _T]:
    """The fields of a sample of the source, under the names that the pack has for them.

    Fields of the names `asked` are taken as they are, whatever became of them.
    """
    names = {name: name if name in asked else origins.get(name, name) for name in fields}
    return {
        given: fields[name] for name, given in names.items()
        if given is not None and (name in asked or given not in asked)
    }  # fmt: skip
