"""`packio.collate` hands over what a batch has now: tensors as they are, edits included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import packio
from packio.packs import opening
from packio.packs.table import RowList

if TYPE_CHECKING:
    from pathlib import Path


def _samples(label: Any) -> list[dict[str, Any]]:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 8, 3), np.uint8)
    return [{"image": pixels + i, "label": label(i), "key": f"{i}.raw"} for i in range(6)]


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    packio.pack(_samples(lambda i: i), tmp_path / "a.h5", encode="raw")
    return tmp_path / "a.h5"


FIELDS = {"x": "image", "y": "label", "k": "key"}


def test_what_is_not_edited_is_not_copied(pack: Path) -> None:
    samples = packio.PackDataset(pack, fields=FIELDS).__getitems__([3, 1])
    assert packio.collate(samples)["x"].data_ptr() == samples[0]["x"].data_ptr()


@pytest.mark.parametrize("fields", [FIELDS, ("image", "label", "key"), "label"])
def test_a_replaced_value_is_collated(pack: Path, fields: Any) -> None:
    samples = packio.PackDataset(pack, fields=fields).__getitems__([3, 1])
    if isinstance(fields, dict):
        samples[0]["y"] = 7
        assert packio.collate(samples)["y"].tolist() == [7, 1]
    elif isinstance(fields, tuple):
        samples[0] = (samples[0][0], 7, "")
        assert packio.collate(samples)[1].tolist() == [7, 1]
    else:
        samples[0] = 7
        assert packio.collate(samples).tolist() == [7, 1]


def test_an_added_removed_or_renamed_field_is_collated(pack: Path) -> None:
    def edited(*edits: Any) -> Any:
        samples = packio.PackDataset(pack, fields=FIELDS).__getitems__([3, 1])
        for sample in samples:
            for edit in edits:
                edit(sample)
        return packio.collate(samples)

    assert edited(lambda s: s.update(z=1))["z"].tolist() == [1, 1]
    assert list(edited(lambda s: s.pop("y"))) == ["x", "k"]
    renamed = edited(lambda s: s.update(label=s.pop("y")), lambda s: s.update(k=s.pop("k")))
    assert renamed["label"].tolist() == [3, 1]


def test_values_edited_in_place_are_collated(tmp_path: Path) -> None:
    packio.pack(_samples(lambda i: np.full(3, i, np.float32)), tmp_path / "a.h5", encode="raw")
    samples = packio.PackDataset(tmp_path / "a.h5", fields=FIELDS).__getitems__([3, 1])
    samples[0]["y"] *= 0.5
    samples[1]["x"][:] = 0
    batch = packio.collate(samples)
    assert batch["y"].tolist() == [[1.5] * 3, [1.0] * 3]
    assert not batch["x"][1].any()


def test_an_index_that_says_no_height_is_found_out(
    tmp_path: Path, image_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hostile index: every crop is planned, and decoding tells."""
    packio.pack(image_folder, tmp_path / "x.lmdb")
    rows, row = opening.Pack.rows, opening.Pack.row
    monkeypatch.setattr(
        opening.Pack, "rows", lambda s, *i: RowList(r._replace(height=0) for r in rows(s, *i))
    )
    monkeypatch.setattr(opening.Pack, "row", lambda s, *i: row(s, *i)._replace(height=0))
    for crop in (
        packio.RandomResizedCrop(8), packio.Resize(8), packio.ResizeCenterCrop(8),
        packio.CenterCrop(8), packio.RandomCrop(8), None,
    ):  # fmt: skip
        ds = packio.LmdbDataset(tmp_path / "x.lmdb", crop=crop)
        with pytest.raises(packio.DecodeError, match="decodes to"):
            ds[0]
        with pytest.raises(packio.DecodeError, match="decodes to"):
            ds.__getitems__([0, 1])


def test_torchvisions_crops_are_options(pack: Path, torchvision: Any) -> None:
    crop = torchvision.transforms.CenterCrop(4)
    ds = packio.PackDataset(pack, crop=crop)
    assert torch.equal(ds[1][0], packio.PackDataset(pack, crop=packio.CenterCrop(4))[1][0])
    assert ds.with_options(views=[crop, None], crop=None)[1][0][0].shape == (3, 4, 4)
    with pytest.raises(packio.PackioError, match="crop=64"):
        packio.PackDataset(pack, crop=64)  # type: ignore[arg-type]  # that is the point
