"""How much memory this process may still take, which may be less than the machine has free.

A container or a batch job may have a limit of its own, by its control group.
"""

from __future__ import annotations

import _thread
import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path

from packio.system import processors

GONE = 71  # exit code of a process that `watch` has ended

_LITTLE = 1 << 20  # bytes that a process needs at least
_MOMENT, _LATE = 0.001, 10.0  # seconds: between looks at a thread that starts; it is given up then
_THREAD = 12 << 20  # bytes: a thread's stack, 8 MiB on Linux, and what Python allots to it


def available(process: Path = Path("/proc/self"), meminfo: Path = Path("/proc/meminfo")) -> int:
    """Count the bytes that this process can take before memory is swapped or it is killed.

    The least of what the kernel and each control group have left; what caches files is available.

    Source: proc_meminfo(5); cgroups(7): memory.max of version 2, memory.limit_in_bytes of 1.
    """
    rooms = [_machine(meminfo)]
    for folder in processors.groups("memory", process):
        rooms += _left(folder, "memory.max", "memory.current", "")
        rooms += _left(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
    return max(0, min(rooms))


def require(count: int) -> None:
    """Check that this process may take more memory, by taking it for a moment: 3 µs."""
    try:
        mmap.mmap(-1, count).close()
    except OSError as error:
        raise MemoryError(f"no room for {count:,} bytes") from error


def require_thread() -> None:
    """Check that there is room for a thread: without, CPython hangs for ever when one starts."""
    require(_THREAD)


def watch() -> None:
    """End this process by `GONE` within a second of having no memory: libraries wait for ever then.

    It is safe to call before other modules are imported.
    """
    begun: list[bool] = []
    try:
        while not begun:  # a thread dies before its first step if memory runs out just then
            _thread.start_new_thread(_look, (begun,))  # Thread.start would wait for that step
            deadline = time.monotonic() + _LATE
            while not begun and time.monotonic() < deadline:
                require(_LITTLE)
                time.sleep(_MOMENT)
    except (MemoryError, RuntimeError):  # RuntimeError: "can't start new thread"
        os._exit(GONE)


def _look(begun: list[bool]) -> None:
    try:
        begun.append(True)
        while True:
            time.sleep(1)
            require(_LITTLE)
    except MemoryError:
        os._exit(GONE)


def ran_out(error: BaseException) -> bool:
    """Tell whether an error means that memory ran out: Python has two errors for that."""
    return isinstance(error, MemoryError) or str(error) == "can't start new thread"


def _machine(meminfo: Path) -> int:
    try:
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) << 10  # it says kB
    except (OSError, KeyError, ValueError):  # an old kernel, or not Linux
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _left(folder: Path, limit: str, usage: str, prefix: str) -> Iterator[int]:
    """Bytes that a control group has left, if it has a limit."""
    try:
        bound, used = ((folder / name).read_text().strip() for name in (limit, usage))
        fields = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        files = (int(fields.get(f"{prefix}{age}_file", 0)) for age in ("active", "inactive"))
        if bound != "max":
            yield int(bound) - int(used) + sum(files)
    except (OSError, ValueError):  # no such group, or of the other version
        return
