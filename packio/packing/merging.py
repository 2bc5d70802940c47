"""`merge` and `convert`: the samples of packs become one pack."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from packio.errors import OptionError
from packio.packing import sourcing
from packio.packing.making import pack
from packio.packing.report import PackReport
from packio.packs import opening
from packio.sources.pack import PackListing, list_packs, prefixed, renamed


def merge(
    out: str | os.PathLike[str],
    sources: Sequence[str | os.PathLike[str]],
    *,
    prefix: bool | Sequence[str] = False,
    **options: Any,
) -> PackReport:
    """Make one pack of several. Labels go by class name; no two packs may share a key.

    Every sample is copied. To train on several packs without a copy, see `ConcatPacks`.

    Args:
        out: The pack to make; its suffix says the format.
        sources: Packs.
        prefix: What to put before the keys of each pack, for packs that share keys: True puts the
            pack's name without its suffix and a slash, as ``monday/``; or a text for each pack.
        options: As `pack` takes.

    Raises:
        OptionError: two packs share a key; there is not a prefix for each pack; or labels, splits
            or fields are of different kinds.
        PackioError: see `pack`.
    """
    if len(sources) < 2:
        count = f"{len(sources)} pack{'' if len(sources) == 1 else 's'}"
        raise OptionError(f"{count}: expected at least two to merge")
    with ExitStack() as stack:
        packs = [stack.enter_context(opening.open_silently(source)) for source in sources]
        classes = sourcing.read_class_names(options.pop("classes_from", None))
        listing = renamed(list_packs(packs, classes), packs, options.get("fields"))
        prefixes = _prefixes(packs, prefix)
        listing = prefixed(listing, prefixes)
        _check_keys(listing, is_prefixed=any(prefixes))
        return pack(listing, out, **options)


def convert(
    source: str | os.PathLike[str], out: str | os.PathLike[str], *,
    index: str | os.PathLike[str] | None = None, **options: Any,
) -> PackReport:  # fmt: skip
    """Turn a pack into another format. Bytes, labels, keys and all else of a sample are kept.

    No image is decoded, unless an option asks for another encoding.

    Args:
        source: A pack.
        out: The pack to make; its suffix says the format.
        index: Path or URL of the source's index, if it is not beside the source.
        options: As `pack` takes. ``split="train"`` converts the samples of this split only; shares
            draw new splits.

    Raises:
        NotAPackError: the source is no pack.
        OptionError: the pack has no such split.
        PackioError: see `pack`.
    """
    reading = {n: options.pop(n) for n in ("trust_plain_pickle", "database") if n in options}
    with opening.open_silently(source, index=index, **reading) as opened:  # the report tells
        if isinstance(options.get("split"), str):
            positions = opened.split(options.pop("split")).tolist()
            classes = sourcing.read_class_names(options.pop("classes_from", None))
            found = renamed(list_packs([opened], classes), [opened], options.get("fields"))
            return pack(found.take(positions), out, **options)
        return pack(opened, out, **options)


def _prefixes(packs: Sequence[opening.Pack], asked: bool | Sequence[str]) -> list[bytes]:
    """What to put before the keys of each pack."""
    if isinstance(asked, bool):
        return [os.fsencode(f"{Path(one.path).stem}/") if asked else b"" for one in packs]
    if isinstance(asked, str) or not all(isinstance(text, str) for text in asked):
        raise OptionError(f"prefix={asked!r}: expected True, or a list with a text for each pack")
    if len(asked) != len(packs):
        raise OptionError(f"prefix={asked!r}: {len(asked)} texts for {len(packs)} packs")
    return [os.fsencode(text) for text in asked]


def _check_keys(listing: PackListing, *, is_prefixed: bool) -> None:
    """Refuse packs that share a key."""
    if len(set(listing.keys)) == len(listing.keys):
        return
    owners = (one.path for one in listing.packs for _ in range(len(one)))
    first: dict[bytes, Path] = {}
    key, path = next(
        (key, path)
        for key, path in zip(listing.keys, owners, strict=True)
        if first.setdefault(key, path) is not path
    )
    remedy = (
        "give each pack a prefix of its own (prefix=[...]), or rename one of the packs"
        if is_prefixed
        else "put the name of each pack before its keys by prefix=True; or leave samples out "
        "first: packio select, then merge the selections"
    )
    raise OptionError(
        f"{os.fsdecode(key)!r} is in {first[key]} and in {path}; no key may be there twice; "
        f"{remedy}"
    )
