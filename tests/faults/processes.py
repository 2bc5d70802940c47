"""Children of this process: begun, waited for with all that they began, asked for answers."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from packio.errors import PackioError

INTERNAL = 70  # exit code of what no error of packio's tells
_TIMEOUT = 600  # seconds that anything may take, on a busy machine
_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)


class FaultError(AssertionError):
    """A promise that packing did not keep."""


def started(action: Callable[[], int], log: Path) -> int:
    """Run a function in a child of its own process group; return its process id.

    Args:
        action: Returns the exit code.
        log: Takes its stderr.
    """
    pid = os.fork()
    if pid:
        with suppress(OSError):
            os.setpgid(pid, pid)
        return pid
    code = INTERNAL
    try:
        with suppress(OSError):
            os.setpgid(0, 0)
        # a shell has what it runs in the background, these tests perhaps, ignore interrupts
        signal.signal(signal.SIGINT, signal.default_int_handler)
        redirect(log)
        code = action()
    except KeyboardInterrupt:
        code = 130
    except BaseException:  # noqa: BLE001 (whatever it is, the child ends here)
        traceback.print_exc()
    finally:
        os._exit(code)


def redirect(log: Path) -> None:
    """Have a file take this process's stderr."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(descriptor, 2)


def coded(action: Callable[[], object]) -> int:
    """Run what raises packio's errors; return the command line's exit code."""
    try:
        action()
    except PackioError as error:
        print(f"packio: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


def ended(pid: int, seconds: float = _TIMEOUT) -> int:
    """Wait for a process and all of its group; its exit code, or minus its signal.

    Raises:
        FaultError: it hangs, or leaves processes behind for 100 seconds.
    """
    deadline, code = time.monotonic() + seconds, None
    while time.monotonic() < deadline:
        reaped, status = _reaped(pid if code is None else -pid)
        if reaped == pid:
            code, deadline = os.waitstatus_to_exitcode(status), time.monotonic() + 100
        if code is not None and not _alive(pid):
            return code
        time.sleep(0.001)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    if code is None:
        _reaped(pid, 0)
    raise FaultError("it hangs" if code is None else "processes are left over")


def _reaped(pid: int, options: int = os.WNOHANG) -> tuple[int, int]:
    try:
        return os.waitpid(pid, options)
    except ChildProcessError:
        return 0, 0


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def in_child(function: Callable[[], Any], seconds: float = _TIMEOUT) -> Any:
    """What a function returns, as JSON has it, in a child: its threads and files end with it.

    Raises:
        FaultError: it raises, dies or hangs.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            os.setpgid(0, 0)
            try:
                answer = {"value": function()}
            except Exception:  # noqa: BLE001 (it is told where it is waited for)
                answer = {"error": traceback.format_exc()}
            with open(writing, "w") as pipe:
                pipe.write(json.dumps(answer))
        finally:
            os._exit(0)
    os.close(writing)
    with suppress(OSError):
        os.setpgid(pid, pid)
    watch = signal.signal(signal.SIGALRM, lambda *_: os.killpg(pid, signal.SIGKILL))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with open(reading) as pipe:
            said = pipe.read()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, watch)
    code = ended(pid, 5)
    answer = json.loads(said) if said else {"error": f"a child ended with {code}"}
    if "error" in answer:
        raise FaultError(answer["error"][-1500:])
    return answer["value"]


def adopt() -> None:
    """Have orphans of our children be our children, so that they can be waited for."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children(pid: int) -> list[int]:
    """Processes that a process has begun."""
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            found += [int(stat.parent.name)] if parent == pid else []
    return found
