"""Fail, or kill at, the n-th system call of a process and all it starts, counted over all of them.

``strace -e inject=…:when=N`` counts in each thread by itself, so that the first thread to get to
its n-th call hides all others. Here calls are counted as they come, so each run has one fault and
every call gets its turn. Linux on x86-64 only.

Source: ptrace(2), process_vm_readv(2), linux/ptrace.h (struct ptrace_syscall_info).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import struct
import sys
from collections.abc import Callable
from typing import NamedTuple

_SYSCALL, _POKEUSER, _INFO = 24, 6, 0x420E
_SEIZE, _INTERRUPT, _LISTEN = 0x4206, 0x4207, 0x4208
_OPTIONS = 1 | 2 | 4 | 8 | 16 | 0x100000  # mark system calls; follow forks, clones, exec; die too
_WALL = 0x40000000
_RAX, _ORIG_RAX = 10 * 8, 15 * 8  # in struct user
_AT_FDCWD = -100
_TIMEOUT = 60  # seconds, after which what hangs is killed

# Number, where the path or descriptor is, and with what the call fails.
_PATH, _AT, _FD, _MAP = "path", "at", "fd", "map"
_WRITE = (errno.ENOSPC, errno.EIO)
_NAME = (errno.EIO, errno.ENOSPC, errno.EROFS)
CALLS: dict[int, tuple[str, str, tuple[int, ...]]] = {
    0: ("read", _FD, (errno.EIO,)),
    1: ("write", _FD, _WRITE),
    2: ("open", _PATH, (errno.EMFILE, errno.EIO)),
    9: ("mmap", _MAP, (errno.ENOMEM, errno.EIO)),
    17: ("pread64", _FD, (errno.EIO,)),
    18: ("pwrite64", _FD, _WRITE),
    20: ("writev", _FD, _WRITE),
    26: ("msync", _PATH, (errno.EIO,)),
    40: ("sendfile", _FD, _WRITE),
    73: ("flock", _FD, (errno.ENOLCK,)),
    74: ("fsync", _FD, (errno.EIO, errno.ENOSPC)),
    75: ("fdatasync", _FD, (errno.EIO, errno.ENOSPC)),
    77: ("ftruncate", _FD, _WRITE),
    82: ("rename", _PATH, _NAME),
    83: ("mkdir", _PATH, _NAME),
    84: ("rmdir", _PATH, (errno.EIO,)),
    86: ("link", _PATH, (errno.EIO, errno.EPERM)),
    87: ("unlink", _PATH, (errno.EIO, errno.EROFS)),
    257: ("openat", _AT, (errno.EMFILE, errno.EIO, errno.EROFS)),
    258: ("mkdirat", _AT, _NAME),
    263: ("unlinkat", _AT, (errno.EIO,)),
    264: ("renameat", _AT, _NAME),
    265: ("linkat", _AT, (errno.EIO, errno.EPERM)),
    280: ("utimensat", _AT, (errno.EPERM,)),
    285: ("fallocate", _FD, (*_WRITE, errno.EOPNOTSUPP)),
    296: ("pwritev", _FD, _WRITE),
    316: ("renameat2", _AT, _NAME),
    326: ("copy_file_range", _FD, (errno.EIO, errno.ENOSPC, errno.EXDEV)),
}
KILL = 0  # in place of an errno

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


class Call(NamedTuple):
    """One system call that touches the folder."""

    number: int
    path: str

    @property
    def name(self) -> str:
        """As in its manual page."""
        return CALLS[self.number][0]

    @property
    def errors(self) -> tuple[int, ...]:
        """Numbers it may fail with."""
        return CALLS[self.number][2]


class Traced(NamedTuple):
    """How a traced process ended."""

    status: int  # as os.waitpid has it
    calls: list[Call]  # the last one is the one that failed, where one was to fail


def available() -> bool:
    """Whether processes can be traced here."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    try:
        traced = run(lambda: os.access("/", os.R_OK) - 1, "/nowhere")
    except OSError:
        return False
    return traced.status == 0


def run(
    action: Callable[[], int], folder: str, when: int | None = None, error: int = KILL
) -> Traced:
    """Run a function in a child; fail one of the calls that touch a folder.

    Args:
        action: Runs in the child; returns its exit code.
        folder: Calls on it and what is in it count.
        when: Which call fails, from 0; None: none.
        error: Number of the error; KILL: everything is killed just before the call.

    Raises:
        OSError: tracing is not allowed.
    """
    ready, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            os.setpgid(0, 0)
            os.close(go)
            os.read(ready, 1)
            code = action()
        finally:
            os._exit(code)
    os.close(ready)
    os.setpgid(pid, pid)  # as the child does: whoever is first
    try:
        _ptrace(_SEIZE, pid, 0, _OPTIONS)
        _ptrace(_INTERRUPT, pid)
    except OSError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    finally:
        os.close(go)
    before = signal.signal(signal.SIGALRM, lambda *_: os.killpg(pid, signal.SIGKILL))
    signal.alarm(_TIMEOUT)
    try:
        return _Trace(pid, folder, when, error).follow()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class _Trace:
    def __init__(self, pid: int, folder: str, when: int | None, error: int) -> None:
        self._pid, self._folder, self._when, self._error = pid, folder, when, error
        self._failing = -1  # thread whose call is failing
        self._calls: list[Call] = []
        self._done = False

    def follow(self) -> Traced:
        result = -1
        while True:
            try:
                pid, status = os.waitpid(-self._pid, _WALL)  # not for other children
            except ChildProcessError:
                return Traced(result, self._calls)
            if not os.WIFSTOPPED(status):
                result = status if pid == self._pid else result
                continue
            stop, event = os.WSTOPSIG(status), status >> 16
            request, deliver = _SYSCALL, 0
            if stop == signal.SIGTRAP | 0x80:
                self._at_call(pid)
            elif event == 128 and stop != signal.SIGTRAP:  # PTRACE_EVENT_STOP: all are stopped
                request = _LISTEN
            elif not event:
                deliver = stop
            try:
                _ptrace(request, pid, 0, deliver)
            except ProcessLookupError:  # it was killed
                continue

    def _at_call(self, thread: int) -> None:
        info = ctypes.create_string_buffer(128)
        try:
            _ptrace(_INFO, thread, len(info), ctypes.addressof(info))
        except ProcessLookupError:
            return
        entering = info.raw[0] == 1
        if not entering:
            if thread == self._failing:
                self._failing = -1
                _poke(thread, _RAX, -self._error)
            return
        number, *arguments = struct.unpack_from("<7Q", info.raw, 24)
        if self._done or number not in CALLS:
            return
        path = next((p for p in _paths(thread, number, arguments) if self._within(p)), None)
        if path is None:
            return
        self._calls.append(Call(number, path))
        if self._when == len(self._calls) - 1:
            self._done = True
            if self._error == KILL:
                os.killpg(self._pid, signal.SIGKILL)
            else:
                _poke(thread, _ORIG_RAX, -1)
                self._failing = thread

    def _within(self, path: str) -> bool:
        return path == self._folder or path.startswith(self._folder + "/")


def _paths(thread: int, number: int, arguments: list[int]) -> list[str]:
    """Paths that a call is about."""
    name, kind, _ = CALLS[number]
    first, second, third, fourth, fifth, _ = arguments
    if kind == _FD:
        return [_opened(thread, first), _opened(thread, third)] if "range" in name else [
            _opened(thread, first)
        ]  # fmt: skip
    if kind == _MAP:
        return [_opened(thread, fifth)]
    if kind == _PATH:
        both = name in ("rename", "link")
        return [_text(thread, a) for a in ((first, second) if both else (first,))]
    pairs = [(first, second), (third, fourth)] if "rename" in name or name[:4] == "link" else [
        (first, second)
    ]  # fmt: skip
    return [_joined(thread, _signed(where), _text(thread, at)) for where, at in pairs]


def _joined(thread: int, folder: int, path: str) -> str:
    if path.startswith("/") or folder == _AT_FDCWD:
        return path
    return os.path.join(_opened(thread, folder), path).rstrip("/")


def _signed(value: int) -> int:
    return int(ctypes.c_int(value & 0xFFFFFFFF).value)


def _opened(thread: int, descriptor: int) -> str:
    try:
        return os.readlink(f"/proc/{thread}/fd/{_signed(descriptor)}")
    except OSError:
        return ""


def _text(thread: int, address: int) -> str:
    if not address:
        return ""
    with open(f"/proc/{thread}/mem", "rb", buffering=0) as memory:
        found = b""
        while b"\0" not in found and len(found) < 8192:
            size = 4096 - (address + len(found)) % 4096
            found += os.pread(memory.fileno(), size, address + len(found))
    return os.fsdecode(found.partition(b"\0")[0])


def _poke(thread: int, offset: int, value: int) -> None:
    try:
        _ptrace(_POKEUSER, thread, offset, value)
    except ProcessLookupError:
        return


def _ptrace(request: int, pid: int, address: int = 0, data: int = 0) -> None:
    if _libc.ptrace(request, pid, address, data & 0xFFFFFFFFFFFFFFFF) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
