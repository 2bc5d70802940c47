"""Defects that readers found by attacking: each came with these few lines."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import latents
import made
import numpy as np
import pytest

import packio
from packio.errors import BadImagesError, DecodeError, OutputError, PackioError
from packio.sample.fields import decode

if TYPE_CHECKING:
    import pathlib


def _png(value: int = 0) -> bytes:
    return made.png(5 + value, 4)


def test_a_folder_that_holds_several_labels_names_no_class(tmp_path: pathlib.Path) -> None:
    members = [((f"a/{i}.png", _png(i)), (f"a/{i}.cls", b"%d" % (i % 2))) for i in range(4)]
    (tmp_path / "w.tar").write_bytes(made.tar_bytes(itertools.chain(*members)))
    assert packio.open(tmp_path / "w.tar").classes == []
    packio.pack(tmp_path / "w.tar", tmp_path / "w.lmdb")
    assert [sample.label for sample in packio.open(tmp_path / "w.lmdb")] == [0, 1, 0, 1]


def test_a_field_that_is_asked_for_is_not_replaced(tmp_path: pathlib.Path) -> None:
    sample = {"image": _png(), "depth": np.zeros(3), "better": np.ones(3)}
    with pytest.raises((BadImagesError, DecodeError, PackioError), match="depth"):
        packio.pack([sample], tmp_path / "d.lmdb", fields={"depth": ("better", "array")})
    del sample["depth"]
    packio.pack([sample], tmp_path / "e.lmdb", fields={"depth": ("better", "array")})
    found: Any = decode(packio.open(tmp_path / "e.lmdb")[0].fields["depth"])
    assert found.tolist() == [1, 1, 1]


def test_values_that_would_be_one_field_are_refused(tmp_path: pathlib.Path) -> None:
    sample = {"image": _png(), "a b": np.zeros(3), "a/b": np.ones(3)}
    with pytest.raises((BadImagesError, PackioError), match="a_b"):
        packio.pack([sample], tmp_path / "c.lmdb")


def test_a_name_too_long_for_a_tar_is_refused(tmp_path: pathlib.Path) -> None:
    name = "f" * 95
    with pytest.raises(OutputError, match="shorter name"):
        packio.pack([{"image": _png(), name: "hi"}], tmp_path / "x.tar",
                    fields={name: (name, "text")})  # fmt: skip


@pytest.mark.parametrize("kind", ["image", "mask"])
def test_checking_decodes_every_field_of_pixels(tmp_path: pathlib.Path, kind: str) -> None:
    damaged = bytearray(_png(60))
    damaged[45] ^= 255
    sample = {"image": _png(60), "d": bytes(damaged)}
    options: Any = {"fields": {"d": ("d", kind)}}
    with pytest.raises(BadImagesError, match="d: "):
        packio.pack([sample], tmp_path / "f.lmdb", check="decode", **options)


def test_an_array_without_axes_stays_one(tmp_path: pathlib.Path) -> None:
    packio.pack([{"image": _png(), "v": np.array(3.5)}], tmp_path / "z.lmdb",
                fields={"v": ("v", "array")})  # fmt: skip
    found: Any = decode(packio.open(tmp_path / "z.lmdb")[0].fields["v"])
    assert (found.shape, float(found)) == ((), 3.5)


@pytest.mark.parametrize("name", latents.FORMATS)
def test_only_some_samples_may_have_boxes_and_metadata(tmp_path: pathlib.Path, name: str) -> None:
    samples: list[dict[str, Any]] = [
        {"image": _png(), "key": "0.png"},
        {"image": _png(1), "key": "1.png", "boxes": [[0, 0, 5, 5]], "box_labels": [1], "n": 3},
        {"image": _png(2), "key": "2.png"},
    ]
    out = tmp_path / f"p{latents.suffix(name)}"
    packio.pack(samples, out)
    found = packio.open(out)
    assert [len(s.boxes) for s in found if s.boxes is not None] == [0, 1, 0]
    assert (found[1].meta, found[1].box_labels) == ({"n": 3}, np.array([1]))
    assert packio.verify(out).ok
    packio.reindex(out)
    assert packio.verify(out).ok
