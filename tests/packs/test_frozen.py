"""Packs of every version on disk stay readable; see tools/make_frozen_packs.py."""

from __future__ import annotations

import hashlib
import json
import pathlib

import numpy as np
import pytest

import packio
from packio import registry
from packio.sample.fields import decode

_FROZEN = pathlib.Path(__file__).parents[1] / "frozen"
_PACKS = sorted(
    path
    for version in _FROZEN.iterdir()
    if version.is_dir()
    for path in version.iterdir()
    if (path / "index.packio").is_file() or pathlib.Path(f"{path}.packio").is_file()
)


def test_every_format_is_frozen() -> None:
    formats = (registry.load("formats", name) for name in registry.list_built_in("formats"))
    suffixes = {m.caps.suffixes[0] for m in formats if m.caps.writes}
    newest = max(path.parent for path in _PACKS)
    assert {path.suffix for path in _PACKS if path.parent == newest} == suffixes


@pytest.mark.parametrize("path", _PACKS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_frozen_pack_is_read_as_it_was_written(path: pathlib.Path) -> None:
    expected = json.loads((_FROZEN / "expected.json").read_text())
    with packio.open(path) as pack:
        assert [_described(sample) for sample in pack] == expected
    assert packio.verify(path).ok


@pytest.mark.parametrize("path", _PACKS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_frozen_pack_has_its_fields(path: pathlib.Path) -> None:
    with packio.open(path) as pack:
        kinds = {"image": "image", "mask": "mask", "caption": "text", "latent": "array",
                 "raw": "bytes"}  # fmt: skip
        assert dict(pack.fields) == kinds
        for i, sample in enumerate(pack):
            found = {name: decode(field) for name, field in sample.fields.items()}
            assert found.keys() == (set() if i == 1 else {"caption", "latent", "raw"})
            if i != 1:
                assert (found["caption"], found["raw"]) == ("ein Satz\n", b"\0\1")
                assert found["latent"].tolist() == list(range(6))
            assert sample.box_columns["crowd"].tolist() == [n % 2 for n in range(i)]
            assert sample.split == ("train" if i < 2 else "val")


def _described(sample: packio.Sample) -> dict[str, object]:
    assert sample.boxes is not None
    assert sample.box_labels is not None
    return {
        "key": sample.key,
        "data": hashlib.sha256(sample.data).hexdigest(),
        "mask": hashlib.sha256(sample.mask or b"").hexdigest(),
        "label": sample.label,
        "meta": sample.meta,
        "boxes": np.asarray(sample.boxes).tolist(),
        "box_labels": np.asarray(sample.box_labels).tolist(),
        "size": [sample.height, sample.width, sample.channels],
        "encoding": sample.encoding,
    }
