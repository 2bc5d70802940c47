"""JPEGs whose coefficients are stored open: the same pixels, and the same JPEG back."""

from __future__ import annotations

import io
import random
import struct
from pathlib import Path
from typing import Any

import made
import native_core
import numpy as np
import pytest
import torch
from native_core import kernels
from PIL import Image
from skimage import data as photographs

import packio
from packio.errors import DecodeError, MissingPackageError, OptionError, PackioError
from packio.images import dct, native
from packio.images.decoders import Decoder
from packio.images.encodings import read_facts
from packio.images.frames import Frame
from packio.inspecting.extracting import extract
from packio.inspecting.gallery import write_contact_sheet

__all__ = ["kernels"]

pytestmark = native_core.needed
_COFFEE: Any = photographs.coffee  # untyped
_EXIF = Image.Exif()
_EXIF[0x0112] = 6


def _photo(height: int, width: int) -> Image.Image:
    return Image.fromarray(_COFFEE()).resize((600, 400)).crop((99, 50, 99 + width, 50 + height))


def _jpeg(height: int = 93, width: int = 130, mode: str = "RGB", **options: Any) -> bytes:
    return made.saved(_photo(height, width).convert(mode), "JPEG", **options)


JPEGS = {
    "plain": _jpeg(),
    "rough": _jpeg(quality=10),
    "fine": _jpeg(quality=100, subsampling=0),
    "4:2:2": _jpeg(quality=95, subsampling=1),
    "4:4:4": _jpeg(quality=75, subsampling=0),
    "gray": _jpeg(mode="L", quality=96),
    "optimised": _jpeg(quality=92, optimize=True),
    "restarts": _jpeg(quality=85, restart_marker_blocks=5),
    "restart rows": _jpeg(quality=85, restart_marker_rows=1, subsampling=0),
    "exif": _jpeg(exif=_EXIF.tobytes()),
    "trailing": _jpeg() + b"more \xff\xd9 bytes" * 9,
    "one pixel": _jpeg(1, 1, mode="L"),
    "a column": _jpeg(70, 6, subsampling=0),
    "a row": _jpeg(3, 300),
    "wide": _jpeg(40, 433, quality=97),
}


def _noise() -> bytes:
    """Coefficients beyond eight bits, in all groups."""
    pixels = np.random.default_rng(0).integers(0, 2, (64, 80, 3), np.uint8) * 255
    return made.saved(Image.fromarray(pixels), "JPEG", quality=100, subsampling=0)


JPEGS["noise"] = _noise()
named = pytest.mark.parametrize("name", list(JPEGS))


def _opened(jpeg: bytes) -> bytes:
    data = dct.open_jpeg(jpeg)
    assert data is not None
    return data


def _leave_out_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "why_not", lambda: "it was left out")
    monkeypatch.setattr(dct, "_warn", lambda _: None)


@named
@pytest.mark.usefixtures("kernels")
def test_the_jpeg_comes_back_byte_for_byte(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    jpeg = JPEGS[name]
    data = _opened(jpeg)
    assert data.startswith(dct.MAGIC)
    assert dct.as_jpeg(data) == jpeg
    _leave_out_core(monkeypatch)
    assert dct.as_jpeg(data) == jpeg  # by Python alone, which reads the layout by itself


@named
def test_both_kinds_of_kernels_write_the_same(name: str) -> None:
    found = set()
    for kind in ("AVX2", "portable"):
        with native_core.chosen(kind):
            found.add(_opened(JPEGS[name]))
    assert len(found) == 1


@named
def test_facts_are_those_of_the_jpeg(name: str) -> None:
    facts = read_facts(_opened(JPEGS[name]))
    assert facts == read_facts(JPEGS[name])._replace(encoding="dct")


def test_fewer_than_two_bytes_for_one_of_the_jpeg() -> None:
    sizes = {
        q: (len(_opened(j)), len(j)) for q in (75, 90, 95) if (j := _jpeg(400, 480, quality=q))
    }
    ratios = {quality: opened / closed for quality, (opened, closed) in sizes.items()}
    assert ratios[95] < 1.6
    assert ratios[90] < 1.75
    assert ratios[75] < 2.1


CROPS: dict[str, packio.Crop | None] = {
    "whole": None,
    "center": packio.CenterCrop(40),
    "resized": packio.ResizeCenterCrop(48),
    "bicubic": packio.ResizeCenterCrop(90, interpolation="bicubic"),
    "random": packio.RandomResizedCrop(32),
    "nearest": packio.RandomResizedCrop(32, interpolation="nearest"),
}


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("crop", list(CROPS))
@pytest.mark.parametrize(
    "options", [{}, {"mode": "GRAY"}, {"fidelity": "fast"}, {"hflip": 1.0, "vflip": 0.5}], ids=str
)
def test_pixels_are_those_of_the_jpeg(crop: str, options: dict[str, Any], tmp_path: Path) -> None:
    names = ("gray", "one pixel") if options.get("mode") == "GRAY" else tuple(JPEGS)
    samples = [{"image": JPEGS[name], "key": name} for name in names]
    found = []
    for encode in ("keep", "dct"):
        out = packio.pack(samples, tmp_path / f"{encode}.tar", encode=encode).out
        ds = packio.PackDataset(out, crop=CROPS[crop], seed=5, **options)
        found.append([*ds.gather(range(len(ds)))[0]])
        if "hflip" not in options and "andom" not in repr(CROPS[crop]):  # such draws are new ones
            found[-1] += [ds[i][0] for i in range(len(ds))]
        assert {s.encoding for s in packio.open(out)} == {"jpeg" if encode == "keep" else "dct"}
        assert not ds.declined
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_gray_of_colours_is_declined_and_counted(tmp_path: Path) -> None:
    for encode in ("keep", "dct"):
        out = packio.pack(
            [{"image": JPEGS["plain"]}], tmp_path / f"{encode}.tar", encode=encode
        ).out
        ds = packio.PackDataset(out, crop=packio.CenterCrop(40), mode="GRAY")
        ds.gather([0])
        assert ds.declined == {"kind of JPEG": 1}


def test_pixels_without_the_core_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = packio.pack([{"image": JPEGS["plain"]}], tmp_path / "x.lmdb", encode="dct").out
    crop = packio.ResizeCenterCrop(40)
    wanted = packio.LmdbDataset(out, crop=crop)[0][0]
    monkeypatch.setattr(native, "why_not", lambda: "it was left out")
    dct._warn.cache_clear()
    with pytest.warns(UserWarning, match=r"not here \(it was left out\): Python writes the JPEG"):
        found = packio.LmdbDataset(out, crop=crop)[0][0]
    assert torch.equal(found, wanted)
    assert torch.equal(packio.LmdbDataset(out, crop=crop)[0][0], wanted)  # nobody is warned again


@pytest.mark.parametrize("decoder", ["pillow", "opencv", "simplejpeg"])
def test_other_decoders_get_the_jpeg(decoder: str) -> None:
    jpeg = JPEGS["plain"]
    facts = read_facts(jpeg)
    own = Decoder(decoder)
    pixels = own(_opened(jpeg), facts._replace(encoding="dct"))
    assert np.array_equal(pixels, own(jpeg, facts))
    assert own.fallbacks == 0


def test_views_are_cut_by_themselves(tmp_path: Path) -> None:
    samples = [{"image": _jpeg(380, 500, quality=93)}] * 3
    views = [packio.RandomResizedCrop(96, scale=(0.05, 0.2)) for _ in range(4)]
    found = []
    for encode in ("keep", "dct"):
        out = packio.pack(samples, tmp_path / f"{encode}.lmdb", encode=encode, dedupe="report").out
        ds = packio.LmdbDataset(out, views=views, seed=1)
        found.append([*ds.gather(range(3))[0], *ds.gather([1])[0]])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def _padded_with_zeros() -> bytes:
    """A JPEG whose last byte is filled with zeros, not with ones."""
    for width in range(16, 200):
        jpeg = bytearray(_jpeg(16, width, mode="L"))
        if jpeg[-3] & 1 and jpeg[-3] != 0xFF:
            jpeg[-3] &= 0xFE
            return bytes(jpeg)
    raise AssertionError


LEFT = {
    "progressive": _jpeg(progressive=True),
    "CMYK": _jpeg(mode="CMYK"),
    "padding": _padded_with_zeros(),
    "truncated": _jpeg()[:-700],
    "no EOI": _jpeg()[:-2],
    "PNG": made.saved(_photo(20, 20), "PNG"),
    "nothing": b"",
}


@pytest.mark.parametrize("name", list(LEFT))
def test_what_would_not_come_back_is_left(name: str) -> None:
    assert dct.open_jpeg(LEFT[name]) is None


def test_what_is_left_is_packed_as_it_is_and_counted(tmp_path: Path) -> None:
    names = ("progressive", "CMYK", "padding", "PNG")
    samples = [{"key": n, "image": LEFT[n]} for n in names] + [
        {"key": "ours", "image": JPEGS["plain"]}
    ]
    report = packio.pack(samples, tmp_path / "x.lmdb", encode="dct")
    assert [warning.partition(",")[0] for warning in report.warnings] == [
        "1 images stay as they are", "3 JPEGs stay as they are"
    ]  # fmt: skip
    assert "'progressive'" in report.warnings[1]
    with packio.open(report.out) as pack:
        kept = {sample.key: (sample.encoding, sample.data) for sample in pack}
    assert kept["ours"][0] == "dct"
    assert {n: d for n, (e, d) in kept.items() if e != "dct"} == {n: LEFT[n] for n in names}
    back = packio.convert(report.out, tmp_path / "back.tar", encode="file").out
    wanted = {n: LEFT[n] for n in names} | {"ours": JPEGS["plain"]}
    assert {sample.key: sample.data for sample in packio.open(back)} == wanted


@pytest.mark.usefixtures("kernels")
def test_damage_is_told_or_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    jpeg = JPEGS["restarts"]
    whole, draw = _opened(jpeg), random.Random(0)
    facts = read_facts(jpeg)._replace(encoding="dct")
    refused = 0
    for _ in range(1500):
        data = bytearray(whole)
        for _ in range(draw.choice((1, 1, 3))):
            near = draw.random() < 0.3
            data[draw.randrange(20 if near else len(data))] = draw.randrange(256)
        cut = bytes(data[: draw.choice((len(data), len(data), draw.randrange(len(data))))])
        try:
            assert Decoder("pillow")(cut, facts).shape == (93, 130, 3)
        except PackioError:
            refused += 1
    assert 100 < refused < 1500
    _leave_out_core(monkeypatch)
    for end in (0, 8, 19, 20, 300, len(whole) - 1):
        with pytest.raises(DecodeError):
            dct.as_jpeg(dct.MAGIC[:8] + whole[8:end])


def test_a_place_beyond_the_values_is_refused() -> None:
    """The first place of the first row: behind the head."""
    data = bytearray(_opened(JPEGS["plain"]))
    struct.pack_into("<I", data, 20, 0xFFFFFF00)
    out = np.zeros((3, 40, 40), np.uint8)
    frame = Frame(0, 0, 40, 40, 40, 40, 0, 0, 40, 40)
    facts = read_facts(JPEGS["plain"])
    request = native.request(facts.height, facts.width, (0, 0, 40, 40), frame, out)
    assert native.make(bytes(data), request, 1, b"", native.LAYOUTS["dct"]) == 2


def test_verbs_keep_it_or_give_the_jpeg_back(tmp_path: Path) -> None:
    source = {f"{'ab'[i % 2]}/{i:02}.jpg": jpeg for i, jpeg in enumerate(JPEGS.values())}
    for key, jpeg in source.items():
        (tmp_path / "in" / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / key).write_bytes(jpeg)
    out = packio.pack(tmp_path / "in", tmp_path / "x.tar", encode="dct", shards=2).out
    opened = {s.key: s.data for s in packio.open(out)}
    assert opened == {key: _opened(jpeg) for key, jpeg in source.items()}

    for suffix in (".lmdb", ".h5", ".tfrecord", ".pth", ".rec", ".n5", ".zarr", ".tar"):
        copy = packio.convert(out, tmp_path / f"copy{suffix}").out
        assert {s.key: s.data for s in packio.open(copy)} == opened
        back = packio.convert(copy, tmp_path / f"back{suffix}", encode="file").out
        assert {s.key: (s.encoding, s.data) for s in packio.open(back)} == {
            key: ("jpeg", jpeg) for key, jpeg in source.items()
        }
    assert packio.verify(out, decode=True).ok
    extract(out, tmp_path / "files")
    assert {
        str(p.relative_to(tmp_path / "files")): p.read_bytes()
        for p in (tmp_path / "files").rglob("*.jpg")
    } == source


def test_resizing_makes_new_coefficients(tmp_path: Path) -> None:
    out = packio.pack([{"image": JPEGS["plain"]}], tmp_path / "x.lmdb", encode="dct").out
    small = [
        packio.convert(out, tmp_path / f"{i}.lmdb", resize="short=40", **options).out
        for i, options in enumerate([{}, {"encode": "dct"}, {"encode": "jpeg"}])
    ]
    samples = [packio.open(path)[0] for path in small]
    assert [s.encoding for s in samples] == ["dct", "dct", "jpeg"]
    assert {s.as_file() for s in samples} == {samples[2].data}
    assert samples[0].height == 40


def test_quality_goes_with_resizing_alone(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="quality=50 means nothing where images are kept"):
        packio.pack([{"image": JPEGS["plain"]}], tmp_path / "x.lmdb", encode="dct", quality=50)


def test_packing_needs_the_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "why_not", lambda: "it was left out")
    with pytest.raises(MissingPackageError, match=r"encode='dct'.*it was left out"):
        packio.pack([{"image": JPEGS["plain"]}], tmp_path / "x.lmdb", encode="dct")


def test_levels_and_boxes_go_with_it(tmp_path: Path) -> None:
    samples = [{"image": _jpeg(400, 600), "boxes": [[1.0, 2.0, 30.0, 40.0]]}]
    found = []
    for encode in ("keep", "dct"):
        out = packio.pack(samples, tmp_path / f"{encode}.tar", encode=encode, levels=1,
                          levels_crop=64).out  # fmt: skip
        ds = packio.PackDataset(out, crop=packio.RandomResizedCrop(64), fidelity="fast", seed=2,
                                fields=("image", "boxes"))  # fmt: skip
        assert list(ds.pack.levels) == [4]
        images, boxes = ds.gather([0, 0])
        found.append([*images, *boxes])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_other_programs_are_shown_a_jpeg(tmp_path: Path) -> None:
    out = packio.pack([{"image": JPEGS["exif"]}], tmp_path / "x.lmdb", encode="dct").out
    sample = packio.open(out)[0]
    assert sample.orientation == 6
    assert packio.decode(sample.data).shape == packio.decode(JPEGS["exif"]).shape
    assert Image.open(io.BytesIO(sample.as_file())).size == (130, 93)
    write_contact_sheet(out, tmp_path / "sheet.html")
    assert "data:image/jpeg;base64" in (tmp_path / "sheet.html").read_text()


def test_only_images_with_open_coefficients_become_jpegs(tmp_path: Path) -> None:
    """A field of bytes may begin as such an image does, and pixels that are raw, too."""
    pixels = np.frombuffer(dct.MAGIC + bytes(4), np.uint8).reshape(1, 4, 3)
    for number, (encode, blob) in enumerate((("keep", b"my own"), ("dct", b""))):
        samples = [{"key": "a.jpg", "image": JPEGS["plain"], "blob": dct.MAGIC + blob}]
        out = packio.pack(samples, tmp_path / f"{number}.lmdb", encode=encode).out
        extract(out, tmp_path / f"{number}")
        assert (tmp_path / f"{number}" / "a.blob.bin").read_bytes() == dct.MAGIC + blob
        assert (tmp_path / f"{number}" / "a.jpg").read_bytes() == JPEGS["plain"]
    out = packio.pack([{"key": "a.raw", "image": pixels}], tmp_path / "raw.lmdb", encode="raw").out
    (sample,) = packio.open(out)
    assert sample.as_file() == sample.data
    assert sorted(sample.data) == sorted(pixels.tobytes())


def test_a_damaged_sample_is_named(tmp_path: Path) -> None:
    data = bytearray(_opened(JPEGS["plain"]))
    data[20:24] = b"\xff" * 4  # where the first row begins
    out = packio.pack([{"key": "the one.jpg", "image": bytes(data)}], tmp_path / "x.lmdb").out
    with pytest.raises(PackioError, match=r"the one\.jpg.*damaged"):
        extract(out, tmp_path / "files")
    assert not packio.verify(out, decode=True).ok
