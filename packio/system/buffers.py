"""Memory of batches, used again: new memory costs a float image as much as its decoding.

A tensor of `new_tensor` lies in a buffer. The buffer is lent until the last tensor, view or array
on it is gone; then another batch takes it. The buffers of a process, and those of all workers of a
loader, have 256 MB together, or ``PACKIO_BUFFER_BYTES``, or six batches where these are larger;
more memory than that is torch's, as all is with 0.

In a DataLoader's worker a buffer is an anonymous file in memory (memfd_create(2)). It is in no
folder, so nothing stays behind however its processes end, and the size of /dev/shm does not limit
it. A tensor is sent as the number of that file in the worker. The receiver maps the file, and
clears a byte at its beginning once the tensor is gone there; each tensor that is sent has such a
byte. The worker uses a file again when all of them are 0. A child that the receiver forks has the
tensors of that moment, too, and nobody knows how long: their files are never used again.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import math
import mmap
import multiprocessing
import os
import secrets
import weakref
from multiprocessing.reduction import ForkingPickler
from typing import Any, cast

import numpy as np
import torch
from torch.multiprocessing.reductions import reduce_tensor

from packio.errors import OptionError, SharedMemoryError
from packio.system import mapping
from packio.system.locks import block_forks

_LEAST = 1 << 20  # bytes; what is smaller, malloc keeps itself
_STEP = 4096  # bytes
_HEAD = 4096  # bytes of a shared buffer, a state of each tensor that was sent
_SENT, _LOST = 1, 2  # the states, beside 0
_MOST = 64  # shared buffers of a worker, a descriptor each
_FEW = 6  # batches that lie in buffers, however large they are


class _Loan(weakref.ref[np.ndarray]):
    """Clears a byte once an array is gone.

    An array may go inside a destructor of torch's, in any thread, while Python ends. Code in Python
    could lose the thread there, and so abort the process. Neither this nor `_fill` is Python.
    """

    __slots__ = ()
    _as_parameter_ = 0  # `weakref` hands it over behind the arguments, where it does not matter

    def __new__(cls, array: np.ndarray, memory: np.ndarray, place: int, state: int = 0) -> _Loan:
        memory[place] = _SENT
        fill = functools.partial(_fill, memory.ctypes.data + place, state, 1)
        return super().__new__(cls, array, fill)

    def __init__(self, *_: object) -> None:
        pass


_MEMSET: int = ctypes.cast(ctypes.memset, ctypes.c_void_p).value or 0
# memset(3), which keeps Python's lock
_fill = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)(_MEMSET)


class _Buffer:
    """Mapped memory, under a head of states: of the loan here, then of each tensor sent."""

    def __init__(self, size: int, *, is_shared: bool) -> None:
        self.size, self.is_shared = size, is_shared
        self.name = secrets.token_bytes(8)
        self.places = itertools.count(1)  # of the states of tensors
        self.loan: _Loan | None = None
        if is_shared:
            self.file = os.memfd_create("packio-batch")
            weakref.finalize(self, os.close, self.file).atexit = False
            os.ftruncate(self.file, _HEAD + size)
            self.memory = mapping.map_shared(self.file, _HEAD + size)
            mapping.populate(self.memory)  # an error now, and no bus error later; 15 % faster, too
        else:
            pages = mmap.mmap(-1, _HEAD + size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            with contextlib.suppress(AttributeError, OSError):  # there are no huge pages
                pages.madvise(mmap.MADV_HUGEPAGE)
            self.memory = np.frombuffer(pages, np.uint8)

    def has(self, state: int) -> bool:
        return bool((self.memory[:_HEAD] == state).any())


_large: list[int] = []  # bytes of the last batch that was larger than the limit
_buffers: list[_Buffer] = []  # of this process, lent or not, the one that was lent last at the end
_shared: weakref.WeakValueDictionary[int, _Buffer] = weakref.WeakValueDictionary()  # by address


def _lend(count: int, *, is_shared: bool) -> torch.UntypedStorage | None:
    """(count,) bytes that nobody else uses; None where torch itself has to find them."""
    info = torch.utils.data.get_worker_info()
    room = max(_limit() // (info.num_workers if info is not None else 1), _FEW * count)
    if count > _limit():
        before = _large.pop() if _large else 0
        _large.append(count)
        if not (_limit() and count <= before <= 2 * count):  # perhaps no other comes: keep nothing
            return None
    buffer, used = _take(count, room, is_shared=is_shared)
    if buffer is None:
        if used + count > room or len(_buffers) >= _MOST:
            return None
        buffer = _Buffer(-(-count // _STEP) * _STEP, is_shared=is_shared)
    array = buffer.memory[_HEAD : _HEAD + count]
    with block_forks():  # a fork marks all loans, and meets none that is half made
        buffer.places, buffer.loan = itertools.count(1), _Loan(array, buffer.memory, 0)
        _buffers.append(buffer)
    if is_shared:
        _shared[array.ctypes.data] = buffer
    return torch.from_numpy(array).untyped_storage()


def _take(count: int, room: int, *, is_shared: bool) -> tuple[_Buffer | None, int]:
    """Take a buffer that is free out of the list, and all that are too much; the size of the rest.

    To take a buffer is one step, and needs no lock.
    """
    buffer, used = None, 0
    for other in _buffers[:]:
        fits = other.is_shared == is_shared and count <= other.size <= 2 * count + _STEP
        used += other.size
        if other.has(_SENT) or not (used > room or other.has(_LOST) or (fits and buffer is None)):
            continue
        try:
            _buffers.remove(other)
        except ValueError:  # another thread took it
            continue
        if other.has(_SENT):  # it did, and lent it
            _buffers.append(other)
        elif fits and buffer is None and not other.has(_LOST):
            buffer = other
        else:
            used -= other.size
    return buffer, used


@functools.cache  # the environment's: the same in every process
def _limit() -> int:
    """Bytes of all buffers."""
    given = os.environ.get("PACKIO_BUFFER_BYTES", str(256 << 20))
    if not given.isdecimal():
        raise OptionError(f"PACKIO_BUFFER_BYTES={given!r}: expected a number of bytes")
    return int(given)


def _begin_fork() -> None:
    """Lose what is shared and lent: the child has it, too, and nobody knows how long.

    Until the fork is done, no other thread may lend or receive.
    """
    _FORK.acquire()
    for buffer in _buffers[:]:
        if buffer.is_shared and buffer.loan and (array := buffer.loan()) is not None:
            buffer.loan = _Loan(array, buffer.memory, 0, _LOST)
    for received in list(_mapped.values()):
        received.loans = [
            (_Loan(array, received.memory, place, _LOST), place)
            for loan, place in received.loans
            if (array := loan()) is not None
        ]


def _begin_child() -> None:
    _buffers.clear()
    _FORK.release()


_FORK: Any = block_forks()
os.register_at_fork(before=_begin_fork, after_in_parent=_FORK.release, after_in_child=_begin_child)


def new_tensor(
    shape: tuple[int, ...], dtype: torch.dtype, *, is_shared: bool = False
) -> torch.Tensor:
    """Make an uninitialised contiguous tensor; one to be shared is sent without a copy.

    Raises:
        SharedMemoryError: there is no memory to share.
    """
    count, made = math.prod(shape) * dtype.itemsize, None
    if is_shared and count:
        made = _share(count)
    try:
        if not is_shared and count >= _LEAST:
            made = _lend(count, is_shared=False)
        if made is None:
            return torch.empty(shape, dtype=dtype, device="cpu")
    except (OSError, RuntimeError) as error:  # torch's own is a RuntimeError
        raise MemoryError(f"no memory for a batch of {count / 1e6:.0f} MB: {error}") from error
    empty: Any = torch.empty(0, dtype=dtype, device="cpu")
    tensor: torch.Tensor = empty.set_(made, 0, shape)  # as a view it could not be detached in place
    return tensor


def _share(count: int) -> torch.UntypedStorage:
    """(count,) bytes to be sent to another process; beyond the buffers, in memory of torch's."""
    made, strategy = None, cast("Any", torch.multiprocessing.get_sharing_strategy)
    try:
        if strategy() == "file_descriptor" and _can_share(os.getpid()):
            made = _lend(count, is_shared=True)
        if made is None:
            new: Any = torch.UntypedStorage._new_shared  # noqa: SLF001 (as torch's default_collate)
            made = cast("torch.UntypedStorage", new(count))
            mapping.populate(torch.empty(0, dtype=torch.uint8, device="cpu").set_(made).numpy())
    except (OSError, RuntimeError) as error:  # torch's own is a RuntimeError
        raise SharedMemoryError(
            f"no room to share a batch of {count / 1e6:.0f} MB: {error}; hold fewer batches at a "
            "time, raise PACKIO_BUFFER_BYTES or `ulimit -n`, make /dev/shm larger (docker run "
            "--shm-size=8g), or use packio.Loader with num_workers=0"
        ) from error
    return made


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
    buffer = _shared.get(place)
    is_plain = not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg())
    number = next(buffer.places) if buffer is not None and is_plain else _HEAD
    if buffer is None or number >= _HEAD:
        if buffer is not None or any(
            mapped.memory.ctypes.data + _HEAD == place for mapped in list(_mapped.values())
        ):
            tensor = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        return reduce_tensor(tensor)  # type: ignore[no-untyped-call]  # torch's own
    buffer.memory[number] = _SENT
    inode = os.fstat(buffer.file).st_ino
    where = os.getpid(), buffer.file, inode, buffer.name, len(buffer.memory), number
    count = tensor.untyped_storage().nbytes()
    layout = tensor.storage_offset(), tuple(tensor.shape), tensor.stride()
    return _receive, (*where, count, tensor.dtype, *layout)


class _Mapping:
    """A worker's buffer in the process that gets its tensors."""

    def __init__(self, process: int, memory: np.ndarray) -> None:
        self.process, self.memory = process, memory
        self.loans: list[tuple[_Loan, int]] = []  # of each tensor, and the place of its state

    @property
    def is_used(self) -> bool:
        return any(loan() is not None for loan, _ in self.loans)


_mapped: dict[bytes, _Mapping] = {}  # by name, the oldest first


def _receive(
    process: int, file: int, inode: int, name: bytes, length: int, place: int, count: int,
    dtype: torch.dtype, *layout: Any,
) -> torch.Tensor:  # fmt: skip
    ForkingPickler.register(torch.Tensor, _reduce)  # should the tensor go on to another process
    mapped = _mapped.get(name)
    if mapped is None:
        descriptor = os.open(f"/proc/{process}/fd/{file}", os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_ino != inode:
                raise SharedMemoryError(f"process {process}: its batch is not to be found")
            _forget(length)
            mapped = _Mapping(process, mapping.map_shared(descriptor, length))
        finally:
            os.close(descriptor)
    array = mapped.memory[_HEAD : _HEAD + count]
    with block_forks():
        loans = [pair for pair in mapped.loans if pair[0]() is not None]
        mapped.loans = [*loans, (_Loan(array, mapped.memory, place), place)]
        _mapped[name] = mapped  # another thread may have forgotten it
    empty = torch.empty(0, dtype=dtype, device="cpu")
    return empty.set_(torch.from_numpy(array).untyped_storage(), *layout)


def _forget(more: int) -> None:
    """Forget mappings without tensors: of workers that are gone, or beyond the limit."""
    size = more + sum(mapped.memory.nbytes for mapped in list(_mapped.values()))
    for name, mapped in list(_mapped.items()):
        is_gone = not os.path.exists(f"/proc/{mapped.process}")
        if not mapped.is_used and (is_gone or size > _limit()):
            _mapped.pop(name, None)
            size -= mapped.memory.nbytes
