"""Runs packio's command line: each command is a child of one process that has packio loaded.

This is faster than a new Python each time, and each command still has a process of its own that a
test can kill. Only `commands` talks to this script: a line of JSON in, a line of JSON out.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pathlib
import pkgutil
import signal
import sys
import time
import traceback
import warnings
from typing import Any

import packio

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
import vision
from killing import ChangeCounter

_SECONDS = 240  # after which a command hangs; on a busy machine one takes 20
_PATIENCE = 30  # seconds; then stopped commands go on: the others may wait for a lock of theirs


def _started(command: dict[str, Any]) -> int:
    """Begin a command; if it is to be stopped, wait until it is, or has ended."""
    pid = os.fork()
    if pid:
        if command["stop_at"]:
            os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        return pid
    code = 70
    try:
        os.setpgid(0, 0)
        for number, ending in ((1, ".out"), (2, ".err")):
            log = os.open(command["log"] + ending, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(log, number)
        os.environ["PACKIO_CACHE_DIR"] = os.path.join(command["folder"], "cache")
        os.chdir(command["folder"])
        sys.argv = ["packio", *command["arguments"]]
        counter = ChangeCounter(command["kill_at"], command["stop_at"])
        sys.addaudithook(counter)
        code = _ran()
        with open(command["log"] + ".changes", "w", encoding="ascii") as file:
            file.write(str(counter.count))
    except BaseException:  # noqa: BLE001 (whatever it is, the child ends here)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _ran() -> int:
    from packio.cli import main

    try:
        main()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return 0


def _is_stopped(started: tuple[dict[str, Any], int]) -> bool:
    return started[0]["stop_at"] is not None


def _ended(pid: int, stopped: list[int]) -> int:
    """Exit code of a child, minus its signal, or -99 if it hangs; others may be stopped."""
    began = time.monotonic()
    while (seconds := time.monotonic() - began) < _SECONDS:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        while stopped and seconds > _PATIENCE:
            os.kill(stopped.pop(), signal.SIGCONT)
        time.sleep(0.002)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return -99


def _serve() -> None:
    warnings.simplefilter("ignore")
    sys.dont_write_bytecode = True  # a module that the first command imports would be a change
    for name in ("h5py", "lmdb", "pyarrow.parquet", "rich.console", "torch", "typer"):
        importlib.import_module(name)
    for module in pkgutil.walk_packages(packio.__path__, "packio."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError):  # a plugin whose package is not here
                importlib.import_module(module.name)
    vision.import_torchvision()
    gc.freeze()  # so that children do not copy it

    for line in sys.stdin:
        commands = json.loads(line)
        if commands is None:  # the end
            return
        pids = [_started(command) for command in commands]
        codes: dict[int, int] = {}
        for _, pid in sorted(zip(commands, pids, strict=True), key=_is_stopped):
            os.kill(pid, signal.SIGCONT)
            codes[pid] = _ended(pid, [other for other in pids if other not in {pid, *codes}])
        print(json.dumps([codes[pid] for pid in pids]), flush=True)


if __name__ == "__main__":
    _serve()
