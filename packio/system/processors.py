"""How many processors this process may use, which may be fewer than the machine has.

A container or a batch job often has fewer: by affinity, by a quota of its control group, or by the
scheduler. More threads than that make everything slower.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterator
from pathlib import Path


def usable() -> int:
    """Count the processors by affinity, the quota of control groups, and SLURM_CPUS_PER_TASK."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    allowed = len(affinity(0)) if affinity else os.cpu_count() or 1
    limits = [allowed, *map(math.ceil, quotas()), *_number("SLURM_CPUS_PER_TASK")]
    return max(1, min(limits))


def model() -> str:
    """Name the processor as it names itself, as "AMD EPYC"."""
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def flags() -> list[str]:
    """List what the processor says that it can do, as "avx2"; nothing where it is not told."""
    return (_cpuinfo("flags") or _cpuinfo("Features")).split()  # of x86, of ARM


def _cpuinfo(name: str) -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            lines = [line for line in file if line.startswith(name)]
    except OSError:  # not Linux
        return ""
    return lines[0].partition(":")[2].strip() if lines else ""


def share(parts: int = 1) -> int:
    """Processors for one of ``parts`` of this process's work; ranks of one machine share them."""
    return max(1, usable() // (ranks() * max(1, parts)))


def ranks() -> int:
    """Count the processes that train on this machine together: LOCAL_WORLD_SIZE, or 1."""
    return next(_number("LOCAL_WORLD_SIZE"), 1)


def quotas(process: Path = Path("/proc/self")) -> list[float]:
    """List the processors that each control group of a process, and each above it, is allowed.

    Source: cgroups(7) of Linux; cpu.max of version 2, cpu.cfs_quota_us of version 1.
    """
    return [limit for folder in groups("cpu", process) if (limit := _limit(folder))]


def groups(controller: str, process: Path = Path("/proc/self")) -> Iterator[Path]:
    """Folders of the control groups that a process is in, and of those above them."""
    try:
        lines = (process / "cgroup").read_text().splitlines()
        mounts = (process / "mountinfo").read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        for root, mounted in _mounted(mounts, controller if controllers else ""):
            folder = mounted / path.removeprefix(root).lstrip("/")
            while folder != mounted.parent:  # a group is bound by those above it
                yield folder
                folder = folder.parent


def _mounted(mounts: list[str], controller: str) -> Iterator[tuple[str, Path]]:
    """Root and folder of each mount of a controller's groups; "": of version 2's."""
    for line in mounts:
        before, _, after = line.partition(" - ")
        root, folder = before.split()[3:5]
        kind, _, options = after.split()[:3]
        if kind == ("cgroup" if controller else "cgroup2") and (
            not controller or controller in options.split(",")
        ):
            yield root, Path(folder)


def _limit(folder: Path) -> float | None:
    """Processors that one group is allowed; None without a limit."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        return int(quota) / int(period) if quota not in ("max", "-1") else None
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _number(variable: str) -> Iterator[int]:
    """A positive number out of the environment, if it is one."""
    text = os.environ.get(variable, "")
    if text.isdecimal() and int(text):
        yield int(text)
