"""Work in a process of its own, because a library may crash or hang.

A damaged or hostile file can make HDF5 crash, abort or run for ever. A fresh interpreter costs half
a second. A fork would cost less, but a lock that another thread holds at that moment would stay
locked in the child for ever.
"""

from __future__ import annotations

import ctypes
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
from packio.errors import IntegrityError, PackioError

_PR_SET_PDEATHSIG = 1  # Linux, prctl(2)
_GRACE = 5  # seconds after the time limit; the parent, if it lives, has ended the process by then

# Python puts the current folder first for -c: nothing is imported before its path is this one's.
_CODE = """
import sys
sys.path[:] = {path!r}
import json
from packio.packs.isolation import work
work(**json.load(sys.stdin))
"""


def run(function: str, *arguments: Any, where: object, seconds: float) -> None:
    """Call a function of packio in another process.

    Args:
        function: "packio.module:name"; what it returns is not handed over.
        arguments: That JSON can hold.
        where: The file that it reads, for messages.
        seconds: After which it is given up.

    Raises:
        IntegrityError: the process was killed by a signal, or has not ended in time.
        PackioError, OSError: as the function raised it.
        RuntimeError: it raised anything else.
    """
    if not sys.executable or getattr(sys, "frozen", False):  # no interpreter to start
        _function(function)(*arguments)
        return
    given = {
        "function": function, "arguments": arguments, "parent": os.getpid(),
        "seconds": math.ceil(seconds),
    }  # fmt: skip
    try:
        done = subprocess.run(  # noqa: S603 (the interpreter that runs this)
            [sys.executable, "-c", _CODE.format(path=sys.path)], input=json.dumps(given),
            capture_output=True, text=True, errors="replace", check=False, timeout=seconds,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise IntegrityError(
            f"{where}: not read to its end in {seconds:.0f} seconds; its library hangs, the file "
            "is damaged: restore it"
        ) from error
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        raise IntegrityError(
            f"{where}: its library crashes when it reads it ({name}), in a process of its own; the "
            "file is damaged: restore it"
        )
    if done.returncode:
        raise RuntimeError(f"{where}: {done.stderr.strip() or done.returncode}")
    name, *reasons = json.loads(done.stdout.splitlines()[-1])  # libraries may have written, too
    if name:
        raise (OSError if name == "OSError" else getattr(errors, name))(*reasons)


def work(function: str, arguments: list[Any], parent: int, seconds: int) -> None:
    """Be the other process: call the function, write what it raised to the standard output.

    The kernel ends this process when the parent dies, and some seconds after the time limit: a
    library that hangs lets no Python run that could look.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who waits for this process kills it
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before
        return
    signal.alarm(seconds + _GRACE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    report: list[Any] = [""]
    try:
        _function(function)(*arguments)
    except PackioError as error:
        report = [type(error).__name__, str(error)]
    except OSError as error:
        report = ["OSError", error.errno, error.strerror, os.fsdecode(error.filename or "")]
    sys.stdout.write(f"\n{json.dumps(report)}\n")


def _function(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)
