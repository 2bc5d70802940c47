"""`packio.DaliLoader`: DALI's batches beside packio's, from every format; what bad images do."""

from __future__ import annotations

import gc
import io
import itertools
import os
import pathlib
import sys
import time
import warnings
from typing import Any, cast

import latents
import numpy as np
import pytest
import torch
from made import damage
from PIL import Image

import packio
from packio import registry
from packio.errors import DecodeError, IntegrityError, MissingPackageError, ModeError, OptionError
from packio.loading import ranks
from packio.loading.dali import pipelines

pytestmark = pytest.mark.gpu
DEVICES = ["cpu", *(["gpu"] if torch.cuda.is_available() else [])]
CROP = packio.RandomResizedCrop((40, 48))
BATCH = 7  # 25 samples: the last batch has 4
ORDER = packio.ShuffleSampler(BATCH, shuffle=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Where the packs of this file are made, each once."""
    return tmp_path_factory.mktemp("dali")


def _packed(folder: pathlib.Path, source: Any, name: str, form: str, **options: Any) -> Any:
    out = folder / (name + latents.suffix(form))
    if not out.exists():
        if "values" in registry.load("formats", form).caps.options:
            options = {"values": "datum", **options}  # an LMDB that DALI reads, too
        packio.pack(source, out, **options)
    return out


@pytest.fixture(scope="module")
def numbered(folder: pathlib.Path) -> pathlib.Path:
    """A tar of 25 photographs in effect: each sample's label is its position."""
    return cast("pathlib.Path", _packed(folder, _numbered(), "numbered", "tar"))


def _numbered() -> list[dict[str, Any]]:
    r = np.random.default_rng(0)
    sizes = [(30 + i, 60 - i, 3) for i in range(25)]
    return [{"image": r.integers(0, 256, s, np.uint8), "label": i} for i, s in enumerate(sizes)]


def _loader(pack: Any, **options: Any) -> packio.DaliLoader:
    options = {"batch_size": BATCH, "crop": CROP, "device": "cpu", "seed": 5, **options}
    return packio.DaliLoader(pack, **options)


def _own(pack: Any, **options: Any) -> packio.Loader:
    """The same samples by packio alone."""
    of_loader = {
        "batch_size",
        "shuffle",
        "drop_last",
        "dtype",
        "memory_format",
        "normalize",
        "device",
    }
    how = {"batch_size": BATCH, **{n: options.pop(n) for n in of_loader & set(options)}}
    dataset = packio.PackDataset(pack, **{"crop": CROP, "seed": 5, **options})
    return packio.Loader(dataset, **how)


def _difference(a: torch.Tensor, b: torch.Tensor) -> tuple[float, int]:
    """Mean and greatest, in grey levels."""
    assert a.shape == b.shape
    levels = (a.cpu().to(torch.int32) - b.to(torch.int32)).abs()
    return levels.double().mean().item(), int(levels.max())


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each pipeline that is built."""
    numbers: list[int] = []
    build = pipelines.build

    def counted(*arguments: Any) -> Any:
        numbers.append(1)
        return build(*arguments)

    monkeypatch.setattr(pipelines, "build", counted)
    return numbers


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("form", latents.FORMATS)
def test_batches_are_those_of_packios_loader(
    form: str,
    shards: int,
    device: str,
    folder: pathlib.Path,
    image_folder: pathlib.Path,
    built: list[int],
) -> None:
    pack = _packed(folder, image_folder, f"images-{shards}", form, shards=shards)
    how: dict[str, Any] = {"hflip": 0.5, "vflip": 0.3, "shuffle": True}
    ours, theirs = _own(pack, **how), _loader(pack, device=device, **how)
    assert len(theirs) == len(ours)
    for _ in range(2):
        for made, own in zip(theirs, ours, strict=True):
            images, labels = made
            assert images.is_contiguous()
            assert images.device == theirs.device
            assert torch.equal(labels.cpu(), own[1])
            mean, most = _difference(images, own[0])
            assert (mean < 0.5 and most <= 16) if device == "cpu" else mean < 2
    assert len(built) == 1  # DALI has refused nothing


@pytest.mark.parametrize(
    "crop", [packio.CenterCrop(100), packio.CenterCrop((300, 40)), packio.RandomCrop(48, padding=9)]
)
@pytest.mark.parametrize("exif_orientation", [True, False])
def test_pixels_that_are_not_resized_are_identical(
    crop: Any,
    exif_orientation: bool,
    folder: pathlib.Path,
    image_folder: pathlib.Path,
    built: list[int],
) -> None:
    pack = _packed(folder, image_folder, "images-1", "tar")
    how = {"crop": crop, "hflip": 0.5, "exif_orientation": exif_orientation}
    for made, own in zip(_loader(pack, **how), _own(pack, **how), strict=True):
        assert torch.equal(made[0], own[0])
    assert len(built) == 1  # DALI has refused nothing


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_resized_pixels_of_noise_differ_by_what_the_guide_says(
    interpolation: str, tmp_path: pathlib.Path
) -> None:
    samples = []
    for i in range(8):
        noise = np.random.default_rng(i).integers(0, 2, (375 // (1 + i % 4), 500, 3)) * 255
        file = io.BytesIO()
        Image.fromarray(noise.astype(np.uint8)).resize((500, 375), 0).save(file, "JPEG", quality=92)
        samples.append({"image": file.getvalue(), "label": i})
    packio.pack(samples, tmp_path / "x.tar")
    how = {"crop": packio.Resize((64, 72), interpolation=interpolation)}
    made = torch.cat([images for images, _ in _loader(tmp_path / "x.tar", **how)])
    own = torch.cat([images for images, _ in _own(tmp_path / "x.tar", **how)])
    assert _difference(made, own)[1] <= 20


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("name", ["RandomResizedCrop", "Resize", "ResizeCenterCrop"])
def test_resized_pixels_differ_little(
    name: str, interpolation: str, folder: pathlib.Path, image_folder: pathlib.Path
) -> None:
    pack = _packed(folder, image_folder, "images-1", "tar")
    how = {"crop": getattr(packio, name)((64, 72), interpolation=interpolation)}
    made = torch.cat([images for images, _ in _loader(pack, **how)])
    mean, most = _difference(made, torch.cat([images for images, _ in _own(pack, **how)]))
    assert mean < 0.3
    assert most <= 16


def _encoded(pixels: np.ndarray, encoding: str, mode: str = "RGB", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, encoding, **options)
    return file.getvalue()


def test_any_encoding_goes(
    tmp_path: pathlib.Path, photos: list[np.ndarray], built: list[int]
) -> None:
    photo = photos[0][:90, :110]
    exif = Image.Exif()
    exif[0x0112] = 6
    images = [
        _encoded(photo, "WEBP", lossless=True), _encoded(photo, "GIF", "P"), _encoded(photo, "BMP"),
        _encoded(photo, "PNG", "RGBA"), _encoded(photo, "PNG", "LA"), _encoded(photo, "PNG", "P"),
        _encoded(photo, "TIFF"), _encoded(photo, "JPEG", "CMYK"), _encoded(photo, "JPEG", "L"),
        _encoded(photo, "PNG", exif=exif), _encoded(photo, "JPEG") + bytes(500), photo,
    ]  # fmt: skip
    packio.pack([{"image": image, "label": 0} for image in images], tmp_path / "x.rec")
    how = {"crop": packio.RandomCrop(64), "batch_size": 12}
    (made,), (own,) = _loader(tmp_path / "x.rec", **how), _own(tmp_path / "x.rec", **how)
    assert torch.equal(made[0], own[0])
    assert len(built) == 1  # DALI has refused nothing


def test_of_raw_pixels_the_part_goes(
    tmp_path: pathlib.Path, photos: list[np.ndarray], built: list[int]
) -> None:
    samples = [{"image": _encoded(photo, "JPEG", quality=90), "label": 0} for photo in photos]
    packio.pack(samples, tmp_path / "x.h5", encode="raw", resize="exact=180x170")
    fed = _loader(tmp_path / "x.h5", crop=packio.RandomCrop(32))._feeder(list(ORDER))
    with packio.open(tmp_path / "x.h5") as pack:
        stored = [len(pack[i].data) for i in range(BATCH)]
    assert all(len(part) < size for part, size in zip(fed.data, stored, strict=True))  # is cut
    how = {"crop": packio.RandomCrop(32), "shuffle": True}
    for made, own in zip(
        _loader(tmp_path / "x.h5", **how), _own(tmp_path / "x.h5", **how), strict=True
    ):
        assert torch.equal(made[0], own[0])
    assert len(built) == 1  # DALI has refused nothing


def test_16_bits_are_refused_as_packio_does(tmp_path: pathlib.Path) -> None:
    pixels = np.arange(100 * 90, dtype=np.uint16).reshape(100, 90)
    packio.pack([{"image": pixels, "label": 0}], tmp_path / "x.tar")
    with pytest.raises(ModeError, match="uint16"):
        list(_loader(tmp_path / "x.tar"))
    with pytest.raises(DecodeError, match="limit"):
        list(_loader(tmp_path / "x.tar", max_pixels=100))


@pytest.mark.parametrize(
    "words",
    [
        {"dtype": torch.float32},
        {"memory_format": torch.channels_last},
        {"normalize": ([0.5, 0.4, 0.3], [0.2, 0.3, 0.2]), "dtype": torch.float16},
        {"normalize": ([0.5] * 3, [0.2] * 3), "memory_format": torch.channels_last},
    ],
)
def test_images_are_prepared_as_by_packios_loader(
    words: dict[str, Any], numbered: pathlib.Path
) -> None:
    how: dict[str, Any] = {"crop": packio.CenterCrop(40), "device": "cpu", **words}
    for made, own in zip(_loader(numbered, **how), _own(numbered, **how), strict=True):
        assert torch.equal(made[0], own[0])
        assert made[0].stride() == own[0].stride()


@pytest.mark.parametrize("label", [[0.5, 0.0, 2.0], None])
def test_labels_are_the_packs(label: Any, tmp_path: pathlib.Path) -> None:
    samples = [{k: v for k, v in s.items() if k == "image"} for s in _numbered()[:5]]
    if label is not None:
        samples = [{**s, "label": np.float32(label) + i} for i, s in enumerate(samples)]
    packio.pack(samples, tmp_path / "x.tar")
    (made,), (own,) = _loader(tmp_path / "x.tar"), _own(tmp_path / "x.tar")
    if label is None:
        assert [part.shape for part in made] == [part.shape for part in own]
    else:
        assert torch.equal(made[1], own[1])


def _labels(loader: Any) -> list[list[int]]:
    batches = list(loader)
    assert all(len(images) == len(labels) for images, labels in batches)
    return [labels.tolist() for _, labels in batches]


@pytest.mark.parametrize("shuffle", [True, False])
def test_ranks_share_an_epoch(shuffle: bool, numbered: pathlib.Path) -> None:
    how: dict[str, Any] = {"shuffle": shuffle, "batch_size": 3}
    ranks = [_loader(numbered, rank=r, world_size=5, **how) for r in range(5)]
    assert {len(rank) for rank in ranks} == {2}
    seen = [i for rank in ranks for labels in _labels(rank) for i in labels]
    assert sorted(seen) == list(range(25))
    uneven = [_loader(numbered, rank=r, world_size=3, drop_last=True, **how) for r in range(3)]
    found = [_labels(rank) for rank in uneven]
    assert [[len(labels) for labels in rank] for rank in found] == [[3, 3]] * 3
    assert len({i for rank in found for labels in rank for i in labels}) == 18


def test_the_last_batch_has_what_is_left(numbered: pathlib.Path) -> None:
    loader = _loader(numbered)
    assert _labels(loader) == [list(range(i, min(i + 7, 25))) for i in range(0, 25, 7)]
    assert len(loader) == 4
    loader = _loader(numbered, drop_last=True)
    assert [len(labels) for labels in _labels(loader)] == [7] * len(loader) == [7, 7, 7]
    assert _labels(_loader(numbered, batch_size=100)) == [list(range(25))]
    with pytest.warns(UserWarning, match="the epoch has no batch"):
        assert _labels(_loader(numbered, batch_size=100, drop_last=True)) == []


@pytest.mark.parametrize("device", DEVICES)
def test_batches_stay_what_they_are(device: str, numbered: pathlib.Path) -> None:
    loader = _loader(numbered, device=device, shuffle=True, batch_size=4)
    held = []
    for _ in range(4):
        held += [(images, images.clone()) for images, _ in loader]
    loader.close()
    del loader
    gc.collect()
    assert len({images.data_ptr() for images, _ in held}) == len(held) == 28
    held[0][0].zero_()  # its own, to write into
    assert all(torch.equal(images, copy) for images, copy in held[1:])


def test_it_goes_on_where_it_stood(numbered: pathlib.Path) -> None:
    loader = _loader(numbered, shuffle=True)
    batches = iter(loader)
    next(batches)
    state, rest = loader.state_dict(), list(batches)
    again = _loader(numbered, shuffle=True)
    again.load_state_dict(state)
    for one, other in zip(rest, again, strict=True):
        assert torch.equal(one[0], other[0])
    ours = _own(numbered, shuffle=True)
    next(iter(ours))
    again.load_state_dict(ours.state_dict())
    for one, other in zip(rest, again, strict=True):
        assert torch.equal(one[0], other[0])


def test_left_midway_nothing_stays(numbered: pathlib.Path) -> None:
    list(_loader(numbered))  # what DALI keeps for ever
    gc.collect()
    threads = len(os.listdir("/proc/self/task"))
    for _ in range(5):
        with _loader(numbered, threads=2) as loader:
            one, other = iter(loader), iter(loader)
            assert next(one)[1].tolist() == next(other)[1].tolist()
            cast("Any", one).close()
        del loader, one, other
    gc.collect()
    end = time.monotonic() + 600
    while len(os.listdir("/proc/self/task")) > threads and time.monotonic() < end:
        time.sleep(0.01)  # threads without work end by and by
    assert len(os.listdir("/proc/self/task")) <= threads


def _damaged(source: pathlib.Path) -> dict[str, bytes]:
    """Images that packing takes, each damaged in another way."""
    jpeg = (source / "people/04.jpg").read_bytes()
    png = (source / "nature/plain.png").read_bytes()
    table = jpeg.index(b"\xff\xc4")  # DHT
    return {
        "cut.jpg": jpeg[: len(jpeg) // 2],  # found before DALI sees it
        "table.jpg": jpeg[: table + 5] + b"\xff" * 16 + jpeg[table + 21 :],  # DALI fails
        "png.png": bytes(
            [*png[: len(png) // 2], 255 - png[len(png) // 2], *png[len(png) // 2 + 1 :]]
        ),
    }


@pytest.fixture
def damaged(tmp_path: pathlib.Path, image_folder: pathlib.Path) -> pathlib.Path:
    """A pack of 25 good images and three bad ones."""
    source = tmp_path / "source"
    for path in image_folder.rglob("*.*"):
        copy = source / path.relative_to(image_folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    for name, data in _damaged(image_folder).items():
        (source / "nature" / name).write_bytes(data)
    return packio.pack(source, tmp_path / "x.tar").out


def _quiet(loader: Any) -> list[Any]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batches = list(loader)
    assert all("replaced by another sample of its batch" in str(w.message) for w in caught)
    return batches


def test_bad_images_are_replaced_and_dali_goes_on(damaged: pathlib.Path, built: list[int]) -> None:
    how: dict[str, Any] = {"shuffle": True, "on_error": "skip", "crop": packio.CenterCrop(200)}
    theirs, ours = _loader(damaged, **how), _own(damaged, **how)
    assert len(packio.open(damaged)) == 28
    made, expected = _quiet(theirs), _quiet(ours)
    assert theirs.replaced == ours.dataset.replaced == 3
    for one, other in zip(made, expected, strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])
    assert 2 <= len(built) <= 3  # begun again for two of them, or one if they met
    before = len(built)
    assert len(_quiet(theirs)) == 4
    assert theirs.replaced == 6
    assert len(built) == before  # they do not come to DALI again


@pytest.mark.parametrize("name", ["cut.jpg", "table.jpg", "png.png"])
def test_a_bad_image_is_named_after_the_batches_before_it(
    name: str, tmp_path: pathlib.Path, image_folder: pathlib.Path
) -> None:
    bad, good = _damaged(image_folder)[name], (image_folder / "people/04.jpg").read_bytes()
    packio.pack([{"image": bad if i == 5 else good} for i in range(9)], tmp_path / "x.tar")
    loader = _loader(tmp_path / "x.tar", batch_size=2, crop=packio.CenterCrop(90))
    for _ in range(2):
        batches = iter(loader)
        assert [len(next(batches)[0]), len(next(batches)[0])] == [2, 2]
        with pytest.raises(DecodeError, match=r"x\.tar, sample 5 "):
            next(batches)


def test_a_good_image_that_dali_refuses_is_decoded_by_packio(
    tmp_path: pathlib.Path, image_folder: pathlib.Path, built: list[int]
) -> None:
    png = (image_folder / "nature/plain.png").read_bytes()
    odd = png[:-13] + bytes([255 - png[-13]]) + png[-12:]  # the last CRC of the pixels
    samples = [{"image": odd if i == 4 else png, "label": i} for i in range(8)]
    packio.pack(samples, tmp_path / "x.tar")
    how: dict[str, Any] = {"batch_size": 2, "crop": packio.CenterCrop(90)}
    loader = _loader(tmp_path / "x.tar", **how)
    for made, own in zip(loader, _own(tmp_path / "x.tar", **how), strict=True):
        assert torch.equal(made[0], own[0])
        assert torch.equal(made[1], own[1])
    assert len(built) == 2
    assert len(list(loader)) == 4
    assert len(built) == 2


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_bytes_that_are_not_those_packed(on_error: str, tmp_path: pathlib.Path) -> None:
    packio.pack(_numbered(), tmp_path / "x.tar")
    damage(tmp_path / "x.tar", 9)
    loader = _loader(tmp_path / "x.tar", on_error=on_error)
    if on_error == "raise":
        batches = iter(loader)
        assert next(batches)[1].tolist() == [0, 1, 2, 3, 4, 5, 6]
        with pytest.raises(IntegrityError, match="record 9 "):
            next(batches)
    else:
        assert [i for _, labels in _quiet(loader) for i in labels.tolist()] == [
            *range(9), 10, *range(10, 25)
        ]  # fmt: skip
        assert loader.replaced == 1


def test_where_all_of_a_batch_is_bad_it_is_raised(
    tmp_path: pathlib.Path, image_folder: pathlib.Path
) -> None:
    data = _damaged(image_folder)["table.jpg"]
    packio.pack([{"image": data, "label": 0}] * 3, tmp_path / "x.tar")
    with pytest.raises(DecodeError, match="sample 0 "):
        list(_loader(tmp_path / "x.tar", on_error="skip"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_error": "ignore"}, "on_error="),
        ({"batch_size": 0}, "batch_size=0"),
        ({"hflip": 2}, "hflip=2"),
        ({"threads": 0}, "threads=0"),
        ({"prefetch_factor": 0}, "prefetch_factor=0"),
        ({"device": "meta"}, "device='meta'"),
        ({"hw_decoder_load": 0.5}, "needs a GPU"),
        ({"crop": packio.Resize(30)}, "one size"),
        ({"crop": packio.Resize((9, 9), interpolation="area")}, "bilinear, bicubic"),
        ({"split": "train"}, "no split"),
        ({"dtype": torch.int8}, "dtype="),
        ({"rank": 3, "world_size": 2}, "rank=3"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    options: dict[str, Any], message: str, numbered: pathlib.Path
) -> None:
    with pytest.raises(OptionError, match=message):
        _loader(numbered, **options)


def test_a_gpu_that_is_not_there(numbered: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for device in ("gpu", "cuda:0"):
        with pytest.raises(OptionError, match="finds no GPU; device='cpu'"):
            _loader(numbered, device=device)


def test_where_dali_is_not_installed(
    numbered: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    with pytest.raises(MissingPackageError, match=r"packio\[dali\]"):
        _loader(numbered)


def test_a_split_of_an_open_pack(tmp_path: pathlib.Path) -> None:
    packio.pack(_numbered(), tmp_path / "x.tar", split={"train": 0.6, "val": 0.4})
    pack = packio.open(tmp_path / "x.tar")
    labels = itertools.chain(*_labels(_loader(pack, split="val")))
    assert list(labels) == pack.split("val").tolist()


@pytest.mark.parametrize("seeds", [(None, None), (7, 8)])
def test_ranks_share_an_order_whatever_their_seeds(
    seeds: Any, numbered: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the process group is made after the loaders."""
    seen = []
    for rank, seed in enumerate(seeds):
        loader = _loader(numbered, seed=seed, shuffle=True)
        monkeypatch.setattr(ranks, "current", lambda rank=rank: (rank, 2))
        seen += [i for _, labels in loader for i in labels.tolist()]
        monkeypatch.undo()
    assert sorted(set(seen)) == list(range(25))
    assert len(seen) == 26
