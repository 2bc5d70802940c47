"""The metadata of an index: one JSON object, whose values are checked when the index is opened.

An index may be damaged or forged. Whoever reads the metadata relies on the types that are checked
here. Keys that are not listed are left alone: a newer packio may have written them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from packio.errors import NotAPackError, VersionError
from packio.sample.fields import KINDS

VERSION = 2
ORIGINS = "origins"  # what became of the source's fields: see `packio.sample.origins`
_LARGEST = (1 << 63) - 1  # number

_Check = Callable[[Any], bool]


def parsed(header: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The metadata in the header of an index, checked."""
    try:
        metadata = json.loads(header["__metadata__"]["packio"])
        version = metadata["version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise NotAPackError(f"{path}: the metadata does not parse ({error})") from error
    if type(version) is not int or version < VERSION:
        raise NotAPackError(f"{path}: index version {version!r}; expected {VERSION}; pack again")
    if version > VERSION:
        raise VersionError(
            f"{path}: index version {version}, this packio reads up to {VERSION}; "
            "update it: pip install -U packio"
        )
    for name, (is_right, expected) in _EXPECTED.items():
        if metadata.get(name) is None:
            metadata.pop(name, None)
        elif not is_right(metadata[name]):
            raise NotAPackError(
                f"{path}: metadata {name!r} is {metadata[name]!a:.60}, expected {expected}; "
                "restore the index, or make a new one: packio reindex"
            )
    return metadata  # type: ignore[no-any-return]  # parsed JSON


def origins_of(metadata: Mapping[str, Any]) -> dict[str, str | None]:
    """What became of the fields of the source that a pack was made of; `packio.sample.origins`."""
    return dict(metadata.get(ORIGINS) or {})


def _of(*kinds: type) -> _Check:
    return lambda value: isinstance(value, kinds)


_is_text, _is_flag, _is_object = _of(str), _of(bool), _of(dict)


def _is_int(value: Any) -> bool:
    return type(value) is int and abs(value) <= _LARGEST


def _is_count(value: Any) -> bool:
    return _is_int(value) and value >= 0


def _is_number(value: Any) -> bool:
    return _is_int(value) or isinstance(value, float)


def _is_file_name(value: Any) -> bool:
    """Whether a value names a file within the pack."""
    return (
        isinstance(value, str) and value not in ("", "..") and not value.startswith("/")
        and "\0" not in value and ".." not in value.split("/")
    )  # fmt: skip


def _list_of(is_right: _Check) -> _Check:
    return lambda value: isinstance(value, list) and all(map(is_right, value))


def _object_of(is_right: _Check) -> _Check:
    return lambda value: isinstance(value, dict) and all(map(is_right, value.values()))


def _object(*needed: str, **checks: _Check) -> _Check:
    """An object that has the needed names; each value that has a check must pass it."""
    return lambda value: (
        isinstance(value, dict)
        and all(name in value for name in needed)
        and all(is_right(value[name]) for name, is_right in checks.items() if name in value)
    )


def _is_fields(value: Any) -> bool:
    kinds = _object_of(lambda kind: isinstance(kind, str) and kind in KINDS)
    return kinds(value) and all(n and "/" not in n for n in value)


def _is_rgb(value: Any) -> bool:
    return _list_of(_is_number)(value) and len(value) == 3


def _is_recipe(value: Any) -> bool:
    return _object(
        source=_is_text, reading=_is_object, choice=_is_object, writing=_is_object,
        encoding=_object("encode", encode=_is_text), check=_is_text,
        seek_points=_is_flag, is_mixed=_is_flag,
        stats=lambda count: count is None or _is_count(count),
        levels=lambda levels: levels is None or _is_object(levels),
    )(value)  # fmt: skip


# Name → check of the value, and what the value should be.
_EXPECTED: dict[str, tuple[_Check, str]] = {
    "format": (_is_text, "the name of a format"),
    "access": (_is_text, "'range' or the name of a format"),
    "fields": (_is_fields, f"names of fields, each with a kind of {', '.join(KINDS)}"),
    "classes": (_list_of(_is_text), "a list of class names"),
    "splits": (_list_of(_is_text), "a list of names of splits"),
    "counts": (_object_of(_is_count), "numbers of samples"),
    "source": (_object(kind=_is_text), "an object with the kind of the source"),
    "recipe": (_is_recipe, "a recipe"),
    "options": (_object_of(_is_text), "options"),
    "labels": (_object(min=_is_int, offset=_is_int), "the least label and an offset"),
    "statistics": (
        _object("images", "bad", "seed", "mean", "std", images=_is_count, bad=_is_count,
                seed=_is_int, mean=_is_rgb, std=_is_rgb),
        "mean and std of three channels, and of how many images"),
    "shards": (
        _list_of(_object("name", "samples", name=_is_file_name, samples=_is_count)),
        "a list of the shards, each with its name and its number of samples"),
    "versions": (_object_of(_is_text), "versions of libraries"),
    "plan": (_is_text, "a digest"),
    "merged": (_list_of(_is_text), "digests"),
    ORIGINS: (
        _object_of(lambda name: name is None or _is_text(name)),
        "names of the source's fields, each with its name in the pack or null"),
    "remarks": (_list_of(_is_text), "lines of text"),
    "told": (_list_of(_is_text), "lines of text"),  # by packing
    "left_out": (
        _list_of(lambda pair: _list_of(_is_text)(pair) and len(pair) == 2),
        "keys and reasons of records that are left out"),
    "selection": (
        _object("pack", "digest", "samples", pack=_is_text, digest=_is_text, samples=_is_count),
        "the pack that the samples were selected of, its digest and its number of samples"),
}  # fmt: skip
