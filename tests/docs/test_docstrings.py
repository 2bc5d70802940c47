"""Docstrings: the reference drops an item of a section whose line has no colon."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import packio

_SECTION = re.compile(r"^(?:Args|Attributes|Raises):\n((?:    .*\n|\n)+)", re.MULTILINE)
_DOCUMENTED = (ast.ClassDef, ast.FunctionDef, ast.Module)


def test_each_item_of_a_section_has_its_names_on_one_line() -> None:
    found = []
    for path in sorted(Path(packio.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            text = (ast.get_docstring(node) or "") if isinstance(node, _DOCUMENTED) else ""
            for section in _SECTION.findall(f"{text}\n"):
                items = re.findall(r"^    (\S.*)", section, re.MULTILINE)
                found += [f"{path.name}: {item}" for item in items if ":" not in item]
    assert not found
