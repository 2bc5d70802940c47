"""Masks and boxes follow the operations on their image, as torchvision moves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import native_core
import numpy as np
import pytest
import torch
from PIL import Image
from skimage import data
from vision import import_torchvision

import packio
from packio.ops import following

pytestmark = native_core.needed
photographs: Any = data  # it has no types
STEPS: dict[str, Any] = {
    "affine": packio.RandomAffine((20, 20), (0.0, 0.0), (1.25, 1.25), (4, 4, 2, 2), fill=7),
    "rotation": packio.RandomRotation((-33, -33), "bilinear"),
    "hflip": packio.RandomHorizontalFlip(1.0),
    "vflip": packio.RandomVerticalFlip(1.0),
}


def _as_torchvision(name: str, value: Any) -> Any:
    """The same step of torchvision's functional v2, for masks and boxes."""
    v2 = import_torchvision().transforms.v2.functional
    how: dict[str, Any] = {"fill": 255} if not hasattr(value, "canvas_size") else {}
    if name == "affine":
        return v2.affine(value, 20, [0, 0], 1.25, [4, 2], **how)
    if name == "rotation":
        return v2.rotate(value, -33, **how)
    return v2.horizontal_flip(value) if name == "hflip" else v2.vertical_flip(value)


def _boxes(size: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    corners = rng.uniform(0, 1, (6, 2, 2)) * [size[1], size[0]]
    corners.sort(1)
    return corners.reshape(6, 4).astype(np.float32)


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of several sizes with masks, one of 16 bits, boxes and labels."""
    rng = np.random.default_rng(3)
    samples = []
    root = tmp_path_factory.mktemp("following")
    for i in range(6):
        photo = photographs.astronaut()[20 * i : 20 * i + 90 + i, : 120 - i]
        ids = rng.integers(0, 20, (9, 12)).repeat(11, 0).repeat(11, 1)[: 90 + i, : 120 - i]
        image, mask = root / f"{i}.png", root / f"{i}-mask.png"
        Image.fromarray(photo).save(image)
        wide = Image.fromarray((ids * 300).astype(np.uint16)) if i == 5 else None
        (wide or Image.fromarray(ids.astype(np.uint8))).save(mask)
        samples.append(
            packio.Sample(
                i, f"{i}", image.read_bytes(), "png", i, photo.shape[0], photo.shape[1],
                mask=mask.read_bytes(),
                boxes=_boxes(photo.shape[:2], rng), box_labels=np.arange(6),
            )
        )  # fmt: skip
    return packio.pack(samples, root / "pack.lmdb").out


@pytest.mark.parametrize("name", STEPS)
def test_they_follow_as_torchvision_moves_them(name: str, pack: Path) -> None:
    import_torchvision()
    tv = pytest.importorskip("torchvision.tv_tensors")
    fields = ("image", "mask", "boxes", "box_labels")
    ds = packio.LmdbDataset(pack, fields=fields, transform=STEPS[name], seed=0)
    plain = packio.LmdbDataset(pack, fields=fields)
    images, masks, boxes, labels = ds.gather(range(6))
    for i in range(6):
        image, mask, own, ids = plain[i]
        wanted = _as_torchvision(name, Image.fromarray(mask.numpy().astype(np.int32)))
        assert np.array_equal(masks[i].numpy(), np.asarray(wanted))
        size = tuple(image.shape[-2:])
        moved = _as_torchvision(name, tv.BoundingBoxes(own, format="XYXY", canvas_size=size))
        left = (moved[:, 2:] > moved[:, :2]).all(1)
        assert torch.allclose(boxes[i], moved[left].as_subclass(torch.Tensor), atol=0.51)
        assert torch.equal(labels[i], ids[left])
        one = ds[i]
        assert torch.equal(one[0], images[i])
        assert torch.equal(one[1], masks[i].to(one[1].dtype))
        assert torch.equal(one[2], boxes[i])
        assert torch.equal(one[3], labels[i])


def test_they_follow_what_is_drawn(pack: Path) -> None:
    """A box and a mask around a white square stay around it, wherever that is moved."""
    square = np.zeros((100, 100), np.uint8)
    square[30:60, 40:80] = 255
    image = Image.fromarray(np.stack([square] * 3, axis=2))
    folder = pack.parent / "square"
    folder.mkdir()
    image.save(folder / "image.png")
    Image.fromarray(square // 255).save(folder / "mask.png")
    sample = packio.Sample(
        0, "square", (folder / "image.png").read_bytes(), "png", 0, 100, 100,
        mask=(folder / "mask.png").read_bytes(), boxes=np.array([[40, 30, 80, 60]], np.float32),
    )  # fmt: skip
    packio.pack([sample], folder / "pack.lmdb")
    steps = [packio.RandomAffine(40, (0.2, 0.2), (0.7, 1.2), 10), packio.RandomPerspective(0.3),
             packio.RandomHorizontalFlip()]  # fmt: skip
    ds = packio.LmdbDataset(
        folder / "pack.lmdb", fields=("image", "mask", "boxes"), transform=steps, seed=1,
        ignore_index=0,
    )  # fmt: skip
    moved = 0
    for epoch in range(40):
        ds.set_epoch(epoch)
        image_made, mask, boxes = ds[next(iter(packio.ShuffleSampler(ds)))]
        white = image_made[0] > 127
        different = (white != (mask == 1)).sum().item()
        assert different <= 0.06 * max(1, white.sum().item()) + 40  # smoothed at the rim
        if white.sum() > 30:
            rows, columns = (white.any(dim).nonzero().flatten() for dim in (1, 0))
            inside = [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
            (box,) = boxes
            assert all(box[:2] <= torch.stack(inside[:2]) + 1)
            assert all(box[2:] >= torch.stack(inside[2:]) - 1)
            moved += not torch.allclose(box, torch.tensor([40.0, 30, 80, 60]))
    assert moved > 20


def test_of_an_image_that_becomes_a_line_no_box_is_left() -> None:
    a_line = ("affine", (1.0, 0, 0, 1, 0, 0))  # all of the output comes from the diagonal
    boxes, kept = following._move_boxes(np.array([[0, 0, 3, 3]], np.float32), [a_line], 3, 3)
    assert boxes.shape == (0, 4)
    assert not kept.any()


def test_of_an_image_that_becomes_a_point_no_box_is_left(tmp_path: Path) -> None:
    image = tmp_path / "image.png"
    Image.new("RGB", (3, 3)).save(image)
    samples = [
        packio.Sample(
            i, f"{i}", image.read_bytes(), "png", 0, 3, 3,
            boxes=np.array([[0, 0, 3, 3]], np.float32), box_labels=np.array([1]),
        ) for i in range(2)
    ]  # fmt: skip
    out = packio.pack(samples, tmp_path / "pack.lmdb").out
    for scale, left in ((1e-9, 0), (1e-3, 1)):
        ds = packio.LmdbDataset(
            out, fields=("boxes", "box_labels", "image"),
            transform=packio.RandomAffine(0, scale=(scale, scale)),
        )  # fmt: skip
        boxes, labels, _ = ds.gather(range(2))
        assert [len(own) for own in boxes] == [len(own) for own in labels] == [left] * 2


def test_nobody_is_warned_of_what_follows(pack: Path, recwarn: pytest.WarningsRecorder) -> None:
    packio.LmdbDataset(pack, transform=packio.RandomAffine(10))
    assert not [w for w in recwarn if "would stay" in str(w.message)]

    def random_flip(image: torch.Tensor) -> torch.Tensor:
        return image

    with pytest.warns(UserWarning, match="random_flip moves the image alone"):
        packio.LmdbDataset(pack, transform=[packio.RandomAffine(10), random_flip])


def test_fields_are_named_in_messages(pack: Path) -> None:
    ds = packio.LmdbDataset(
        pack, fields=("image", "box_labels"), transform=packio.RandomAffine((10, 10)), seed=0
    )
    with pytest.raises(packio.errors.TransformError, match="box_labels follow the image"):
        ds.gather(range(3))


def test_what_does_not_follow_is_told_of(pack: Path) -> None:
    flip = packio.RandomHorizontalFlip(1.0)

    class Mine(packio.RandomHorizontalFlip):
        pass

    for transform in ([torch.clone, flip], Mine(1.0)):
        with pytest.warns(UserWarning, match=r"mask, boxes would stay"):
            packio.LmdbDataset(pack, fields=("image", "mask", "boxes"), transform=transform)
    with pytest.warns(UserWarning, match="mask would stay"):
        packio.LmdbDataset(pack, fields="mask", transform=flip)
    ds = packio.LmdbDataset(pack, fields=("image", "mask"))
    ds.transform = import_torchvision().transforms.RandomHorizontalFlip(1.0)
    with pytest.warns(UserWarning, match="mask would stay"):
        ds.gather([0])
