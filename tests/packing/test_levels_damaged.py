"""Damaged levels: a pack that is made of another one loses no image for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

import packio
from packio import registry
from packio.errors import BadImagesError

if TYPE_CHECKING:
    from pathlib import Path

FORMATS = [n for n in registry.names("formats") if registry.load("formats", n).caps.writes]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images") / "all"
    (folder / "a").mkdir(parents=True)
    draws = np.random.default_rng(7)
    for number in range(4):
        pixels = draws.integers(0, 255, (300, 300, 3)).astype(np.uint8)
        Image.fromarray(pixels).resize((240, 240)).save(folder / "a" / f"{number}.jpg")
    return folder


def _damaged(path: Path, numbers: list[int]) -> None:
    """Change a byte of level 2 of some samples of a pack of one file."""
    with packio.open(path) as pack:
        fields = [pack.read_field("image_div2", number) for number in numbers]
    content = bytearray(path.read_bytes())
    for data in fields:
        assert data is not None
        assert content.count(data) == 1
        middle = content.index(data) + len(data) // 2
        content[middle] ^= 0xFF
    path.write_bytes(content)


def _levels(path: Path) -> list[bytes | None]:
    with packio.open(path) as pack:
        return [pack.read_field("image_div2", i) for i in range(len(pack))]


@pytest.fixture
def pack(folder: Path, tmp_path: Path) -> Path:
    out = packio.pack(folder, tmp_path / "a.tar", levels=1, levels_crop=64).out
    _damaged(out, [1, 3])
    return out


@pytest.mark.parametrize("name", FORMATS)
def test_the_images_stay_and_the_levels_are_made_anew(
    name: str, pack: Path, folder: Path, tmp_path: Path
) -> None:
    sound = packio.pack(folder, tmp_path / "sound.tar", levels=1, levels_crop=64).out
    made = packio.convert(pack, tmp_path / f"out.{name}", format=name, on_error="skip")
    assert (made.packed, made.skipped) == (4, ())
    assert [w for w in made.warnings if w.startswith("2 levels of the source are damaged")]
    assert _levels(made.out) == _levels(sound)


def test_check_decode_leaves_out_a_level_that_is_no_image(folder: Path, tmp_path: Path) -> None:
    packio.pack(folder, tmp_path / "a.tar", levels=1, levels_crop=64)
    with packio.open(tmp_path / "a.tar") as pack:
        data = pack.read_field("image_div2", 2)
    assert data is not None
    content = (tmp_path / "a.tar").read_bytes()
    place = content.index(data)
    cut = data[:700] + bytes(len(data) - 700)
    (tmp_path / "b.tar").write_bytes(content[:place] + cut + content[place + len(data) :])
    made = packio.convert(tmp_path / "b.tar", tmp_path / "c.tar", on_error="skip", check="decode")
    assert made.packed == 4
    assert made.skipped == ()


def test_a_damaged_level_is_an_error_unless_damage_is_left_out(pack: Path, tmp_path: Path) -> None:
    with pytest.raises(BadImagesError, match="image_div2"):
        packio.convert(pack, tmp_path / "b.tar")


def test_a_damaged_image_is_left_out_with_its_levels(pack: Path, tmp_path: Path) -> None:
    with packio.open(pack) as opened:
        data = opened.read(opened.row(1))
    content = bytearray(pack.read_bytes())
    content[content.index(data) + len(data) // 2] ^= 0xFF
    pack.write_bytes(content)
    made = packio.convert(pack, tmp_path / "b.tar", on_error="skip")
    assert (made.packed, len(made.skipped)) == (3, 1)


def test_a_pack_that_is_appended_keeps_the_images(pack: Path, tmp_path: Path) -> None:
    (tmp_path / "more" / "a").mkdir(parents=True)
    Image.new("RGB", (9, 9)).save(tmp_path / "more" / "a" / "x.jpg")
    out = packio.pack(tmp_path / "more", tmp_path / "grown", format="tar", shard_size="1MB").out
    report = packio.append(out, pack, on_error="skip")
    assert (report.added, report.skipped) == (4, 0)  # it has no levels, and reads none
