"""The cost of one image, stage by stage on one core, and the gain of changes of its pack."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from packio.batches import collating, draws
from packio.datasets.pack_dataset import PackDataset
from packio.errors import DecodeError, MissingPackageError, OptionError
from packio.images import regions
from packio.images.decoders import Decoder
from packio.images.frames import Placement
from packio.images.geometry import Geometry
from packio.index.indexfile import SEEKABLE, crc32c
from packio.measuring.bench.rounds import in_turns
from packio.packs.rows import Row

_LOOKED_AT = 64  # images whose stages are timed
_PIXELS, _LEAST = 64_000_000, 8  # of all these images; but so many images at least
_ROUNDS = 3  # over these images; the fastest round counts
_WASTE = 2.0  # times the short side of the crop: from here on, smaller copies would do


class Gain(NamedTuple):
    """The gain of a change of the pack, measured on some images.

    Attributes:
        what: The change.
        command: The command that makes the change.
        factor: Times as many images per second on one core; reading from disk does not count. The
            median over rounds in which both were timed, in turns.
        low, high: The lowest and the highest round.
    """

    what: str
    command: str
    factor: float
    low: float
    high: float


class _Work(NamedTuple):
    """One image, and the crop of it to make."""

    row: Row
    data: bytes
    wanted: regions.Need


class StageTimer:
    """Some images of a pack. Times each stage of their way into a batch.

    Raises:
        OptionError: none of the images can be decoded.
    """

    def __init__(
        self,
        dataset: PackDataset,
        crop: Geometry,
        fidelity: str,
        decoder: str,
        images: int = _LOOKED_AT,
    ) -> None:
        self._pack, self._crop, self._fast = dataset.pack, crop, fidelity == "fast"
        self._decoder = Decoder(decoder)
        chosen = np.random.default_rng(0).permutation(len(self._pack))[:images]
        chosen = chosen[: _few_enough(self._pack.rows(chosen))]
        self._works = []
        for number, row in enumerate(self._pack.rows(np.sort(chosen))):
            wanted = self._wanted(row, number, cuttable=bool(row.flags & SEEKABLE))
            work = _Work(row, self._pack.read(row), wanted)
            try:
                self._image(work)
            except DecodeError:
                continue
            self._works.append(work)
        if not self._works:
            raise OptionError(f"{self._pack.path}: none of {len(chosen)} images can be decoded")

    def _wanted(self, row: Row, number: int, *, cuttable: bool) -> regions.Need:
        upright = (row.width, row.height) if row.orientation >= 5 else (row.height, row.width)
        frame = self._crop.frame(*upright, draws.Lane(0, number, 0))
        return regions.needed(
            Placement(frame, row.orientation), row.height, row.width, self._crop.interpolation,
            cuttable=cuttable, fast=self._fast,
        )  # fmt: skip

    def _image(self, work: _Work) -> None:
        part = regions.decode(self._decoder, work.data, work.row, work.wanted)
        regions.render(part, work.wanted, None)

    def stages(self) -> dict[str, float]:
        """Time each stage, in microseconds an image."""
        parts = {id(w): regions.decode(self._decoder, w.data, w.row, w.wanted) for w in self._works}
        window = self._time(lambda w: regions.cut(w.data, w.row, w.wanted))
        decode = self._time(lambda w: regions.decode(self._decoder, w.data, w.row, w.wanted))
        return {
            "read": self._time(lambda w: self._pack.read(w.row, check=False)),
            "crc": self._time(lambda w: crc32c(w.data)),
            "window": window,
            "decode": max(decode - window, 0.0),
            "resize": self._time(lambda w: regions.render(parts[id(w)], w.wanted, None)),
        }

    def whole_decode(self) -> float:
        """Time decoding an image in full, and nothing else, in microseconds."""
        return self._time(lambda w: self._decoder(w.data, w.row))

    def gains(self) -> list[Gain]:
        """Measure what seekable JPEGs, and smaller images, would bring."""
        return [gain for gain in (self._seekable(), self._smaller()) if gain is not None]

    def _seekable(self) -> Gain | None:
        jpegs = [w for w in self._works if w.row.encoding == "jpeg" and not w.wanted.cuttable]
        if not jpegs:
            return None
        from packio.images.jpeg.restarts import make_seekable

        try:
            made = [w._replace(data=make_seekable(w.data)) for w in jpegs]
        except MissingPackageError:
            return None
        made = [w._replace(wanted=w.wanted._replace(cuttable=True)) for w in made]
        command = f"packio convert {self._pack.path} OUT --seekable"
        return Gain("seekable JPEGs", command, *self._factor(jpegs, made))

    def _smaller(self) -> Gain | None:
        size = self._crop.output_size
        short = float(np.median([min(w.row.height, w.row.width) for w in self._works]))
        if size is None or short < _WASTE * min(size):
            return None
        from packio.images.encodings import read_facts
        from packio.packing.images.encode import Encoding
        from packio.sample.record import image_record

        side = round(min(size) * 8 / 7)  # as 256 is to 224
        encoding = Encoding(encode="jpeg", resize=f"short={side}")
        made: list[_Work] = []
        kept: list[_Work] = []
        for work in self._works:
            try:
                facts = read_facts(work.data)
                image = encoding(image_record(work.data, facts=facts)).image
            except DecodeError:
                continue
            facts = image.facts or facts
            row = work.row._replace(height=facts.height, width=facts.width, encoding="jpeg")
            made.append(_Work(row, image.data, self._wanted(row, len(made), cuttable=False)))
            kept.append(work)
        if not made:
            return None
        command = f"packio pack SOURCE OUT --encode jpeg --resize short={side}"
        what = f"images of {side} pixels on the short side"
        return Gain(what, command, *self._factor(kept, made))

    def _factor(
        self, before: Sequence[_Work], after: Sequence[_Work]
    ) -> tuple[float, float, float]:
        """Compare two ways to store the same images: median, lowest and highest ratio of times."""
        olds, news = in_turns(
            [before, after], _ROUNDS, lambda works: self._once(self._image, works)
        )
        ratios = [old / new for old, new in zip(olds, news, strict=True)]
        return statistics.median(ratios), min(ratios), max(ratios)

    def _time(self, step: Callable[[_Work], Any]) -> float:
        """Time a step in microseconds an image: the fastest round counts."""
        return min(self._once(step, self._works) for _ in range(_ROUNDS))

    @staticmethod
    def _once(step: Callable[[_Work], Any], works: Sequence[_Work]) -> float:
        began = time.perf_counter()
        for work in works:
            step(work)
        return (time.perf_counter() - began) / len(works) * 1e6


def _few_enough(rows: Sequence[Row]) -> int:
    """Count the first images that have few enough pixels together: photographs take long."""
    pixels = np.cumsum([row.height * row.width for row in rows])
    return max(_LEAST, int(np.searchsorted(pixels, _PIXELS, "right")))


def time_collate(dataset: PackDataset, batch_size: int) -> float:
    """Time handing a batch over, in microseconds an image."""
    batch = dataset.__getitems__(list(range(min(batch_size, len(dataset)))))
    began = time.perf_counter()
    for _ in range(_ROUNDS):
        collating.collate(batch)
    return (time.perf_counter() - began) / _ROUNDS / len(batch) * 1e6
