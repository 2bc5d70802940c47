"""Batches for DALI: encoded images that DALI can decode, and the box of each.

packio reads, checks and draws. If DALI's decoder might refuse an image, or decode it otherwise than
packio does, packio decodes the image and gives DALI the pixels as PNM: one line of text, then the
pixels (Netpbm, "PPM Format Specification").
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from packio.batches.columns import make_each
from packio.batches.framing import Framing, Settings, by_position
from packio.datasets.shared_state import Seed, Seeded
from packio.images import encodings, regions
from packio.images.encodings import PNG_MAGIC
from packio.images.frames import oriented
from packio.images.regions import Need
from packio.packs.opening import Pack
from packio.packs.table import Row
from packio.sample.record import IMAGE
from packio.system.threads import Threads

if TYPE_CHECKING:
    from packio.batches.draws import Drawn
    from packio.images.frames import Box, Placement

_TRAILER = 64  # bytes at the end that must have the end mark; some cameras add bytes behind it


class Fed(NamedTuple):
    """A batch of N samples on its way through DALI.

    The place of a sample are 12 numbers: top, left, height and width of the box in the upright
    image; height and width of the resized box; top, left, height and width of the output in the
    resized box, with black beyond the edges; 1 to mirror the output left-right; 1 to mirror it
    top-bottom.
    """

    indices: list[int]
    positions: np.ndarray  # (N,) of the samples in the pack; replacements instead of bad samples
    data: list[np.ndarray]  # N arrays of uint8, encoded
    places: np.ndarray  # (N, 12) int32
    errors: list[Exception]
    settled: bool  # whether packio decodes what DALI refuses


class Feeder(Seeded):
    """Makes batches for DALI."""

    def __init__(
        self, pack: Pack, recipe: Settings, chosen: np.ndarray | None, seed: int | None,
        threads: Threads | None, *, skip: bool,
    ) -> None:  # fmt: skip
        self.seeded = seed is not None
        self._pack, self._recipe, self._chosen, self._seed = pack, recipe, chosen, Seed(seed)
        self._threads, self._skip = threads, skip
        self._ours: set[int] = set()  # samples that DALI failed on, which packio decodes

    def __call__(self, indices: list[int], *, settle: bool = False) -> Fed:
        """Make a batch."""
        drawn = cast("list[Drawn]", indices)
        positions = np.array(indices, np.int64)
        if self._chosen is not None:
            positions = self._chosen[positions]
        rows = self._pack.rows(positions)
        draw = by_position(self.seed, drawn[0].epoch, [i.position for i in drawn])
        plan, pack = Framing.drawn(self._recipe, rows, draw), self._pack.fetched({IMAGE: rows})
        data = [np.empty(0, np.uint8)] * len(rows)
        places = np.zeros((len(rows), 12), np.int32)

        def work(slot: int) -> None:
            (place,) = plan.each_placement[slot]
            data[slot], places[slot] = self._sample(pack, rows[slot], place, settle)

        errors = make_each(rows, work, self._threads)
        if settle:
            self._ours.update(rows[slot].position for slot in errors or range(len(rows)))
        if errors and (not self._skip or len(errors) == len(rows)):
            raise errors[min(errors)]
        for slot in sorted(errors):
            good = next(i % len(rows) for i in range(slot, 2 * len(rows))
                        if i % len(rows) not in errors)  # fmt: skip
            positions[slot], data[slot], places[slot] = positions[good], data[good], places[good]
        found = [errors[slot] for slot in sorted(errors)]
        return Fed(indices, positions, data, places, found, settle)

    def _sample(
        self, pack: Pack, row: Row, place: Placement, settle: bool
    ) -> tuple[np.ndarray, tuple[int, ...]]:
        """Read one sample; return the bytes for DALI, and the place."""
        data = pack.read(row)
        # DALI resizes whole frames
        wanted = regions.needed(place, row.height, row.width, "nearest", fast=False)
        frame = wanted.frame
        ours, most = settle or row.position in self._ours, self._recipe.decoder.max_pixels
        with pack.naming(row):
            if ours or not _is_plain(data, row) or row.height * row.width > most:
                data, box = self._decoded(data, row, wanted)
            else:
                box = wanted.box if wanted.orientation == 1 else frame[:4]
        return np.frombuffer(data, np.uint8), (*box, *frame[4:10], wanted.hflip, wanted.vflip)

    def _decoded(self, data: bytes, row: Row, wanted: Need) -> tuple[bytes, Box]:
        """Decode the part of an image that its box needs; return a PNM, whose box is all of it."""
        part = regions.decode(self._recipe.decoder, data, row, [wanted])
        pixels = oriented(regions.boxed(part.pixels, wanted), wanted.orientation)
        height, width = pixels.shape[:2]
        return b"P6 %d %d 255\n" % (width, height) + pixels.tobytes(), (0, 0, height, width)


def _is_plain(data: bytes, row: Row) -> bool:
    """Tell whether DALI may decode an image: a whole JPEG or PNG that agrees with the index."""
    if row.dtype != "uint8" or row.channels not in (1, 3):
        return False
    end = data[-_TRAILER:]
    if row.encoding == "png":
        size = struct.pack(">II", row.width, row.height)
        is_whole = data[:8] == PNG_MAGIC and data[16:24] == size and b"IEND" in end
        return is_whole and row.orientation == 1
    header = encodings.parse_jpeg(data) if row.encoding == "jpeg" else None
    said: Any = (row.height, row.width, row.channels, 8, row.orientation)
    return b"\xff\xd9" in end and header is not None and said == (*header[:4], header.orientation)
