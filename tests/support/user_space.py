"""A folder on a file system in user space, which keeps for a time what it knows, as NFS does."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

_UNMOUNT = shutil.which("fusermount3") or shutil.which("fusermount")


def command(below: pathlib.Path, folder: pathlib.Path, seconds: int = 0) -> list[str]:
    """The command that shows a folder below another name.

    Args:
        below: The folder.
        folder: Its other name, an empty folder.
        seconds: For which names, sizes, and that a name is not there, are remembered.
    """
    kept = ",".join(f"{what}_timeout={seconds}" for what in ("entry", "attr", "negative"))
    return ["bindfs", "-o", kept, str(below), str(folder)]


@contextlib.contextmanager
def mounted(base: pathlib.Path, seconds: int = 0) -> Iterator[tuple[pathlib.Path, pathlib.Path]]:
    """Two folders below a base: one on the disk, and the same under another name; see `command`."""
    if shutil.which("bindfs") is None or _UNMOUNT is None:
        pytest.skip("needs bindfs")
    below, folder = base / "below", base / "mounted"
    below.mkdir()
    folder.mkdir()
    if subprocess.run(command(below, folder, seconds), capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount")
    try:
        yield below, folder
    finally:
        subprocess.run([_UNMOUNT, "-u", "-z", folder], check=True)
