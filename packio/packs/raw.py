"""Raw pixels of one shape: gather, crop and mirror a whole batch at once.

If all samples of a pack are raw pixels of one shape, order and dtype, they are the rows of a table,
wherever they lie in the files. The files are mapped into one range of addresses. A row, or a line
of a row, is a window of bytes that can begin at any address. One call of ``torch.index_select``
over all possible windows copies the rows or lines of a whole batch.

The checksum of a row, or of a block of small rows, is compared when any of the forked processes
first touches the row.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from packio.errors import DecodeError, IntegrityError
from packio.images import encodings
from packio.images.frames import Integer
from packio.images.geometry import Geometry, RandomCrop
from packio.index.building import Checks
from packio.index.indexfile import Index, crc32c
from packio.sample.record import Facts
from packio.storage.store import Store
from packio.system.mapping import MappedFiles

_ALIKE = ("encoding", "height", "width", "channels", "dtype", "length", "orientation", "flags")
_STEP_BYTES = 2 << 20  # of images that are cropped at a time; they should stay in the cache
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}  # that all operators take, by item size


class Windows(NamedTuple):
    """Boxes of one size in images; the part of a box outside its image is black."""

    top: np.ndarray  # (N,) int64 pixels
    left: np.ndarray  # (N,) int64 pixels
    height: int
    width: int
    above: int = 0  # pixels by which a box may reach beyond its image, at the top or the bottom
    beside: int = 0  # the same at the left or the right
    whole: bool = False  # every box is the whole image


def windows(crop: Geometry | None, height: int, width: int, u: np.ndarray) -> Windows | None:
    """Boxes that a geometry cuts from images of one size; None if the geometry resizes.

    Without a crop they are the whole images. ``u`` is (N, draws) random numbers in [0, 1).
    """
    if crop is None:
        zeros = np.zeros(len(u), np.int64)
        return Windows(zeros, zeros, height, width, whole=True)
    if crop.draws and type(crop) is not RandomCrop:
        return None
    frame = crop.frame(height, width, u.T)
    if frame[:6] != (0, 0, height, width, height, width):
        return None
    f = frame
    sides = (f.out_top, f.out_height, height), (f.out_left, f.out_width, width)
    (top, above), (left, beside) = (_bounded(crop, len(u), *side) for side in sides)
    return Windows(top, left, f.out_height, f.out_width, above, beside)


def _bounded(
    crop: Geometry, count: int, start: Integer, size: int, length: int
) -> tuple[np.ndarray, int]:
    """Start of each box along one side, and the border that boxes may reach into."""
    if isinstance(crop, RandomCrop):  # the same for every batch
        border = crop.border(length, size)
    else:
        border = max(0, -start, start + size - length)
    # further away, a box is black all the same
    return np.full(count, start).clip(-size, length), min(border, size)


def find(
    index: Index, files: Store, counts: Sequence[int], key: Callable[[int], str]
) -> RawRows | None:
    """The rows of a pack; None if its samples are not raw pixels of one shape, order and dtype.

    None as well if the files cannot be mapped: reading them then raises the reason.
    """
    if not len(index):
        return None
    name = encodings.NAMES.get(index.column("image/encoding").item(0), "unknown")
    if name not in encodings.RAW:
        return None
    columns = [index.column(f"image/{name}").array() for name in _ALIKE]
    if any((column != column[0]).any() for column in columns):
        return None
    _, height, width, channels, dtype, length, *rest = (int(c[0]) for c in columns)
    file, offset = (index.column(f"image/{name}").array() for name in ("file", "offset"))
    sizes = index.column("file_bytes").array()
    if rest != [1, 0] or dtype >= len(encodings.DTYPES) or int(file.max()) >= len(sizes):
        return None
    if (offset < 0).any() or (offset > sizes[file] - length).any():
        return None
    facts = encodings.raw_facts(height, width, channels, encodings.DTYPES[dtype], name)
    try:
        encodings.check_raw(facts, length)
        mapped = MappedFiles([files.path(i) for i in range(len(sizes))], sizes.tolist())
    except (DecodeError, OSError):
        return None
    return RawRows(index, files, facts, mapped, Checks(index, counts, length), key)


class RawRows:
    """Rows of raw pixels, one row for each sample; see `find`.

    Safe in threads and after fork.
    """

    def __init__(
        self, index: Index, files: Store, facts: Facts, mapped: MappedFiles,
        checks: Checks, key: Callable[[int], str],
    ) -> None:  # fmt: skip
        self.facts = facts
        self.dtype: torch.dtype = getattr(torch, facts.dtype)
        self._index, self._files, self._checks, self._key = index, files, checks, key
        self._mapped, self._bytes = mapped, torch.from_numpy(mapped.bytes)
        for length in mapped.lengths:
            length.marks.append(checks.marks)
        self._local = threading.local()
        self._file = index.column("image/file").array().copy()
        self._starts = mapped.starts[self._file] + index.column("image/offset").array()
        self._planes, bgr = encodings.RAW[facts.encoding]
        self._swapped = bgr and facts.channels >= 3
        self._channels = list(range(facts.channels))
        if self._swapped:
            self._channels[:3] = 2, 1, 0
        item = np.dtype(facts.dtype).itemsize
        self._words = _WORDS[item]
        planes, together = (facts.channels, 1) if self._planes else (1, facts.channels)
        self._pixel = item * together  # bytes, along a line
        self._shape = (planes, facts.height, facts.width * self._pixel)
        self._row_bytes = math.prod(self._shape)
        self._rows = _windows(self._bytes, self._row_bytes)

    def check(self, positions: np.ndarray) -> dict[int, Exception]:
        """Compare checksums, where that has not been done since a file was written to.

        Call it before samples are read, and again afterwards: meanwhile a file may have changed.
        Returns an IntegrityError for each damaged sample, by its slot in ``positions``.
        """
        lengths = self._mapped.lengths
        if len(lengths) == 1:
            lengths[0].check()
        else:
            for file in set(self._file[positions].tolist()):
                lengths[file].check()
        errors: dict[int, Exception] = {}
        for slot in self._checks.suspects(positions, self._row_crc):
            position = positions.item(slot)
            file, offset, crc = (
                self._index.column(f"image/{name}").item(position)
                for name in ("file", "offset", "crc32c")
            )
            if self._row_crc(positions[slot : slot + 1]) != crc:
                errors[slot] = IntegrityError(
                    f"{self._files.path(file)}: record {position} ({self._key(position)!r}, "
                    f"{self._row_bytes} bytes at {offset}) is damaged: CRC32C differs"
                )
        return errors

    def _row_crc(self, positions: np.ndarray) -> int:
        """CRC32C of some rows, end to end."""
        rows = torch.empty((len(positions), self._row_bytes), dtype=torch.uint8, device="cpu")
        self._gather(positions, rows)
        array = rows.numpy().reshape(-1)
        array.flags.writeable = False
        return crc32c(array)

    def pixels(self, position: int) -> np.ndarray:
        """The pixels of one sample, (H, W, C) RGB: a view of the file; do not write to it."""
        positions = np.array([position])
        for error in self.check(positions).values():
            raise error
        start = self._starts.item(position)
        row = self._mapped.bytes[start : start + self._row_bytes].view(self.facts.dtype)
        f, row = self.facts, row if row.flags.aligned else row.copy()
        pixels: np.ndarray
        if self._planes:
            pixels = row.reshape(f.channels, f.height, f.width).transpose(1, 2, 0)
        else:
            pixels = row.reshape(f.height, f.width, f.channels)
        return pixels[..., self._channels] if self._swapped else pixels

    def crop(
        self, positions: np.ndarray, boxes: Windows, out: torch.Tensor, *,
        hflip: np.ndarray | None, vflip: np.ndarray | None,
    ) -> None:  # fmt: skip
        """Cut one box, of `windows`, out of each of some samples, which `check` has checked.

        ``out`` is (N, C, height, width) of `dtype`, contiguous; every value is written. ``hflip``
        and ``vflip`` are (N,) bool: which results to mirror left-right, top-bottom; None: none.
        """
        words, as_is = out.view(self._words), self._planes and not self._swapped
        if as_is and boxes.whole and hflip is None and vflip is None:
            self._gather(positions, words.view(torch.uint8).view(len(positions), self._row_bytes))
            return
        step = self._step(boxes)
        for i in range(0, len(positions), step):
            some = slice(i, i + step)
            part, images = boxes._replace(top=boxes.top[some], left=boxes.left[some]), words[some]
            upside_down = None if vflip is None else vflip[some]
            if as_is:
                self._copy(positions[some], part, upside_down, images)
            else:
                self._copy_as_rgb(positions[some], part, upside_down, images)
            if hflip is not None and len(which := np.flatnonzero(hflip[some])):
                mirrored = images.index_select(0, torch.from_numpy(which)).flip(3)
                images.numpy()[which] = mirrored.numpy()  # torch takes six times as long for this

    def _copy_as_rgb(
        self, positions: np.ndarray, boxes: Windows, vflip: np.ndarray | None, images: torch.Tensor
    ) -> None:
        """Copy boxes into (N, C, height, width) from pixels stored in another order."""
        if self._planes:
            stored = torch.empty_like(images)
            self._copy(positions, boxes, vflip, stored)
        else:
            shape = (len(positions), boxes.height, boxes.width, self.facts.channels)
            stored = images.new_empty(shape)
            self._copy(positions, boxes, vflip, stored)
            stored = stored.permute(0, 3, 1, 2)
        for to, channel in enumerate(self._channels):
            images[:, to] = stored[:, channel]

    def _copy(
        self, positions: np.ndarray, boxes: Windows, vflip: np.ndarray | None, images: torch.Tensor
    ) -> None:
        """Copy boxes into images of the stored order."""
        count, height, (planes, _, line) = len(positions), self.facts.height, self._shape
        above, beside = boxes.above, boxes.beside * self._pixel
        start, source = self._starts[positions], self._bytes
        if above or beside:
            shape = planes, height + 2 * above, line + 2 * beside
            rows, canvas = self._scratch(shape, self._step(boxes))
            self._gather(positions, rows[:count].view(count, self._row_bytes))
            canvas[:count, :, above : above + height, beside : beside + line] = rows[:count]
            start, source = np.arange(count) * canvas.stride(0) + beside, canvas.view(-1)
            height, line = canvas.shape[2:]
        start = start + (boxes.top + above) * line + boxes.left * self._pixel
        # of the lines of a box, in bytes behind the start of the box
        within = np.arange(planes)[:, None] * height * line + np.arange(boxes.height) * line
        if vflip is not None:  # the last line comes first
            within = np.where(vflip[:, None, None], within[:, ::-1], within)
        at = (start[:, None] + within.reshape(-1, planes * boxes.height)).reshape(-1)
        size = boxes.width * self._pixel
        out = images.view(torch.uint8).view(-1, size)
        torch.index_select(_windows(source, size), 0, torch.from_numpy(at), out=out)

    def _step(self, boxes: Windows) -> int:
        """How many images are cropped at a time."""
        planes, height, line = self._shape
        beside = boxes.beside * self._pixel
        return max(1, _STEP_BYTES // (planes * (height + 2 * boxes.above) * (line + 2 * beside)))

    def _scratch(
        self, shape: tuple[int, int, int], count: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Memory for some rows, and for the same rows with a black border; one for each thread.

        No tensors are kept: see `packio.images.pixels`.
        """
        kept = getattr(self._local, "scratch", None)
        if kept is None or kept[1].shape[1:] != shape:
            rows = np.empty((count, *self._shape), np.uint8)
            kept = self._local.scratch = rows, np.zeros((count, *shape), np.uint8)
        return torch.from_numpy(kept[0]), torch.from_numpy(kept[1])

    def _gather(self, positions: np.ndarray, out: torch.Tensor) -> None:
        """Copy whole rows into (N, bytes of a row) uint8."""
        torch.index_select(self._rows, 0, torch.from_numpy(self._starts[positions]), out=out)


def _windows(source: torch.Tensor, size: int) -> torch.Tensor:
    """All windows of ``size`` bytes: one begins at each byte."""
    return source.as_strided((len(source) - size + 1, size), (1, 1))
