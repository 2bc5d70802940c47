"""Images of a pack that look alike, found by perceptual hashes, and a page that shows them."""

from __future__ import annotations

import dataclasses
import functools
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from packio.errors import DecodeError, IntegrityError
from packio.images import perceptual
from packio.images.decoders import Decoder
from packio.inspecting.gallery import class_name, make_entry
from packio.inspecting.pages import check_place, make_entries, make_page, readable, write_page
from packio.packing import choosing
from packio.packs import opening
from packio.system import processors

_STEP = 64  # images between two calls of the progress


@dataclasses.dataclass(frozen=True, slots=True)
class NearDuplicate:
    """An image that looks like an earlier one."""

    index: int  # of the image
    key: str
    of_index: int  # of the earlier image, which looks like none before it
    of_key: str
    distance: int  # bits, of 64, in which their hashes differ
    same_label: bool | None  # whether both have the same label; None in a pack without labels


@dataclasses.dataclass(frozen=True, slots=True)
class DuplicatesReport:
    """What was found."""

    samples: int  # number of samples in the pack
    found: tuple[NearDuplicate, ...]  # the near-duplicates, in the order of the pack
    # Indices of images that could not be decoded, or have more than 8 bits a channel
    undecoded: tuple[int, ...]
    html: Path | None  # the page; None: none was asked for


def find_duplicates(
    pack: opening.Pack | str | os.PathLike[str], *, threshold: int = perceptual.THRESHOLD,
    html: str | os.PathLike[str] | None = None, limit: int = 500, size: int = 160,
    progress: Callable[[int, int], object] | None = None,
) -> DuplicatesReport:  # fmt: skip
    """Find images that look alike: the same photograph encoded anew, resized or slightly changed.

    All images are decoded. Cropped and mirrored copies are not found. See
    `packio.images.perceptual`.

    Args:
        pack: An open pack, or the path of one.
        threshold: Bits, of 64, in which the hashes of two images that look alike may differ, 0 to
            11. More finds more, and more that only resemble each other.
        html: A page to write that shows the pairs; an earlier page is replaced.
        limit: Most pairs on the page, the most alike first.
        size: Longer edge of an image on the page, pixels.
        progress: Called with the number of images that are done, and of all.

    Raises:
        OptionError: the threshold cannot be meant.
        OutputExistsError, OutputError: the page cannot be written.
    """
    if isinstance(pack, (str, os.PathLike)):
        with opening.open(pack) as opened:
            return find_duplicates(
                opened, threshold=threshold, html=html, limit=limit, size=size, progress=progress
            )
    perceptual.check_threshold(threshold)
    page = None if html is None else Path(html)
    if page is not None:
        check_place(page)
    read = functools.partial(_hash_each, pack, Decoder("auto", "RGB"))
    hashes = list[int | None]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, of odd metadata
        for value in choosing.map_chunks(read, range(len(pack)), processors.usable()):
            hashes.append(value)
            if progress is not None and (len(hashes) % _STEP == 0 or len(hashes) == len(pack)):
                progress(len(hashes), len(pack))
    found = tuple(
        NearDuplicate(
            t.position, pack.key(t.position), t.of, pack.key(t.of), t.distance,
            _same_label(pack, t.position, t.of),
        )
        for t in perceptual.group_twins(hashes, threshold)
    )  # fmt: skip
    if page is not None:
        write_page(page, _page(pack, found, threshold, limit, size))
    bad = tuple(i for i, value in enumerate(hashes) if value is None)
    return DuplicatesReport(len(pack), found, bad, page)


def _hash_each(
    pack: opening.Pack, decoder: Decoder, positions: Sequence[int]
) -> Iterator[int | None]:
    for row in pack.rows(positions):
        try:
            facts = pack.facts("image", row.position)
            yield perceptual.hash_image(decoder, pack.read(row), facts)
        except (DecodeError, IntegrityError):
            yield None


def _same_label(pack: opening.Pack, a: int, b: int) -> bool | None:
    label = pack.label(a)
    return None if label is None else bool(np.array_equal(label, np.asarray(pack.label(b))))


def _page(
    pack: opening.Pack, found: tuple[NearDuplicate, ...], threshold: int, limit: int, size: int
) -> str:
    shown = sorted(found, key=lambda pair: pair.distance)[:limit]
    facts = [
        f"{len(found):,} near-duplicates among {len(pack):,} samples",
        *([f"the {len(shown):,} most alike are shown"] if len(shown) < len(found) else []),
        f"hashes differ in at most {threshold} of 64 bits",
    ]
    indices = [index for pair in shown for index in (pair.of_index, pair.index)]
    images = iter(make_entries(lambda index: make_entry(pack, index, size), indices, None))
    pairs = [
        {"distance": p.distance, "same_label": p.same_label, "images": [next(images), next(images)]}
        for p in shown
    ]
    names = functools.partial(class_name, pack)
    title = readable(pack.path.resolve().name)
    values = {"title": title, "facts": facts, "size": size, "pairs": pairs, "class_name": names}
    return make_page(Path(__file__).parent, values)
