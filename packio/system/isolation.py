"""Work in another process, because a library may crash or hang.

A damaged or hostile file can make HDF5 crash, abort or run for ever. A fresh interpreter costs half
a second. A fork would cost less, but a lock that another thread holds at that moment would stay
locked in the child for ever.

`run` calls a function once, in a process of its own. All `IsolatedFunction`s share one process,
which starts at the first call, and ends with the last function. A call that crashes it, or takes
too long, is an error; the next call starts it again. A call costs 20 µs, with 150 KB 70 µs.

A question is the `_ASKED` bytes: what to do, the number of a function, the argument (to run or to
make a function: the length of the JSON that follows), and seconds. An answer is the `_ANSWERED`
bytes: whether it failed, and the length of the value, or of an error as JSON, that follows.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import faulthandler
import fcntl
import importlib
import itertools
import json
import os
import resource
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from packio import errors
from packio.errors import IntegrityError, PackioError, ReadError
from packio.system import memory
from packio.system.locks import ForkSafeLock

START_SECONDS = 300  # to import packio, on any disk; then a process that starts is given up

_ASKED, _ANSWERED = struct.Struct("<Bqqd"), struct.Struct("<Bq")
_RUN, _MAKE, _CALL, _FORGET = range(4)
_MOST_BYTES = 2 << 30  # of an answer
_MEMORY = 8 << 30  # bytes, of a process whose functions are called again and again
_PIPE = 1 << 20  # bytes; an answer that fits needs one write and one read
_PR_SET_PDEATHSIG = 1  # Linux, prctl(2)

_is_other = False  # whether this is such a process: it has no need for another one


def run(function: str, *arguments: Any, where: object, seconds: float) -> None:
    """Call a function, as "packio.module:name", of arguments that JSON can hold."""
    if not is_possible():
        find_function(function)(*arguments)
        return
    text = json.dumps([os.getpid(), function, *arguments]).encode()
    try:
        other = _Other()
        try:
            failed, answer = other.ask(_ASKED.pack(_RUN, 0, len(text), seconds) + text)
        except EOFError as error:
            raise _ended(where, "", seconds, other.end()) from error
        finally:
            other.end()
    except OSError as error:  # no process or no pipe is to be had
        raise _named(error, where) from None
    if failed:
        raise _named(_error_of(json.loads(answer)), where)


def is_possible() -> bool:
    """Tell whether there is an interpreter to start, and reason to: not in such a process."""
    return not _is_other and bool(sys.executable) and not getattr(sys, "frozen", False)


def command(code: str) -> list[str]:
    """The command line of an interpreter that imports what this one does, and runs some code.

    Nothing but these is imported before its path is this one's: Python puts the current folder
    first for -c. Without memory, imports may wait for ever: it ends if `begin` is not called.
    """
    ends = f"faulthandler.dump_traceback_later({START_SECONDS}, exit=True)"
    begins = f"import faulthandler, sys; {ends}; sys.path[:] = {sys.path!r}"
    return [sys.executable, "-c", f"{begins}; {code}"]


def find_function(name: str) -> Any:
    """The object of a name, as "packio.module:name"."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


class IsolatedFunction:
    """A function of a number, whose values are bytes; it is made, and called, in another process.

    Safe in threads, which take turns, and after a fork; called here where `is_possible` says no.
    ``make`` is "packio.module:name" of what makes the function of arguments that JSON can hold;
    ``where``, the file that it reads, is for messages; ``seconds`` are of processor time.
    """

    def __init__(self, make: str, *arguments: Any, where: object, seconds: float) -> None:
        self._make, self._arguments, self._where = make, arguments, where
        self._seconds, self._number = seconds, next(_NUMBERS)
        self._here: Callable[[int], bytes] | None = None
        self._other: _Other | None = None

    def __call__(self, argument: int, what: str, seconds: float) -> bytes:
        if not is_possible():
            if self._here is None:
                self._here = find_function(self._make)(*self._arguments)
            return self._here(argument)
        with _LOCK:
            other = self._other = _running()
            if self._number not in other.made:
                text = json.dumps([self._make, *self._arguments]).encode()
                self._ask(other, "it", self._seconds, _MAKE, len(text), text)
                other.made.add(self._number)
            return self._ask(other, what, seconds, _CALL, argument)

    def _ask(
        self, other: _Other, what: str, seconds: float, task: int, argument: int, more: bytes = b""
    ) -> bytes:
        try:
            other.forget()
            failed, answer = other.ask(_ASKED.pack(task, self._number, argument, seconds) + more)
        except (EOFError, OSError) as error:
            raise _ended(self._where, what, seconds, other.end()) from error
        except BaseException:  # as Ctrl-C: its answer would be taken for that to the next question
            other.end()
            raise
        if failed:
            raise _error_of(json.loads(answer))
        return answer

    def __del__(self) -> None:
        if (other := getattr(self, "_other", None)) is None:
            return
        other.unused.append(self._number)
        if other.is_usable and _LOCK.take():  # else whoever holds the lock uses the other process
            try:
                other.forget()
                if not other.made:
                    other.end()
            except (EOFError, OSError):
                other.end()
            except BaseException:  # as Ctrl-C, which Python passes over here: see `_ask`
                other.end()
                raise
            finally:
                _LOCK.give_back()


def _ended(where: object, what: str, seconds: float, code: int) -> Exception:
    """The error for a process that has ended with this code before it answered."""
    if code in (-signal.SIGPROF, -signal.SIGALRM):
        happened = f"{what} is not read" if what else "not read to its end"
        return IntegrityError(
            f"{where}: {happened} in {seconds:.0f} seconds; its library hangs, the file is "
            "damaged: restore it"
        )
    if code in (-signal.SIGKILL, -signal.SIGTERM):
        return ReadError(
            f"{where}: the process that reads it was killed; if memory is short, use fewer "
            "workers, or run it again where there is more"
        )
    if code < 0:
        return IntegrityError(
            f"{where}: its library crashes when it reads {what or 'it'} "
            f"({signal.Signals(-code).name}), in a process of its own; the file is damaged: "
            "restore it"
        )
    if code == memory.GONE:
        return MemoryError()
    return RuntimeError(f"{where}: the process that reads it ended with {code}")


def _named(error: Exception, where: object) -> Exception:
    """Say which file was read when the operating system refused something, if that is not said."""
    if isinstance(error, OSError) and error.errno and error.filename is None:
        error.filename = str(where)
    return error


class _Other:
    """Another process. Whoever uses one that functions share holds `_LOCK`."""

    def __init__(self) -> None:
        self.made: set[int] = set()  # numbers of functions
        self.unused: list[int] = []  # of those that are gone here
        self._owner = os.getpid()
        self._process = subprocess.Popen(  # noqa: S603 (the interpreter that runs this)
            command(_SERVE), bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, start_new_session=True,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip
        assert self._process.stdin is not None  # noqa: S101 (for mypy)
        assert self._process.stdout is not None  # noqa: S101 (for mypy)
        self._into, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        with contextlib.suppress(AttributeError, OSError):  # Linux; a user has so many bytes of it
            fcntl.fcntl(self._out, fcntl.F_SETPIPE_SZ, _PIPE)

    def ask(self, question: bytes) -> tuple[bool, bytes]:
        """Whether it failed, and the answer; an EOFError if the process has ended."""
        try:
            _write(self._into, question)
        except BrokenPipeError as error:
            raise EOFError from error
        failed, length = _ANSWERED.unpack(_read(self._out, _ANSWERED.size))
        if not 0 <= length <= _MOST_BYTES:  # it is damaged, too
            raise EOFError
        return bool(failed), _read(self._out, length)

    def forget(self) -> None:
        """Forget functions that are gone."""
        while self.unused:
            number = self.unused.pop()
            if number in self.made:
                self.made.remove(number)
                self.ask(_ASKED.pack(_FORGET, number, 0, 0))

    @property
    def is_usable(self) -> bool:
        """Whether it is this process's, and has not been ended."""
        return self._process.returncode is None and os.getpid() == self._owner

    def end(self) -> int:
        """End it, if it is this process's to end; returns the code that it returned."""
        if _OTHERS.get(self._owner) is self:
            del _OTHERS[self._owner]
        if self.is_usable:
            self._process.kill()
            self._process.wait()
        code = self._process.returncode = self._process.returncode or 0  # or Popen misses an end
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        return code


# The process that functions share, by the number of the process that started it. A forked child
# finds that of its parent here: it closes the pipes, and starts one of its own.
_OTHERS: dict[int, _Other] = {}
_LOCK = ForkSafeLock()
_NUMBERS = itertools.count()


def _running() -> _Other:
    for other in list(_OTHERS.values()):
        if not other.is_usable:
            other.end()
    if os.getpid() not in _OTHERS:
        _OTHERS[os.getpid()] = _Other()
    return _OTHERS[os.getpid()]


@atexit.register
def _end_all() -> None:
    for other in list(_OTHERS.values()):
        other.end()


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _read(descriptor: int, length: int) -> bytes:
    data = os.read(descriptor, length) if length else b""
    if len(data) == length:
        return data
    parts = bytearray(data)
    while len(parts) < length:
        data = os.read(descriptor, min(length - len(parts), _PIPE))
        if not data:
            raise EOFError
        parts += data
    return bytes(parts)


# What the other process runs. Without memory it cannot even import this.
_SERVE = f"""
try:
    from {__name__} import serve
    serve()
except MemoryError:
    import os
    os._exit({memory.GONE})
"""


def begin() -> None:
    """Begin to be the other process: who waits for it ends it, and it leaves no core file."""
    global _is_other  # noqa: PLW0603 (true of this whole process)
    _is_other = True
    faulthandler.cancel_dump_traceback_later()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def serve() -> None:
    """Be the other process: answer questions until there are no more."""
    begin()
    answers = os.dup(1)
    os.dup2(2, 1)  # what a library prints is no answer
    functions: dict[int, Callable[[int], bytes]] = {}
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            task, number, argument, seconds = _ASKED.unpack(_read(0, _ASKED.size))
            more = _read(0, argument) if task in (_RUN, _MAKE) else b""
            # A signal of the timer ends this process, even amid a library that lets no Python run.
            timer = signal.ITIMER_REAL if task == _RUN else signal.ITIMER_PROF
            signal.setitimer(timer, seconds)
            failed, answer = _answer(functions, task, number, argument, more)
            signal.setitimer(timer, 0)
            _write(answers, _ANSWERED.pack(failed, len(answer)) + answer)


def _answer(
    functions: dict[int, Callable[[int], bytes]], task: int, number: int, argument: int, more: bytes
) -> tuple[bool, bytes]:
    try:
        if task == _CALL:
            return False, functions[number](argument)
        if task == _RUN:
            _run(*json.loads(more))
        elif task == _MAKE:
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
            make, *arguments = json.loads(more)
            functions[number] = find_function(make)(*arguments)
        else:
            functions.pop(number, None)
    except Exception as error:  # noqa: BLE001 (whatever it is, it is told)
        return True, json.dumps(_report_of(error)).encode()
    return False, b""


def _run(parent: int, function: str, *arguments: Any) -> None:
    """Call a function for a parent, if it still lives."""
    if end_with(parent):
        find_function(function)(*arguments)


def end_with(parent: int) -> bool:
    """Have the kernel end this process when its parent dies; False if the parent died before."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent


def _report_of(error: Exception) -> list[Any]:
    """What JSON can hold of an error."""
    if isinstance(error, OSError) and not isinstance(error, PackioError):
        name = error.filename and os.fsdecode(error.filename)
        return ["OSError", error.errno, error.strerror, name]
    known = isinstance(error, (PackioError, IndexError, MemoryError))
    name = type(error).__name__
    return [name, str(error)] if known else ["RuntimeError", f"{name}: {error}"]


def _error_of(report: list[Any]) -> Exception:
    """The error that `_report_of` described."""
    name, *reasons = report
    found: Exception = (getattr(errors, name, None) or getattr(builtins, name))(*reasons)
    return found
