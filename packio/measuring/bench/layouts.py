"""Batches and small convolutional networks, in the memory formats that training meets."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

CHANNELS = (32, 64, 128, 256)
_CLASSES = 10
_MARGIN = 8  # pixels around a cropped view


class Case(NamedTuple):
    """One thing to measure, in one layout.

    Attributes:
        part: The network, "plain" or "depthwise"; or "data": work on a batch before a network.
        stage: "forward" or "step" of a network; or what is done to the batch.
        dtype: Data type of network and images.
        images, model: Layout of the images and of the weights; "" if there is no network.
        work: The call to time.
    """

    part: str
    stage: str
    dtype: str
    images: str
    model: str
    work: Callable[[], Any]


def views(batch: torch.Tensor) -> dict[str, torch.Tensor]:
    """Lay the same images, (N, C, H, W), out in four ways. Their shapes and values are equal.

    An (N, H, W, C) batch that was permuted is "channels_last", too: torch looks at strides only.
    The views are neither contiguous nor channels_last.
    """
    n, c, h, w = batch.shape
    larger = batch.new_zeros(n, c, h + 2 * _MARGIN, w + 2 * _MARGIN)
    cropped = larger[:, :, _MARGIN : _MARGIN + h, _MARGIN : _MARGIN + w]
    cropped.copy_(batch)
    return {
        "contiguous": batch.contiguous(),
        "channels_last": batch.contiguous(memory_format=torch.channels_last),
        "transposed view": batch.transpose(2, 3).contiguous().transpose(2, 3),
        "cropped view": cropped,
    }


def network(part: str) -> nn.Module:
    """Make a small network of four blocks: convolution with stride 2, batch norm, ReLU.

    Args:
        part: "plain", or "depthwise": from the second block on, a depthwise convolution and a
            pointwise one take the place of each convolution.
    """
    layers: list[nn.Module] = []
    before = 3
    for after in CHANNELS:
        if part == "plain" or before == 3:
            layers.append(nn.Conv2d(before, after, 3, 2, 1, bias=False))
        else:
            depthwise = nn.Conv2d(before, before, 3, 2, 1, groups=before, bias=False)
            layers += [depthwise, nn.BatchNorm2d(before), nn.ReLU(inplace=True)]
            layers.append(nn.Conv2d(before, after, 1, bias=False))
        layers += [nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
        before = after
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, _CLASSES)
    )


def network_cases(batch: torch.Tensor, device: torch.device, dtype: torch.dtype) -> Iterator[Case]:
    """Yield a forward pass and a training step of each network, in each layout."""
    images = views(batch.to(device, dtype).div_(255))
    labels = torch.arange(len(batch), device=device) % _CLASSES
    for part in ("plain", "depthwise"):
        torch.manual_seed(0)
        made: Any = network(part).to(device, dtype)
        formats = {
            "contiguous": made,
            "channels_last": copy.deepcopy(made).to(memory_format=torch.channels_last),
        }
        pairs = [(name, "contiguous") for name in images]
        pairs += [("contiguous", "channels_last"), ("channels_last", "channels_last")]
        for given, kept in pairs:
            where = (str(dtype).removeprefix("torch."), given, kept)
            yield Case(part, "forward", *where, _forward(formats[kept], images[given]))
            yield Case(part, "step", *where, _step(formats[kept], images[given], labels))


def _forward(model: nn.Module, images: torch.Tensor) -> Callable[[], Any]:
    @torch.inference_mode()
    def work() -> torch.Tensor:
        result: torch.Tensor = model.eval()(images)
        return result

    return work


def _step(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> Callable[[], Any]:
    def work() -> None:
        model.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model.train()(images).float(), labels)
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own

    return work


def _to_float(batch: torch.Tensor) -> torch.Tensor:
    return batch.float().div_(255)


def data_cases(batch: torch.Tensor, device: torch.device) -> Iterator[Case]:
    """Yield the work on a batch before a network, in each layout.

    These are: collate its images, copy them into a contiguous batch, make the batch float. For a
    GPU also: pin the batch, and copy it from pinned memory to the GPU.
    """
    copied = torch.empty_like(batch, memory_format=torch.contiguous_format)
    for name, view in views(batch).items():
        single = list(view.unbind())
        works: dict[str, Callable[[], Any]] = {
            "collate": functools.partial(torch.stack, single),
            "copy": functools.partial(copied.copy_, view),
            "to float": functools.partial(_to_float, view),
        }
        if device.type == "cuda":
            pinned = view.pin_memory()
            works["pin"] = view.pin_memory
            works["to the GPU"] = functools.partial(pinned.to, device, non_blocking=True)
        for stage, work in works.items():
            yield Case("data", stage, "uint8", name, "", work)
