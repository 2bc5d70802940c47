"""The page of a replay: the very crops, in one file, which shows keys as text."""

from __future__ import annotations

import base64
import html.parser
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.parse
from typing import Any

import numpy as np
import pytest
from PIL import Image

import packio
from packio.errors import OptionError, OutputError, OutputExistsError

COUNT, BATCH, SIDE = 22, 6, 64
HOSTILE = b"x/</script><script>document.title='pwned'</script>.png"
BROKEN = b"x/broken.jpg"
_CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
_FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
          "--disable-background-networking", "--disable-component-update",
          "--disable-dev-shm-usage"]  # fmt: skip


def smooth(number: int) -> np.ndarray:
    """Colours that change slowly, so that a JPEG of them is close to them."""
    y, x = np.mgrid[0 : 90 + number, 0 : 120 - number]
    bands = [np.sin(x / 23 + number), np.cos(y / 31 - number), np.sin((x + y) / 41)]
    return (np.stack(bands, -1) * 90 + 128).astype(np.uint8)


@pytest.fixture(scope="module")
def loader(tmp_path_factory: pytest.TempPathFactory) -> packio.Loader:
    """A loader that has given a batch; step 1 is left out."""
    root = os.fsencode(tmp_path_factory.mktemp("page"))
    for number in range(COUNT):
        key = {0: HOSTILE, 1: BROKEN, 2: b"x/\xff.png"}.get(number, b"x/%d.png" % number)
        path = os.path.join(root, b"source", key)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        file = io.BytesIO()
        Image.fromarray(smooth(number)).save(file, "JPEG" if key == BROKEN else "PNG")
        data = file.getvalue()
        with open(path, "wb") as out:
            out.write(data[: len(data) // 2] if key == BROKEN else data)
    packio.pack(os.fsdecode(root + b"/source"), os.fsdecode(root + b"/x.lmdb"))
    views: list[Any] = [packio.RandomResizedCrop(SIDE), packio.RandomCrop(48)]
    ds = packio.PackDataset(os.fsdecode(root + b"/x.lmdb"), views=views, hflip=0.5, seed=5,
                            on_error="skip", fields=("image", "key"))  # fmt: skip
    made = packio.Loader(ds, BATCH, shuffle=True, skip=[(0, 1, 1)])
    with pytest.warns(UserWarning, match="replaced"):
        list(made)
    made.set_epoch(0)
    return made


@pytest.fixture(scope="module")
def page(loader: packio.Loader, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("page") / "page.html"
    size = packio.replay(loader, (0, 3), epoch=0).write_page(path, size=SIDE)
    assert size == path.stat().st_size
    return path


def data_of(page: pathlib.Path) -> list[dict[str, Any]]:
    """The batches of a page, read as a browser would find them."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text())
    assert found is not None
    batches: list[dict[str, Any]] = json.loads(found[1])
    return batches


def pixels_of(data: str) -> np.ndarray:
    image = Image.open(io.BytesIO(base64.b64decode(data)))
    return np.asarray(image.convert("RGB")).astype(int)


def test_the_thumbnails_are_the_very_crops(loader: packio.Loader, page: pathlib.Path) -> None:
    replay = packio.replay(loader, (0, 3), epoch=0)
    whole = packio.PackDataset(loader.dataset.pack, fields=("image", "key"))
    compared = 0
    for step, batch in enumerate(data_of(page)):
        assert (batch["step"], batch["left_out"]) == (step, step == 1)
        ours = replay.batch(step).samples
        assert [s["index"] for s in batch["samples"]] == [s.index for s in ours]
        for shown, sample in zip(batch["samples"], ours, strict=True):
            if shown["error"] is not None:
                assert (shown["images"], shown["key"]) == ([], os.fsdecode(BROKEN))
                continue
            image, _ = whole[sample.index]
            for view, data, placement in zip(shown["views"], shown["images"],
                                             sample.placements or (), strict=True):  # fmt: skip
                assert (view["hflip"], view["vflip"]) == (placement.hflip, False)
                top, left, height, width = (round(view[n]) for n in
                                            ("top", "left", "height", "width"))  # fmt: skip
                box = image.numpy().transpose(1, 2, 0)[top : top + height, left : left + width]
                size = (view["out_width"], view["out_height"])
                expected = np.asarray(Image.fromarray(box).resize(size, Image.Resampling.BILINEAR))
                expected = expected[:, ::-1] if placement.hflip else expected
                assert np.abs(pixels_of(data) - expected).mean() < 4
                compared += 1
    assert compared == 2 * (COUNT - 1)


def test_a_page_needs_no_other_file(page: pathlib.Path) -> None:
    text = page.read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert not re.findall(r"<\w+[^>]*?\b(?:src|href)=(?!.data:)|https?:|@import|url\(", text)


def test_no_page_replaces_what_is_no_page(loader: packio.Loader, tmp_path: pathlib.Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    replay = packio.replay(loader, 0, epoch=0)
    with pytest.raises(OutputExistsError):
        replay.write_page(tmp_path / "notes.txt")
    with pytest.raises(OptionError, match="size=0"):
        replay.write_page(tmp_path / "a.html", size=0)


def test_a_page_without_a_folder_is_refused_before_images_are_made(
    loader: packio.Loader, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = "packio.inspecting.replaying.replayed.make_pixels_thumbnail"
    monkeypatch.setattr(maker, lambda *_: pytest.fail("made an image"))
    with pytest.raises(OutputError, match="does not exist; make it first: mkdir -p"):
        packio.replay(loader, 0, epoch=0).write_page(tmp_path / "none" / "a.html")


def test_a_page_that_is_stopped_leaves_no_file(
    loader: packio.Loader, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pathlib.Path, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        packio.replay(loader, 0, epoch=0).write_page(tmp_path / "a.html")
    assert list(tmp_path.iterdir()) == []


class _Dumped(html.parser.HTMLParser):
    """A page that a browser has dumped: titles of its tiles, and its texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tiles: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if "data-at" in values:
            self.tiles.append(values["title"] or "")

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def _visit(page: pathlib.Path, folder: pathlib.Path, **state: str) -> _Dumped:
    address = f"{page.as_uri()}#{urllib.parse.urlencode(state)}"
    command = [_CHROMIUM, *_FLAGS, f"--user-data-dir={folder}/profile", "--dump-dom", address]
    done = subprocess.run(command, check=True, timeout=600, capture_output=True)
    return _Dumped(done.stdout.decode())


@pytest.mark.skipif(not _CHROMIUM, reason="no chromium is installed")
def test_a_browser_shows_batches_and_finds_keys(page: pathlib.Path, tmp_path: pathlib.Path) -> None:
    batches = data_of(page)
    second = _visit(page, tmp_path, batch="1")
    assert second.tiles == [s["key"] for s in batches[1]["samples"]]
    assert "The run has left this step out (skip)." in second.texts
    found = _visit(page, tmp_path, q="pwned")
    assert found.tiles == [HOSTILE.decode()]
    step, slot = next((b["step"], s["slot"]) for b in batches for s in b["samples"]
                      if s["key"] == HOSTILE.decode())  # fmt: skip
    large = _visit(page, tmp_path, batch=str(step), sample=f"{step}.0.{slot}")
    assert "the crop in the image" in large.texts
    assert "Replay: steps 0 to 3" in large.texts
    assert "pwned" not in large.texts


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("é\u2028", "é\u2028"),
        ("\udcff.png", "\\xff.png"),
        ("\ud800", "\\ud800"),
        (b"\xff", "\\xff"),
    ],
)  # fmt: skip
def test_names_are_readable_in_any_locale(name: str | bytes, shown: str) -> None:
    """Also where the file system's encoding is ASCII."""
    code = "import sys; from packio.inspecting.pages import readable; print(ascii(readable(%a)))"
    old = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run([sys.executable, "-c", code % (name,)], env=old, check=True,
                          capture_output=True, text=True, timeout=600)  # fmt: skip
    assert done.stdout.strip() == ascii(shown)
