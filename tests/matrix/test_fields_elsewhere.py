"""Every kind of field, packed by a command, as the format's own library or a plain parser has it.

tests/formats does the same for what formats' writers write; here whole packs are looked at.
"""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

import pytest
from foreign_fields import READERS
from trials import Cell, Trial

if TYPE_CHECKING:
    from commands import Commands
    from foreign_fields import Found

_KINDS = {"caption": "text", "depth": "image", "latent": "array", "blob": "bytes", "mask": "mask"}
_ANNOTATIONS = (("fields", "some"), ("mask", "some"))


def _place(pack: pathlib.Path, name: str) -> pathlib.Path:
    """Where a field lies of a pack in one container."""
    apart = "mask" if name == "mask" else f"{name}.{_KINDS[name]}"
    places = {".lmdb": pack / apart, ".rec": pack.with_suffix(f".{apart}.rec")}
    return places.get(pack.suffix, pack)


@pytest.mark.parametrize("suffix", READERS)
def test_others_see_every_field(suffix: str, tmp_path: pathlib.Path, commands: Commands) -> None:
    trial = Trial(Cell("extracted", _ANNOTATIONS, "pack", suffix, ""), tmp_path, commands)
    for i, sample in enumerate(trial.samples):
        if "fields" in sample:
            sample["fields"]["blob"] = ("bytes", bytes(range(i + 1)) * 9)
    out, source = trial.packed(trial.samples)
    for name, kind in _KINDS.items():
        wanted: Found = {}
        for i, sample in enumerate(source.samples):
            fields = {n: data for n, (_, data) in sample.get("fields", {}).items()}
            fields |= {"mask": sample["mask"]} if "mask" in sample else {}
            wanted |= {i: fields[name]} if name in fields else {}
        found = READERS[suffix](_place(pathlib.Path(out), name), name, kind)
        assert {i: value.hex() for i, value in found.items()} == {
            i: value.hex() for i, value in wanted.items()
        }, name
