"""Named fields of files beside the images of a folder: captions, depth, latents."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import fielded
import made
import numpy as np
import pytest
from cli_runs import run

import packio
from packio.errors import OptionError
from packio.sample.record import Field

if TYPE_CHECKING:
    import pathlib

SOURCES = {"flat_folder": "", "image_folder": "cats"}  # → the folder of the images


@pytest.fixture(params=SOURCES)
def asked(request: pytest.FixtureRequest) -> made.Asked:
    return made.Asked(request.param)


def _folder(root: pathlib.Path, asked: made.Asked, **files: bytes) -> pathlib.Path:
    """A folder of images 1.png and 2.png, and other files: ``_1_a_txt`` is 1_a.txt."""
    folder = root / "s" / SOURCES[asked.source.name]
    folder.mkdir(parents=True)
    for name in ("1", "2"):
        (folder / f"{name}.png").write_bytes(fielded.png(int(name)))
    for name, data in files.items():
        stem, _, ending = name[1:].rpartition("_")
        (folder / f"{stem}.{ending}").write_bytes(data)
    return root / "s"


def _values(found: packio.sources.Listing, name: str) -> list[Field | None]:
    with found.open_records() as read:
        return [read(i).fields.get(name) for i in range(len(found.keys))]


@pytest.mark.parametrize("name", ["caption", "annotations"])
@pytest.mark.parametrize("kind", [None, "text"])
@pytest.mark.parametrize("ending", [".txt", "txt"])
def test_captions_beside_the_images_are_a_field(
    tmp_path: pathlib.Path, asked: made.Asked, ending: str, kind: str | None, name: str
) -> None:
    root = _folder(tmp_path, asked, _1_txt=b"a cat", _2_txt="zwei Bären".encode())
    found = asked.listing(root, fields={name: (ending, kind)})
    assert [os.path.basename(key) for key in found.keys] == [b"1.png", b"2.png"]
    assert _values(found, name) == [
        Field("text", b"a cat"), Field("text", "zwei Bären".encode()),
    ]  # fmt: skip
    assert [f and f.data for f in _values(found, "image")] == [fielded.png(1), fielded.png(2)]
    assert found.labels == (None if asked.source.name == "flat_folder" else [0, 0])
    assert found.warnings == []


def test_files_of_a_field_are_no_samples(tmp_path: pathlib.Path, asked: made.Asked) -> None:
    root = _folder(tmp_path, asked, _1_depth_png=fielded.png(3, 1), _2_depth_png=fielded.png(4, 1))
    found = asked.listing(root, fields={"depth": ("_depth.png", None)})
    assert [os.path.basename(key) for key in found.keys] == [b"1.png", b"2.png"]
    depth = _values(found, "depth")
    assert [f and (f.kind, f.data) for f in depth] == [
        ("image", fielded.png(3, 1)), ("image", fielded.png(4, 1)),
    ]  # fmt: skip


def test_missing_files_are_told(tmp_path: pathlib.Path, asked: made.Asked) -> None:
    root = _folder(tmp_path, asked, _2_txt=b"two")
    found = asked.listing(root, fields={"caption": (".txt", None)})
    assert _values(found, "caption") == [None, Field("text", b"two")]
    assert found.warnings == ["1 of 2 images have no file for 'caption'"]
    with pytest.raises(OptionError, match=r"no image of .* has a file of its name .* '\.npy'"):
        asked.listing(root, fields={"latent": (".npy", None)})


def test_what_is_no_ending_is_refused(tmp_path: pathlib.Path, asked: made.Asked) -> None:
    root = _folder(tmp_path, asked, _1_txt=b"one")
    with pytest.raises(OptionError, match=r"'a/txt' is no ending .* as '\.txt'"):
        asked.listing(root, fields={"caption": ("a/txt", None)})
    with pytest.raises(OptionError, match="--mask-suffix"):
        asked.listing(root, fields={"mask": ("_mask.png", "mask")})


def test_the_warning_of_other_files_says_how_to_take_them(
    tmp_path: pathlib.Path, asked: made.Asked
) -> None:
    root = _folder(tmp_path, asked, _1_txt=b"one", _2_txt=b"two", _1_npy=b"")
    said = " ".join(asked.listing(root).warnings)
    assert "--field caption=txt:text" in said
    assert "--field latent=npy:array" in said
    found = asked.listing(root, fields={"caption": (".txt", None)})
    assert found.others == {".npy": 1}
    few = _folder(tmp_path / "few", asked)
    (few / SOURCES[asked.source.name] / "3.png").write_bytes(b"")
    (few / SOURCES[asked.source.name] / "notes.txt").write_bytes(b"")
    assert not [line for line in asked.listing(few).warnings if "--field" in line]


def test_names_that_are_no_text_have_fields(tmp_path: pathlib.Path) -> None:
    folder = os.fsencode(tmp_path)
    for name, data in ((b"\xff.a.png", fielded.png(1)), (b"\xff.a.TXT", b"odd")):
        with open(os.path.join(folder, name), "wb") as file:
            file.write(data)
    found = made.Asked("flat_folder").listing(tmp_path, fields={"caption": (".txt", None)})
    assert _values(found, "caption") == [Field("text", b"odd")]


def test_the_command_packs_captions(tmp_path: pathlib.Path) -> None:
    root = _folder(tmp_path, made.Asked("flat_folder"), _1_txt=b"one", _2_txt=b"two")
    words = ["pack", root, tmp_path / "o.tar", "-q", "--field", "caption=.txt:text"]
    assert run(*words).returncode == 0
    ds = packio.PackDataset(tmp_path / "o.tar", fields=("image", "caption"))
    assert [ds[i][1] for i in range(2)] == ["one", "two"]
    np.testing.assert_equal(ds[0][0].shape, (3, 5, 6))


@pytest.mark.parametrize(
    ("name", "ending"),
    [("1_mask.png", "_mask.png"), ("2_gt.jpg", "_gt.jpg"), ("3_mask.png", None), ("x.png", None)],
)
def test_masks_beside_images_are_told(
    tmp_path: pathlib.Path, asked: made.Asked, name: str, ending: str | None
) -> None:
    root = _folder(tmp_path, asked)
    beside = root / SOURCES[asked.source.name]
    (beside / name).write_bytes(fielded.png(3))
    report = packio.pack(root, tmp_path / "x.tar", source_kind=asked.source.name)
    assert report.packed == 3  # a warning, no more: a name may mean something else
    if ending is None:
        assert report.warnings == ()
    else:
        (line,) = report.warnings
        assert line.endswith(f"--image-suffix .png --mask-suffix {ending}")
    less = packio.pack(
        root, tmp_path / "y.tar", source_kind=asked.source.name, exclude=[f"*{name}"]
    )  # fmt: skip
    assert less.packed == 2
    assert less.warnings == ()
