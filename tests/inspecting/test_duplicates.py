"""`find_duplicates` and ``--dedupe near`` find copies of real photographs, and nothing else."""

from __future__ import annotations

import functools
import json
import pathlib
import re
from typing import Any

import cli_runs
import numpy as np
import pytest
from PIL import Image

import packio
from packio.cli.checking import find_duplicates
from packio.errors import OptionError, OutputExistsError
from packio.images import perceptual


@pytest.fixture(scope="module")
def folder(
    tmp_path_factory: pytest.TempPathFactory, photos: list[np.ndarray]
) -> pathlib.Path:  # fmt: skip
    """Five photographs; a second class has a smaller, a worse and an equal copy of some of them."""
    root = tmp_path_factory.mktemp("near") / "photos"
    for name in ("a", "b<i>"):
        (root / name).mkdir(parents=True)
    for i, photo in enumerate((0, 1, 2, 3, 5)):  # 3 and 4 are two views of one scene
        Image.fromarray(photos[photo]).save(root / "a" / f"{i}.png")
    small = Image.fromarray(photos[1])
    small.resize((small.width * 3 // 4, small.height * 3 // 4)).save(root / "b<i>" / "small1.png")
    Image.fromarray(photos[3]).save(root / "b<i>" / "worse3.jpg", quality=70)
    (root / "b<i>" / "same4.png").write_bytes((root / "a" / "4.png").read_bytes())
    Image.fromarray(photos[7]).save(root / "b<i>" / "other.png")
    return root


COPIES = {"b<i>/small1.png": "a/1.png", "b<i>/worse3.jpg": "a/3.png", "b<i>/same4.png": "a/4.png"}


@pytest.fixture(scope="module")
def pack(folder: pathlib.Path) -> pathlib.Path:
    return packio.pack(folder, folder.parent / "x.lmdb").out


def test_copies_are_found_and_shown(pack: pathlib.Path, tmp_path: pathlib.Path) -> None:
    page = tmp_path / "page.html"
    done: list[tuple[int, int]] = []
    report = packio.find_duplicates(
        pack, threshold=8, html=page, progress=lambda n, of: done.append((n, of))
    )
    assert {pair.key: pair.of_key for pair in report.found} == COPIES
    assert all(pair.same_label is False for pair in report.found)
    assert [p.distance for p in report.found if p.key == "b<i>/same4.png"] == [0]
    assert (report.samples, report.undecoded, done[-1]) == (9, (), (9, 9))
    text = page.read_text()
    assert len(re.findall('<img src="data:image/jpeg;base64,', text)) == 6
    assert "b&lt;i&gt;/small1.png" in text
    assert "<i>" not in text.replace("&lt;i&gt;", "")
    assert "default-src &#39;none&#39;" in text


def test_fewer_bits_find_fewer(pack: pathlib.Path) -> None:
    found = packio.find_duplicates(pack, threshold=0).found
    assert "b<i>/same4.png" in {pair.key for pair in found}
    assert {pair.distance for pair in found} == {0}
    with pytest.raises(OptionError, match="expected 0 to 11"):
        packio.find_duplicates(pack, threshold=12)
    for threshold in ("4", 4.0, True):
        with pytest.raises(OptionError, match="expected 0 to 11"):
            packio.find_duplicates(pack, threshold=threshold)  # type: ignore[arg-type]  # a mistake


def test_images_that_do_not_decode_are_told(
    folder: pathlib.Path, tmp_path: pathlib.Path, photos: list[np.ndarray]
) -> None:
    given: list[dict[str, Any]] = [
        {"key": f"{i}.png", "image": (folder / "a" / f"{i}.png").read_bytes()} for i in range(3)
    ]
    wide = np.asarray(photos[0][..., 0], np.uint16) << 8
    Image.fromarray(wide).save(tmp_path / "wide.png")
    given[1]["image"] = (tmp_path / "wide.png").read_bytes()
    out = packio.pack(given, tmp_path / "x.tar").out
    report = packio.find_duplicates(out)
    assert (report.undecoded, report.found) == ((1,), ())


def test_packing_leaves_near_duplicates_out(folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    found = {pair.key for pair in packio.find_duplicates(
        packio.pack(folder, tmp_path / "all.tar").out).found} | {"b<i>/same4.png"}  # fmt: skip
    report = packio.pack(folder, tmp_path / "x.tar", dedupe="near")
    kept = {path.relative_to(folder).as_posix() for path in folder.rglob("*.*")} - found
    with packio.open(report.out) as opened:
        assert set(opened.keys()) == kept
        assert opened.metadata["counts"]["skipped"] == len(found)
    assert any("look like" in text or "bytes of an earlier" in text for text in report.warnings)
    assert len({"b<i>/worse3.jpg", "b<i>/same4.png"} & found) == 2
    assert packio.pack(folder, tmp_path / "x.tar", dedupe="near").up_to_date


def test_no_chain_of_small_changes_joins_what_differs() -> None:
    hashes = [0b0, 0b11, 0b1111, 0b111111, None, 0b0]
    found = [tuple(twin) for twin in perceptual.group_twins(hashes, 2)]
    assert found == [(1, 0, 2), (3, 2, 2), (5, 0, 0)]


def test_equal_hashes_go_with_their_first() -> None:
    hashes = [0b111, 0b1, 0b111, 0b1, 1 << 40]
    found = [tuple(twin) for twin in perceptual.group_twins(hashes, 2)]
    assert found == [(1, 0, 2), (2, 0, 0), (3, 0, 2)]


def test_ten_thousand_equal_hashes_are_no_burden() -> None:
    found = perceptual.group_twins([7] * 10_000 + [(1 << 63) - 1] * 10_000, 3)
    assert [twin.of for twin in found] == [0] * 9_999 + [10_000] * 9_999


def test_the_command_lists_pairs(pack: pathlib.Path, tmp_path: pathlib.Path) -> None:
    run = functools.partial(cli_runs.run, "find-duplicates", pack)
    done = run("--threshold", "8", "--html", str(tmp_path / "x.html"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "b<i>/worse3.jpg looks like a/3.png" in done.stdout
    assert "3 near-duplicates among 9 samples" in done.stdout
    said = json.loads(run("--json", "--threshold", "8").stdout)
    assert {pair["key"]: pair["of_key"] for pair in said["found"]} == COPIES
    quiet = run("--threshold", "8", "--quiet").stdout
    assert quiet.count(" looks like ") == quiet.count("\n") == 3
    (tmp_path / "mine.txt").write_text("mine")
    done = run("--html", str(tmp_path / "mine.txt"))
    assert done.returncode == OutputExistsError.exit_code
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_the_command_shows_how_far_it_is(
    pack: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("packio.cli._output._PLAIN_SECONDS", 0.0)
    find_duplicates(pack)
    assert "decoding 9/9 (100%)" in capsys.readouterr().err
    find_duplicates(pack, quiet=True)
    assert capsys.readouterr().err == ""
