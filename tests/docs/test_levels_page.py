"""The Python of docs/levels.md runs as it is printed."""

from __future__ import annotations

import pathlib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

_PAGE = pathlib.Path(__file__).parents[2] / "docs" / "levels.md"


def test_the_python_of_the_page_runs(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", _PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1
    exec(compile(blocks[0], _PAGE.name, "exec"), {})  # noqa: S102 (ours)
