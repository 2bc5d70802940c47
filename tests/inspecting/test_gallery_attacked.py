"""The gallery of odd packs, with rude clients, and after its server has ended."""

from __future__ import annotations

import contextlib
import errno
import http.client
import io
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import browsing
import made
import numpy as np
import pytest
from PIL import Image, ImageOps

import packio
from packio.index import indexfile
from packio.inspecting.gallery import write_contact_sheet
from packio.inspecting.gallery.serving import GalleryServer

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

needs_browser = pytest.mark.skipif(
    not (browsing.CHROMIUM and browsing.DRIVER), reason="no chromium, or no chromedriver"
)
LARGE = "document.querySelector('#large[open] .stack img')"
TOLD = "document.querySelector('#trouble:popover-open')?.textContent ?? null"
NAN, INF = float("nan"), float("inf")


def quarters(encoding: str = "PNG", orientation: int = 1) -> bytes:
    """A red, a green, a blue and a white quarter: 60 x 40 pixels."""
    pixels = np.full((40, 60, 3), 255, np.uint8)
    pixels[:20, :30], pixels[:20, 30:], pixels[20:, :30] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    exif = Image.Exif()
    exif[0x112] = orientation
    return made.saved(pixels, encoding, exif=exif)


def packed(out: pathlib.Path, items: list[dict[str, Any]], **options: Any) -> pathlib.Path:
    class Items:
        def __len__(self) -> int:
            return len(items)

        def __getitem__(self, i: int) -> dict[str, Any]:
            return items[i]

    return packio.pack(Items(), out, **options).out


def forged(pack: pathlib.Path, **columns: np.ndarray) -> pathlib.Path:
    """The pack, whose index holds other values, which packing refuses."""
    place = pack / "index.packio"
    index = indexfile.Index(place)
    table = {name: index.column(name).array() for name in index.column_names}
    indexfile.write(place, table | columns, index.metadata)
    return pack


@contextlib.contextmanager
def served(pack: pathlib.Path) -> Iterator[GalleryServer]:
    with packio.open(pack) as opened, GalleryServer(opened) as made:
        thread = threading.Thread(target=made.serve)
        thread.start()
        try:
            yield made
        finally:
            made.stop()
            thread.join()


def shown(pack: pathlib.Path) -> list[list[dict[str, Any]]]:
    """The samples of a sheet and of a server, by a reader of JSON that is as strict as browsers."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    write_contact_sheet(pack, pack.with_suffix(".html"))
    page = pack.with_suffix(".html").read_text()
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', page)
    assert match
    with packio.open(pack) as opened, GalleryServer(opened) as server:
        asked = json.dumps(server.samples({}))
    found = [json.loads(text, parse_constant=refuse)["samples"] for text in (match[1], asked)]
    return [list(samples) for samples in found]


def test_boxes_without_an_end_leave_the_page_readable(tmp_path: pathlib.Path) -> None:
    boxes = [[NAN] * 4, [0, 0, INF, INF], [10, 5, 3e38, 9], [-50, -50, 90, 70]]
    item = {
        "key": "a", "image": quarters(), "boxes": np.array([[0, 0, 9, 9]] * 4, np.float32),
        "box_labels": np.arange(4),
    }  # fmt: skip
    pack = packed(tmp_path / "x.lmdb", [item])
    for samples in shown(forged(pack, boxes=np.array(boxes, np.float32))):
        (sample,) = samples
        assert sample["error"] is None
        found = [tuple(box[n] for n in ("x", "y", "width", "height")) for box in sample["boxes"]]
        assert [box["name"] for box in sample["boxes"]] == ["1", "2", "3"]
        assert found == [(0, 0, 120, 80), (10, 5, 110, 4), (-50, -40, 140, 110)]
        (told,) = [more["text"] for more in sample["more"] if more["name"] == "boxes"]
        assert told == "4, 1 of them with NaN: 0, 1, 2, 3"


def test_labels_that_are_no_numbers_leave_the_page_readable(tmp_path: pathlib.Path) -> None:
    label = np.array([NAN, 0.5, -INF, INF], np.float32)
    item = {"key": "a", "image": quarters(), "label": np.full(4, 0.5, np.float32)}
    pack = forged(packed(tmp_path / "x.lmdb", [item]), label=label[None])
    assert [[s["classes"] for s in samples] for samples in shown(pack)] == [[[1, 3]]] * 2


@pytest.fixture(scope="module")
def turned(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    items = [
        {"key": f"{encoding}/{orientation}", "image": quarters(encoding, orientation)}
        for encoding in ("JPEG", "PNG", "WEBP")
        for orientation in range(1, 9)
    ]
    out = tmp_path_factory.mktemp("turned") / "x.lmdb"
    return packed(out, items, split={"train": 0.5, "val": 0.5})


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browsing.Browser]:
    with browsing.running(tmp_path_factory.mktemp("profile")) as made:
        yield made


def corners(pixels: np.ndarray) -> list[list[bool]]:
    """Red, green and blue near the four corners."""
    high, wide = pixels.shape[:2]
    places = [(0.2, 0.2), (0.2, 0.8), (0.8, 0.2), (0.8, 0.8)]
    return [(pixels[int(high * y), int(wide * x)] > 127).tolist() for y, x in places]


# What a browser shows of the enlarged image, at the same places as `corners`.
SEEN = """(() => {
  const image = IMAGE, canvas = document.createElement("canvas");
  if (!image?.naturalWidth || document.querySelector("#large dd").textContent !== KEY) return null;
  const [wide, high] = [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
  const drawing = canvas.getContext("2d");
  drawing.drawImage(image, 0, 0);
  return [[.2, .2], [.2, .8], [.8, .2], [.8, .8]].map(([y, x]) =>
    [...drawing.getImageData(wide * x, high * y, 1, 1).data].slice(0, 3).map((v) => v > 127));
})()"""


@needs_browser
def test_enlarged_images_are_upright(turned: pathlib.Path, browser: browsing.Browser) -> None:
    write_contact_sheet(turned, turned.with_suffix(".html"))
    with served(turned) as server, packio.open(turned) as opened:
        for address in (server.url, turned.with_suffix(".html").as_uri()):
            for i, sample in enumerate(opened):
                upright = ImageOps.exif_transpose(Image.open(io.BytesIO(sample.data)))
                expected = corners(np.asarray(upright.convert("RGB")))
                browser.go("about:blank")
                browser.go(f"{address}#sample={i}")
                seen = SEEN.replace("IMAGE", LARGE).replace("KEY", json.dumps(sample.key))
                browser.expect(seen, expected)


@needs_browser
def test_the_page_tells_that_the_server_has_ended(
    turned: pathlib.Path, browser: browsing.Browser, tmp_path: pathlib.Path
) -> None:
    items = [{"key": f"{i:03}", "image": quarters()} for i in range(130)]
    with served(packed(tmp_path / "x.lmdb", items)) as server:
        browser.go(server.url)
        browser.expect("document.getElementById('position').value", "1\u201360 of 130")
        browser.expect(TOLD, None)
    browser.press(browsing.RIGHT)
    browser.expect(f"({TOLD})?.startsWith('The server has ended.')", True)
    browser.expect("document.getElementById('position').value", "1\u201360 of 130")
    with served(turned) as server:
        browser.go("about:blank")
        browser.go(f"{server.url}#sample=99999")  # a link to a sample that is not there
        browser.expect("document.querySelectorAll('[data-at]').length", 24)
        browser.expect(TOLD, None)


@contextlib.contextmanager
def looked_at(browser: browsing.Browser, pack: pathlib.Path) -> Iterator[None]:
    """The browser shows the gallery of a pack of 24 samples."""
    with served(pack) as server:
        browser.go("about:blank")
        browser.go(server.url)
        browser.expect("document.querySelectorAll('[data-at]').length", 24)
        yield


@needs_browser
def test_enlarging_does_not_make_the_thumbnails_again(
    browser: browsing.Browser, turned: pathlib.Path
) -> None:
    with looked_at(browser, turned):
        browser.click("[data-at='0']")
        browser.expect(f"{LARGE}?.naturalWidth", 60)
        browser.press(browsing.RIGHT)
        browser.expect("document.querySelector('#large dd').textContent", "JPEG/2")
        browser.press(browsing.ESCAPE)
        browser.expect("document.activeElement.title", "JPEG/2")
        asked = "performance.getEntriesByType('resource').filter(e => e.name.includes('samples?'))"
        browser.expect(f"{asked}.length", 1)


@needs_browser
def test_the_first_tiles_are_below_the_header(
    browser: browsing.Browser, turned: pathlib.Path
) -> None:
    with looked_at(browser, turned):
        header = "document.querySelector('header').getBoundingClientRect().bottom"
        main = "document.getElementById('grid').getBoundingClientRect().top"
        browser.expect(f"{main} - {header} < 1", True)


def test_errors_of_the_sockets_of_clients_are_not_told(
    turned: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All others are: they are defects of the server."""
    with packio.open(turned) as opened, GalleryServer(opened) as gallery:
        for error in (BrokenPipeError(), ConnectionResetError(), TimeoutError(),
                      OSError(errno.EHOSTUNREACH, "no route"), ZeroDivisionError()):  # fmt: skip
            try:
                raise error
            except type(error):
                gallery.server.handle_error(None, ("127.0.0.1", 1))
            said = capsys.readouterr().err
            assert ("ZeroDivisionError" in said) == (said != "") == (not isinstance(error, OSError))


def test_clients_that_leave_and_ctrl_c_in_work_are_not_told(turned: pathlib.Path) -> None:
    command = [sys.executable, "-m", "packio", "view", str(turned), "--serve", "--split", "val"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        _, _, host, token, _ = process.stdout.readline().split("/")
        port = int(host.split(":")[1])

        def ask(what: str) -> socket.socket:
            made = socket.create_connection(("127.0.0.1", port))
            made.sendall(f"GET /{token}/{what} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            return made

        for _ in range(8):
            with ask("samples?count=24") as left:  # closed by a reset, before the answer
                left.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with contextlib.closing(http.client.HTTPConnection(host)) as later:
            later.request("GET", f"/{token}/samples?count=1")
            assert json.loads(later.getresponse().read())["total"] == 12
            later.request("GET", f"/{token}/")
            assert later.getresponse().read().startswith(b"<!doctype html>")
        with contextlib.ExitStack() as stack:
            for _ in range(30):
                stack.enter_context(ask("samples"))
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=600)
        assert (process.returncode, said) == (0, "")
