"""One pass of a decoder over images: in threads, or in the worker processes of a DataLoader."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from PIL import Image

from packio import registry
from packio.images.decoders import Decoder
from packio.measuring.bench._images import Encoded
from packio.system.pools import ThreadPool

_LEAST = 64  # decodes a pass: fewer images are gone through several times
_BATCH = 16


class Pass(NamedTuple):
    """What one pass took."""

    seconds: float
    milliseconds: list[float]  # of each image, within its thread or worker


class Candidate:
    """A decoder with a way to run it; worker processes stay between passes.

    Args:
        encoding, decoder, stage, threads, workers: As in `packio.measuring.bench.decode.Row`.
        images: What it decodes in a pass.
    """

    def __init__(
        self,
        encoding: str,
        decoder: str,
        images: Sequence[Encoded],
        *,
        stage: str = "decode",
        threads: int = 1,
        workers: int = 0,
    ) -> None:
        self.encoding, self.decoder, self.stage = encoding, decoder, stage
        self.threads, self.workers, self.images = threads, workers, images
        self.bytes = sum(len(image.data) for image in images)
        self._timed = _Timed(images, decoder, stage)
        self._loader: Any = None

    def run(self) -> Pass:
        """Decode every image once."""
        if self.workers:
            return self._run_workers()
        indices = range(len(self.images))
        begin = time.perf_counter()
        if self.threads == 1:
            milliseconds = [self._timed[i] for i in indices]
        else:
            with ThreadPool(self.threads) as pool:
                milliseconds = list(pool.map(self._timed.__getitem__, indices))
        return Pass(time.perf_counter() - begin, milliseconds)

    def _run_workers(self) -> Pass:
        if self._loader is None:
            self._loader = _loader(self._timed, self.workers)
            list(self._loader)  # starting the workers is not decoding
        begin = time.perf_counter()
        milliseconds = [ms for batch in self._loader for ms in batch]
        return Pass(time.perf_counter() - begin, milliseconds)

    def close(self) -> None:
        """Stop the worker processes."""
        self._loader = None


class _Timed:
    """A map-style dataset whose items are the milliseconds that decoding took; it pickles."""

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
    """List what is to be measured on the images of one encoding.

    Args:
        ways: Pairs of threads and workers, one of them 0.
    """
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


def _loader(dataset: _Timed, workers: int) -> Any:
    from torch.utils.data import DataLoader

    return DataLoader(
        dataset,  # type: ignore[arg-type]  # it has what a map-style dataset needs
        batch_size=_BATCH,
        num_workers=workers,
        persistent_workers=True,
        collate_fn=list,
    )
