"""DALI's pipelines: from encoded images and their boxes to batches of one size, in torch's tensors.

packio reads, checks and draws. If DALI's decoder might refuse an image, or decode it otherwise than
packio does, packio decodes the image and gives DALI the pixels as PNM: one line of text, then the
pixels (Netpbm, "PPM Format Specification").

A pipeline decodes only the part that a crop needs, resizes with antialiasing, cuts or pads with
black, and mirrors. JPEGs are decoded with smooth ("fancy") chroma upsampling, which is the default
of libjpeg and Pillow, but not of DALI on a GPU.

Source: DALI 2.4, operators reference (``fn.decoders.image_slice``,
``fn.external_source``, ``fn.resize``, ``fn.slice``).
"""

# ruff: noqa: SLF001 (how a dataset makes its samples: no business of its users)

from __future__ import annotations

import dataclasses
import itertools
import struct
from collections import deque
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from packio import registry
from packio.batches.columns import make_each
from packio.batches.framing import Framing, draw_by_position
from packio.batches.samples import MadeSamples, replace
from packio.datasets.shared_state import SeededMixin
from packio.errors import DecodeError, OptionError
from packio.images import encodings, regions
from packio.images.dct import as_file
from packio.images.encodings import PNG_MAGIC
from packio.images.frames import orient
from packio.images.geometry import Geometry
from packio.images.regions import Need
from packio.packs.opening import Pack
from packio.packs.table import Row
from packio.sample.record import IMAGE
from packio.system.threads import Threads

if TYPE_CHECKING:
    from packio.batches.draws import PositionedIndex
    from packio.datasets.pack_dataset import PackDataset
    from packio.images.frames import Box, Placement

_TRAILER = 64  # bytes at the end that must have the end mark; some cameras add bytes behind it
_AHEAD = 2  # batches that DALI works on at a time
_INTERPOLATIONS = {"bilinear": "INTERP_LINEAR", "bicubic": "INTERP_CUBIC"}


def import_dali(module: str = "") -> ModuleType:
    """Import a module of DALI's, as ".fn"."""
    return registry.require(f"nvidia.dali{module}", "dali")


class DaliBatch(NamedTuple):
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


class Feeder(SeededMixin):
    """Makes batches of a dataset for DALI."""

    def __init__(self, dataset: PackDataset, threads: int) -> None:
        self._seed, self.seeded, self._dataset = dataset._seed, dataset.seeded, dataset
        self._pack, self._settings = dataset.pack, dataset._settings
        self._threads = Threads(threads) if threads > 1 else None
        self._ours: set[int] = set()  # samples that DALI failed on, which packio decodes

    def __call__(self, indices: list[int], *, settle: bool = False) -> DaliBatch:
        drawn = cast("list[PositionedIndex]", indices)
        positions = self._dataset._positions(indices)
        rows = self._pack.rows(positions)
        draw = draw_by_position(self.seed, drawn[0].epoch, [i.position for i in drawn])
        plan, pack = Framing.draw(self._settings, rows, draw), self._pack.prefetch({IMAGE: rows})
        data = [np.empty(0, np.uint8)] * len(rows)
        places = np.zeros((len(rows), 12), np.int32)

        def work(slot: int) -> None:
            (place,) = plan.each_placement[slot]
            data[slot], places[slot] = self._sample(pack, rows[slot], place, settle)

        errors = make_each(rows, work, self._threads)
        if settle:
            self._ours.update(rows[slot].position for slot in errors or range(len(rows)))
        is_skipping = self._dataset._options["on_error"] == "skip"
        if errors and (not is_skipping or len(errors) == len(rows)):
            raise errors[min(errors)]
        columns: Any = {"positions": [positions], "data": [data], "places": [places]}
        replace(MadeSamples(columns, errors))
        found = [errors[slot] for slot in sorted(errors)]
        return DaliBatch(indices, positions, data, places, found, settle)

    def _sample(
        self, pack: Pack, row: Row, place: Placement, settle: bool
    ) -> tuple[np.ndarray, tuple[int, ...]]:
        """Read one sample; return the bytes for DALI, and the place."""
        data = as_file(pack.read(row), row.encoding)
        # DALI resizes whole frames
        wanted = regions.compute_need(place, row.height, row.width, "nearest", fast=False)
        frame = wanted.frame
        ours, most = settle or row.position in self._ours, self._settings.decoder.max_pixels
        with pack.naming(row):
            if ours or not _is_plain(data, row) or row.height * row.width > most:
                data, box = self._decoded(data, row, wanted)
            else:
                box = wanted.box if wanted.orientation == 1 else frame[:4]
        return np.frombuffer(data, np.uint8), (*box, *frame[4:10], wanted.hflip, wanted.vflip)

    def _decoded(self, data: bytes, row: Row, wanted: Need) -> tuple[bytes, Box]:
        """Decode the part of an image that its box needs; return a PNM, whose box is all of it."""
        part = regions.decode(self._settings.decoder, data, row, [wanted])
        pixels = orient(regions.cut_box(part.pixels, wanted), wanted.orientation)
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
    header = encodings.parse_jpeg(data) if row.encoding in encodings.JPEGS else None
    said: Any = (row.height, row.width, row.channels, 8, row.orientation)
    return b"\xff\xd9" in end and header is not None and said == (*header[:4], header.orientation)


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of a loader that its pipelines are made with."""

    batch_size: int
    threads: int
    gpu: int | None  # number of the GPU; None decodes on the processor
    crop: Geometry
    upright: bool
    channels_last: bool  # whether pixels come as (N, H, W, C) instead of (N, C, H, W)
    hw_decoder_load: float | None  # share of the JPEGs for the GPU's engine; None: DALI's default

    def __post_init__(self) -> None:
        if self.crop.output_size is None:
            raise OptionError(f"crop={self.crop}: DALI's batches have one size; give both sides")
        frame = self.crop.frame(1009, 997, [0.5] * self.crop.draws)
        resized = frame[2:4] != frame[4:6]
        if resized and self.crop.interpolation not in _INTERPOLATIONS:
            raise OptionError(
                f"interpolation={self.crop.interpolation!r}: with DALI one of "
                f"{', '.join(_INTERPOLATIONS)}"
            )


def build(options: Options, source: Callable[[], tuple[Any, Any]]) -> Any:
    """Build a pipeline that gets data and places, see `DaliBatch`, from packio until StopIteration.

    The data must not change until the batch comes out.
    """
    fn, types = import_dali(".fn"), import_dali(".types")
    decoding: dict[str, Any] = {
        "device": "cpu" if options.gpu is None else "mixed",
        "jpeg_fancy_upsampling": True,
        "adjust_orientation": options.upright,
    }
    if options.hw_decoder_load is not None:
        decoding["hw_decoder_load"] = options.hw_decoder_load
    interpolation = _INTERPOLATIONS.get(options.crop.interpolation, "INTERP_LINEAR")
    pipeline = import_dali().Pipeline(
        batch_size=options.batch_size, num_threads=options.threads, device_id=options.gpu,
        prefetch_queue_depth=_AHEAD,
    )  # fmt: skip
    with pipeline:
        encoded, place = fn.external_source(
            source=source, num_outputs=2, batch=True, no_copy=True, ndim=[1, 1],
            dtype=[types.UINT8, types.INT32],
        )  # fmt: skip
        images = fn.decoders.image_slice(
            encoded, start=place[0:2], shape=place[2:4], axis_names="HW", **decoding
        )
        images = fn.resize(
            images, size=fn.cast(place[4:6], dtype=types.FLOAT), antialias=True,
            interp_type=getattr(types, interpolation),
        )  # fmt: skip
        images = fn.slice(
            images, start=place[6:8], shape=place[8:10], axis_names="HW",
            out_of_bounds_policy="pad", fill_values=0,
        )  # fmt: skip
        images = fn.flip(images, horizontal=place[10], vertical=place[11])
        if not options.channels_last:
            images = fn.transpose(images, perm=[2, 0, 1])
        pipeline.set_outputs(images)
    pipeline.build()
    return pipeline


class _Feed:
    """Source of a pipeline's batches, without a reference to the pipeline: no cycle."""

    def __init__(self) -> None:
        self.source: Iterator[DaliBatch] = iter(())
        self.waiting: deque[DaliBatch] = deque()  # in DALI, which reads their bytes in place
        self.error: Exception | None = None  # the error that ended the source

    def __call__(self) -> tuple[Any, Any]:
        try:
            batch = next(self.source)
        except StopIteration:
            raise
        except Exception as error:
            self.error = error  # raised after the batches before it have come out
            raise StopIteration from error
        self.waiting.append(batch)
        return batch.data, batch.places

    def rest(self, settle: Callable[[list[int]], DaliBatch]) -> Iterator[DaliBatch]:
        """Yield the batches in DALI, the first doubtful one settled; then the source's."""
        for number, batch in enumerate(self.waiting):
            if not batch.settled:
                yield settle(batch.indices)
                yield from itertools.islice(self.waiting, number + 1, None)
                break
            yield batch
        if self.error is not None:
            raise self.error
        yield from self.source


class Runner:
    """Sends batches through a pipeline, one epoch after the other.

    After an error a pipeline of DALI does not work any more. The runner then builds another one.
    packio decodes the batch that failed, which finds the bad sample, and all batches that were in
    the old pipeline go into the new one.
    """

    def __init__(self, options: Options, settle: Callable[[list[int]], DaliBatch]) -> None:
        self._options, self._settle = options, settle
        self._idle: tuple[Any, _Feed] | None = None

    def close(self) -> None:
        """Drop the pipeline; `run` builds another one."""
        self._idle = None

    def run(self, batches: Iterator[DaliBatch]) -> Iterator[tuple[DaliBatch, Any]]:
        """Send batches through; yield each batch with its images, as DALI has them."""
        pipeline, feed = self._idle or self._new()
        self._idle = None
        feed.source = batches
        try:
            while True:
                try:
                    (images,) = pipeline.run()
                except StopIteration:
                    break
                except RuntimeError as error:  # all that DALI raises
                    if all(batch.settled for batch in feed.waiting):
                        raise DecodeError(f"DALI: {_shorten(error)}") from error
                    pipeline, failed = None, feed
                    pipeline, feed = self._new()
                    feed.source = failed.rest(self._settle)
                    continue
                yield feed.waiting.popleft(), images
                del images
            if feed.error is not None:
                raise feed.error
            pipeline.reset()
            self._idle = pipeline, feed
        finally:
            pipeline = None  # DALI reads the batches' bytes: it must end before they are freed

    def _new(self) -> tuple[Any, _Feed]:
        feed = _Feed()
        return build(self._options, feed), feed


def _shorten(error: RuntimeError) -> str:
    """The message of an error of DALI, without the stack trace."""
    lines = str(error).partition("encountered:")[2] or str(error)
    return " ".join(line.strip() for line in lines.splitlines() if "no longer valid" not in line)
