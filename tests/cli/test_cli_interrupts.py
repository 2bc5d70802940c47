"""Ctrl-C at any moment of a command: exit code 130, one line, no traceback."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from PIL import Image

import packio

if TYPE_CHECKING:
    from pathlib import Path

_CTRL_C = "signal.raise_signal(signal.SIGINT)"


def _ended(*lines: str) -> subprocess.CompletedProcess[str]:
    """Run ``packio ls x`` in a process that does something before."""
    code = "\n".join(["import signal, sys, packio, packio.cli", *lines, "packio.cli.main()"])
    command = [sys.executable, "-c", code, "ls", "x"]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)


def _is_told(done: subprocess.CompletedProcess[str]) -> None:
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "packio: interrupted\n")


_MOMENTS = {
    "while a command runs": f"""
def fail(*_, **__): {_CTRL_C}
packio.open = fail""",
    "with an error of packio while it is cleaned up": f"""
def fail(*_, **__):
    try: {_CTRL_C}
    finally: raise packio.PackioError("it cannot be cleaned up")
packio.open = fail""",
    "with another error while it is cleaned up": f"""
def fail(*_, **__):
    try: {_CTRL_C}
    except KeyboardInterrupt as error: raise RuntimeError from error
packio.open = fail""",
    "before the command begins": f"""
build = packio.cli.build
def interrupted(*arguments):
    {_CTRL_C}
    return build(*arguments)
packio.cli.build = interrupted""",
}


@pytest.mark.parametrize("lines", _MOMENTS.values(), ids=_MOMENTS)
def test_it_is_told_in_a_line(lines: str) -> None:
    _is_told(_ended(lines))


def test_after_the_command_nothing_is_said() -> None:
    done = _ended(
        "packio.open = lambda path, **_: sys.exit(0)",
        "import atexit",
        f"atexit.register(lambda: {_CTRL_C})",
    )
    assert (done.returncode, done.stdout, done.stderr) == (-2, "", "")


def test_an_ignored_one_stays_ignored() -> None:
    done = _ended(
        "signal.signal(signal.SIGINT, signal.SIG_IGN)",
        f"def fail(*_, **__): {_CTRL_C}; sys.exit(7)",
        "packio.open = fail",
        "import atexit",
        f"atexit.register(lambda: {_CTRL_C})",
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")


def test_while_one_chunk_of_a_query_takes_for_ever(tmp_path: Path) -> None:
    """DuckDB looks for interrupts between chunks only."""
    pytest.importorskip("duckdb")
    pytest.importorskip("pyarrow")
    (tmp_path / "s" / "a").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "s" / "a" / "0.png")
    packio.pack(tmp_path / "s", tmp_path / "p.tar")
    code = """
import signal, threading, packio.cli
from packio.packs.querying import expressions
positions = expressions._Query.positions
def interrupted(*arguments):
    threading.Timer(1, lambda: signal.pthread_kill(threading.main_thread().ident, 2)).start()
    return positions(*arguments)
expressions._Query.positions = interrupted
packio.cli.main()
"""
    endless = "levenshtein(repeat(key, 300000), repeat('ab', 600000)) > 3"
    command = [sys.executable, "-c", code, "select", "p.tar", endless, "-o", "x.selection"]
    _is_told(
        subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=120, cwd=tmp_path
        )
    )
    assert not (tmp_path / "x.selection").exists()
