"""One pass of a decoder over images: in threads, or in the worker processes of a DataLoader."""

from __future__ import annotations

import dataclasses
import io
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from PIL import Image

from packio import registry
from packio.images.decoders import Decoder
from packio.measuring.bench.images import Encoded
from packio.system.pools import ThreadPool

_LEAST = 64  # images decoded in a pass: fewer images are decoded several times
_BATCH = 16


class Pass(NamedTuple):
    """The time of one pass.

    Attributes:
        seconds: Of the whole pass.
        milliseconds: Of each image, within its thread or worker.
    """

    seconds: float
    milliseconds: list[float]


@dataclasses.dataclass(eq=False)
class Candidate:
    """A decoder and a way to run it. Worker processes stay between passes.

    Attributes:
        encoding, decoder, stage, threads, workers: See `packio.measuring.bench.decode.DecodeRow`.
        images: The images of a pass.
    """

    encoding: str
    decoder: str
    images: Sequence[Encoded]
    stage: str = "decode"
    threads: int = 1
    workers: int = 0

    def __post_init__(self) -> None:
        self.bytes: int = sum(len(image.data) for image in self.images)
        self._timed = _Timed(self.images, self.decoder, self.stage)
        self._loader: Any = None

    def run(self) -> Pass:
        """Decode every image once."""
        if self.workers and self._loader is None:
            self._loader = self._made_loader()
            list(self._loader)  # starting the workers is not decoding
        indices = range(len(self.images))
        begin = time.perf_counter()
        if self.workers:
            milliseconds = [ms for batch in self._loader for ms in batch]
        elif self.threads == 1:
            milliseconds = [self._timed[i] for i in indices]
        else:
            with ThreadPool(self.threads) as pool:
                milliseconds = list(pool.map(self._timed.__getitem__, indices))
        return Pass(time.perf_counter() - begin, milliseconds)

    def _made_loader(self) -> Any:
        from torch.utils.data import DataLoader

        return DataLoader(
            self._timed,  # type: ignore[arg-type]  # it has what a map-style dataset needs
            batch_size=_BATCH, num_workers=self.workers, persistent_workers=True, collate_fn=list,
        )  # fmt: skip

    def close(self) -> None:
        """Stop the worker processes."""
        self._loader = None


class _Timed:
    """A map-style dataset: each item is the milliseconds that decoding an image took."""

    def __init__(self, images: Sequence[Encoded], decoder: str, stage: str) -> None:
        self._images, self._opens = images, stage == "open"
        self._decode = Decoder(decoder, "RGB")

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> float:
        image = self._images[index]
        begin = time.perf_counter()
        if self._opens:
            Image.open(io.BytesIO(image.data)).close()
        else:
            self._decode(image.data, image.stored)
        return (time.perf_counter() - begin) * 1e3


def candidates_of(
    encoding: str,
    images: Sequence[Encoded],
    names: Sequence[str],
    ways: Sequence[tuple[int, int]],
) -> list[Candidate]:
    """List what to measure on the images of one encoding."""
    repeated = list(images) * max(1, _LEAST // len(images))
    fitting = [n for n in names if encoding in registry.load("decoders", n).ENCODINGS]
    found = [
        Candidate(encoding, name, repeated, threads=threads, workers=workers)
        for threads, workers in ways
        for name in fitting
        if not (workers and registry.load("decoders", name).decode_batch)
    ]
    if "pillow" in fitting:
        found.append(Candidate(encoding, "pillow", repeated, stage="open"))
    return found
