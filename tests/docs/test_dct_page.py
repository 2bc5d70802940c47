"""The code of docs/dct.md runs as it is printed; packing with open coefficients needs the core."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import native_core
import printed

if TYPE_CHECKING:
    import pytest

pytestmark = native_core.needed
_PAGE = Path(__file__).parents[2] / "docs" / "dct.md"


def test_the_code_of_the_page_runs(
    image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(image_folder, tmp_path / "photos" / "train")
    monkeypatch.chdir(tmp_path)
    assert printed.run(_PAGE, tmp_path) == 2
