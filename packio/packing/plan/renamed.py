"""A listing whose fields have the names that a pack has for them, and no others."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection

from packio.index.metadata import origins_of
from packio.packs.opening import Pack
from packio.sample import origins
from packio.sample.origins import Origins
from packio.sample.recipe import Recipe
from packio.sample.record import Field, Record
from packio.sources import Listing
from packio.sources._packs import PackListing


def as_in_pack(listing: Listing, became: Origins, asked: Collection[str] = ()) -> Listing:
    """The listing of a source, with the fields that a pack has, under the pack's names."""
    if not became:
        return listing
    return listing.changed(functools.partial(_taken, became, frozenset(asked)))


def became_of(listing: Listing, reader: str, pack: Pack) -> Origins:
    """What became in a pack of the fields of a source whose samples shall join it.

    If the pack was made of this source, or of what the source was made of, its samples have common
    keys with it. A source of the same kind with other keys is taken for one like it: what the
    recipe asks for gets the names of before. All others have the names that the user sees.
    """
    recipe, became = Recipe.of(pack.metadata), origins_of(pack.metadata)
    keys = {*listing.keys}
    is_known = any(key in keys for key in pack.index_file.every_key())
    if isinstance(listing, PackListing):
        (one,) = listing.packs
        theirs = Recipe.of(one.metadata)
        if (theirs.source, theirs.reading) != (recipe.source, recipe.reading):
            return {}
        if is_known:
            return origins.since(origins_of(one.metadata), became, [*one.fields], [*pack.fields])
        if "recipe" in one.metadata:  # not a container of others
            return {}
    elif reader in ("pack", "") or reader != recipe.source:  # a list of samples has its own names
        return {}
    if is_known:
        return became
    return origins.of_another(became, [*pack.fields], [*recipe.reading.get("fields", ())])


def _taken(became: Origins, asked: frozenset[str], record: Record[Field]) -> Record[Field]:
    return dataclasses.replace(record, fields=origins.taken(record.fields, became, asked))
