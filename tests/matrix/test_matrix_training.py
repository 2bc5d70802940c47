"""The matrix, fourth part: every source and annotation under the verbs of training.

`pairing.cells` says which cells are tried.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import known
import pairing
import pytest
from trials import Cell, Trial
from verbs import VERBS

if TYPE_CHECKING:
    import pathlib

    from commands import Commands


@pytest.mark.parametrize("cell", known.marked(pairing.cells(pairing.TRAINING)), ids=str)
def test_cell(cell: Cell, tmp_path: pathlib.Path, commands: Commands) -> None:
    VERBS[cell.verb].run(Trial(cell, tmp_path, commands))
