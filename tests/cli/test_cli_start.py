"""Commands start fast: PyTorch, which takes seconds to import, is not needed to pack and look."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import pathlib

_WITHOUT = """
import sys
sys.modules["torch"] = None  # an import is an error
from packio.cli import main
sys.argv = ["packio", *sys.argv[1:]]
main()
"""


def _run(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT, *words], capture_output=True, text=True, check=False,
        timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["pack", "--help"]])
def test_help_needs_no_torch(words: list[str]) -> None:
    assert "packio" in _run(*words)


def test_packing_and_looking_need_no_torch(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    pack = str(tmp_path / "pack.lmdb")
    _run("pack", str(image_folder), pack)
    assert "images" in _run("info", pack)
    assert _run("ls", pack)
    assert _run("verify", pack)
