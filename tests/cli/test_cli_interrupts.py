"""Ctrl-C at any moment of a command: exit code 130, one line, no traceback."""

from __future__ import annotations

import subprocess
import sys

_HEED = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
_CTRL_C = "signal.raise_signal(signal.SIGINT)"


def _ended(*lines: str) -> subprocess.CompletedProcess[str]:
    """Run ``packio ls x`` in a process that does something before."""
    code = "\n".join([_HEED, "import sys, packio, packio.cli", *lines, "packio.cli.main()"])
    command = [sys.executable, "-c", code, "ls", "x"]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)


def _is_told(done: subprocess.CompletedProcess[str]) -> None:
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "packio: interrupted\n")


def test_while_a_command_runs() -> None:
    _is_told(_ended(f"def fail(*_, **__): {_CTRL_C}", "packio.open = fail"))


def test_with_an_error_of_packio_while_it_is_cleaned_up() -> None:
    _is_told(
        _ended(
            "def fail(*_, **__):",
            f"    try: {_CTRL_C}",
            "    finally: raise packio.PackioError('it cannot be cleaned up')",
            "packio.open = fail",
        )
    )


def test_with_another_error_while_it_is_cleaned_up() -> None:
    _is_told(
        _ended(
            "def fail(*_, **__):",
            f"    try: {_CTRL_C}",
            "    except KeyboardInterrupt as error: raise RuntimeError from error",
            "packio.open = fail",
        )
    )


def test_before_the_command_begins() -> None:
    _is_told(
        _ended(
            "build = packio.cli.build",
            "def interrupted(*arguments):",
            f"    {_CTRL_C}",
            "    return build(*arguments)",
            "packio.cli.build = interrupted",
        )
    )


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
