"""The contact sheet, looked at in a real browser: it shows, filters, pages, and runs nothing."""

from __future__ import annotations

import base64
import io
import json
import os
import pathlib
import re
import shutil
from typing import TYPE_CHECKING, Any

import browsing
import made
import numpy as np
import pytest
from cli_runs import run
from PIL import Image, ImageOps

import packio
from packio.errors import OptionError, OutputError, OutputExistsError
from packio.images.encodings import read_facts
from packio.inspecting.gallery import make_thumbnail, write_contact_sheet

if TYPE_CHECKING:
    from collections.abc import Iterator

_HOSTILE = (
    b"hostile/<img src=x onerror=document.title='pwned'>.png",
    b"hostile/</script><script>document.title='pwned'</script>.png",
    b"hostile/--><script>document.title='pwned'</script><!--.png",
    b"hostile/%%DATA%%.png",
    b"hostile/bad\xff.png",
)

needs_driver = pytest.mark.skipif(
    not (browsing.CHROMIUM and browsing.DRIVER), reason="no chromedriver"
)


def _flat(colour: tuple[int, int, int], height: int = 12, width: int = 16) -> np.ndarray:
    return np.full((height, width, 3), colour, np.uint8)


def _files() -> dict[bytes, bytes]:
    """Twelve dozen images in three classes, among them one that breaks off and hostile names."""
    files = {b"red/%03d.png" % i: made.saved(_flat((200, 0, 0))) for i in range(70)}
    files |= {b"green/%03d.png" % i: made.saved(_flat((0, 200, 0))) for i in range(65)}
    files |= {name: made.saved(_flat((0, 0, 200))) for name in _HOSTILE}
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, "JPEG")
    files[b"green/broken.jpg"] = file.getvalue()[:-2000]
    ramp = np.linspace(1000, 3000, 40).astype(np.uint16)
    files[b"green/sixteen.png"] = made.saved(np.tile(ramp, (20, 1)))
    exif = Image.Exif()
    exif[0x112] = 6  # to be turned clockwise: its left side is then on top
    half = np.concatenate((_flat((255, 255, 255), 40, 40), _flat((0, 0, 0), 40, 40)), axis=1)
    files[b"green/turned.jpg"] = made.saved(half, "JPEG", exif=exif, quality=95)
    return files


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    root = tmp_path_factory.mktemp("view")
    for key, data in _files().items():
        path = os.path.join(os.fsencode(root), b"source", key)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
    packio.pack(root / "source", root / "view.lmdb")
    return root / "view.lmdb"


@pytest.fixture(scope="module")
def sheet(pack: pathlib.Path) -> pathlib.Path:
    path = pack.with_name("sheet.html")
    report = write_contact_sheet(pack, path)
    assert (report.shown, report.samples, report.broken) == (143, 143, 1)
    return path


def _data(sheet: pathlib.Path) -> list[dict[str, Any]]:
    """What the sheet knows of its samples, read as a browser would find it."""
    match = re.search(
        r'<script type="application/json" id="data">(.*?)</script>', sheet.read_text()
    )
    assert match
    samples: list[dict[str, Any]] = json.loads(match[1])["samples"]
    return samples


def _pixels(sample: dict[str, Any]) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(sample["thumbnail"]))).convert("RGB"))


def test_the_sheet_needs_no_other_file(sheet: pathlib.Path) -> None:
    text = sheet.read_text("utf-8")
    assert text.startswith("<!doctype html>")
    for tag, where in re.findall(r"<(\w+)[^>]*?\b(?:src|href)=[\"']?([^\"' >]*)", text):
        assert where.startswith("data:"), f"<{tag}> refers to {where}"
    assert not re.findall(r"https?:|@import|url\(", text)


def test_the_same_pack_gives_the_same_sheet(sheet: pathlib.Path, tmp_path: pathlib.Path) -> None:
    write_contact_sheet(sheet.with_name("view.lmdb"), tmp_path / "again.html")
    assert (tmp_path / "again.html").read_bytes() == sheet.read_bytes()


def test_a_broken_image_has_its_error_and_no_thumbnail(sheet: pathlib.Path) -> None:
    broken = [s for s in _data(sheet) if s["thumbnail"] is None]
    assert [s["key"] for s in broken] == ["green/broken.jpg"]
    assert "truncated" in broken[0]["error"]


def test_thumbnails_show_the_images(sheet: pathlib.Path) -> None:
    by_key = {s["key"]: s for s in _data(sheet)}
    assert abs(_pixels(by_key["red/000.png"]).astype(int) - (200, 0, 0)).max() < 8
    turned = _pixels(by_key["green/turned.jpg"])
    assert turned.shape[0] > turned.shape[1]
    assert turned[5].mean() > 240
    assert turned[-5].mean() < 15
    sixteen = _pixels(by_key["green/sixteen.png"])[10].mean(axis=-1)
    assert sixteen[0] < 15
    assert sixteen[-1] > 240
    assert (np.diff(sixteen) >= -3).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_is_turned_as_pillow_turns_it(orientation: int) -> None:
    quarters = np.zeros((40, 60, 3), np.uint8)
    quarters[:20, :30], quarters[:20, 30:], quarters[20:, :30] = 255, 170, 85
    exif = Image.Exif()
    exif[0x112] = orientation
    file = io.BytesIO()
    Image.fromarray(quarters).save(file, "JPEG", quality=95, exif=exif)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(file)), int)
    data = file.getvalue()
    made = np.asarray(Image.open(io.BytesIO(make_thumbnail(data, 64, read_facts(data)))), int)
    assert made.shape == expected.shape
    assert np.abs(made - expected).mean() < 3


def test_a_limit_spreads_the_samples_over_all_classes(
    pack: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    report = write_contact_sheet(pack, tmp_path / "a.html", limit=40)
    assert (report.shown, report.samples) == (40, 143)
    assert {s["key"].split("/")[0] for s in _data(tmp_path / "a.html")} == {
        "red", "green", "hostile",
    }  # fmt: skip


def test_only_the_class_asked_for_is_shown(pack: pathlib.Path, tmp_path: pathlib.Path) -> None:
    report = write_contact_sheet(pack, tmp_path / "a.html", classes=["red"], size=32)
    assert report.shown == 70
    assert all(s["key"].startswith("red/") for s in _data(tmp_path / "a.html"))
    with pytest.raises(OptionError, match="green"):
        write_contact_sheet(pack, tmp_path / "b.html", classes=["gren"])


def test_a_damaged_pack_is_shown_with_its_damage(
    pack: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    copy = pathlib.Path(shutil.copytree(pack, tmp_path / "copy.lmdb"))
    made.damage(copy, 20)
    assert write_contact_sheet(copy, tmp_path / "a.html").broken == 2
    assert "CRC32C" in _data(tmp_path / "a.html")[20]["error"]


def test_a_file_that_is_no_page_is_not_replaced(pack: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with pytest.raises(OutputExistsError):
        write_contact_sheet(pack, pack / "data.mdb")
    with pytest.raises(OutputError):
        write_contact_sheet(pack, tmp_path)
    with pytest.raises(OutputError):
        write_contact_sheet(pack, tmp_path / "no" / "a.html")


def test_the_command_writes_a_sheet(pack: pathlib.Path, tmp_path: pathlib.Path) -> None:
    done = run("view", pack, "--class", "red", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "view.lmdb.html: 70 of 70 samples" in done.stdout
    assert len(_data(tmp_path / "view.lmdb.html")) == 70


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browsing.Browser]:
    with browsing.running(tmp_path_factory.mktemp("profile")) as made:
        yield made


_TILES = "[...document.querySelectorAll('[data-at]')].map(tile => tile.title)"


@needs_driver
def test_typing_and_choosing_filter(sheet: pathlib.Path, browser: browsing.Browser) -> None:
    browser.go("about:blank")
    browser.go(sheet.as_uri())
    browser.press(browsing.RIGHT, "/", "0", "0", "3")
    browser.expect(_TILES, ["green/003.png", "red/003.png"])
    browser.click("#class option[value='2']")
    browser.expect(_TILES, ["red/003.png"])
    browser.click("#class option[value='broken']")
    browser.expect(_TILES, [])
    browser.expect("document.getElementById('empty').checkVisibility()", True)


@needs_driver
def test_nothing_in_a_key_is_executed_and_every_thumbnail_loads(
    sheet: pathlib.Path, browser: browsing.Browser
) -> None:
    shown = [name.decode("utf-8", "backslashreplace") for name in _HOSTILE]
    enlarged = next(s["index"] for s in _data(sheet) if s["key"] == shown[0])
    loaded = "[...document.images].map(i => i.src.startsWith('data:image/jpeg;base64,') && "
    loaded += "i.complete && i.naturalWidth > 0)"
    for state in ("q=hostile/", f"q=hostile/&sample={enlarged}"):
        browser.go("about:blank")
        browser.go(f"{sheet.as_uri()}#{state}")
        browser.expect(f"{_TILES}.sort()", sorted(shown))
        browser.expect(f"{loaded}.slice(0, {len(shown)})", [True] * len(shown))
        browser.expect("document.scripts.length", 2)
        browser.expect("document.title", "view.lmdb")
    browser.expect("document.querySelector('#large[open] dd').textContent", shown[0])


@pytest.mark.parametrize(("channels", "dtype"), [(3, "uint8"), (1, "uint8"), (3, "float32")])
def test_raw_pixels_have_thumbnails(tmp_path: pathlib.Path, channels: int, dtype: str) -> None:
    pixels = np.linspace(0, 200, channels * 20 * 30).reshape(channels, 20, 30).astype(dtype)
    sample = packio.Sample(
        0, "a", pixels.tobytes(), "raw", None, 20, 30, channels=channels, dtype=dtype
    )
    packio.pack([sample], tmp_path / "x.h5")
    write_contact_sheet(tmp_path / "x.h5", tmp_path / "x.html")
    text = (tmp_path / "x.html").read_text()
    assert "data:image/jpeg;base64," in text
