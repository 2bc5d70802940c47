"""Running DALI: batches go through a pipeline into torch; a broken pipeline is built again."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch

from packio.errors import DecodeError
from packio.loading.dali.feeding import Fed
from packio.loading.devices import Preparation


class _Feed:
    """Source of a pipeline's batches, without a reference to the pipeline: no cycle."""

    def __init__(self) -> None:
        self.source: Iterator[Fed] = iter(())
        self.waiting: deque[Fed] = deque()  # in DALI, which reads their bytes in place
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

    def rest(self, settle: Callable[[list[int]], Fed]) -> Iterator[Fed]:
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

    def __init__(self, build: Callable[[Any], Any], settle: Callable[[list[int]], Fed]) -> None:
        self._build, self._settle = build, settle
        self._idle: tuple[Any, _Feed] | None = None

    def close(self) -> None:
        """Drop the pipeline; `run` builds another one."""
        self._idle = None

    def run(self, batches: Iterator[Fed]) -> Iterator[tuple[Fed, Any]]:
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
                        raise DecodeError(f"DALI: {said(error)}") from error
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
        return self._build(feed), feed


def said(error: RuntimeError) -> str:
    """The message of an error of DALI, without the stack trace."""
    lines = str(error).partition("encountered:")[2] or str(error)
    return " ".join(line.strip() for line in lines.splitlines() if "no longer valid" not in line)


class Handover:
    """Turns DALI's batches into tensors that later batches do not change.

    On the processor nothing is copied: DALI makes each batch in new memory. On a GPU the batch is
    copied, on a stream of its own: once the tensor is freed, DALI uses the memory again without
    waiting for work on streams that DALI does not know.

    Args:
        channels_last: Whether DALI's batches are (N, H, W, C).
    """

    def __init__(self, device: torch.device, prepare: Preparation, *, channels_last: bool) -> None:
        self._device, self._prepare, self._last = device, prepare, channels_last
        self._stream: Any = None  # a torch.cuda.Stream, once there is one

    def __call__(self, size: int, images: Any, labels: torch.Tensor | None) -> Any:
        """Return the first images of a batch, (size, C, H, W), and labels if there are any."""
        if self._device.type == "cpu":
            made = self._prepared(size, images)
            return (made,) if labels is None else (made, labels)
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]  # torch's own
        current = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            made = self._prepared(size, images).clone()
            made.record_stream(current)
        self._stream.synchronize()
        return (made,) if labels is None else (made, labels.to(self._device))

    def _prepared(self, size: int, images: Any) -> torch.Tensor:
        made = torch.utils.dlpack.from_dlpack(images.as_tensor())[:size]
        return self._prepare(made.permute(0, 3, 1, 2) if self._last else made)
