"""Running DALI: batches through a pipeline, into torch, and on where an image has broken it."""

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
    """What a pipeline asks for the next batch. It does not know the pipeline: no cycle."""

    def __init__(self) -> None:
        self.source: Iterator[Fed] = iter(())
        self.waiting: deque[Fed] = deque()  # in DALI; their bytes are not copied
        self.error: Exception | None = None  # that ended the source

    def __call__(self) -> tuple[Any, Any]:
        try:
            batch = next(self.source)
        except StopIteration:
            raise
        except Exception as error:
            self.error = error  # raised where its batch would have come, not now
            raise StopIteration from error
        self.waiting.append(batch)
        return batch.data, batch.places

    def rest(self, settle: Callable[[list[int]], Fed]) -> Iterator[Fed]:
        """What has not come out, the first of it settled; then what has not gone in.

        Raises:
            DecodeError: all that was in DALI is settled, so the error is not the images'.
        """
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
    """A pipeline that batches are sent through, again and again.

    After any error DALI's pipelines are of no use. Another one is built then; the batch that failed
    is settled, which finds the sample that is bad, and all go in again.

    Args:
        build: Builds a pipeline that asks its argument for batches.
        settle: Makes a batch anew, decoded, from its indices.
    """

    def __init__(self, build: Callable[[Any], Any], settle: Callable[[list[int]], Fed]) -> None:
        self._build, self._settle = build, settle
        self._idle: tuple[Any, _Feed] | None = None

    def close(self) -> None:
        """Let go of the pipeline; it is built again when there is something to run."""
        self._idle = None

    def run(self, batches: Iterator[Fed]) -> Iterator[tuple[Fed, Any]]:
        """Send batches through; yields each with its images, as DALI has them.

        Raises:
            DecodeError, IntegrityError: of the batches; or DALI fails for another reason.
        """
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
            pipeline = None  # it ends before the bytes that it reads do

    def _new(self) -> tuple[Any, _Feed]:
        feed = _Feed()
        return self._build(feed), feed


def said(error: RuntimeError) -> str:
    """What an error of DALI's says, without the way to it."""
    lines = str(error).partition("encountered:")[2] or str(error)
    return " ".join(line.strip() for line in lines.splitlines() if "no longer valid" not in line)


class Handover:
    """DALI's batches as tensors of torch's, which stay what they are.

    On the processor without a copy: DALI makes each batch in new memory, and gives it away. On a
    GPU with one, on a stream of its own: DALI may use a batch's memory again when the tensor is
    gone, without waiting for work on streams that it does not know.

    Args:
        device: Where DALI makes them.
        prepare: What is done to them there.
        channels_last: Whether they come as (N, H, W, C).
    """

    def __init__(self, device: torch.device, prepare: Preparation, *, channels_last: bool) -> None:
        self._device, self._prepare, self._last = device, prepare, channels_last
        self._stream: Any = None  # a torch.cuda.Stream, once there is one

    def __call__(self, size: int, images: Any, labels: torch.Tensor | None) -> Any:
        """The first images of a batch, (size, C, H, W), with labels if there are any."""
        if self._device.type == "cpu":
            made = self._prepared(size, images)
            return made if labels is None else (made, labels)
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]  # torch's own
        current = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            made = self._prepared(size, images).clone()
            made.record_stream(current)
        self._stream.synchronize()
        return made if labels is None else (made, labels.to(self._device))

    def _prepared(self, size: int, images: Any) -> torch.Tensor:
        made = torch.utils.dlpack.from_dlpack(images.as_tensor())[:size]
        return self._prepare(made.permute(0, 3, 1, 2) if self._last else made)
