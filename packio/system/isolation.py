"""Work in a process of its own, because a library may crash or hang.

A damaged or hostile file can make HDF5 crash, abort or run for ever. A fresh interpreter costs half
a second. A fork would cost less, but a lock that another thread holds at that moment would stay
locked in the child for ever.

Here a whole piece of work goes to another process; `packio.system.apart` calls functions there.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import faulthandler
import importlib
import json
import math
import os
import resource
import signal
import subprocess
import sys
from typing import Any

from packio import errors
from packio.errors import IntegrityError, PackioError, ReadError
from packio.system import memory

START_SECONDS = 300  # to import packio, on any disk; then a process that starts is given up

_PR_SET_PDEATHSIG = 1  # Linux, prctl(2)
_GRACE = 5  # seconds after the time limit; the parent, if it lives, has ended the process by then

_is_other = False  # whether this is such a process: it has no need for another one


def run(function: str, *arguments: Any, where: object, seconds: float) -> None:
    """Call a function of packio in another process."""
    if not is_possible():
        made(function)(*arguments)
        return
    given = {
        "function": function, "arguments": arguments, "parent": os.getpid(),
        "seconds": math.ceil(seconds),
    }  # fmt: skip
    code = f"import json; from {__name__} import work; work(**json.load(sys.stdin))"
    try:
        done = subprocess.run(  # noqa: S603 (the interpreter that runs this)
            command(code), input=json.dumps(given),
            capture_output=True, text=True, errors="replace", check=False, timeout=seconds,
        )  # fmt: skip
    except OSError as error:  # no process or no pipe is to be had
        raise _named(error, where) from None
    except subprocess.TimeoutExpired as error:
        raise IntegrityError(
            f"{where}: not read to its end in {seconds:.0f} seconds; its library hangs, the file "
            "is damaged: restore it"
        ) from error
    if done.returncode == -signal.SIGKILL:
        raise ReadError(
            f"{where}: the process that reads it was killed; if memory is short, run it again "
            "where there is more"
        )
    if done.returncode < 0:
        raise crashed(where, "it", done.returncode)
    if done.returncode == memory.GONE or (done.returncode and "MemoryError" in done.stderr):
        raise MemoryError  # it had not even begun
    if done.returncode:
        raise RuntimeError(f"{where}: {done.stderr.strip() or done.returncode}")
    report = json.loads(done.stdout.splitlines()[-1])  # libraries may have written, too
    if report:
        raise _named(error_of(report), where)


def _named(error: Exception, where: object) -> Exception:
    """Say which file was read when the operating system refused something, if that is not said."""
    if isinstance(error, OSError) and error.errno and error.filename is None:
        error.filename = str(where)
    return error


def is_possible() -> bool:
    """Tell whether there is an interpreter to start, and reason to: not in such a process."""
    return not _is_other and bool(sys.executable) and not getattr(sys, "frozen", False)


def command(code: str) -> list[str]:
    """The command line of an interpreter that imports what this one does, and runs some code.

    Python puts the current folder first for -c: nothing else is imported before its path is this
    one's. Without memory, libraries may wait for ever while they are imported: it ends then, by
    itself, if it has not called `begin` in time.
    """
    ends = f"faulthandler.dump_traceback_later({START_SECONDS}, exit=True)"
    begins = f"import faulthandler, sys; {ends}; sys.path[:] = {sys.path!r}"
    return [sys.executable, "-c", f"{begins}; {code}"]


def made(name: str) -> Any:
    """The object of a name, as "packio.module:name"."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def crashed(where: object, what: str, code: int) -> IntegrityError:
    """An error for a process that a signal has ended, by its return code."""
    return IntegrityError(
        f"{where}: its library crashes when it reads {what} ({signal.Signals(-code).name}), in a "
        "process of its own; the file is damaged: restore it"
    )


def report_of(error: Exception) -> list[Any]:
    """What JSON can hold of an error."""
    if isinstance(error, OSError) and not isinstance(error, PackioError):
        name = error.filename and os.fsdecode(error.filename)
        return ["OSError", error.errno, error.strerror, name]
    known = isinstance(error, (PackioError, IndexError, MemoryError))
    name = type(error).__name__
    return [name, str(error)] if known else ["RuntimeError", f"{name}: {error}"]


def error_of(report: list[Any]) -> Exception:
    """The error that `report_of` described."""
    name, *reasons = report
    found: Exception = (getattr(errors, name, None) or getattr(builtins, name))(*reasons)
    return found


def work(function: str, arguments: list[Any], parent: int, seconds: int) -> None:
    """Be the other process: call the function, write what it raised to the standard output.

    The kernel ends this process when the parent dies, and some seconds after the time limit: a
    library that hangs lets no Python run that could look.
    """
    begin()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before
        return
    signal.alarm(seconds + _GRACE)
    report: list[Any] = []
    try:
        made(function)(*arguments)
    except (PackioError, OSError, MemoryError) as error:
        report = report_of(error)
    sys.stdout.write(f"\n{json.dumps(report)}\n")


def begin() -> None:
    """Begin to be the other process: who waits for it ends it, and it leaves no core file."""
    global _is_other  # noqa: PLW0603 (true of this whole process)
    _is_other = True
    faulthandler.cancel_dump_traceback_later()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
