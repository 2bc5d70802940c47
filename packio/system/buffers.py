"""Memory of batches, used again: new memory costs a float image as much as its decoding.

A tensor of `new_tensor` lies in a buffer. The buffer is lent until the last tensor, view or array
on it is gone; then another batch takes it. Buffers that wait take 256 MB at most in a process, or
``PACKIO_BUFFER_BYTES``; with 0 all memory is new.

In a DataLoader's worker a buffer is an anonymous file in memory (memfd_create(2)). It is in no
folder, so nothing stays behind however its processes end, and the size of /dev/shm does not limit
it. A tensor is sent as the number of that file in the worker. The receiver maps the file, and
clears a byte at its beginning once the tensor is gone there; each tensor that is sent has such a
byte. The worker uses a file again when all of them are 0. A child that the receiver forks has the
tensors of that moment, too, and nobody knows how long: their files are never used again.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import math
import mmap
import multiprocessing
import os
import secrets
import weakref
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.reductions import reduce_tensor

from packio.errors import OptionError, SharedMemoryError
from packio.system import mapping

_LEAST = 1 << 20  # bytes; what is smaller, malloc keeps itself
_STEP = 4096  # bytes
_HEAD = 4096  # bytes of a shared buffer, a state of each tensor that was sent
_SENT, _LOST = 1, 2  # the states, beside 0
_MOST = 256  # shared buffers of a worker, a descriptor each


class _Buffer:
    """Mapped memory; shared memory begins with its states."""

    def __init__(self, size: int, *, is_shared: bool) -> None:
        self.size, self.is_shared = size, is_shared
        self.name = secrets.token_bytes(8)
        self.sent = 0  # tensors of the present loan
        if is_shared:
            self.begin = _HEAD
            self.file = os.memfd_create("packio-batch")
            weakref.finalize(self, os.close, self.file).atexit = False
            os.ftruncate(self.file, _HEAD + size)
            self.memory = mapping.map_shared(self.file, _HEAD + size)
            mapping.populate(self.memory)  # an error now, and no bus error later; 15 % faster, too
        else:
            self.begin = 0
            pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            with contextlib.suppress(AttributeError, OSError):  # there are no huge pages
                pages.madvise(mmap.MADV_HUGEPAGE)
            self.memory = np.frombuffer(pages, np.uint8)

    def has(self, state: int) -> bool:
        """Whether a tensor of the present loan has a state."""
        return self.sent > 0 and state in self.memory[: self.sent].tolist()


class _Loan:
    """What a tensor is a view of, through an array: NumPy and torch keep it as long as any view."""

    def __init__(
        self, memory: np.ndarray, begin: int, count: int, give_back: Callable[[bool], None]
    ) -> None:
        self.__array_interface__ = {
            "data": (memory.ctypes.data + begin, False), "shape": (count,), "typestr": "|u1",
            "version": 3,
        }  # fmt: skip
        self._memory, self._give_back = memory, give_back
        self._process, self._forks = os.getpid(), _forks[0]

    def storage(self) -> torch.UntypedStorage:
        return torch.from_numpy(np.asarray(self)).untyped_storage()

    def __del__(self, process: Callable[[], int] = os.getpid) -> None:
        if process() == self._process:
            self._give_back(self._forks == _forks[0])


class _Pool:
    """The buffers of a process. It takes no lock: a loan may end at any moment, in any thread."""

    def __init__(self) -> None:
        self._waiting: list[_Buffer] = []  # given back by this process, the oldest first
        self._lost: list[_Buffer] = []  # of which a forked process may have tensors
        self.shared: weakref.WeakValueDictionary[int, _Buffer] = weakref.WeakValueDictionary()

    def lend(self, count: int, *, is_shared: bool) -> torch.UntypedStorage | None:
        """(count,) bytes that nobody else uses; None where torch itself has to find them."""
        _limit()  # is sound: `_give_back` is no place for errors
        buffer = self._take(count, is_shared=is_shared)
        if buffer is None:
            if len(self.shared) >= _MOST:
                return None
            buffer = _Buffer(-(-count // _STEP) * _STEP, is_shared=is_shared)
        buffer.sent = 0
        give_back = functools.partial(self._give_back, buffer)
        made = _Loan(buffer.memory, buffer.begin, count, give_back).storage()
        if is_shared:
            self.shared[made.data_ptr()] = buffer
        return made

    def _take(self, count: int, *, is_shared: bool) -> _Buffer | None:
        for _ in range(len(self._waiting)):
            try:
                buffer = self._waiting.pop(0)
            except IndexError:  # another thread took it
                return None
            fits = buffer.is_shared == is_shared and count <= buffer.size <= 2 * count + _STEP
            if fits and not buffer.has(_SENT) and not buffer.has(_LOST):
                return buffer
            self._waiting.append(buffer)
        return None

    def _give_back(self, buffer: _Buffer, is_known: bool) -> None:
        if buffer.is_shared and not is_known:
            self._lost.append(buffer)
            return
        self._waiting.append(buffer)
        free = 0
        for other in reversed(list(self._waiting)):  # those that were used last stay
            if other.has(_SENT):
                continue
            free += other.size
            if free > _limit() or other.has(_LOST):
                with contextlib.suppress(ValueError):  # another thread took it
                    self._waiting.remove(other)


@functools.cache  # the environment's: the same in every process
def _limit() -> int:
    """Bytes of the buffers that may wait."""
    given = os.environ.get("PACKIO_BUFFER_BYTES", str(256 << 20))
    if not given.isdecimal():
        raise OptionError(f"PACKIO_BUFFER_BYTES={given!r}: expected a number of bytes")
    return int(given)


_forks = [0]  # that this process has begun
_pool = _Pool()


def _begin_fork() -> None:
    _forks[0] += 1


def _begin_child() -> None:
    global _pool  # noqa: PLW0603 (a process has one)
    _pool = _Pool()


os.register_at_fork(before=_begin_fork, after_in_child=_begin_child)


def new_tensor(
    shape: tuple[int, ...], dtype: torch.dtype, *, is_shared: bool = False
) -> torch.Tensor:
    """Make an uninitialised contiguous tensor; one to be shared is sent without a copy.

    Raises:
        SharedMemoryError: there is no memory to share.
    """
    count, made = math.prod(shape) * dtype.itemsize, None
    try:
        if is_shared and count and _can_share(os.getpid()):
            strategy: Any = torch.multiprocessing.get_sharing_strategy
            if strategy() == "file_descriptor":
                made = _pool.lend(count, is_shared=True)
        elif not is_shared and count >= _LEAST:
            made = _pool.lend(count, is_shared=False)
    except OSError as error:
        if not is_shared:
            raise MemoryError(f"no memory for a batch of {count / 1e6:.0f} MB: {error}") from error
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise SharedMemoryError(
                f"no memory for a batch of {count / 1e6:.0f} MB: {error}; take smaller batches, a "
                "smaller prefetch_factor, or fewer workers"
            ) from error
    if made is None:
        return torch.empty(shape, dtype=dtype)
    strides = torch.empty(shape, dtype=dtype, device="meta").stride()
    return torch.empty(0, dtype=dtype).set_(made, 0, shape, strides)


@functools.cache  # asked once by each process
def _can_share(_process: int) -> bool:
    """Whether the process that this worker works for can open the worker's files."""
    parent = multiprocessing.parent_process()
    try:
        os.scandir(f"/proc/{parent.pid if parent else os.getppid()}/fd").close()
    except OSError:  # no Linux, or another user's
        return False
    ForkingPickler.register(torch.Tensor, _reduce)
    return hasattr(os, "memfd_create")


def _reduce(tensor: torch.Tensor) -> Any:
    """Pickle a tensor for another process of this machine.

    Where torch has to send it, it sends a copy. It would move the tensor itself into its shared
    memory, away from under arrays of the same memory.
    """
    place = 0
    if tensor.device.type == "cpu" and tensor.layout == torch.strided:
        place = tensor.untyped_storage().data_ptr()
    buffer = _pool.shared.get(place)
    is_plain = not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg())
    if buffer is None or buffer.sent == _HEAD or not is_plain:
        if buffer is not None or place in _received:
            tensor = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        return reduce_tensor(tensor)  # type: ignore[no-untyped-call]  # torch's own
    buffer.memory[buffer.sent] = _SENT
    buffer.sent += 1
    where = os.getpid(), buffer.file, buffer.name, len(buffer.memory), buffer.sent - 1
    count = tensor.untyped_storage().nbytes()
    layout = tensor.storage_offset(), tuple(tensor.shape), tensor.stride()
    return _receive, (*where, count, tensor.dtype, *layout)


_mapped: weakref.WeakValueDictionary[bytes, np.ndarray] = weakref.WeakValueDictionary()
_received: weakref.WeakValueDictionary[int, np.ndarray] = weakref.WeakValueDictionary()


def _receive(
    process: int, file: int, name: bytes, length: int, place: int, count: int, dtype: torch.dtype,
    *layout: Any,
) -> torch.Tensor:  # fmt: skip
    ForkingPickler.register(torch.Tensor, _reduce)  # should the tensor go on to another process
    memory = _mapped.get(name)
    if memory is None:
        descriptor = os.open(f"/proc/{process}/fd/{file}", os.O_RDWR | os.O_CLOEXEC)
        try:
            memory = _mapped[name] = mapping.map_shared(descriptor, length)
        finally:
            os.close(descriptor)
    loan = _Loan(memory, _HEAD, count, functools.partial(_clear, memory, place)).storage()
    _received[loan.data_ptr()] = memory
    return torch.empty(0, dtype=dtype).set_(loan, *layout)


def _clear(memory: np.ndarray, place: int, is_known: bool) -> None:
    memory[place] = 0 if is_known else _LOST
