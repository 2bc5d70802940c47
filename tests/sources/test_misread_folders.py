"""Folders that are not what they look like: packio refuses or tells, and says what to do."""

from __future__ import annotations

import pathlib
import re
import shlex
from typing import TYPE_CHECKING, Any

import cli_runs
import made
import numpy as np
import pytest
from PIL import Image

import packio
from packio.errors import BadImagesError, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def _saved(kind: str, mode: str) -> bytes:
    pixels = np.arange(1200, dtype=np.uint8).reshape(30, 40) % 5
    image = Image.fromarray(np.stack([pixels] * 3, 2)) if mode == "RGB" else Image.fromarray(pixels)
    if mode == "P":
        image = image.convert("P")
    return made.saved(image, kind)


JPEG, GRAY, PALETTE, COLOUR = (
    _saved("JPEG", "RGB"), _saved("PNG", "L"), _saved("PNG", "P"), _saved("PNG", "RGB")
)  # fmt: skip


def _numbered(pattern: str, data: bytes, count: int = 12) -> dict[str, bytes]:
    return {pattern.format(i): data for i in range(count)}


@pytest.fixture
def run(tmp_path: pathlib.Path) -> Callable[[str], int]:
    """Run a command line as a shell would, in the test's folder."""
    return lambda command: cli_runs.run(*shlex.split(command)[1:], cwd=tmp_path).returncode


def _commands(message: str) -> list[str]:
    return re.findall(r"packio pack (?:[^;:]|:(?! ))*", message)


# Masks that would be a class

MASKS = {
    "equal stems": ("imgs/{:04}.jpg", "labels/{:04}.png"),
    "endings of their own": ("rgb/{:04}_img.jpg", "seg maps/{:04}_seg.png"),
    "one ending": ("a/{:04}.jpg", "b/{:04}_mask.png"),
    "inner folders": ("imgs/x/{:04}.jpg", "labels/x/{:04}.png"),
}


@pytest.mark.parametrize("mask", [GRAY, PALETTE], ids=["gray", "palette"])
@pytest.mark.parametrize("names", MASKS.values(), ids=MASKS.keys())
def test_masks_beside_their_images_are_refused_as_a_class(
    names: tuple[str, str], mask: bytes, tmp_path: pathlib.Path, run: Callable[[str], int]
) -> None:
    images, masks = names
    root = made.tree(tmp_path / "my data", {**_numbered(images, JPEG), **_numbered(masks, mask)})
    with pytest.raises(SourceError, match="12") as caught:
        packio.pack(root, tmp_path / "x.lmdb")
    pairs, classes = _commands(str(caught.value))
    assert run(pairs) == 0
    assert run(classes.replace("'my data'.lmdb", "classes.lmdb")) == 0
    with packio.open(tmp_path / "my data.lmdb") as pack:
        assert (len(pack), sorted(pack.fields)) == (12, ["image", "mask"])
    with packio.open(tmp_path / "classes.lmdb") as pack:
        assert (len(pack), len(pack.classes)) == (24, 2)


def test_gray_images_beside_a_folder_that_is_named_as_masks_are_refused(
    tmp_path: pathlib.Path,
) -> None:
    files = {**_numbered("scans/{}.png", GRAY), **_numbered("groundtruth/{}.png", GRAY)}
    with pytest.raises(SourceError, match="--masks groundtruth"):
        packio.pack(made.tree(tmp_path / "s", files), tmp_path / "x.lmdb")


@pytest.mark.parametrize(
    "files",
    [
        {**_numbered("0/{}.png", GRAY), **_numbered("1/{}.png", GRAY)},
        {**_numbered("cats/{}.jpg", JPEG), **_numbered("dogs/{}.png", COLOUR)},
        {**_numbered("cats/{}.jpg", JPEG), **_numbered("dogs/{}.png", GRAY, 5)},
        {**_numbered("a/{}.jpg", JPEG), **_numbered("b/{}.png", GRAY), "c/1.jpg": JPEG},
    ],
    ids=["two gray classes", "colour PNGs", "other numbers", "three classes"],
)
def test_classes_are_not_taken_for_masks(files: dict[str, bytes], tmp_path: pathlib.Path) -> None:
    report = packio.pack(made.tree(tmp_path / "s", files), tmp_path / "x.lmdb")
    assert (report.packed, report.classes >= 2) == (len(files), True)


def test_a_folder_dataset_warns_of_masks_as_a_class(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACKIO_CACHE_DIR", str(tmp_path / "cache"))
    files = {**_numbered("imgs/{}.jpg", JPEG), **_numbered("labels/{}.png", GRAY)}
    root = made.tree(tmp_path / "s", files)
    for _ in range(2):
        with pytest.warns(UserWarning, match="masks"):
            packio.FolderDataset(root)


def test_masks_in_an_archive_are_refused_as_a_class(
    tmp_path: pathlib.Path, run: Callable[[str], int]
) -> None:
    files = {**_numbered("d/imgs/{}.jpg", JPEG), **_numbered("d/labels/{}.png", GRAY)}
    made.zipped(tmp_path / "s.zip", files)
    with pytest.raises(SourceError, match="masks") as caught:
        packio.pack(tmp_path / "s.zip", tmp_path / "x.lmdb")
    assert run(_commands(str(caught.value))[-1]) == 0
    with packio.open(tmp_path / "s.lmdb") as pack:
        assert (len(pack), pack.classes) == (24, ["imgs", "labels"])


# Archives, empty classes


@pytest.mark.parametrize("name", ["data.zip", "Images.TAR.GZ", "x.tgz", "train.tar"])
def test_a_folder_that_holds_an_archive_names_the_command(
    name: str, tmp_path: pathlib.Path
) -> None:
    root = made.tree(tmp_path / "my data", {name: b"", "readme.txt": b""})
    with pytest.raises(SourceError, match=f"holds {name}") as caught:
        packio.pack(root, tmp_path / "x.lmdb")
    (command,) = _commands(str(caught.value))
    assert shlex.split(command)[:3] == ["packio", "pack", str(root / name)]


def test_class_folders_that_hold_archives_name_the_command(tmp_path: pathlib.Path) -> None:
    root = made.tree(tmp_path / "s", {"cats/cats.zip": b"", "dogs/dogs.zip": b""})
    with pytest.raises(SourceError, match=r"holds cats/cats\.zip: packio pack"):
        packio.pack(root, tmp_path / "x.lmdb")


def test_an_empty_class_is_told_before_images_are_read(tmp_path: pathlib.Path) -> None:
    root = made.tree(tmp_path / "s", {"a/1.jpg": b"no image", "a/2.jpg": JPEG, "b/notes.txt": b""})
    seen: list[Any] = []
    with pytest.raises(BadImagesError, match="b/: a class folder that has no images") as caught:
        packio.pack(root, tmp_path / "x.lmdb", progress=seen.append)
    assert len(caught.value.skipped) == 1
    assert not any(progress.done for progress in seen)


# Splits

SPLITS = (
    ("Train", "Val"), ("TRAIN", "DEV"), ("train2017", "val2017"), ("train", "dev", "test"),
    ("training_set", "test_set"), ("train", "validate"), ("train_images", "test_images"),
    ("train", "val", "docs"), ("train", "eval"),
)  # fmt: skip


@pytest.mark.parametrize("names", SPLITS, ids="-".join)
def test_folders_of_splits_are_refused(names: Sequence[str], tmp_path: pathlib.Path) -> None:
    root = made.tree(tmp_path / "s", {f"{name}/a/1.jpg": JPEG for name in names})
    with pytest.raises(SourceError, match="splits") as caught:
        packio.pack(root, tmp_path / "x.lmdb")
    commands = [shlex.split(command) for command in _commands(str(caught.value))]
    assert [c[2] for c in commands] == [str(root / n) for n in names if n != "docs"]


def test_classes_that_share_a_word_with_splits_are_classes(tmp_path: pathlib.Path) -> None:
    names = ("training", "trainer", "trainers", "valley", "testimony", "bus")
    root = made.tree(tmp_path / "s", {f"{name}/1.jpg": JPEG for name in names})
    assert packio.pack(root, tmp_path / "x.lmdb").classes == len(names)


# Folders too high, or too deep; numbers


def _warned(root: pathlib.Path, out: pathlib.Path) -> str:
    return "\n".join(packio.pack(root, out).warnings)


def test_a_single_folder_of_class_folders_is_told(tmp_path: pathlib.Path) -> None:
    root = made.tree(tmp_path / "s", {"flowers/rose/1.jpg": JPEG, "flowers/tulip/2.jpg": JPEG})
    told = _warned(root, tmp_path / "x.lmdb")
    assert "all images are of one class, 'flowers'" in told
    assert f"packio pack {root}/flowers" in told


def test_numbers_that_are_not_their_labels_are_told(tmp_path: pathlib.Path) -> None:
    root = made.tree(tmp_path / "s", {f"{i}/1.jpg": JPEG for i in range(11)})
    told = _warned(root, tmp_path / "x.lmdb")
    assert "class '10' has the label 2" in told
    with packio.open(tmp_path / "x.lmdb") as pack:
        assert {s.key: s.label for s in pack}["10/1.jpg"] == 2  # as torchvision sorts


@pytest.mark.parametrize("names", [("0", "1", "2"), ("00", "01", "10"), ("1st", "2nd")])
def test_numbers_that_are_their_labels_are_not_told(
    names: Sequence[str], tmp_path: pathlib.Path
) -> None:
    told = _warned(
        made.tree(tmp_path / "s", {f"{name}/1.jpg": JPEG for name in names}), tmp_path / "x.lmdb"
    )
    assert ("has the label" in told) == (names == ("00", "01", "10"))
