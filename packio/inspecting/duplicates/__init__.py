"""Images of a pack that look alike, found by perceptual hashes, and a page that shows them."""

from __future__ import annotations

import base64
import dataclasses
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from packio.errors import DecodeError, IntegrityError
from packio.images import perceptual
from packio.inspecting.gallery.thumbnails import make_thumbnail
from packio.inspecting.pages import check_place, make_page, readable, write_page
from packio.packing.plan import duplicates
from packio.packs import opening
from packio.system import processors
from packio.system.pools import ThreadPool

_CHUNK = 64  # images of one task
_DENSITY = 2  # pixels of a thumbnail for one pixel of the page


@dataclasses.dataclass(frozen=True, slots=True)
class NearDuplicate:
    """An image that looks like an earlier one.

    Attributes:
        index, key: Of the image.
        of_index, of_key: Of the earlier image, which looks like none before it.
        distance: Bits, of 64, in which their hashes differ.
        same_label: Whether both have the same label; None in a pack without labels.
    """

    index: int
    key: str
    of_index: int
    of_key: str
    distance: int
    same_label: bool | None


@dataclasses.dataclass(frozen=True, slots=True)
class DuplicatesReport:
    """What was found.

    Attributes:
        samples: Number of samples in the pack.
        found: The near-duplicates, in the order of the pack.
        undecoded: Indices of images that could not be decoded, or have more than 8 bits a channel.
        html: The page; None: none was asked for.
    """

    samples: int
    found: tuple[NearDuplicate, ...]
    undecoded: tuple[int, ...]
    html: Path | None


def find_duplicates(
    pack: opening.Pack | str | os.PathLike[str],
    *,
    threshold: int = perceptual.THRESHOLD,
    html: str | os.PathLike[str] | None = None,
    limit: int = 500,
    size: int = 160,
    progress: Callable[[int, int], object] | None = None,
) -> DuplicatesReport:
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
        MissingPackageError: ImageHash is not installed: ``pip install 'packio[duplicates]'``.
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
    hashes = _hashes(pack, progress or (lambda _, __: None))
    twins = duplicates.grouped(hashes, threshold)
    found = tuple(
        NearDuplicate(
            t.position, pack.key(t.position), t.of, pack.key(t.of), t.distance,
            _same_label(pack, t.position, t.of),
        )
        for t in twins
    )  # fmt: skip
    if page is not None:
        write_page(page, _page(pack, found, threshold, limit, size).encode())
    bad = tuple(i for i, value in enumerate(hashes) if value is None)
    return DuplicatesReport(len(pack), found, bad, page)


def _hashes(pack: opening.Pack, told: Callable[[int, int], object]) -> list[int | None]:
    hasher = perceptual.Hasher()

    def hashes(start: int) -> list[int | None]:
        rows = pack.rows(range(start, min(start + _CHUNK, len(pack))))
        found: list[int | None] = []
        for row in rows:
            try:
                found.append(hasher(pack.read(row), pack.facts("image", row.position)))
            except (DecodeError, IntegrityError):
                found.append(None)
        return found

    every: list[int | None] = []
    with (
        warnings.catch_warnings(),
        ThreadPool(processors.usable(), "packio-duplicates") as pool,
    ):
        warnings.simplefilter("ignore")  # Pillow's, of odd metadata
        for chunk in pool.map(hashes, range(0, len(pack), _CHUNK)):
            every += chunk
            told(len(every), len(pack))
    return every


def _same_label(pack: opening.Pack, a: int, b: int) -> bool | None:
    label = pack.label(a)
    return None if label is None else bool(np.array_equal(label, np.asarray(pack.label(b))))


def _page(
    pack: opening.Pack, found: tuple[NearDuplicate, ...], threshold: int, limit: int, size: int
) -> str:
    """The page of the pairs."""
    shown = sorted(found, key=lambda pair: pair.distance)[:limit]
    facts = [
        f"{len(found):,} near-duplicates among {len(pack):,} samples",
        *([f"the {len(shown):,} most alike are shown"] if len(shown) < len(found) else []),
        f"hashes differ in at most {threshold} of 64 bits",
    ]
    values = {
        "title": readable(pack.path.resolve().name), "facts": facts, "size": size,
        "pairs": [
            {"distance": pair.distance, "same_label": pair.same_label,
             "images": list(_images(pack, (pair.of_index, pair.index), size))}
            for pair in shown
        ],
    }  # fmt: skip
    return make_page(Path(__file__).parent, values)


def _images(pack: opening.Pack, indices: tuple[int, int], size: int) -> Iterator[dict[str, Any]]:
    for index in indices:
        row = pack.row(index)
        source = ""
        try:
            data = make_thumbnail(pack.read(row), size * _DENSITY, row)
            source = "data:image/jpeg;base64," + base64.b64encode(data).decode("ascii")
        except Exception:  # noqa: BLE001 (Pillow's plugins raise whatever their parsers meet)
            source = ""  # of a page of many pairs, one picture is empty
        label, name = pack.label(index), None
        if isinstance(label, int) and 0 <= label < len(pack.classes):
            name = readable(pack.classes[label])
        yield {
            "source": source, "key": readable(pack.key_bytes(index)), "index": index,
            "label": label if name is None else name,
            "facts": f"{row.width} x {row.height}, {row.encoding}, {row.length:,} bytes",
        }  # fmt: skip
