"""Levels of images as packing stores them: which, of which pixels, in every format and verb."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import random
import tarfile
from pathlib import Path
from typing import Any

import latents
import made
import numpy as np
import pytest
from cli_runs import run
from PIL import Image
from skimage import data as photographs

import packio
from packio.errors import BadImagesError, OptionError, OutputExistsError
from packio.inspecting.extracting import extract
from packio.packing import dry_run
from packio.packing.images.levels import Levels
from packio.sample.record import UNKNOWN, Facts

_ORIENTATION = 0x0112


def _photo(width: int, height: int) -> Image.Image:
    pixels = photographs.astronaut()  # type: ignore[no-untyped-call]  # skimage
    return Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC)


def _saved(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    return made.saved(image, kind, **({"quality": 92} if kind == "JPEG" else {}), **options)


def _write(folder: Path, names: str = "ab", first: int = 0) -> Path:
    """Images of odd sizes, one turned by Exif, one too small for levels of crops of 64."""
    exif = Image.Exif()
    exif[_ORIENTATION] = 6
    each: list[dict[str, Any]] = [{}, {"exif": exif}, {"subsampling": "4:4:4"}, {}]
    sizes = [(401, 303), (333, 399), (257, 230), (100, 90)]
    for name in names:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number, (size, options) in enumerate(zip(sizes, each, strict=True), first):
            image = _photo(*size).rotate(number)
            (folder / name / f"{number}.jpg").write_bytes(_saved(image, **options))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write(tmp_path_factory.mktemp("images") / "all")


def _levels(path: Path) -> list[dict[int, bytes]]:
    """Divisor → bytes of the levels of each sample, in the order of the keys."""
    with packio.open(path) as pack:
        found = {
            pack.key(i): {d: data for d, name in pack.levels.items()
                          if (data := pack.read_field(name, i)) is not None}
            for i in range(len(pack))
        }  # fmt: skip
    return [found[key] for key in sorted(found)]


def _expected(height: int, width: int, crop: int, count: int) -> list[int]:
    """Halve until the short side would be below 1.4 times the crop; take the last ones."""
    halvings = [64, 32, 16, 8, 4, 2]
    return [d for d in halvings if min(height, width) / d / crop >= 2**0.5][:count]


@pytest.mark.parametrize("crop", [1, 64, 224])
@pytest.mark.parametrize("count", [0, 1, 2, 6])
@pytest.mark.parametrize(
    "size", [(3024, 4032), (375, 500), (633, 2000), (634, 634), (2535, 4000), (1, 9)]
)
def test_the_smallest_levels_that_a_crop_needs(
    size: tuple[int, int], count: int, crop: int
) -> None:
    facts = UNKNOWN._replace(encoding="jpeg", height=size[0], width=size[1], channels=3)
    assert Levels(count, crop=crop).divisors(facts) == _expected(*size, crop, count)


def _share(height: int, width: int, crop: int, divisors: list[int]) -> dict[int, float]:
    """Which level random resized crops take, as torchvision describes them."""
    draw, taken = random.Random(0), dict.fromkeys([1, *divisors], 0)
    for _ in range(4000):
        while True:
            area = height * width * draw.uniform(0.08, 1)
            ratio = np.exp(draw.uniform(np.log(3 / 4), np.log(4 / 3)))
            w, h = (area * ratio) ** 0.5, (area / ratio) ** 0.5
            if w <= width and h <= height:
                break
        fit = [d for d in divisors if min(h, w) / crop >= 1.1 * d]
        taken[max(fit, default=1)] += 1
    return {divisor: count / 4000 for divisor, count in taken.items()}


@pytest.mark.parametrize(
    "size", [(3024, 4032), (1500, 2000), (720, 1280), (700, 700), (640, 4000), (375, 500)]
)
def test_auto_takes_levels_that_pay(size: tuple[int, int]) -> None:
    facts = UNKNOWN._replace(encoding="jpeg", height=size[0], width=size[1], channels=3)
    every = _expected(*size, 224, 6)
    shares = _share(*size, 224, every)
    chosen = Levels("auto").divisors(facts)
    for divisor in every:
        worth = shares[divisor] * divisor**2 / 2
        if not 0.85 < worth < 1.15:  # nearer than random numbers tell
            assert (divisor in chosen) == (worth > 1), (divisor, shares)
    assert set(chosen) <= set(every)


@pytest.mark.parametrize(
    ("changed", "has_some"),
    [
        ({}, True),
        ({"channels": 1}, True),
        ({"encoding": "png"}, True),
        ({"channels": 4}, False),
        ({"dtype": "uint16"}, False),
        ({"encoding": "raw"}, False),
    ],
)
def test_images_of_other_kinds_have_none(changed: dict[str, Any], has_some: bool) -> None:
    facts = Facts("jpeg", 900, 900, 3, "uint8", 1, progressive=False)._replace(**changed)
    assert bool(Levels(2).divisors(facts)) == has_some


@pytest.mark.parametrize("name", latents.FORMATS)
def test_levels_lie_beside_images_in_every_format(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACKIO_CACHE_DIR", str(tmp_path / "cache"))
    out = tmp_path / f"x{latents.suffix(name)}"
    plain = packio.pack(folder, tmp_path / f"plain{out.suffix}").out
    report = packio.pack(folder, out, levels=6, levels_crop=64)
    assert packio.verify(out, decode=True, structure="always").ok
    with packio.open(out) as pack, packio.open(plain) as before:
        assert pack.levels == {2: "image_div2"}
        assert pack.metadata["recipe"]["levels"] == {"count": 6, "quality": 85, "crop": 64}
        for i in range(len(pack)):
            sample = pack[i]
            assert sample.data == before[i].data
            assert not sample.fields
            wanted = _expected(sample.height, sample.width, 64, 6)
            for divisor in (2, 4):
                field = f"image_div{divisor}"
                data = pack.read_field(field, i) if field in pack.fields else None
                assert (data is not None) == (divisor in wanted)
                if data is not None:
                    _check_level(data, sample, divisor, pack.facts(field, i))
    assert packio.pack(folder, out, levels=6, levels_crop=64).up_to_date
    with pytest.raises(OutputExistsError):
        packio.pack(folder, out, levels=1, levels_crop=64)
    index = next(p for p in (Path(f"{out}.packio"), out / "index.packio") if p.exists())
    index.unlink()
    packio.reindex(out)
    assert _levels(out) == _levels(packio.pack(folder, tmp_path / "y.tar", levels=6,
                                               levels_crop=64).out)  # fmt: skip
    assert report.packed == 8


def _check_level(data: bytes, sample: packio.Sample, divisor: int, facts: Facts) -> None:
    """Compare with means of the image's pixels; bicubic pixels are near them."""
    with Image.open(io.BytesIO(data)) as level, Image.open(io.BytesIO(sample.data)) as image:
        assert level.format == "JPEG"
        assert (level.width, level.height) == (
            -(-sample.width // divisor), -(-sample.height // divisor)
        )  # fmt: skip
        assert level.getexif().get(_ORIENTATION, 1) == sample.orientation == facts.orientation
        assert b"\xff\xdd" in data  # restart markers
        assert not facts.progressive
        means = np.asarray(image.reduce(divisor), np.int16)
        whole = np.asarray(level.convert(image.mode), np.int16)
        high, broad = sample.height // divisor, sample.width // divisor
        assert np.abs(whole[:high, :broad] - means[:high, :broad]).mean() < 5
        moved = np.abs(whole[1:high, 1:broad] - means[: high - 1, : broad - 1]).mean()
        assert np.abs(whole[:high, :broad] - means[:high, :broad]).mean() < moved / 2


def test_other_readers_find_levels_in_a_tar(folder: Path, tmp_path: Path) -> None:
    packio.pack(folder, tmp_path / "x.tar", levels=2, levels_crop=64)
    with tarfile.open(tmp_path / "x.tar") as tar:
        names = [member.name for member in tar if member.name.endswith("0.image_div2.jpg")]
        file = tar.extractfile(names[0])
        assert file is not None
        with Image.open(file) as image:
            assert image.size == (201, 152)


def test_append_makes_the_levels_of_the_recipe(tmp_path: Path) -> None:
    source, out = _write(tmp_path / "all", "a"), tmp_path / "x.tar"
    packio.pack(source, out, shards=2, levels=1, levels_crop=64, levels_quality=70)
    _write(source, "b", first=10)
    assert packio.append(out, source).added == 4
    assert packio.append(out, source).added == 0
    assert packio.verify(out).ok
    once = packio.pack(source, tmp_path / "y.tar", levels=1, levels_crop=64, levels_quality=70).out
    assert _levels(out) == _levels(once)
    more = packio.pack(_write(tmp_path / "more", "c", first=20), tmp_path / "m.tar",
                       levels=2, levels_crop=32).out  # fmt: skip
    assert packio.append(out, more).added == 4  # out of a pack that has others
    with packio.open(out) as pack:
        assert list(pack.levels) == [2]


def test_convert_keeps_makes_and_drops(folder: Path, tmp_path: Path) -> None:
    a = packio.pack(folder, tmp_path / "a.tar", levels=2, levels_crop=64).out
    kept = packio.convert(a, tmp_path / "kept.h5").out
    assert _levels(kept) == _levels(a)
    assert packio.open(kept).metadata["recipe"] == packio.open(a).metadata["recipe"]
    dropped = packio.convert(a, tmp_path / "dropped.tar", levels=0).out
    assert not packio.open(dropped).fields.keys() - {"image"}
    assert "levels" not in packio.open(dropped).metadata["recipe"]
    added = packio.convert(dropped, tmp_path / "added.tar", levels=2, levels_crop=64).out
    assert _levels(added) == _levels(a)
    other = packio.convert(a, tmp_path / "other.tar", levels=1, levels_crop=64,
                           levels_quality=20).out  # fmt: skip
    directly = packio.pack(folder, tmp_path / "d.tar", levels=1, levels_crop=64, levels_quality=20)
    assert _levels(other) == _levels(directly.out)


@pytest.fixture
def damaged(folder: Path, tmp_path: Path) -> Path:
    """A pack of eight images, two of whose levels are damaged."""
    out = packio.pack(folder, tmp_path / "damaged.tar", levels=2, levels_crop=64).out
    for number in (1, 5):
        made.damage(out, number, "image_div2")
    return out


@pytest.mark.parametrize("count", [0, 1])
def test_a_damaged_level_costs_no_image_if_levels_are_made_anew(
    damaged: Path, folder: Path, tmp_path: Path, count: int
) -> None:
    assert len(packio.verify(damaged).damages) == 2
    with pytest.raises(BadImagesError, match="image_div"):
        packio.convert(damaged, tmp_path / "kept.tar")
    out = packio.convert(damaged, tmp_path / "b.tar", levels=count, levels_crop=64)
    anew = packio.pack(folder, tmp_path / "c.tar", levels=count, levels_crop=64)
    assert out.packed == anew.packed
    assert _levels(out.out) == _levels(anew.out)
    assert packio.verify(out.out).ok


@pytest.mark.parametrize("name", latents.FORMATS)
def test_damaged_levels_are_made_anew_where_damage_is_left_out(
    name: str, damaged: Path, folder: Path, tmp_path: Path
) -> None:
    sound = packio.pack(folder, tmp_path / "sound.tar", levels=2, levels_crop=64).out
    report = packio.convert(damaged, tmp_path / f"out.{name}", format=name, on_error="skip")
    assert (report.packed, report.skipped) == (8, ())
    assert [w for w in report.warnings if w.startswith("2 levels of the source are damaged")]
    assert _levels(report.out) == _levels(sound)


def test_check_decode_leaves_out_a_level_that_is_no_image(folder: Path, tmp_path: Path) -> None:
    out = packio.pack(folder, tmp_path / "a.tar", levels=2, levels_crop=64).out
    with packio.open(out) as pack:
        data = pack.read_field("image_div2", 2)
    assert data is not None
    cut = data[:700] + bytes(len(data) - 700)
    (tmp_path / "b.tar").write_bytes(out.read_bytes().replace(data, cut))
    report = packio.convert(tmp_path / "b.tar", tmp_path / "c.tar", on_error="skip", check="decode")
    assert (report.packed, report.skipped) == (8, ())


def test_a_damaged_image_is_left_out_with_its_levels(damaged: Path, tmp_path: Path) -> None:
    made.damage(damaged, 1)
    report = packio.convert(damaged, tmp_path / "b.tar", on_error="skip")
    assert (report.packed, len(report.skipped)) == (7, 1)


def test_a_pack_that_is_appended_keeps_the_images_of_damaged_levels(
    damaged: Path, tmp_path: Path
) -> None:
    out = packio.pack(_write(tmp_path / "more", "c"), tmp_path / "grown.tar", shards=2).out
    report = packio.append(out, damaged, on_error="skip")
    assert (report.added, report.skipped) == (8, 0)  # it has no levels, and reads none


def test_levels_follow_an_image_that_is_encoded_anew(folder: Path, tmp_path: Path) -> None:
    a = packio.pack(folder, tmp_path / "a.tar", levels=2, levels_crop=64).out
    options: dict[str, Any] = {"encode": "jpeg", "resize": "short=200", "orientation": "bake"}
    small = packio.convert(a, tmp_path / "small.tar", **options).out
    plain = packio.pack(folder, tmp_path / "b.tar", levels=2, levels_crop=64, **options).out
    assert _levels(small) == _levels(plain)
    assert any(_levels(small))


def test_merged_packs_have_the_levels_that_they_had(tmp_path: Path) -> None:
    a = packio.pack(_write(tmp_path / "1", "a"), tmp_path / "a.tar", levels=2, levels_crop=64,
                    shards=2).out  # fmt: skip
    b = packio.pack(_write(tmp_path / "2", "b"), tmp_path / "b.tar", shards=2).out
    c = packio.pack(_write(tmp_path / "3", "c"), tmp_path / "c.tar", levels=2, levels_crop=64).out
    mixed = packio.merge(tmp_path / "mixed.tar", [a, b]).out
    assert _levels(mixed) == _levels(a) + _levels(b)
    assert packio.verify(mixed).ok
    assert packio.open(mixed).metadata["recipe"]["is_mixed"]
    alike = packio.merge(tmp_path / "alike.tar", [a, c]).out
    assert _levels(alike) == _levels(a) + _levels(c)
    assert packio.open(alike).metadata["recipe"]["levels"]["count"] == 2
    all_of_them = packio.merge(tmp_path / "all.tar", [a, b], levels=2, levels_crop=64).out
    assert all(_levels(all_of_them)[i] for i in (0, 1, 2, 4, 5, 6))


def test_extract_leaves_levels_out_unless_they_are_named(folder: Path, tmp_path: Path) -> None:
    a = packio.pack(folder, tmp_path / "a.tar", levels=2, levels_crop=64).out
    extract(a, tmp_path / "plain")
    found = sorted(
        str(p.relative_to(tmp_path / "plain")) for p in (tmp_path / "plain").rglob("*.*")
    )
    assert found == sorted(str(p.relative_to(folder)) for p in folder.rglob("*.*"))
    extract(a, tmp_path / "all", fields=["image", "image_div2", "label"])
    level = tmp_path / "all" / "a" / "0.image_div2.jpg"
    assert level.read_bytes() == _levels(a)[0][2]
    again = packio.pack(tmp_path / "all", tmp_path / "again.tar").out
    assert [each.get(2) for each in _levels(again)] == [each.get(2) for each in _levels(a)]


def test_a_bad_image_is_told_and_left_out(tmp_path: Path) -> None:
    source = _write(tmp_path / "all", "a")
    bad = source / "a" / "0.jpg"
    bad.write_bytes(bad.read_bytes()[:9000])
    with pytest.raises(BadImagesError, match=r"a/0\.jpg: levels: Pillow"):
        packio.pack(source, tmp_path / "x.tar", levels=2, levels_crop=64)
    report = packio.pack(source, tmp_path / "x.tar", levels=2, levels_crop=64, on_error="skip")
    assert [os.fsdecode(skip.key) for skip in report.skipped] == ["a/0.jpg"]


def test_kinds_of_pixels(tmp_path: Path) -> None:
    photo = _photo(301, 302)
    clear = photo.convert("RGBA")
    clear.putalpha(200)
    images = {
        "jpeg": _saved(photo), "progressive": _saved(photo, progressive=True),
        "gray": _saved(photo.convert("L")), "png": _saved(photo, "PNG"),
        "webp": _saved(photo, "WEBP"), "cmyk": _saved(photo.convert("CMYK")),
        "palette": _saved(photo.convert("P"), "PNG"), "clear": _saved(clear, "PNG"),
        "wide": _saved(Image.fromarray(np.zeros((301, 302), np.uint16)), "PNG"),
    }  # fmt: skip
    rows = [{"key": f"{name}.x", "image": data} for name, data in images.items()]
    out = packio.pack(rows, tmp_path / "x.lmdb", levels=1, levels_crop=64).out
    found = dict(zip(sorted(images), _levels(out), strict=True))
    assert {name for name, each in found.items() if each} == {
        "jpeg", "progressive", "gray", "png", "webp"
    }  # fmt: skip
    with Image.open(io.BytesIO(found["gray"][2])) as gray:
        assert gray.mode == "L"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"levels": 7}, "levels=7: expected 'auto', or a number up to 6"),
        ({"levels": -1}, "levels=-1"),
        ({"levels": "two"}, "levels='two'"),
        ({"levels": True}, "levels=True"),
        ({"levels": 2, "levels_quality": 101}, "levels_quality=101"),
        ({"levels": 2, "levels_crop": 0}, "levels_crop=0"),
        ({"levels": "auto", "encode": "raw"}, "levels='auto' with encode='raw'"),
        ({"levels_quality": 80}, "levels_quality=80: needs levels='auto'"),
    ],
)
def test_values_that_make_no_sense(
    options: dict[str, Any], message: str, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=message):
        packio.pack(folder, tmp_path / "x.tar", **options)


def test_no_field_of_a_user_has_the_name_of_a_level(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="names a level"):
        packio.pack(folder, tmp_path / "x.tar", fields={"image_div2": "depth"})


def test_a_dry_run_says_what_levels_cost(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.tar"
    found = dry_run(folder, out, levels=2, levels_crop=64).levels
    assert found is not None
    assert dry_run(folder, out).levels is None
    stored = _levels(packio.pack(folder, out, levels=2, levels_crop=64).out)
    assert found.images == sum(map(bool, stored)) == 6
    size = sum(len(data) for each in stored for data in each.values())
    assert abs(found.bytes - size) <= 8  # rounded
    images = sum(path.stat().st_size for path in folder.rglob("*.jpg"))
    assert found.share == pytest.approx(size / images)
    assert not dataclasses.asdict(dry_run(folder, out, levels=0))["levels"]


def test_the_command_line(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.tar"
    options = [str(folder), str(out), "--levels", "2", "--levels-crop", "64"]
    told = run("pack", *options, "--dry-run")
    assert told.returncode == 0, told.stderr
    assert "levels 2: 6 of 8 images" in told.stdout
    told = run("pack", *options, "--dry-run", "--json")
    assert json.loads(told.stdout)["levels"]["images"] == 6
    assert run("pack", *options, "--quiet").returncode == 0
    kept = run("convert", str(out), str(tmp_path / "y.lmdb"), "--levels", "0", "--quiet")
    assert kept.returncode == 0, kept.stderr
    assert any(_levels(out))
    assert not any(_levels(tmp_path / "y.lmdb"))
    assert run("pack", *options[:2], "--levels", "few").returncode == 2


def test_a_pack_where_no_image_got_a_level_says_so(folder: Path, tmp_path: Path) -> None:
    none = packio.pack(folder, tmp_path / "none.tar", levels=2, levels_crop=500)
    assert [line for line in none.warnings if "no image got a level" in line] == [*none.warnings]
    (line,) = none.warnings
    assert "a short side of 1415 pixels (levels_crop=500)" in line  # sqrt(2) * 2 * 500 = 1414.2
    assert packio.pack(folder, tmp_path / "some.tar", levels=2, levels_crop=64).warnings == ()
    assert packio.pack(folder, tmp_path / "unasked.tar").warnings == ()
    assert packio.pack(folder, tmp_path / "zero.tar", levels=0).warnings == ()
