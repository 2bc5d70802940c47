"""What loaders could leave behind, apart from what others on this machine have."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import pathlib
import re
import threading

_TORCHS = re.compile(r"torch_(\d+)_")
_SHARED = re.compile(r"/dev/shm/[^ \n]+")  # noqa: S108 (looked for)


def held() -> dict[str, int]:
    """Threads, processes, descriptors and shared memory of this process and of dead ones."""
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":  # a queue that is closed ends its thread, but later
            thread.join(600)
    return {
        "threads": sum(not t.name.startswith("packio-decode") for t in threading.enumerate()),
        "processes": len(multiprocessing.active_children()),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "shared memory": sum(map(_is_nobodys, os.listdir("/dev/shm"))),  # noqa: S108 (listed)
    }


def descriptors_below(folder: pathlib.Path) -> int:
    """Descriptors of this process for files in a folder: others come and go beside a test."""
    count, start = 0, f"{folder.resolve()}/"
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing itself
            count += os.readlink(f"/proc/self/fd/{name}").startswith(start)
    return count


def of_session(leader: int) -> list[int]:
    """Processes of a session that have not ended."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            state, _, _, session = path.read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                found.append(int(path.parent.name))
    return found


def shared_memory(processes: list[int]) -> set[str]:
    """Paths of the shared memory that some processes have mapped."""
    maps = [pathlib.Path(f"/proc/{process}/maps").read_text() for process in processes]
    return {path for each in maps for path in _SHARED.findall(each)}


def _is_nobodys(name: str) -> bool:
    match = _TORCHS.match(name)
    if match is None:
        return False
    alive = pathlib.Path(f"/proc/{match[1]}").exists()
    return int(match[1]) == os.getpid() or not alive
