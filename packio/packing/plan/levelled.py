"""Which levels the images of a listing get, if some of them come out of packs and have levels."""

from __future__ import annotations

import dataclasses

from packio.errors import OptionError
from packio.packing.images.levels import Levels
from packio.sample import levels
from packio.sample.recipe import Recipe
from packio.sources import Listing
from packio.sources._packs import PackListing, Reading


def asked(listing: Listing, recipe: Recipe, wanted: Levels | None) -> tuple[Listing, Recipe]:
    """The listing and the recipe of a run that is asked for some levels.

    Nothing asked: levels of packs stay. If their image changes, the levels are made anew as the
    recipe of the packs says; of packs with different recipes, they are left out.
    """
    if wanted is not None and wanted.count != 0 and recipe.encoding.get("encode") == "raw":
        raise OptionError(
            f"levels={wanted.count!r} with encode='raw': images of raw pixels get no levels, their "
            "crops need no decoding; leave out one of the options"
        )
    if wanted is not None:
        listing = bare(listing)
        if wanted.count == 0 and not isinstance(listing, PackListing):
            return listing, recipe
        return listing, dataclasses.replace(recipe, levels=wanted.as_options())
    if isinstance(listing, PackListing):
        found = [Recipe.of(pack.metadata).levels for pack in listing.packs]
        if found[0] and all(each == found[0] for each in found):
            return listing, dataclasses.replace(recipe, levels=found[0])
    return listing, recipe


def bare(listing: Listing) -> Listing:
    """The listing without the levels that its packs have: others are to be made."""
    has_some = isinstance(listing, PackListing) and any(pack.levels for pack in listing.packs)
    if listing.open is None or not has_some:
        return listing
    if isinstance(listing.open, Reading):  # damage in a level that goes is no matter
        return dataclasses.replace(
            listing, open=dataclasses.replace(listing.open, with_levels=False)
        )
    return listing.changed(levels.without)
