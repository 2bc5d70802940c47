"""Commands of packio: within the process of the test, or as a process of their own."""

from __future__ import annotations

import io
import logging
import os
import select
import signal
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from packio.cli import main

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Done = subprocess.CompletedProcess[str]
PACKIO = [sys.executable, "-m", "packio"]


class _Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def run(
    *words: object, cwd: os.PathLike[str] | None = None, env: Mapping[str, str] | None = None,
    encoding: str = "utf-8", terminal: bool = False,
) -> Done:  # fmt: skip
    """Run ``packio`` with some words here: no Python starts, and nothing is imported again.

    Args:
        words: What is typed; ``bytes`` are those of a path.
        cwd: The current folder.
        env: Variables beside those that are set.
        encoding: Of the streams. What is no text in it is surrogate escapes afterwards.
        terminal: Standard output is one.
    """
    kinds = (_Terminal if terminal else io.TextIOWrapper, io.TextIOWrapper)
    streams = [kind(io.BytesIO(), encoding, newline="\n") for kind in kinds]
    typed = [os.fsdecode(w) if isinstance(w, bytes) else str(w) for w in words]
    level, handler = logging.getLogger("PIL").level, signal.getsignal(signal.SIGINT)
    code: Any = 0
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.simplefilter("ignore", DeprecationWarning)  # as in a Python that starts
        for name, value in (env or {}).items():
            patch.setenv(name, value)
        if cwd is not None:
            patch.chdir(cwd)
        patch.setattr(sys, "argv", ["packio", *typed])
        patch.setattr(sys, "path", [*sys.path])
        patch.setattr(sys, "stdout", streams[0])
        patch.setattr(sys, "stderr", streams[1])
        try:
            main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        finally:
            logging.getLogger("PIL").setLevel(level)
            signal.signal(signal.SIGINT, handler)
    said = []
    for stream in streams:
        stream.flush()
        said.append(stream.buffer.getvalue().decode(encoding, "surrogateescape"))  # type: ignore[attr-defined]  # of BytesIO
    return subprocess.CompletedProcess(typed, code, *said)


def run_process(*words: object, before: Sequence[str] = (), **options: Any) -> Done:
    """Run ``packio`` as a process of its own, where its start, its end or its streams matter.

    `before`: a command that runs it, and its arguments.
    """
    command = [*before, *PACKIO, *(w if isinstance(w, bytes) else str(w) for w in words)]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    done = subprocess.run(
        command, check=False, text=True, errors="surrogateescape", timeout=600, **options
    )
    assert "Traceback" not in f"{done.stdout}{done.stderr}"
    return done


def run_on_terminal(*words: object) -> tuple[int, str]:
    """Run ``packio`` as a process on a terminal: its exit code, and all that appears there."""
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [*PACKIO, *map(str, words)], stdout=theirs, stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )  # fmt: skip
    os.close(theirs)
    said = b""
    try:
        while select.select([ours], [], [], 60)[0] and (block := os.read(ours, 1 << 16)):
            said += block
    except OSError:  # Linux says EIO when the other end is closed
        pass
    os.close(ours)
    return process.wait(), os.fsdecode(said)


def join_words(text: str) -> str:
    """The words that typer puts into boxes, and breaks lines between."""
    return " ".join(text.replace("│", " ").split())
