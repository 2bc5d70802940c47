"""What a batch in another memory format, or a transposed view, costs on this machine."""

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
from packio.measuring.bench._layouts import Case, data_cases, network_cases
from packio.system import processors
from packio.system.progress import Progress

DTYPES = ("float32", "bfloat16", "float16")
_LEAST_SECONDS = 0.02  # of one measurement: what is quicker is repeated in it
_DEFAULTS = {"cpu": (8, 112), "cuda": (128, 224)}  # images of a batch, pixels of a side


class Row(NamedTuple):
    """One stage in one layout.

    Attributes:
        part: "plain" or "depthwise", the networks; or "data", a batch's way to them.
        stage: "forward" (inference), "step" (forward and backward), or what is done to the data.
        dtype: Of network and images, or of the data.
        images: Their layout: "contiguous", "channels_last" (an NHWC batch, permuted, is that),
            "transposed view" or "cropped view".
        model: The format of its weights; "" without one.
        milliseconds: Of one call: the median over the rounds.
        fastest, slowest: Milliseconds of the fastest and of the slowest round.
        ratio: Times as long as contiguous images take, with a contiguous model: the median over
            the rounds, each compared with its own.
        lowest, highest: That ratio's in the rounds.
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
class Result:
    """What `measure` found.

    Attributes:
        machine: What it ran on: processor, cores, torch's threads, device, versions.
        batch_size, size: Images of a batch, and pixels of their sides.
        rounds: In which everything was measured, in turns.
        rows: The measurements.
    """

    machine: dict[str, Any]
    batch_size: int
    size: int
    rounds: int
    rows: list[Row]

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
) -> Result:
    """Measure two small convolutional networks, and a batch's way to them, in every layout.

    torch's settings, its threads among them, stay as they are.

    Args:
        device: "cpu" or "cuda", with an index perhaps; None: the GPU if there is one.
        dtypes: Of the networks: "float32", "bfloat16", "float16"; None: float32, and bfloat16
            where the device computes in it.
        batch_size, size: Images of a batch, and pixels of their sides; None: 8 of 112 on a CPU,
            128 of 224 on a GPU.
        rounds: In each of which everything is measured, in turns, since machines are noisy.
        progress: Called after each measurement.

    Raises:
        OptionError: an argument that cannot be meant, or a device that is not there.
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
    seconds = _alternate(cases, where, rounds, batch_size, progress)
    return Result(_machine(where), batch_size, size, rounds, _rows(cases, seconds))


def _device(name: str | None) -> torch.device:
    device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type not in _DEFAULTS:
        raise OptionError(f"device={name!r}: expected cpu or cuda")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise OptionError(f"device={name!r}: torch sees {torch.cuda.device_count()} GPUs here")
    return device


def _fast_dtypes(device: torch.device) -> list[str]:
    if device.type == "cuda":
        fast = torch.cuda.get_device_capability(device) >= (8, 0)
    else:
        flags = {"avx512_bf16", "amx_bf16", "bf16"}  # x86, and ARM's
        fast = not flags.isdisjoint(_processor_flags())
    return ["float32", "bfloat16"] if fast else ["float32"]


def _processor_flags() -> list[str]:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            lines = [line for line in file if line.startswith(("flags", "Features"))]
    except OSError:  # not Linux
        return []
    return lines[0].split() if lines else []


def _alternate(
    cases: Sequence[Case],
    device: torch.device,
    rounds: int,
    batch_size: int,
    progress: Callable[[Progress], None] | None,
) -> list[list[float]]:
    """Seconds of a call, for each case in each round."""
    counts = [_repeats(case, device) for case in cases]
    found: list[list[float]] = [[] for _ in cases]
    total = rounds * sum(counts) * batch_size
    done, began = 0, time.perf_counter()
    for turn in range(rounds):
        start = turn * len(cases) // rounds  # nobody is always first
        for i in (*range(start, len(cases)), *range(start)):
            found[i].append(_timed(cases[i], device, counts[i]))
            done += counts[i] * batch_size
            if progress:
                spent = time.perf_counter() - began
                progress(Progress(done, total, 0, 0, 0, spent, "measuring"))
    return found


def _repeats(case: Case, device: torch.device) -> int:
    """Calls that one measurement takes; the first call, which sets things up, is not counted."""
    _timed(case, device, 1)
    return max(1, round(_LEAST_SECONDS / max(_timed(case, device, 1), 1e-6)))


def _timed(case: Case, device: torch.device, calls: int) -> float:
    case.work()  # what ran before has used the caches for itself
    _wait(device)
    began = time.perf_counter()
    for _ in range(calls):
        case.work()
    _wait(device)
    return (time.perf_counter() - began) / calls


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _rows(cases: Sequence[Case], seconds: Sequence[list[float]]) -> list[Row]:
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
        rows.append(Row(*case[:5], *figures))
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
