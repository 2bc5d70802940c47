"""What is not what a source lists: each source says so as bad data, and names the path."""

from __future__ import annotations

import pathlib

import pytest

import packio
from packio import registry
from packio.errors import NotAPackError, OptionError, SourceError

_OF_OBJECTS = {"torch_dataset"}  # a path is the name of a module to it


@pytest.mark.parametrize("what", ["folder", "text", "missing", "NUL"])
@pytest.mark.parametrize("kind", sorted({*registry.names("sources")} - _OF_OBJECTS))
def test_what_is_no_such_source_is_named(kind: str, what: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_text("hello\n")
    path = f"{tmp_path}/{what}".replace("NUL", "a\0b")
    with pytest.raises((SourceError, NotAPackError, OptionError)) as raised:
        packio.pack(path, tmp_path / "out.tar", source_kind=kind)
    said = str(raised.value)
    assert what in said
    assert "Errno" not in said
    assert "embedded null byte" not in said
    assert not (tmp_path / "out.tar").exists()
