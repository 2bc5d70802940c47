"""Run the loop under profilers: cProfile for this process, py-spy for the workers, too."""

from __future__ import annotations

import contextlib
import cProfile
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from packio.errors import MissingPackageError, OutputError
from packio.system import files

_PATIENCE = 60  # seconds that py-spy may take to write


def check(profile: str | os.PathLike[str] | None, py_spy: str | os.PathLike[str] | None) -> None:
    """Check, before minutes of measuring, that py-spy and the folders of the files are there.

    Raises:
        MissingPackageError: py-spy is not installed.
        CannotCreateError: a folder does not exist.
    """
    for path in (profile, py_spy):
        if path is not None:
            files.check_folder_of(path)
    if py_spy is not None and shutil.which("py-spy") is None:
        raise MissingPackageError("py-spy is not installed: pip install py-spy")


def record(
    run: Callable[[], Any],
    profile: str | os.PathLike[str] | None,
    py_spy: str | os.PathLike[str] | None,
) -> None:
    """Run something under the profilers that are wanted.

    Raises:
        OutputError: a file cannot be written, or py-spy may not look at this process.
    """
    with contextlib.ExitStack() as stack:
        if py_spy is not None:
            stack.enter_context(_spied(py_spy))
        if profile is None:
            run()
            return
        recorder = cProfile.Profile()
        recorder.runcall(run)
        try:
            recorder.dump_stats(profile)
        except OSError as error:
            raise OutputError(f"{os.fspath(profile)}: {error.strerror}") from error


@contextlib.contextmanager
def _spied(path: str | os.PathLike[str]) -> Any:
    """Let py-spy record meanwhile."""
    out = Path(path)
    command = ["py-spy", "record", "--output", str(out), "--pid", str(os.getpid()),
               "--subprocesses", "--nonblocking", "--duration", "3600"]  # fmt: skip
    spy = subprocess.Popen(  # noqa: S603 (a fixed command)
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        yield
    finally:
        spy.send_signal(2)  # py-spy writes its file on an interrupt
        try:
            _, said = spy.communicate(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            spy.kill()
            _, said = spy.communicate()
    if not out.exists():
        raise OutputError(f"{out}: py-spy wrote nothing: {said.strip()[-300:]}")
