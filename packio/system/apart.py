"""Functions that run in another process, call by call, because their library may crash or hang.

All such functions of a process share one other process. It starts at the first call, and ends with
the last function. A call that crashes it, or takes too long, is an error; the next call starts it
again. A forked child has an other process of its own. A call costs 20 µs, with 150 KB 70 µs.

A question is the `_ASKED` bytes: what to do, the number of a function, the argument, and seconds of
processor time. To make a function, the argument is the length of the JSON that follows. An answer
is the `_ANSWERED` bytes: whether it failed, and the length of the value, or of an error as JSON,
that follows.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import itertools
import json
import os
import resource
import signal
import struct
import subprocess
from collections.abc import Callable
from typing import Any

from packio.errors import IntegrityError, ReadError
from packio.system import isolation
from packio.system.locks import ForkSafeLock

_ASKED, _ANSWERED = struct.Struct("<Bqqd"), struct.Struct("<Bq")
_MAKE, _CALL, _FORGET = 0, 1, 2
_MOST_BYTES = 2 << 30  # of an answer
_MEMORY = 8 << 30  # bytes, of the other process
_PIPE = 1 << 20  # bytes; an answer that fits needs one write and one read


class FunctionApart:
    """A function of a number, whose values are bytes; it is made, and called, in another process.

    Safe in threads, which take turns, and after a fork. In a process that is such an other process
    itself, and where there is no interpreter to start, it is called here.

    Args:
        make: "packio.module:name" of what makes the function.
        arguments: Of ``make``, that JSON can hold.
        where: The file that it reads, for messages.
        seconds: Of processor time, for making it.
    """

    def __init__(self, make: str, *arguments: Any, where: object, seconds: float) -> None:
        self._make, self._arguments, self._where = make, arguments, where
        self._seconds, self._number = seconds, next(_NUMBERS)
        self._here: Callable[[int], bytes] | None = None
        self._other: _Other | None = None

    def __call__(self, argument: int, what: str, seconds: float) -> bytes:
        """Call the function."""
        if not isolation.is_possible():
            if self._here is None:
                self._here = isolation.made(self._make)(*self._arguments)
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
            question = _ASKED.pack(task, self._number, argument, seconds) + more
            failed, answer = other.ask(question)
        except (EOFError, OSError) as error:
            raise self._ended(what, seconds, other.end()) from error
        except BaseException:  # as Ctrl-C: its answer would be taken for that to the next question
            other.end()
            raise
        if failed:
            raise isolation.error_of(json.loads(answer))
        return answer

    def _ended(self, what: str, seconds: float, code: int) -> Exception:
        if code == -signal.SIGPROF:
            return IntegrityError(
                f"{self._where}: {what} is not read in {seconds:.0f} seconds; its library hangs, "
                "the file is damaged: restore it"
            )
        if code in (-signal.SIGKILL, -signal.SIGTERM):
            return ReadError(
                f"{self._where}: the process that reads it was killed; if memory is short, use "
                "fewer workers"
            )
        if code < 0:
            return isolation.crashed(self._where, what, code)
        return RuntimeError(f"{self._where}: the process that reads it ended with {code}")

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


class _Other:
    """The other process of this one. Whoever uses it holds `_LOCK`."""

    def __init__(self) -> None:
        self.made: set[int] = set()  # numbers of functions
        self.unused: list[int] = []  # of those that are gone here
        self._owner = os.getpid()
        self._process = subprocess.Popen(  # noqa: S603 (the interpreter that runs this)
            isolation.command(f"from {__name__} import serve; serve()"), bufsize=0,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip
        assert self._process.stdin is not None  # noqa: S101 (for mypy)
        assert self._process.stdout is not None  # noqa: S101 (for mypy)
        self._into, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        with contextlib.suppress(AttributeError, OSError):  # Linux; a user has so many bytes of it
            fcntl.fcntl(self._out, fcntl.F_SETPIPE_SZ, _PIPE)

    def ask(self, question: bytes) -> tuple[bool, bytes]:
        """Whether it failed, and the answer."""
        _write(self._into, question)
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
        _OTHERS.pop(self._owner, None)
        if self.is_usable:
            self._process.kill()
            self._process.wait()
        code = self._process.returncode = self._process.returncode or 0  # or Popen misses an end
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        return code


# The other process, by the number of the process that started it. A forked child finds that of its
# parent here: it closes the pipes, and starts one of its own.
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


def serve() -> None:
    """Be the other process: answer questions until there are no more."""
    isolation.begin()
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    answers = os.dup(1)
    os.dup2(2, 1)  # what a library prints is no answer
    functions: dict[int, Callable[[int], bytes]] = {}
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            task, number, argument, seconds = _ASKED.unpack(_read(0, _ASKED.size))
            more = _read(0, argument) if task == _MAKE else b""
            signal.setitimer(signal.ITIMER_PROF, seconds)  # whose signal ends this process
            failed, answer = _answer(functions, task, number, argument, more)
            signal.setitimer(signal.ITIMER_PROF, 0)
            _write(answers, _ANSWERED.pack(failed, len(answer)) + answer)


def _answer(
    functions: dict[int, Callable[[int], bytes]], task: int, number: int, argument: int, more: bytes
) -> tuple[bool, bytes]:
    try:
        if task == _CALL:
            return False, functions[number](argument)
        if task == _MAKE:
            make, *arguments = json.loads(more)
            functions[number] = isolation.made(make)(*arguments)
        else:
            functions.pop(number, None)
    except Exception as error:  # noqa: BLE001 (whatever it is, it is told)
        return True, json.dumps(isolation.report_of(error)).encode()
    return False, b""
