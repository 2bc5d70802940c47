"""The matrix: every source and annotation under every verb. `pairing.cells` says what is tried."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pairing
import pytest
import verbs_of_fields
import verbs_of_packing
import verbs_of_packs
from trials import FORMATS, Cell, Trial
from verbs import VERBS

from packio import registry

if TYPE_CHECKING:
    import pathlib
    from types import ModuleType

    from commands import Commands


def _cells(verbs: ModuleType) -> list[Any]:
    """Cells as parameters of a test: the first of each verb is quick, others are long."""
    found, seen = [], set[str]()
    for cell in pairing.cells(verbs.__name__):
        marks = [pytest.mark.long] if cell.verb in seen else []
        seen.add(cell.verb)
        found.append(pytest.param(cell, marks=marks))
    return found


@pytest.mark.parametrize("cell", _cells(verbs_of_packing), ids=str)
def test_packing(cell: Cell, tmp_path: pathlib.Path, commands: Commands) -> None:
    VERBS[cell.verb].run(Trial(cell, tmp_path, commands))


@pytest.mark.parametrize("cell", _cells(verbs_of_packs), ids=str)
def test_packs(cell: Cell, tmp_path: pathlib.Path, commands: Commands) -> None:
    VERBS[cell.verb].run(Trial(cell, tmp_path, commands))


@pytest.mark.parametrize("cell", _cells(verbs_of_fields), ids=str)
def test_fields(cell: Cell, tmp_path: pathlib.Path, commands: Commands) -> None:
    VERBS[cell.verb].run(Trial(cell, tmp_path, commands))


def test_every_format_that_is_written_is_in_the_matrix() -> None:
    modules = [registry.load("formats", name) for name in registry.list_built_in("formats")]
    assert {m.caps.suffixes[0] for m in modules if m.caps.writes} == {*FORMATS}
