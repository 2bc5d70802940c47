"""The Python of README.md and docs/ type-checks, under pyright and under mypy."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import re
import subprocess
import sys

import pytest

REPOSITORY = pathlib.Path(__file__).parents[2]
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Pages that mypy or pyright find fault with for what libraries say of themselves, or for values
# that only the running program knows, as that a sample has bytes.
_OTHERS = {
    "boxes", "from-hdf5", "from-lmdb", "from-webdataset", "huggingface", "latents", "levels",
    "own-dataset", "replay", "resume", "segmentation", "several-packs", "slow", "timm",
}  # fmt: skip


pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with the Python of each page, as one program a page."""
    folder = tmp_path_factory.mktemp("types")
    for page in [REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")]:
        blocks = _BLOCK.findall(page.read_text())
        if blocks and page.stem not in _OTHERS:
            path = folder / f"{page.parent.name}_{page.stem}.py".replace("-", "_")
            path.write_text("\n".join(blocks))
    return folder


def _check(programs: pathlib.Path, *command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=programs, capture_output=True, text=True, check=False,
        timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_pyright_finds_nothing(programs: pathlib.Path) -> None:
    if importlib.util.find_spec("basedpyright") is None:
        pytest.skip("basedpyright is not installed")
    how = {
        "typeCheckingMode": "standard", "extraPaths": [str(REPOSITORY)],
        "reportMissingImports": False, "reportMissingModuleSource": False,
    }  # fmt: skip
    (programs / "pyrightconfig.json").write_text(json.dumps(how))
    _check(programs, "basedpyright", "-p", ".", "--pythonpath", sys.executable)


def test_mypy_finds_nothing(programs: pathlib.Path) -> None:
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    _check(
        programs, "mypy", "--config-file=", "--ignore-missing-imports", "--allow-redefinition", "."
    )
