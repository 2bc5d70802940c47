"""The images of one field of a batch: read in file order, decoded in threads, into one tensor.

Under ``fidelity="fast"`` an output takes the smallest level of its image (`packio.pack`) that has
at least 1.1 pixels for one of the output's, along both sides. Frames, masks and boxes do not
change: they are those of the image.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from packio.batches import framing as framings
from packio.batches import slices
from packio.batches.columns import BatchField, FieldColumn, make_each, stack
from packio.batches.framing import FLIPS, Draw, Framing, Settings
from packio.errors import DecodeError, IntegrityError, OptionError
from packio.images import native, regions, tensors
from packio.images.decoders import Decoder
from packio.images.regions import DecodedImage, Need
from packio.packs import raw
from packio.packs.opening import Pack
from packio.packs.table import Row, RowList
from packio.sample.levels import size_at
from packio.sample.record import IMAGE, Facts
from packio.system import buffers
from packio.system.threads import Threads, alone

# Pixels of an image, as stored. With JPEGs and PNGs of 24 to 96 pixels a side, two threads made 0.6
# to 1.1 times as many images as one thread; with 128 pixels and more 1.0 to 1.8 times as many.
LITTLE = 10_000
_SOME = 16  # images that are looked at
CHANNELS = {"RGB": 3, "GRAY": 1, "RGB_ALPHA": 4}  # UNCHANGED: as stored


class Level(NamedTuple):  # or the image itself, of which an output is made
    name: str
    row: Row
    need: Need


Taken = Sequence[Level | None]  # one a view; None: the image itself


def make(
    pack: Pack, framing: Framing, threads: Threads | None, out: torch.Tensor | None = None,
    name: str = IMAGE, but: Collection[int] = (), levels: Sequence[Taken] | None = None,
) -> BatchField:  # fmt: skip
    """Make the images of some samples, of their levels as far as any are given: a column a view.

    It is (N, C, H, W), in ``out`` if given, or N (C, H, W) where sizes or types may differ, with
    None for a sample that lacks the field.
    """
    settings, rows = framing.settings, framing.rows
    # further images can be one tensor of bytes if all samples have one, of 8 bits
    are_alike = settings.decoder.mode in CHANNELS and (
        name == IMAGE or all(row.offset >= 0 and row.dtype == "uint8" for row in rows)
    )
    views = range(len(settings.views))
    batches = [new_batch(framing, view, out, are_alike=are_alike) for view in views]
    # (C, H, W) each: slices of the batch, or None until made
    images: list[list[np.ndarray | None]]
    images = [[None] * len(rows) if b is None else list(b.numpy()) for b in batches]
    if name == IMAGE and pack.index_file.is_far:
        pack.bring("seek", rows.column("position"))
    points: list[bytes] | None = None  # None: read one by one, or not needed
    if name == IMAGE and settings.decoder.has_core and pack.raw_rows is not None:
        points = [b""] * len(rows)
    elif name == IMAGE and settings.decoder.has_core:
        with contextlib.suppress(IntegrityError):  # of some samples: each says so by itself
            points = pack.seek_points_of(rows.column("position"))

    def work(slot: int) -> None:
        row, needs = rows[slot], framing.each_needs[slot]
        if row.offset >= 0 or name == IMAGE:
            outs = [view[slot] for view in images]
            rest = levels[slot] if levels else None, points[slot] if points else None
            made = _make_views(pack, settings, row, needs, name, outs, *rest)
            for view, image in zip(images, made, strict=True):
                view[slot] = image

    files, whole = pack.local_files, [batch for batch in batches if batch is not None]
    is_for_core = len(whole) == len(batches) and framing.columns
    if points is not None and not levels and files is not None and is_for_core:
        errors = slices.make(files, framing, threads, whole, points, but, work)
    else:
        errors = make_each(rows, work, threads, but)
    columns: list[FieldColumn] = []
    for batch, each in zip(batches, images, strict=True):
        if batch is None:
            values = [None if image is None else torch.from_numpy(image) for image in each]
            columns.append(stack(values, {*errors, *but}))
        else:
            columns.append(batch)
    return BatchField(columns, errors)


def new_batch(
    framing: Framing, view: int, out: torch.Tensor | None, *, are_alike: bool
) -> torch.Tensor | None:
    """Memory for a view, (N, C, H, W); None if the images may differ in size or type."""
    settings, size = framing.settings, None
    crop = settings.views[view]
    if are_alike:
        size = crop.output_size if crop is not None else None
        if size is not None:
            _check_size(framing, view, size)
        else:
            size = _common_size(framing, view)
    if size is not None:
        shape = (len(framing.rows), CHANNELS[settings.decoder.mode], *size)
        return ensure_out(shape, torch.uint8, out, scratch=settings.scratch)
    if out is not None:
        raise OptionError("out=: the images may differ in size or type; expected a crop")
    return None


def _check_size(framing: Framing, view: int, size: tuple[int, int]) -> None:
    """Check that the frames of a crop, which may be a user's, make outputs of the size it says."""
    if framing.columns:
        frames = [framing.columns[view].frame]
    else:
        frames = [placements[view].frame for placements in framing.each_placement]
    for frame in frames:
        differs = (frame.out_height != size[0]) | (frame.out_width != size[1])
        if differs is not False and np.any(differs):
            crop = framing.settings.views[view]
            raise OptionError(f"{crop!r}: output_size is {size}, its frame makes another size")


def _common_size(framing: Framing, view: int) -> tuple[int, int] | None:
    """Height and width of all outputs of a view; None if they differ."""
    if framing.columns:
        frame = framing.columns[view].frame
        heights, widths = (np.unique(side) for side in (frame.out_height, frame.out_width))
        sizes = {(heights[0].item(), widths[0].item())} if len(heights) == len(widths) == 1 else {}
    else:
        sizes = {placements[view].frame[8:10] for placements in framing.each_placement}
    if len(sizes) != 1:
        return None
    height, width = next(iter(sizes))
    return (height, width) if height * width <= framing.settings.decoder.max_pixels else None


def make_one(
    pack: Pack, settings: Settings, row: Row, needs: Sequence[Need], name: str = IMAGE,
    taken: Taken | None = None,
) -> list[torch.Tensor]:  # fmt: skip
    """Make the images of a field of one sample, (C, H, W), one a view, as `make` would."""
    with alone():
        made = _make_views(pack, settings, row, needs, name, [None] * len(needs), taken)
        return [torch.from_numpy(image) for image in made]


def _make_views(
    pack: Pack, settings: Settings, row: Row, needs: Sequence[Need], name: str,
    outs: Sequence[np.ndarray | None], taken: Taken | None, points: bytes | None = None,
) -> Sequence[np.ndarray]:  # fmt: skip
    """As `_decode`, of levels as far as any are taken; the image replaces a damaged level."""
    if not taken or not any(taken):
        return _decode(pack, settings, row, needs, name, outs, points)
    sources = [level or Level(name, row, need) for level, need in zip(taken, needs, strict=True)]
    views: dict[int, np.ndarray] = {}
    for source in {source.name: source for source in sources}.values():
        slots = [i for i, other in enumerate(sources) if other.name == source.name]
        into = [outs[i] for i in slots]
        try:
            own = [sources[i].need for i in slots]
            made = _decode(pack, settings, source.row, own, source.name, into)
        except (DecodeError, IntegrityError):
            if source.name == name:
                raise
            settings.decoder.count_declined(native.LEVEL)
            made = _decode(pack, settings, row, [needs[i] for i in slots], name, into)
        views.update(zip(slots, made, strict=True))
    return [views[i] for i in range(len(needs))]


def _decode(
    pack: Pack, settings: Settings, row: Row, needs: Sequence[Need], name: str,
    outs: Sequence[np.ndarray | None], points: bytes | None = None,
) -> list[np.ndarray]:  # fmt: skip
    """Read a sample, and make what its views need: (C, H, W) each, in ``outs`` where given."""
    rows, decoder = None, settings.decoder
    if name == IMAGE:
        rows = pack.raw_rows
    elif row.dtype != "uint8":
        decoder = settings.further_decoder
    if rows is not None and _is_as_decoded(rows.facts, decoder) and not decoder.core_takes(row):
        part = DecodedImage(rows.pixels(row.position), 1)
        with pack.naming(row):
            made = [regions.render(part, *pair) for pair in zip(needs, outs, strict=True)]
        rows.pixels(row.position)  # looked at again, as they may have changed meanwhile
        return made
    data = pack.read(row, name)
    if name != IMAGE:
        points = b""
    elif points is None:
        points = pack.seek_points(row.position) if decoder.core_takes(row) else b""
    try:  # with `pack.naming` it would take four calls more
        return regions.make(decoder, data, row, needs, outs, points)
    except Exception as error:
        pack.naming(row, name).tell(error)
        raise


def make_raw(
    pack: Pack, settings: Settings, positions: np.ndarray, draw: Draw, out: torch.Tensor | None
) -> BatchField | None:
    """Make a batch of raw pixels by one gather; None if an image is encoded or must be resized."""
    rows = pack.raw_rows
    if rows is None or not _is_as_decoded(rows.facts, settings.decoder):
        return None
    facts, windows = rows.facts, []
    for number, crop in enumerate(settings.views):
        u = framings.numbers(settings, number, draw)
        box = raw.windows(crop, facts.height, facts.width, u[:, FLIPS:])
        if box is None:
            return None
        windows.append((u, box))
    errors = rows.check(positions)
    views: list[FieldColumn] = []
    for u, box in windows:
        shape = (len(positions), facts.channels, box.height, box.width)
        batch = ensure_out(shape, rows.dtype, out, scratch=settings.scratch)
        hflip = u[:, 0] < settings.hflip if settings.hflip else None
        vflip = u[:, 1] < settings.vflip if settings.vflip else None
        rows.crop(positions, box, batch, hflip=hflip, vflip=vflip)
        views.append(batch)
    return BatchField(views, errors | rows.check(positions))


def _is_as_decoded(facts: Facts, decoder: Decoder) -> bool:
    """Whether a decoder would return raw pixels unchanged."""
    stored = facts.channels if facts.dtype == "uint8" else 0
    fits = CHANNELS.get(decoder.mode, stored) == stored
    return fits and facts.height * facts.width <= decoder.max_pixels


def are_little(pack: Pack) -> bool:
    """Tell whether most images of a pack are so small that threads only wait for each other.

    Looks at 16 images. The answer is False for storage where a read may take long: threads wait for
    several reads at once.
    """
    if not len(pack) or not pack.reads_ahead:
        return False
    most = len(pack) - 1
    if pack.index_file.is_far:  # 16 places would be 32 MB
        most = min(most, _SOME)
    some = np.linspace(0, most, min(len(pack), _SOME), dtype=np.int64)
    height, width = (pack.index_file.column(f"image/{n}").take(some) for n in ("height", "width"))
    return bool(np.median(height.astype(np.int64) * width) < LITTLE)


def ensure_out(
    shape: tuple[int, ...], dtype: torch.dtype, out: torch.Tensor | None, *, scratch: bool = False
) -> torch.Tensor:
    """A tensor for a batch of images: ``out`` if given, else a new one; see `Settings.scratch`."""
    if out is None:
        return buffers.new_tensor(shape, dtype) if scratch else tensors.new_batch(shape, dtype)
    if tuple(out.shape) != shape or out.dtype != dtype or not out.is_contiguous():
        raise OptionError(
            f"out={tuple(out.shape)} {out.dtype}: expected a contiguous tensor, {shape} {dtype}"
        )
    return out


def uses_levels(pack: Pack, settings: Settings) -> bool:
    return settings.fast and bool(pack.levels) and IMAGE in settings.fields


def take_levels(pack: Pack, framing: Framing) -> list[Taken] | None:
    """The levels that each sample's views take; None if no level is used."""
    settings, rows = framing.settings, framing.rows
    if not uses_levels(pack, settings):
        return None
    positions = np.array([row.position for row in rows], np.int64)
    columns = {d: pack.rows(positions, name) for d, name in pack.levels.items()}
    each = zip(rows, framing.each_needs, *columns.values(), strict=True)
    return [
        _take_smallest(pack, settings, image, needs, dict(zip(columns, levels, strict=True)))
        for image, needs, *levels in each
    ]


def _take_smallest(
    pack: Pack, settings: Settings, image: Row, needs: Sequence[Need], rows: Mapping[int, Row]
) -> Taken:
    if image.height * image.width > settings.decoder.max_pixels:
        return [None] * len(needs)  # decoding the image will say so
    there = {
        d: row for d, row in rows.items()
        if row.offset >= 0 and row.encoding == "jpeg"
        and (row.height, row.width) == size_at(image.height, image.width, d)
    }  # fmt: skip
    divisors = [regions.smallest(need, there) for need in needs]
    return [
        None if d is None else Level(pack.levels[d], there[d], need._replace(level=d))
        for d, need in zip(divisors, needs, strict=True)
    ]


def rows_read(rows: RowList, each: Sequence[Taken] | None) -> dict[str, RowList]:
    """Name of a field → rows of the values that are read to make images."""
    if each is None:
        return {IMAGE: rows}
    images = RowList(row for row, taken in zip(rows, each, strict=True) if None in taken)
    read = {IMAGE: images}
    for taken in each:
        for level in {level.name: level for level in taken if level is not None}.values():
            read.setdefault(level.name, RowList([])).append(level.row)
    return read


def rows_expected(
    pack: Pack, settings: Settings, rows: RowList, draw: Draw | None
) -> dict[str, RowList]:
    """As `rows_read`, of samples that are not framed yet; nothing if their draw is not known."""
    if not uses_levels(pack, settings):
        return {IMAGE: rows}
    if draw is None:
        return {}
    framed = Framing.draw(settings.with_size(draw.size), rows, draw)
    return rows_read(rows, take_levels(pack, framed))
