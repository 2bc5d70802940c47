"""The notebooks run from their first cell to their last, and are stored without outputs."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys

import long
import pytest

pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

REPOSITORY = pathlib.Path(__file__).parents[2]
NOTEBOOKS = sorted((REPOSITORY / "examples" / "notebooks").glob("*.ipynb"))
pytestmark = pytest.mark.timeout(1800)  # other processes may want the processors, too


def test_there_are_two() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["doctor", "pack_and_train"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_outputs_are_stored(path: pathlib.Path) -> None:
    cells = json.loads(path.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert len(code) > 3
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


@pytest.mark.parametrize("path", long.after(1, NOTEBOOKS[::-1]), ids=lambda path: path.stem)
def test_each_cell_runs(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    shutil.copytree(REPOSITORY / "tools", tmp_path / "tools")
    (tmp_path / "examples" / "notebooks").mkdir(parents=True)
    copy = shutil.copy(path, tmp_path / "examples" / "notebooks")
    environment = {
        **os.environ, "TMPDIR": str(tmp_path), "IPYTHONDIR": str(tmp_path / "ipython"),
        "MPLCONFIGDIR": str(tmp_path / "matplotlib"), "PYTHONPATH": os.pathsep.join(sys.path),
    }  # fmt: skip
    main = "from nbclient.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", main, copy, "--inplace", "--timeout=900"],
        check=False, capture_output=True, text=True, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    cells = json.loads(pathlib.Path(copy).read_text())["cells"]
    said = "".join(
        line for cell in cells for output in cell.get("outputs", ())
        for line in output.get("text", ())
    )  # fmt: skip
    assert all(cell["execution_count"] for cell in cells if cell["cell_type"] == "code")
    assert ("epoch 3: loss" in said) if path.stem == "pack_and_train" else ("wait" in said)
