"""DataLoaders: start methods, workers, threads, epochs; draws depend on none of them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import long
import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch.utils.data import DataLoader

import packio
from packio.datasets import pack_dataset


def augmented(pack: Path, **options: Any) -> packio.LmdbDataset:
    defaults = {"crop": packio.RandomResizedCrop(32), "hflip": 0.5, "vflip": 0.2, "seed": 11}
    return packio.LmdbDataset(pack, **{**defaults, **options})


def digests(loader: DataLoader[Any]) -> list[str]:
    """One digest a batch, of images and labels."""
    return [
        hashlib.sha256(images.numpy().tobytes() + labels.numpy().tobytes()).hexdigest()
        for images, labels in loader
    ]


@pytest.mark.parametrize(
    ("method", "workers"), long.after(2, [("fork", 2), ("spawn", 1), ("forkserver", 1)])
)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_workers_give_every_sample_once_and_exactly(
    pack: Path, image_folder: Path, method: str, workers: int
) -> None:
    """Of two datasets on one path."""
    both = [packio.LmdbDataset(pack, fields=("image", "key"), access=a) for a in ("range", "lmdb")]
    for ds in both:
        ds[0], ds.__getitems__([1, 2])  # the parent has read first
    for ds in both:
        loader = DataLoader(
            ds, batch_size=4, num_workers=workers, multiprocessing_context=method, collate_fn=list
        )
        seen = {}
        for batch in loader:
            assert packio.is_contiguous_batch(batch)
            seen.update({key: image.numpy() for image, key in batch})
        assert sorted(seen) == sorted(ds.pack.keys())
        for key, image in seen.items():
            upright = ImageOps.exif_transpose(Image.open(image_folder / key)).convert("RGB")
            np.testing.assert_array_equal(image, np.asarray(upright).transpose(2, 0, 1))


def test_repeated_indices_and_views_are_drawn_apart(pack: Path) -> None:
    crop = packio.RandomResizedCrop(32)
    ds = packio.LmdbDataset(pack, views=[crop, crop], seed=0)
    (first, second), _ = packio.collate(ds.__getitems__([3] * 8))
    images = {image.numpy().tobytes() for image in torch.cat((first, second))}
    assert len(images) == 16


def test_a_seed_is_a_seed(pack: Path) -> None:
    batches = [augmented(pack, seed=s).__getitems__([1, 2, 3]) for s in (11, 11, 12)]
    assert torch.equal(batches[0][0][0], batches[1][0][0])
    assert not torch.equal(batches[0][0][0], batches[2][0][0])
    torch.manual_seed(7)
    a = augmented(pack, seed=None).seed
    torch.manual_seed(7)
    assert augmented(pack, seed=None).seed == a
    assert augmented(pack, seed=None).seed != a


def test_single_samples_draw_from_torchs_generator(pack: Path) -> None:
    ds = augmented(pack)
    torch.manual_seed(3)
    a, b = ds[2][0], ds[2][0]
    torch.manual_seed(3)
    assert torch.equal(ds[2][0], a)
    assert not torch.equal(a, b)


@pytest.mark.parametrize(("method", "workers"), [("fork", 2), ("spawn", 1)])
def test_set_epoch_reaches_persistent_workers(pack: Path, method: str, workers: int) -> None:
    """The same order each time: what differs is drawn anew, by the epoch alone."""
    ds = augmented(pack)
    loader = DataLoader(
        ds, 6, num_workers=workers, persistent_workers=True, multiprocessing_context=method
    )
    epochs = []
    for epoch in (0, 1, 2, 0):
        ds.set_epoch(epoch)
        epochs.append(digests(loader))
    flat = [d for epoch in epochs[:3] for d in epoch]
    assert len(set(flat)) == len(flat)
    assert epochs[3] == epochs[0]


def test_worker_counters_reach_the_main_process(pack: Path) -> None:
    ds = packio.LmdbDataset(pack, crop=packio.CenterCrop(16), decoder="simplejpeg")
    for _ in DataLoader(ds, batch_size=4, num_workers=2):
        pass
    assert ds.fallbacks >= 2


def _mapped_at(address: int) -> str:
    """What this process has mapped at an address."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(number, 16) for number in line.split(" ")[0].split("-"))
        if begin <= address < end:
            return line
    return ""


def test_a_workers_batch_lies_in_shared_memory(pack: Path) -> None:
    """Made where it travels: the tensor that arrives lies in the worker's file."""
    ds = augmented(pack)
    for images, _ in DataLoader(ds, batch_size=4, num_workers=1, collate_fn=packio.collate):
        assert "memfd:packio-batch" in _mapped_at(images.data_ptr())
        assert images.is_contiguous()
    images, _ = packio.collate(ds.__getitems__([0, 1]))
    assert "packio-batch" not in _mapped_at(images.data_ptr())


def test_an_error_in_a_worker_names_the_sample(pack: Path) -> None:
    ds = packio.LmdbDataset(pack, max_pixels=100)
    with pytest.raises(packio.DecodeError, match="limit is 100"):
        next(iter(DataLoader(ds, batch_size=2, num_workers=1)))


def test_threads_survive_a_fork(pack: Path) -> None:
    """Threads started in the parent do not exist in its children."""
    ds = augmented(pack, threads=2)
    expected = digests(DataLoader(ds, batch_size=6))
    loader = DataLoader(ds, batch_size=6, num_workers=2, multiprocessing_context="fork")
    assert digests(loader) == expected


def test_decoding_threads_leave_torchs_setting_alone(pack: Path) -> None:
    before = torch.get_num_threads()
    augmented(pack, threads=3).__getitems__([0, 1, 2, 3])
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("side", "threads", "expected"),
    [(99, "auto", None), (101, "auto", 3), (99, 2, 2), (101, 1, None)],
)
def test_by_default_small_images_are_decoded_by_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: int, threads: int | str,
    expected: int | None,
) -> None:  # fmt: skip
    monkeypatch.setattr(pack_dataset, "automatic_threads", lambda: 3)
    folder = tmp_path / "images/a"
    folder.mkdir(parents=True)
    for i in range(3):
        Image.new("RGB", (side, side)).save(folder / f"{i}.png")
    packio.pack(folder.parent, tmp_path / "x.tar")
    decoding = packio.TarDataset(tmp_path / "x.tar", threads=threads)._threads()
    assert (decoding and decoding.count) == expected
    apart = packio.FolderDataset(folder.parent, threads=threads)._threads()
    assert (apart and apart.count) == (expected or (3 if threads == "auto" else None))
