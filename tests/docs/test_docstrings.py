"""Docstrings of public names keep all their lines when the site is built of them."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

import pytest

import packio

if TYPE_CHECKING:
    from collections.abc import Iterator

_LISTED = ("Args", "Attributes", "Raises")  # sections of "name: text" entries


def _entries(text: str) -> Iterator[str]:
    """First lines of the entries of a docstring's lists."""
    section = ""
    for line in text.split("\n"):
        if line[:1].strip():
            section = line.removesuffix(":")
        elif section in _LISTED and re.match(r" {4}\S", line):
            yield line.strip()


def _documented(name: str) -> Iterator[tuple[str, Any]]:
    value = getattr(packio, name)
    yield name, value
    if inspect.isclass(value):
        yield from ((f"{name}.{k}", getattr(value, k)) for k in dir(value) if k[0] != "_")


def test_the_checker_finds_an_entry_that_goes_on_before_its_colon() -> None:
    text = inspect.cleandoc(
        """Do it.

        Args:
            one, two,
            three: As given:
                more
            four: As made.
        """
    )
    assert list(_entries(text)) == ["one, two,", "three: As given:", "four: As made."]


@pytest.mark.parametrize("name", sorted(packio._PUBLIC))
def test_each_entry_has_its_colon_on_its_first_line(name: str) -> None:
    """The site's parser leaves out a line without one, whatever follows."""
    for described, value in _documented(name):
        text = inspect.getdoc(value) if callable(value) or isinstance(value, property) else None
        lost = [entry for entry in _entries(text or "") if ":" not in entry]
        assert not lost, described
