"""Memory of batches, used again: new memory costs a float image as much as its decoding.

A tensor of `new_tensor` lies in a buffer. The buffer is lent until the last tensor, view or array
on it is gone; then another batch takes it. Buffers that wait take 256 MB at most in a process, and
in all workers of a loader together, or ``PACKIO_BUFFER_BYTES``; with 0 all memory is new.

In a DataLoader's worker a buffer is an anonymous file in memory (memfd_create(2)). It is in no
folder, so nothing stays behind however its processes end, and the size of /dev/shm does not limit
it. A tensor is sent as the number of that file in the worker. The receiver maps the file, and
clears a byte at its beginning once the tensor is gone there; each tensor that is sent has such a
byte. The worker uses a file again when all of them are 0. A child that the receiver forks has the
tensors of that moment, too, and nobody knows how long: their files are never used again. Where the
receiver holds so many batches that the worker has no more than that memory, and four batches, new
ones go torch's way.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
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
_MOST = 64  # shared buffers of a worker, a descriptor each
_FEW = 4  # batches that it may have on their way, however large they are


class _Buffer:
    """Mapped memory; shared memory begins with its states."""

    def __init__(self, size: int, *, is_shared: bool) -> None:
        self.size, self.is_shared = size, is_shared
        self.name = secrets.token_bytes(8)
        self.is_lost = False  # to be dropped
        self.places = itertools.count()  # of the states of the present loan
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
        """Whether a tensor that was sent has a state."""
        return self.is_shared and bool((self.memory[:_HEAD] == state).any())


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
        self.waiting: list[_Buffer] = []  # given back by this process, the oldest first
        self.shared: weakref.WeakValueDictionary[int, _Buffer] = weakref.WeakValueDictionary()

    def lend(self, count: int, *, is_shared: bool) -> torch.UntypedStorage | None:
        """(count,) bytes that nobody else uses; None where torch itself has to find them."""
        _room()  # is sound: `_give_back` is no place for errors
        buffer = self._take(count, is_shared=is_shared)
        if buffer is None:
            used = [other.size for other in list(self.shared.values())] if is_shared else []
            if len(used) >= _MOST or sum(used) > max(_room(), _FEW * count):
                return None
            buffer = _Buffer(-(-count // _STEP) * _STEP, is_shared=is_shared)
        buffer.places = itertools.count()
        give_back = functools.partial(self._give_back, buffer)
        made = _Loan(buffer.memory, buffer.begin, count, give_back).storage()
        if is_shared:
            self.shared[made.data_ptr()] = buffer
        return made

    def _take(self, count: int, *, is_shared: bool) -> _Buffer | None:
        for _ in range(len(self.waiting)):
            try:
                buffer = self.waiting.pop(0)
            except IndexError:  # another thread took it
                return None
            fits = buffer.is_shared == is_shared and count <= buffer.size <= 2 * count + _STEP
            is_free = not (buffer.is_lost or buffer.has(_SENT) or buffer.has(_LOST))
            if fits and is_free:
                return buffer
            self.waiting.append(buffer)
        return None

    def _give_back(self, buffer: _Buffer, is_known: bool) -> None:
        buffer.is_lost = buffer.is_shared and not is_known  # a child has the tensor as well
        self.waiting.append(buffer)
        free, room = 0, _room()
        for other in reversed(list(self.waiting)):  # those that were used last stay
            if other.has(_SENT):
                continue
            free += other.size
            if free > room or other.is_lost or other.has(_LOST):
                with contextlib.suppress(ValueError):  # another thread took it
                    self.waiting.remove(other)


@functools.cache  # the environment's: the same in every process
def _limit() -> int:
    """Bytes of the buffers that may wait."""
    given = os.environ.get("PACKIO_BUFFER_BYTES", str(256 << 20))
    if not given.isdecimal():
        raise OptionError(f"PACKIO_BUFFER_BYTES={given!r}: expected a number of bytes")
    return int(given)


def _room() -> int:
    """Bytes that may wait in this process: workers of one loader share them."""
    info = torch.utils.data.get_worker_info()
    return _limit() // (info.num_workers if info is not None else 1)


_forks = [0]  # that this process has begun
_pool = _Pool()


def _begin_fork() -> None:
    _forks[0] += 1


def _begin_child() -> None:
    global _pool  # noqa: PLW0603 (a process has one)
    _pool.waiting.clear()  # loans that live on in the child know it
    _kept.clear()
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
        os.close(os.memfd_create("packio-batch"))
        is_ours = os.readlink("/proc/self") == str(os.getpid())  # and no other namespace's
    except (AttributeError, OSError):  # no Linux, another user's, or forbidden
        return False
    ForkingPickler.register(torch.Tensor, _reduce)
    return is_ours


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
    number = next(buffer.places) if buffer is not None and is_plain else _HEAD
    if buffer is None or number >= _HEAD:
        if buffer is not None or place in _received:
            tensor = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        return reduce_tensor(tensor)  # type: ignore[no-untyped-call]  # torch's own
    buffer.memory[number] = _SENT
    inode = os.fstat(buffer.file).st_ino
    where = os.getpid(), buffer.file, inode, buffer.name, len(buffer.memory), number
    count = tensor.untyped_storage().nbytes()
    layout = tensor.storage_offset(), tuple(tensor.shape), tensor.stride()
    return _receive, (*where, count, tensor.dtype, *layout)


_mapped: weakref.WeakValueDictionary[bytes, np.ndarray] = weakref.WeakValueDictionary()
_kept: dict[bytes, tuple[int, np.ndarray]] = {}  # by name: the worker, the mapping
_received: weakref.WeakValueDictionary[int, np.ndarray] = weakref.WeakValueDictionary()


def _receive(
    process: int, file: int, inode: int, name: bytes, length: int, place: int, count: int,
    dtype: torch.dtype, *layout: Any,
) -> torch.Tensor:  # fmt: skip
    ForkingPickler.register(torch.Tensor, _reduce)  # should the tensor go on to another process
    memory = _mapped.get(name)
    if memory is None:
        descriptor = os.open(f"/proc/{process}/fd/{file}", os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_ino != inode:
                raise SharedMemoryError(f"process {process}: its batch is not to be found")
            memory = _mapped[name] = mapping.map_shared(descriptor, length)
        finally:
            os.close(descriptor)
        for other, (owner, _) in list(_kept.items()):
            if not os.path.exists(f"/proc/{owner}"):
                _kept.pop(other, None)
    _keep(name, process, memory)
    loan = _Loan(memory, _HEAD, count, functools.partial(_clear, memory, place)).storage()
    _received[loan.data_ptr()] = memory
    return torch.empty(0, dtype=dtype).set_(loan, *layout)


def _keep(name: bytes, process: int, memory: np.ndarray) -> None:
    """Keep a mapping for the next batch in it; those that were used last stay."""
    _kept.pop(name, None)
    _kept[name] = process, memory
    size = sum(kept.nbytes for _, kept in list(_kept.values()))
    for other, (_, kept) in list(_kept.items()):
        if size <= _room():
            break
        _kept.pop(other, None)
        size -= kept.nbytes


def _clear(memory: np.ndarray, place: int, is_known: bool) -> None:
    memory[place] = 0 if is_known else _LOST
