"""The cost of batches that are channels_last or transposed views, on this machine."""

from __future__ import annotations

import copy
import dataclasses
import functools
import platform
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import nn

import packio
from packio.errors import OptionError
from packio.measuring.turns import run_in_turns
from packio.system import processors
from packio.system.progress import Progress

DTYPES = ("float32", "bfloat16", "float16")
_LEAST_SECONDS = 0.02  # of one measurement: a quicker call is repeated
_DEFAULTS = {"cpu": (8, 112), "cuda": (128, 224)}  # images of a batch, pixels of a side
_CHANNELS, _CLASSES = (32, 64, 128, 256), 10
_MARGIN = 8  # pixels around a cropped view
_LAST = torch.channels_last
Case = tuple[str, str, str, str, str]  # as a row begins
Cases = dict[Case, Callable[[], Any]]  # what to time


class MemoryFormatRow(NamedTuple):
    """One stage in one layout."""

    part: str  # the network, "plain" or "depthwise"; or "data": work on a batch before a network
    stage: str  # "forward" (inference), "step" (forward and backward), or what is done to the data
    dtype: str
    images: str  # layout: "contiguous", "channels_last", "transposed view" or "cropped view"
    model: str  # memory format of the weights; "" if there is no network
    milliseconds: float  # of one call: the median over the rounds
    fastest: float
    slowest: float
    ratio: float  # to contiguous images and weights in the same round: the median over the rounds
    lowest: float
    highest: float


@dataclasses.dataclass(frozen=True)
class MemoryFormatResult:
    """What `measure` found; `machine` has the processor, the device and versions."""

    machine: dict[str, Any]
    batch_size: int
    size: int
    rounds: int
    rows: list[MemoryFormatRow]

    def conclusions(self) -> list[str]:
        """Say what to do, in one line for each data type of a network and one for views."""
        lines = []
        for dtype in dict.fromkeys(row.dtype for row in self.rows if row.stage == "step"):
            gains = [f"{1 / row.ratio:.2f} times as fast ({row.part})" for row in self.rows
                     if row[1:5] == ("step", dtype, "channels_last", "channels_last")
                     and row.highest < 1]  # fmt: skip
            said = f"makes training {' and '.join(gains)}" if gains else "makes no clear difference"
            lines.append(f"{dtype}: channels_last, for images and model, {said}")
        costs = [f"{row.stage} takes {row.ratio:.1f} times as long ({row.images})"
                 for row in self.rows
                 if row.part == "data" and row.images.endswith("view")
                 and row.lowest > 1]  # fmt: skip
        said = "; ".join(costs) or "they cost nothing clear here"
        return [*lines, f"views that are not contiguous: {said}"]

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"rows": [row._asdict() for row in self.rows]}


def measure(
    *, device: str | None = None, dtypes: Iterable[str] | None = None,
    batch_size: int | None = None, size: int | None = None, rounds: int = 7,
    progress: Callable[[Progress], None] | None = None,
) -> MemoryFormatResult:  # fmt: skip
    """Measure two small convolutional networks, and collating and copying, in every layout.

    The device is the GPU if there is one; data types are float32, and also bfloat16 if the device
    computes in it. torch's settings stay as they are, its number of threads for example.
    """
    where = _find_device(device)
    names = list(dict.fromkeys(dtypes)) if dtypes is not None else ["float32"]
    if dtypes is None and _is_fast_in_bfloat16(where):
        names.append("bfloat16")
    batch_size, size = batch_size or _DEFAULTS[where.type][0], size or _DEFAULTS[where.type][1]
    if wrong := [name for name in names if name not in DTYPES]:
        raise OptionError(f"dtypes={wrong}: expected some of {', '.join(DTYPES)}")
    if rounds < 1 or batch_size < 2 or size < 16:
        raise OptionError(
            f"rounds={rounds}, batch_size={batch_size}, size={size}: expected at least one round, "
            "two images (for batch norm) and 16 pixels"
        )
    batch = torch.randint(0, 256, (batch_size, 3, size, size), dtype=torch.uint8)
    cases, repeats = Cases(), dict[Case, int]()
    for name in names:
        cases |= network_cases(batch, where, getattr(torch, name))
    cases |= data_cases(batch, where)
    for key, work in cases.items():
        _time(work, where, 1)  # the first call sets things up
        repeats[key] = max(1, round(_LEAST_SECONDS / max(_time(work, where, 1), 1e-6)))
    seconds = run_in_turns(
        list(cases), rounds, lambda key: _time(cases[key], where, repeats[key]), progress=progress,
        sizes=[(batch_size * calls, 0) for calls in repeats.values()],
    )  # fmt: skip
    machine = {
        "cpu": processors.model(), "cores": processors.usable(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(where) if where.type == "cuda" else "cpu",
        "python": platform.python_version(), "packio": packio.__version__,
        "torch": torch.__version__,
    }  # fmt: skip
    rows = sum_up(dict(zip(cases, seconds, strict=True)))
    return MemoryFormatResult(machine, batch_size, size, rounds, rows)


def _find_device(name: str | None) -> torch.device:
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:  # torch knows no such device
        device = None
    if device is None or device.type not in _DEFAULTS:
        raise OptionError(f"device={name!r}: expected cpu or cuda")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise OptionError(f"device={name!r}: torch sees {torch.cuda.device_count()} GPUs here")
    return device


def _is_fast_in_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(processors.flags())


def make_views(batch: torch.Tensor) -> dict[str, torch.Tensor]:
    """Lay the same images, (N, C, H, W), out in four ways. Their shapes and values are equal."""
    n, c, h, w = batch.shape
    larger = batch.new_zeros(n, c, h + 2 * _MARGIN, w + 2 * _MARGIN)
    return {
        "contiguous": batch.contiguous(),
        "channels_last": batch.contiguous(memory_format=_LAST),
        "transposed view": batch.transpose(2, 3).contiguous().transpose(2, 3),
        "cropped view": larger[:, :, _MARGIN : _MARGIN + h, _MARGIN : _MARGIN + w].copy_(batch),
    }


def make_network(part: str) -> nn.Module:
    """Make four convolutions of stride 2, "depthwise": from the second on as two separable ones."""
    layers: list[nn.Module] = []
    before = 3
    for after in _CHANNELS:
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


def network_cases(batch: torch.Tensor, device: torch.device, dtype: torch.dtype) -> Cases:
    """A forward pass and a training step of each network, in each layout."""
    images = make_views(batch.to(device, dtype).div_(255))
    labels = torch.arange(len(batch), device=device) % _CLASSES
    layouts = [(name, "contiguous") for name in images]
    layouts += [("contiguous", "channels_last"), ("channels_last", "channels_last")]
    name, cases = str(dtype).removeprefix("torch."), Cases()
    for part in ("plain", "depthwise"):
        torch.manual_seed(0)
        model: Any = make_network(part).to(device, dtype)
        last = copy.deepcopy(model).to(memory_format=_LAST)
        for given, kept in layouts:
            work = (last if kept == "channels_last" else model, images[given])
            cases[part, "forward", name, given, kept] = functools.partial(run_forward, *work)
            cases[part, "step", name, given, kept] = functools.partial(run_step, *work, labels)
    return cases


@torch.inference_mode()
def run_forward(model: nn.Module, images: torch.Tensor) -> Any:
    return model.eval()(images)


def run_step(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> None:
    model.zero_grad(set_to_none=True)
    loss = nn.functional.cross_entropy(model.train()(images).float(), labels)
    loss.backward()  # type: ignore[no-untyped-call]  # torch's own


def data_cases(batch: torch.Tensor, device: torch.device) -> Cases:
    """Collating, copying and converting a batch in each layout; for a GPU also pinning it."""
    copied = torch.empty_like(batch, memory_format=torch.contiguous_format)
    cases: Cases = {}
    for name, view in make_views(batch).items():
        works: dict[str, Callable[[], Any]] = {
            "collate": functools.partial(torch.stack, list(view.unbind())),
            "copy": functools.partial(copied.copy_, view),
            "to float": functools.partial(lambda images: images.float().div_(255), view),
        }
        if device.type == "cuda":
            works["pin"] = view.pin_memory
            works["to the GPU"] = functools.partial(view.pin_memory().to, device, non_blocking=True)
        cases |= {("data", stage, "uint8", name, ""): work for stage, work in works.items()}
    return cases


def _time(work: Callable[[], Any], device: torch.device, calls: int) -> float:
    work()  # the case before has filled the caches
    wait = functools.partial(torch.cuda.synchronize, device) if device.type == "cuda" else float
    wait()
    began = time.perf_counter()
    for _ in range(calls):
        work()
    wait()
    return (time.perf_counter() - began) / calls


def sum_up(seconds: dict[Case, list[float]]) -> list[MemoryFormatRow]:
    """Compare the times of each case with those of its contiguous one, round by round."""
    rows = []
    for key, times in seconds.items():
        plain = (*key[:3], "contiguous", "contiguous" if key[4] else "")
        ratios = [a / b for a, b in zip(times, seconds[plain], strict=True)]
        figures = [1e3 * f(times) for f in (statistics.median, min, max)]
        figures += [f(ratios) for f in (statistics.median, min, max)]
        rows.append(MemoryFormatRow(*key, *figures))
    return rows
