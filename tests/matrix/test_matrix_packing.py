"""The matrix, first part: every source and annotation under the verbs that make a pack.

`pairing.cells` says which cells are tried.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import known
import pairing
import pytest
from trials import FORMATS, Cell, Trial
from verbs import VERBS

from packio import registry

if TYPE_CHECKING:
    import pathlib

    from commands import Commands


@pytest.mark.parametrize("cell", known.marked(pairing.cells(pairing.PACKING)), ids=str)
def test_cell(cell: Cell, tmp_path: pathlib.Path, commands: Commands) -> None:
    VERBS[cell.verb].run(Trial(cell, tmp_path, commands))


def test_every_format_that_is_written_is_in_the_matrix() -> None:
    modules = [registry.load("formats", name) for name in registry.list_built_in("formats")]
    assert {m.caps.suffixes[0] for m in modules if m.caps.writes} == {*FORMATS}
