"""How fast a pack loads here: over workers and threads, stage by stage, and what would help."""

from __future__ import annotations

import dataclasses
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from packio.batches import batches, draws
from packio.datasets.datasets import PackDataset
from packio.errors import DecodeError, MissingPackageError, OptionError
from packio.images import regions
from packio.images.decoders import Decoder
from packio.images.geometry import Geometry, RandomResizedCrop
from packio.index.indexfile import SEEKABLE, crc32c
from packio.packs import packs
from packio.system import processors

_LOOKED_AT = 64  # images whose stages are timed
_STAGE_ROUNDS = 3  # over them, of which the fastest counts
_WASTE = 2.0  # short sides of the images for one of the crop: smaller copies would do

Say = Callable[[str], None]


class Setting(NamedTuple):
    """One way to load, and its rate.

    Attributes:
        workers: Of the DataLoader; 0: threads of the main process make the batches.
        threads: That decode, in each process.
        images_per_second, megabytes_per_second: Median over the rounds; bytes as they are stored.
        slowest, fastest: Images per second of the slowest and of the fastest round.
    """

    workers: int
    threads: int
    images_per_second: float
    megabytes_per_second: float
    slowest: float
    fastest: float


class Gain(NamedTuple):
    """What a change of the pack would bring, measured on a sample.

    Attributes:
        what: The change.
        command: That makes it.
        factor: Times as many images per second on one core; reading from the disk aside.
    """

    what: str
    command: str
    factor: float


@dataclasses.dataclass(frozen=True)
class Result:
    """What `measure` found.

    Attributes:
        path, format, samples: Of the pack.
        seekable: Share of the samples that are seekable JPEGs.
        batch_size, crop, fidelity, decoder: As asked for.
        cpus: That this process may use.
        settings: All that was tried.
        stages: Name → microseconds an image, on one core, warm.
        wall: Images per second that decoding whole images, and nothing else, would reach on all
            processors.
        gains: Changes that would pay.
    """

    path: str
    format: str
    samples: int
    seekable: float
    batch_size: int
    crop: str
    fidelity: str
    decoder: str
    cpus: int
    settings: list[Setting]
    stages: dict[str, float]
    wall: float
    gains: list[Gain]

    @property
    def best(self) -> Setting:
        """The fastest setting."""
        return max(self.settings, key=lambda setting: setting.images_per_second)

    def as_dict(self) -> dict[str, Any]:
        """Give everything as JSON takes it."""
        values = dataclasses.asdict(self)
        values["settings"] = [setting._asdict() for setting in self.settings]
        values["gains"] = [gain._asdict() for gain in self.gains]
        return values | {"best": self.best._asdict(), "share_of_wall": self.share_of_wall}

    @property
    def share_of_wall(self) -> float:
        """The best rate for one of decoding alone."""
        return self.best.images_per_second / self.wall if self.wall else 0.0


def measure(
    path: str | os.PathLike[str],
    *,
    crop: Geometry | None = None,
    batch_size: int = 64,
    fidelity: str = "exact",
    decoder: str = "auto",
    workers: Iterable[int] | None = None,
    threads: Iterable[int] | None = None,
    rounds: int = 3,
    images: int = 2000,
    say: Say | None = None,
) -> Result:
    """Load a pack in every setting, in turn, and time the stages of one image.

    Args:
        path: A pack.
        crop: What is made of each image, with a flip in half of the cases; None: 224 x 224 random
            resized crops.
        batch_size, fidelity, decoder: As of the datasets and of DataLoader.
        workers: Of DataLoader, to try; None: none, and 1 to as many as there are processors.
        threads: To try where there are no workers; None: 1 to as many as there are processors.
        rounds: Times that each setting is measured.
        images: That a setting loads in a round.
        say: Told what is measured next.

    Raises:
        NotAPackError, OptionError: see `PackDataset`.
    """
    crop = crop if crop is not None else RandomResizedCrop(224)
    if rounds < 1 or batch_size < 1 or images < 1:
        raise OptionError(
            f"rounds={rounds}, batch_size={batch_size}, images={images}: expected at least 1"
        )
    say = say or (lambda _: None)
    cpus = processors.usable()
    dataset = PackDataset(
        path, crop=crop, hflip=0.5, fidelity=fidelity, decoder=decoder, fields="image",
        on_error="skip", seed=0,
    )  # fmt: skip
    counts = _counts(cpus)
    tried = [(0, t) for t in (threads or counts)] + [(w, 1) for w in (workers or counts) if w]
    candidates = [_Candidate(dataset, w, t, batch_size, images) for w, t in tried]
    try:
        for number in range(rounds):
            for candidate in candidates:
                say(f"round {number + 1} of {rounds}: {candidate}")
                candidate.run()
    finally:
        for candidate in candidates:
            candidate.close()
    say("stages of one image")
    sample = _Sample(dataset, crop, fidelity, decoder)
    stages = sample.stages() | {"collate": _collating(dataset, batch_size)}
    wall = 1e6 / sample.whole_decode() * cpus
    say("what a change of the pack would bring")
    pack = dataset.pack
    flags = pack.index_file.column("flags").array()
    return Result(
        path=str(path), format=str(pack.metadata["format"]), samples=len(pack),
        seekable=float(np.mean((flags & SEEKABLE) > 0)) if len(flags) else 0.0,
        batch_size=batch_size, crop=repr(crop), fidelity=fidelity, decoder=decoder, cpus=cpus,
        settings=[candidate.setting() for candidate in candidates], stages=stages, wall=wall,
        gains=sample.gains(),
    )  # fmt: skip


def gains(dataset: PackDataset) -> list[Gain]:
    """Measure what changes of a pack would bring to a dataset that has a crop.

    Raises:
        OptionError: none of the images looked at can be decoded.
    """
    options = dataset.options
    return _Sample(dataset, options["crop"], options["fidelity"], options["decoder"]).gains()


def _counts(cpus: int) -> list[int]:
    """1, 2, 4, … and the number of processors."""
    return sorted({cpus, *(1 << i for i in range(cpus.bit_length()) if 1 << i <= cpus)})


class _Candidate:
    """A DataLoader in one setting; its workers stay between rounds."""

    def __init__(
        self, dataset: PackDataset, workers: int, threads: int, batch_size: int, images: int
    ) -> None:
        self.workers, self.threads = workers, threads
        self._dataset = dataset.with_options(threads=threads)
        self._batch_size, self._images = batch_size, images
        self._rates: list[float] = []
        self._bytes = float(dataset.pack.index_file.column("length").array().mean())
        self._loader: Any = None

    def __str__(self) -> str:
        if self.workers:
            return f"{self.workers} worker{'s' * (self.workers > 1)}"
        return f"{self.threads} thread{'s' * (self.threads > 1)}, no workers"

    def run(self) -> None:
        """Load some images, after those that wait already when the clock starts."""
        if self._loader is None:
            self._loader = torch.utils.data.DataLoader(
                self._dataset, batch_sampler=_Batches(len(self._dataset), self._batch_size),
                num_workers=self.workers, collate_fn=batches.collate,
                persistent_workers=self.workers > 0,
            )  # fmt: skip
        waiting = max(1, 2 * self.workers)
        self._loader.batch_sampler.count = waiting + max(1, self._images // self._batch_size)
        source = iter(self._loader)
        for _ in range(waiting):
            next(source)
        done, began = 0, time.perf_counter()
        for batch in source:
            done += len(batch)
        self._rates.append(done / (time.perf_counter() - began))

    def setting(self) -> Setting:
        """The rates of all rounds."""
        middle = statistics.median(self._rates)
        return Setting(
            self.workers, self.threads, middle, middle * self._bytes / 1e6, min(self._rates),
            max(self._rates),
        )  # fmt: skip

    def close(self) -> None:
        """Stop the worker processes."""
        self._loader = None


class _Batches(torch.utils.data.Sampler[list[int]]):
    """So many batches of indices, drawn at random; another draw each time."""

    def __init__(self, samples: int, batch_size: int) -> None:
        self._samples, self._batch_size, self._epoch, self.count = samples, batch_size, 0, 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[list[int]]:
        self._epoch += 1
        draw = np.random.default_rng(self._epoch)
        for _ in range(self.count):
            yield draw.integers(0, self._samples, self._batch_size).tolist()


class _Work(NamedTuple):
    """One image, and what is wanted of it."""

    row: packs.Row
    data: bytes
    wanted: regions.Wanted


class _Sample:
    """Some images of a pack, whose way into a batch is timed step by step."""

    def __init__(self, dataset: PackDataset, crop: Geometry, fidelity: str, decoder: str) -> None:
        self._pack, self._crop = dataset.pack, crop
        self._decoder = Decoder(decoder)
        chosen = np.random.default_rng(0).permutation(len(self._pack))[:_LOOKED_AT]
        self._works = []
        for number, row in enumerate(self._pack.rows(np.sort(chosen))):
            upright = (row.width, row.height) if row.orientation >= 5 else (row.height, row.width)
            frame = crop.frame(*upright, draws.Lane(0, number, 0))
            wanted = regions.want(
                frame, row.orientation, crop.interpolation,
                cuttable=bool(row.flags & SEEKABLE), fast=fidelity == "fast",
            )  # fmt: skip
            work = _Work(row, self._pack.read(row), wanted)
            try:
                self._image(work)
            except DecodeError:
                continue
            self._works.append(work)
        if not self._works:
            raise OptionError(f"{self._pack.path}: none of {len(chosen)} images can be decoded")

    def _image(self, work: _Work) -> None:
        part = regions.decode(self._decoder, work.data, work.row, work.wanted)
        regions.render(part, work.wanted, None, hflip=False, vflip=False)

    def stages(self) -> dict[str, float]:
        """Microseconds of each stage."""
        read = self._time(lambda w: self._pack.read(w.row, check=False))
        parts = [regions.decode(self._decoder, w.data, w.row, w.wanted) for w in self._works]
        decode = self._time(lambda w: regions.decode(self._decoder, w.data, w.row, w.wanted))
        window = self._time(lambda w: regions.cut(w.data, w.row, w.wanted))
        queue = dict(zip(map(id, self._works), parts, strict=True))
        render = self._time(
            lambda w: regions.render(queue[id(w)], w.wanted, None, hflip=False, vflip=False)
        )
        return {
            "read": read,
            "crc": self._time(lambda w: crc32c(w.data)),
            "window": window,
            "decode": max(decode - window, 0.0),
            "resize": render,
        }

    def whole_decode(self) -> float:
        """Microseconds to decode an image in full, and nothing else."""
        return self._time(lambda w: self._decoder(w.data, w.row))

    def gains(self) -> list[Gain]:
        """What seekable JPEGs, and smaller images, would bring."""
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
        before, after = self._time(self._image, jpegs), self._time(self._image, made)
        command = f"packio convert {self._pack.path} OUT --seekable"
        return Gain("seekable JPEGs", command, before / after)

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
            upright = (row.width, row.height) if row.orientation >= 5 else (row.height, row.width)
            frame = self._crop.frame(*upright, draws.Lane(0, len(made), 0))
            wanted = work.wanted._replace(frame=frame, cuttable=False)
            made.append(_Work(row, image.data, wanted))
            kept.append(work)
        if not made:
            return None
        before, after = self._time(self._image, kept), self._time(self._image, made)
        command = f"packio pack SOURCE OUT --encode jpeg --resize short={side}"
        return Gain(f"images of {side} pixels on the short side", command, before / after)

    def _time(self, step: Callable[[_Work], Any], works: Sequence[_Work] | None = None) -> float:
        """Microseconds an image, of the fastest round."""
        works = self._works if works is None else works
        return min(_once(step, works) for _ in range(_STAGE_ROUNDS))


def _once(step: Callable[[_Work], Any], works: Sequence[_Work]) -> float:
    began = time.perf_counter()
    for work in works:
        step(work)
    return (time.perf_counter() - began) / len(works) * 1e6


def _collating(dataset: PackDataset, batch_size: int) -> float:
    """Microseconds an image that handing a batch over takes."""
    batch = dataset.__getitems__(list(range(min(batch_size, len(dataset)))))
    began = time.perf_counter()
    for _ in range(_STAGE_ROUNDS):
        batches.collate(batch)
    return (time.perf_counter() - began) / _STAGE_ROUNDS / len(batch) * 1e6
