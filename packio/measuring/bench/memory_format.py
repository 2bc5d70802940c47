"""The cost of batches that are channels_last or transposed views, on this machine."""

from __future__ import annotations

import dataclasses
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

import packio
from packio.errors import OptionError
from packio.images.decoders import _calibration
from packio.measuring.bench.layouts import Case, data_cases, network_cases
from packio.measuring.bench.rounds import in_turns
from packio.system import processors
from packio.system.progress import Progress

DTYPES = ("float32", "bfloat16", "float16")
_LEAST_SECONDS = 0.02  # of one measurement: a quicker call is repeated
_DEFAULTS = {"cpu": (8, 112), "cuda": (128, 224)}  # images of a batch, pixels of a side


class MemoryFormatRow(NamedTuple):
    """One stage in one layout.

    Attributes:
        part: The network, "plain" or "depthwise"; or "data": work on a batch before a network.
        stage: "forward" (inference), "step" (forward and backward), or what is done to the data.
        dtype: Data type of network and images, or of the data.
        images: Layout of the images: "contiguous", "channels_last" (also an (N, H, W, C) batch
            that was permuted), "transposed view" or "cropped view".
        model: Memory format of the weights; "" if there is no network.
        milliseconds: Time of one call: the median over the rounds.
        fastest, slowest: Milliseconds of the fastest and of the slowest round.
        ratio: This time as a multiple of the time with contiguous images and weights: the median
            over the rounds. Both times of a ratio are of the same round.
        lowest, highest: Lowest and highest ratio of the rounds.
    """

    part: str
    stage: str
    dtype: str
    images: str
    model: str
    milliseconds: float
    fastest: float
    slowest: float
    ratio: float
    lowest: float
    highest: float


@dataclasses.dataclass(frozen=True)
class MemoryFormatResult:
    """What `measure` found.

    Attributes:
        machine: Processor, cores, torch's threads, device, versions.
        batch_size, size: Images of a batch, and pixels of their sides.
        rounds: Rounds; everything was measured once a round.
        rows: The measurements.
    """

    machine: dict[str, Any]
    batch_size: int
    size: int
    rounds: int
    rows: list[MemoryFormatRow]

    @property
    def on(self) -> str:
        """The device that was measured: the GPU, or else the processor."""
        device, cpu = str(self.machine["device"]), str(self.machine["cpu"])
        return cpu if device == "cpu" else device

    def conclusions(self) -> list[str]:
        """Say what to do, in one line for each data type of a network and one for views."""
        lines = []
        for dtype in dict.fromkeys(row.dtype for row in self.rows if row.stage == "step"):
            gains = [
                f"{1 / row.ratio:.2f} times as fast ({row.part})"
                for row in self.rows
                if (row.stage, row.dtype, row.images) == ("step", dtype, "channels_last")
                and row.model == "channels_last" and row.highest < 1
            ]  # fmt: skip
            said = f"makes training {' and '.join(gains)}" if gains else "makes no clear difference"
            lines.append(f"{dtype}: channels_last, for images and model, {said}")
        costs = [
            f"{row.stage} takes {row.ratio:.1f} times as long ({row.images})"
            for row in self.rows
            if row.part == "data" and row.images.endswith("view") and row.lowest > 1
        ]
        said = "; ".join(costs) if costs else "they cost nothing clear here"
        return [*lines, f"views that are not contiguous: {said}"]

    def as_dict(self) -> dict[str, Any]:
        """Give everything as JSON takes it."""
        return dataclasses.asdict(self) | {"rows": [row._asdict() for row in self.rows]}


def measure(
    *,
    device: str | None = None,
    dtypes: Iterable[str] | None = None,
    batch_size: int | None = None,
    size: int | None = None,
    rounds: int = 7,
    progress: Callable[[Progress], None] | None = None,
) -> MemoryFormatResult:
    """Measure two small convolutional networks, and collating and copying, in every layout.

    torch's settings stay as they are, its number of threads for example.

    Args:
        device: "cpu", "cuda" or "cuda:1"; None: the GPU if there is one.
        dtypes: Data types of the networks: "float32", "bfloat16", "float16". None: float32, and
            also bfloat16 if the device computes in it.
        batch_size, size: Images of a batch, and pixels of their sides; None: 8 of 112 on a CPU,
            128 of 224 on a GPU.
        rounds: Rounds; each measures everything once, in turns, as machines are noisy.
        progress: Called after each measurement.
    """
    where = _device(device)
    names = list(dict.fromkeys(dtypes)) if dtypes is not None else _fast_dtypes(where)
    batch_size, size = batch_size or _DEFAULTS[where.type][0], size or _DEFAULTS[where.type][1]
    if wrong := [name for name in names if name not in DTYPES]:
        raise OptionError(f"dtypes={wrong}: expected some of {', '.join(DTYPES)}")
    if rounds < 1 or batch_size < 2 or size < 16:
        raise OptionError(
            f"rounds={rounds}, batch_size={batch_size}, size={size}: expected at least one round, "
            "two images (for batch norm) and 16 pixels"
        )
    shape = (batch_size, 3, size, size)
    batch = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator())
    cases = [c for name in names for c in network_cases(batch, where, getattr(torch, name))]
    cases += data_cases(batch, where)
    counted = [(case, _repeats(case, where)) for case in cases]
    seconds = in_turns(
        counted, rounds, lambda pair: _timed(pair[0], where, pair[1]), progress=progress,
        size=lambda pair: (pair[1] * batch_size, 0),
    )  # fmt: skip
    return MemoryFormatResult(_machine(where), batch_size, size, rounds, _rows(cases, seconds))


def _device(name: str | None) -> torch.device:
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:  # torch knows no such device
        device = None
    if device is None or device.type not in _DEFAULTS:
        raise OptionError(f"device={name!r}: expected cpu or cuda")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise OptionError(f"device={name!r}: torch sees {torch.cuda.device_count()} GPUs here")
    return device


def _fast_dtypes(device: torch.device) -> list[str]:
    if device.type == "cuda":
        fast = torch.cuda.get_device_capability(device) >= (8, 0)
    else:
        flags = {"avx512_bf16", "amx_bf16", "bf16"}  # of x86, x86, ARM
        fast = not flags.isdisjoint(_processor_flags())
    return ["float32", "bfloat16"] if fast else ["float32"]


def _processor_flags() -> list[str]:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            lines = [line for line in file if line.startswith(("flags", "Features"))]
    except OSError:  # not Linux
        return []
    return lines[0].split() if lines else []


def _repeats(case: Case, device: torch.device) -> int:
    """Choose the calls of one measurement. The first call sets things up; it does not count."""
    _timed(case, device, 1)
    return max(1, round(_LEAST_SECONDS / max(_timed(case, device, 1), 1e-6)))


def _timed(case: Case, device: torch.device, calls: int) -> float:
    case.work()  # the case before has filled the caches
    _wait(device)
    began = time.perf_counter()
    for _ in range(calls):
        case.work()
    _wait(device)
    return (time.perf_counter() - began) / calls


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _rows(cases: Sequence[Case], seconds: Sequence[list[float]]) -> list[MemoryFormatRow]:
    plain = {
        (c.part, c.stage, c.dtype): times
        for c, times in zip(cases, seconds, strict=True)
        if c.images == "contiguous" and c.model in ("contiguous", "")
    }
    rows = []
    for case, times in zip(cases, seconds, strict=True):
        own = plain[case.part, case.stage, case.dtype]
        ratios = [a / b for a, b in zip(times, own, strict=True)]
        figures = [1e3 * f(times) for f in (statistics.median, min, max)]
        figures += [f(ratios) for f in (statistics.median, min, max)]
        rows.append(MemoryFormatRow(*case[:5], *figures))
    return rows


def _machine(device: torch.device) -> dict[str, Any]:
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "cpu": _calibration._cpu(),  # noqa: SLF001 (the same words as in the calibration)
        "cores": processors.usable(),
        "threads": torch.get_num_threads(),
        "device": gpu or "cpu",
        "python": platform.python_version(),
        "packio": packio.__version__,
        "torch": torch.__version__,
    }
