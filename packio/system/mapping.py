"""Files mapped into memory without a descriptor that stays open, as Python's own mmap keeps one."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from typing import Any

import numpy as np

_FIXED = 0x10  # MAP_FIXED of Linux and macOS: exactly there
_FAILED = ctypes.c_void_p(-1).value


def reserved(size: int) -> np.ndarray:
    """Addresses for files to be mapped at, (size,) uint8; they are free again when it is deleted.

    Do not touch the bytes before a file is mapped there.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return np.frombuffer(mmap.mmap(-1, max(size, mmap.PAGESIZE), flags=flags, prot=0), np.uint8)


def map_at(descriptor: int, size: int, address: int) -> None:
    """Map a file over addresses that are reserved. The descriptor may be closed afterwards."""
    flags = mmap.MAP_SHARED | _FIXED
    if size and _libc().mmap(address, size, mmap.PROT_READ, flags, descriptor, 0) == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def mapped(descriptor: int, size: int) -> np.ndarray:
    """A file, (size,) uint8, read-only; only pages that are touched are read."""
    array = reserved(size)
    map_at(descriptor, size, array.ctypes.data)
    array.flags.writeable = False
    return array[:size]


@functools.cache  # the same in every process
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    numbers = (ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *numbers)
    libc.mmap.restype = ctypes.c_void_p
    return libc
