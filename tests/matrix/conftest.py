"""What the matrix's tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from commands import Commands

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="package")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """A process that runs packio's commands."""
    found = Commands(tmp_path_factory.mktemp("logs"))
    yield found
    found.close()
