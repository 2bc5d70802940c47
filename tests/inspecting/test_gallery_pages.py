"""The gallery in a real browser: images themselves, masks and boxes over them, and a server."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import threading
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any

import browsing
import made
import numpy as np
import pytest
from cli_runs import run
from PIL import Image
from skimage import data

import packio
from packio.errors import CannotCreateError, OptionError
from packio.inspecting.gallery import write_contact_sheet
from packio.inspecting.gallery.serving import GalleryServer

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(
    not (browsing.CHROMIUM and browsing.DRIVER), reason="no chromium, or no chromedriver"
)
COUNT = 150  # samples: two pages and a half
# A box of the stored image of 300 x 200 pixels (left, top, right, bottom), and in the image that is
# turned clockwise (x, y, width, height): what was left is then on top, what was on top is right.
STORED, TURNED = (30, 20, 90, 60), (140, 30, 40, 60)


def jpeg(i: int, orientation: int = 1) -> bytes:
    exif = Image.Exif()
    exif[0x112] = orientation
    photo: Any = data
    image = Image.fromarray(photo.astronaut()).crop((i, i, i + 300, i + 200))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=80, exif=exif)
    return file.getvalue()


def mask() -> bytes:
    ids = np.zeros((200, 300), np.uint8)
    ids[:, 150:] = 3
    return made.saved(ids)


class Photographs:
    """A dataset of photographs; two have a box, one a mask."""

    classes = ("cats", "dogs")

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, i: int) -> dict[str, Any]:
        if i >= COUNT:
            raise IndexError(i)
        return {
            "key": key(i), "image": jpeg(i, 6 if i == 1 else 1), "label": int(i % 3 == 0),
            "mask": mask() if i == 0 else None,
            "boxes": np.array([STORED] * (i < 2), np.float32).reshape(-1, 4),
            "box_labels": np.zeros(int(i < 2), np.int64),
        }  # fmt: skip


def key(i: int) -> str:
    return f"{'cats' if i % 3 else 'dogs'}/{i:03}.jpg"


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    out = tmp_path_factory.mktemp("gallery") / "gallery.lmdb"
    split = {"train": 0.5, "val": 0.5}
    return packio.pack(Photographs(), out, split=split, boxes_frame="stored").out


@pytest.fixture(scope="module")
def validation(pack: pathlib.Path) -> list[int]:
    """Positions of the validation split."""
    with packio.open(pack) as opened:
        return [i for i in range(COUNT) if opened.split_of(i) == "val"]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browsing.Browser]:
    with browsing.running(tmp_path_factory.mktemp("profile")) as made:
        yield made


@pytest.fixture(scope="module")
def sheet(pack: pathlib.Path) -> str:
    write_contact_sheet(pack, pack.with_suffix(".html"))
    return pack.with_suffix(".html").as_uri()


@pytest.fixture(scope="module")
def server(pack: pathlib.Path) -> Iterator[GalleryServer]:
    with packio.open(pack) as opened, GalleryServer(opened) as made:
        thread = threading.Thread(target=made.serve)
        thread.start()
        yield made
        made.stop()
        thread.join()


@pytest.fixture(params=["a page", "a server"])
def address(request: pytest.FixtureRequest) -> str:
    if request.param == "a page":
        return str(request.getfixturevalue("sheet"))
    return str(request.getfixturevalue("server").url)


TILES = "[...document.querySelectorAll('[data-at]')].map(tile => Number(tile.dataset.at))"
POSITION = "document.getElementById('position').value"
LARGE = "document.querySelector('#large[open] .stack img')"


def at(browser: browsing.Browser, address: str, state: str) -> None:
    browser.go("about:blank")
    browser.go(f"{address}#{state}")


def test_an_enlarged_image_has_its_own_pixels_without_errors(
    browser: browsing.Browser, address: str
) -> None:
    at(browser, address, "")
    browser.ask(
        "((icon) => { icon.id = 'icon'; icon.src = document.querySelector('link[rel=icon]').href;"
        "document.body.append(icon); })(new Image())"
    )
    browser.expect("document.getElementById('icon').naturalWidth > 0", True)
    browser.log()
    at(browser, address, "sample=5")
    browser.expect(f"{LARGE}?.naturalWidth", 300)  # a thumbnail has 256
    assert browser.log() == []


def test_boxes_are_over_the_image_as_it_is_turned(browser: browsing.Browser, address: str) -> None:
    rect = "[...document.querySelectorAll('#large rect')].map(r => "
    rect += "['x', 'y', 'width', 'height'].map(n => Number(r.getAttribute(n))))"
    at(browser, address, "sample=0")
    browser.expect(rect, [[30, 20, 60, 40]])
    at(browser, address, "sample=1")
    browser.expect(rect, [list(TURNED)])
    browser.expect("document.querySelector('#large text').textContent", "cats")
    browser.expect(f"[{LARGE}.naturalWidth, {LARGE}.naturalHeight]", [200, 300])
    at(browser, address, "sample=2")
    browser.expect(f"{LARGE}?.naturalWidth", 300)
    browser.expect(rect, [])


def test_a_mask_lies_on_its_image_and_a_slider_makes_it_clearer(
    browser: browsing.Browser, address: str
) -> None:
    at(browser, address, "sample=0")
    sides = (
        "[...document.querySelectorAll('#large .stack img')].map(i => i.getBoundingClientRect())"
    )
    sides = f"{sides}.map(r => [r.left, r.top, r.right, r.bottom].map(Math.round).join())"
    browser.expect(f"{sides}.length", 2)
    browser.expect(f"new Set({sides}).size", 1)
    over = "document.querySelector('#large img.over')"
    browser.expect(f"{over}?.naturalWidth > 0 && {over}.style.opacity", "0.5")
    browser.ask("document.querySelector('#large input').focus()")
    browser.press(browsing.RIGHT)  # the slider's key, not the page's
    browser.expect(f"{over}.style.opacity", "0.51")
    browser.expect("document.querySelector('#large dd').textContent", "dogs/000.jpg")
    at(browser, address, "sample=0")
    browser.expect(f"{over}?.naturalWidth > 0", True)
    browser.press(browsing.RIGHT)  # nobody has taken the slider
    browser.expect("document.querySelector('#large dd').textContent", "cats/001.jpg")


def test_class_split_and_key_filter_together(
    browser: browsing.Browser, address: str, validation: list[int]
) -> None:
    dogs = [i for i in range(COUNT) if i % 3 == 0]
    at(browser, address, "class=1")
    browser.expect(TILES, dogs)
    browser.click("#split option[value='1']")
    browser.expect(TILES, [i for i in dogs if i in validation])
    at(browser, address, "q=/00")
    browser.expect(TILES, [i for i in range(COUNT) if i < 10])
    at(browser, address, "q=nothing")
    browser.expect("document.getElementById('empty').checkVisibility()", True)


def test_pages_and_samples_are_turned(browser: browsing.Browser, address: str) -> None:
    at(browser, address, "")
    browser.expect(TILES, list(range(60)))
    browser.press(browsing.RIGHT)
    browser.expect(TILES, list(range(60, 120)))
    browser.click("#next")
    browser.expect(TILES, list(range(120, COUNT)))
    browser.press(browsing.RIGHT)  # there is no further page
    browser.expect(TILES, list(range(120, COUNT)))
    browser.expect(POSITION, f"121\u2013{COUNT} of {COUNT}")
    browser.press(browsing.LEFT, browsing.LEFT, browsing.LEFT)
    browser.expect(TILES, list(range(60)))
    at(browser, address, "sample=59")
    browser.expect(f"{LARGE}?.naturalWidth", 300)
    browser.press(browsing.RIGHT)  # onto the next page
    browser.expect("document.querySelector('#large dd').textContent", "dogs/060.jpg")
    browser.press(browsing.ESCAPE)
    browser.expect(TILES, list(range(60, 120)))
    at(browser, address, "page=99")
    browser.expect(TILES, list(range(120, COUNT)))


@pytest.mark.skipif(
    not browsing.has_axe(), reason="axe-core is not installed (pip install axe-playwright-python)"
)
@pytest.mark.parametrize("state", ["", "sample=0"])
@pytest.mark.parametrize(("width", "scheme"), [(1000, "light"), (390, "dark")])
def test_nothing_keeps_people_from_using_it(
    browser: browsing.Browser, address: str, state: str, width: int, scheme: str
) -> None:
    browser.emulate(width, scheme)
    at(browser, address, state)
    browser.expect(f"{TILES}.length", 60)
    assert browser.ask("document.documentElement.scrollWidth") <= width
    assert browser.complaints() == []
    browser.emulate(1000)


def test_a_page_has_originals_up_to_so_many_bytes(
    pack: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    with packio.open(pack) as opened:
        lengths = sorted(len(sample.data) for sample in opened)
    most = sum(lengths[:10]) + 1
    write_contact_sheet(pack, tmp_path / "x.html", originals=most)
    text = (tmp_path / "x.html").read_text()
    assert text.count('"image":"data:image/jpeg;base64,') == 10
    assert text.count('"image":null') == COUNT - 10


def _get(address: str, **headers: str) -> tuple[int, bytes]:
    opened = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
    try:
        with opened(urllib.request.Request(address, headers=headers), timeout=600) as answer:  # noqa: S310 (loopback)
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_the_server_answers_those_who_know_its_secret(server: GalleryServer) -> None:
    status, image = _get(f"{server.url}image?index=3")
    assert (status, image) == (200, jpeg(3))
    base = server.url.rsplit("/", 2)[0]
    assert base.startswith("http://127.0.0.1:")
    for address in (base, f"{base}/", f"{base}/samples?index=3", f"{base}/wrong/image?index=3",
                    f"{server.url}../../etc/passwd", f"{server.url}page.js"):  # fmt: skip
        assert _get(address)[0] == 404
    assert _get(f"{server.url}samples", Host="evil.example")[0] == 404


@pytest.mark.parametrize("place", ["", "image?index=3", "image?index=150", "nothing"])
def test_the_server_answers_head_as_get_without_a_body(server: GalleryServer, place: str) -> None:
    parts = urllib.parse.urlsplit(server.url + place)
    answers = []
    connection = http.client.HTTPConnection(parts.netloc, timeout=600)
    with contextlib.closing(connection):
        for method in ("HEAD", "GET", "HEAD"):  # on one connection: a body would spoil the next
            connection.request(method, f"{parts.path}?{parts.query}")
            answer = connection.getresponse()
            headers = [header for header in answer.getheaders() if header[0] != "Date"]
            answers.append((answer.status, headers, answer.read()))
    head, get, again = answers
    assert get[2]
    assert head == again == (get[0], get[1], b"")


@pytest.mark.parametrize(
    "query",
    ["image?index=150", "image?index=-1", "image?index=x", "image", "samples?class=x",
     "samples?index=9999999999999999999", "samples?first=-1", "samples?first=\u0663x",
     "samples?count=1e9",
     "samples?class=77", "samples?split=2"],
)  # fmt: skip
def test_the_server_refuses_what_is_not_there(server: GalleryServer, query: str) -> None:
    status, said = _get(server.url + urllib.parse.quote(query, safe="?=&"))
    assert status == 400
    assert b"Traceback" not in said


def test_the_server_answers_with_a_part(server: GalleryServer, validation: list[int]) -> None:
    def asked(query: str) -> tuple[int, list[int]]:
        found: dict[str, Any] = json.loads(_get(f"{server.url}samples?{query}")[1])
        return found["total"], [sample["index"] for sample in found["samples"]]

    assert asked("first=148&count=60") == (COUNT, [148, 149])
    assert asked("first=500") == (COUNT, [])
    assert asked("count=100000") == (COUNT, list(range(COUNT)))
    cats = [i for i in validation if i % 3 and 100 <= i < 110]
    assert asked("split=1&class=0&q=CATS/10") == (len(cats), cats)


def test_a_server_shows_only_what_was_asked_for(pack: pathlib.Path, validation: list[int]) -> None:
    with packio.open(pack) as opened:
        with GalleryServer(opened, classes=["dogs"], split="val") as made:
            wanted = [i for i in validation if i % 3 == 0]
            assert [s["index"] for s in made.samples({})["samples"]] == wanted
            assert made.samples({"class": "0"})["total"] == 0
            assert made.samples({"split": "0"})["total"] == 0
            with pytest.raises(OptionError, match="no sample 1 here"):
                made.image({"index": "1"})  # a cat
            port = int(made.url.split(":")[2].split("/")[0])
            with pytest.raises(CannotCreateError, match=f"port {port} of 127.0.0.1"):
                GalleryServer(opened, port=port)
        with pytest.raises(OptionError, match="no class 'dog'"):
            GalleryServer(opened, classes=["dog"])


def test_a_served_gallery_writes_no_page(pack: pathlib.Path, tmp_path: pathlib.Path) -> None:
    done = run("view", pack, "--serve", "-o", "x.html", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--serve writes no page: leave --out away" in done.stderr
    assert list(tmp_path.iterdir()) == []
