"""Run commands of packio, one after the other or at once, and kill them."""

from __future__ import annotations

import contextlib
import itertools
import json
import pathlib
import subprocess
import sys
from typing import NamedTuple

KILLED = -9
_SERVER = pathlib.Path(__file__).with_name("command_server.py")


class Ran(NamedTuple):
    """How a command ended."""

    code: int  # exit code, or minus the signal
    printed: str  # on stdout
    said: str  # on stderr
    changes: int  # on disk, if it was not killed


class Command(NamedTuple):
    """A command to run."""

    arguments: list[str]
    kill_at: int | None = None  # kill it just before this change on disk, counted from 1
    stop_at: int | None = None  # stop it there until all other commands have ended


class Commands:
    """A process that runs commands; close it."""

    def __init__(self, logs: pathlib.Path) -> None:
        self._server = subprocess.Popen(
            [sys.executable, str(_SERVER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._logs, self._number = logs, itertools.count()

    def run(self, commands: list[Command], folder: pathlib.Path) -> list[Ran]:
        """Run commands in a folder, all at once."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        logs = [self._logs / f"{next(self._number)}.log" for _ in commands]
        asked = [
            {**c._asdict(), "folder": str(folder), "log": str(log)}
            for c, log in zip(commands, logs, strict=True)
        ]
        print(json.dumps(asked), file=self._server.stdin, flush=True)
        codes = json.loads(self._server.stdout.readline())
        return [_ran(code, log) for code, log in zip(codes, logs, strict=True)]

    def close(self) -> None:
        """End the process."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print("null", file=self._server.stdin, flush=True)  # forked processes keep the pipe open
        self._server.wait()
        self._server.stdin.close()
        self._server.stdout.close()


def _ran(code: int, log: pathlib.Path) -> Ran:
    out, err, changes = (_text(log.with_name(f"{log.name}.{n}")) for n in ("out", "err", "changes"))
    return Ran(code, out, err, int(changes or 0))


def _text(path: pathlib.Path) -> str:
    with contextlib.suppress(FileNotFoundError):  # the command was killed before
        return path.read_text(errors="replace")
    return ""
