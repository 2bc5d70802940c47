"""Images and masks are paired by stem or by a list, and what does not fit is told."""

from __future__ import annotations

import os
import pathlib
import pickle
import shlex
from typing import Any

import made
import numpy as np
import pytest
from PIL import Image

import packio
from packio.errors import BadImagesError, DecodeError, OptionError, SourceError
from packio.images.encodings import read_facts
from packio.sample.record import Field
from packio.sources import Listing, Rows

pairs = made.Asked("pairs")


def _image(kind: str, size: tuple[int, int] = (8, 6), seed: int = 0) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    image = Image.fromarray(pixels)
    if kind == "mask":
        image = Image.fromarray(pixels[..., 0] % 21).convert("P")
    return made.saved(image, "JPEG" if kind == "jpeg" else "PNG")


JPEG, MASK = _image("jpeg"), _image("mask")


def _tree(root: pathlib.Path, *keys: str | bytes) -> pathlib.Path:
    """Files; those that end in ``.jpg`` are JPEGs, others PNGs with a palette."""
    for key in keys:
        path = pathlib.Path(os.fsdecode(os.path.join(os.fsencode(root), os.fsencode(key))))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(JPEG if path.name.endswith(".jpg") else MASK)
    return root


def _stems(root: pathlib.Path, *stems: str) -> pathlib.Path:
    return _tree(root, *(f"images/{s}.jpg" for s in stems), *(f"masks/{s}.png" for s in stems))


def _pairs(listing: Listing) -> list[tuple[bytes, bytes]]:
    assert listing.labels is None
    assert isinstance(listing.rows, Rows)
    columns = listing.rows.columns
    assert listing.keys == columns["image"]
    return list(zip(columns["image"], columns["mask"], strict=True))


@pytest.mark.parametrize("masks", ["masks", "labels", "annotations"])
def test_two_folders_with_the_same_stems(
    tmp_path: pathlib.Path, photos: list[np.ndarray], masks: str
) -> None:
    for i, photo in enumerate(photos[:3]):
        for folder, pixels in (("images", photo), (masks, photo[..., 0] // 64)):
            path = tmp_path / "s" / folder / f"city/{i}.{'jpg' if folder == 'images' else 'png'}"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
    assert pairs.recognise(tmp_path / "s")
    assert pairs.recognise(str(tmp_path / "s"))
    found = pairs.listing(tmp_path / "s")
    assert _pairs(found) == [
        (b"images/city/%d.jpg" % i, f"{masks}/city/{i}.png".encode()) for i in range(3)
    ]
    for item, photo, (image, mask) in zip(made.read(found), photos, _pairs(found), strict=False):
        assert item.data == (tmp_path / "s" / image.decode()).read_bytes()
        assert item.mask_data == (tmp_path / "s" / mask.decode()).read_bytes()
        assert (read_facts(item.data).height, read_facts(item.mask_data).width) == photo.shape[:2]
    assert (found.unlisted, found.warnings, found.classes) == ([], [], [])


@pytest.fixture
def voc(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder as Pascal VOC's: more images than masks, and lists."""
    stems = [f"2007_{i:06d}" for i in range(6)]
    root = _tree(tmp_path / "VOC2012", *(f"JPEGImages/{s}.jpg" for s in stems))
    _tree(root, *(f"SegmentationClass/{s}.png" for s in stems[:4]), "SegmentationObject/x.png")
    lists = root / "ImageSets/Segmentation"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text(f"{stems[2]}\n{stems[0]}\n")
    (lists / "val.txt").write_text(f"{stems[1]}\r\n{stems[3]}\r\n\r\n")
    return root


def test_voc_is_packed_by_its_lists(voc: pathlib.Path) -> None:
    assert pairs.recognise(voc)
    with pytest.raises(SourceError, match="several splits") as caught:
        pairs.listing(voc)
    commands = [shlex.split(c) for c in str(caught.value).rpartition("by itself: ")[2].split(";")]
    assert [command[:4] for command in commands] == [
        ["packio", "pack", str(voc), "train.lmdb"], ["packio", "pack", str(voc), "val.lmdb"],
    ]  # fmt: skip
    options: dict[str, Any] = {command[4].removeprefix("--"): command[5] for command in commands}
    val = pairs.listing(voc, **options)
    assert _pairs(val) == [
        (b"JPEGImages/2007_%06d.jpg" % i, b"SegmentationClass/2007_%06d.png" % i) for i in (1, 3)
    ]
    train = pairs.listing(voc, list="ImageSets/Segmentation/train.txt", classes=["a", "b"])
    assert train.keys == [b"JPEGImages/2007_000002.jpg", b"JPEGImages/2007_000000.jpg"]
    assert (train.classes, train.unlisted) == (["a", "b"], [])
    assert [(item.data, item.mask_data) for item in made.read(train)] == [(JPEG, MASK)] * 2


def test_a_list_of_pairs_needs_no_folders(voc: pathlib.Path) -> None:
    _tree(voc, "SegmentationClassAug/2007_000005.png", "odd place/a b.jpg", "odd place/a b.png")
    (voc / "aug.txt").write_bytes(
        b"/JPEGImages/2007_000005.jpg /SegmentationClassAug/2007_000005.png\n"
        b"odd place/a b.jpg\todd place/a b.png\n"
        b"2007_000001\n"
    )
    found = pairs.listing(voc, list=voc / "aug.txt")
    assert _pairs(found) == [
        (b"JPEGImages/2007_000005.jpg", b"SegmentationClassAug/2007_000005.png"),
        (b"odd place/a b.jpg", b"odd place/a b.png"),
        (b"JPEGImages/2007_000001.jpg", b"SegmentationClass/2007_000001.png"),
    ]
    assert len(made.read(found)) == 3
    (voc / "JPEGImages").rename(voc / "pictures")
    (voc / "aug.txt").write_bytes(b"pictures/2007_000001.jpg SegmentationClass/2007_000001.png\n")
    assert len(made.read(pairs.listing(voc, list="aug.txt"))) == 1


def test_lines_of_a_list_that_lead_nowhere_are_told(voc: pathlib.Path) -> None:
    (voc / "list.txt").write_bytes(
        b"2007_000000\n2007_000000\n2007_000005\nmissing\n../up.jpg mask.png\n"
        b"JPEGImages/gone.jpg SegmentationClass/2007_000001.png\n\xff\xfe three words\n"
    )
    found = pairs.listing(voc, list=voc / "list.txt")
    assert found.unlisted == [
        (b"JPEGImages/2007_000000.jpg", "twice in list.txt"),
        (b"2007_000005", "in list.txt, and no mask has this stem"),
        (b"missing", "in list.txt, and no image has this stem"),
        (b"../up.jpg", "leads out of the source"),
        (b"\xff\xfe three words", "in list.txt, and no image has this stem"),
    ]
    assert (found.keys[1], found.sizes[1]) == (b"JPEGImages/gone.jpg", -1)
    with found.open_records() as read, pytest.raises(FileNotFoundError):
        read(1)
    with pytest.raises(SourceError, match=r"No such file.*; expected a list"):
        pairs.listing(voc, list="missing.txt")


def _cityscapes(root: pathlib.Path) -> pathlib.Path:
    for split, city in (("train", "aachen"), ("train", "ulm"), ("val", "bonn")):
        stem = f"{split}/{city}/{city}_000001_000019"
        _tree(root, f"leftImg8bit/{stem}_leftImg8bit.png")
        _tree(root, *(f"gtFine/{stem}_gtFine_{kind}.png" for kind in ("color", "labelIds")))
        (root / f"gtFine/{stem}_gtFine_polygons.json").write_text("{}")
    return root


def test_cityscapes_is_packed_by_split(tmp_path: pathlib.Path) -> None:
    root = _cityscapes(tmp_path / "city scapes")
    assert pairs.recognise(root)
    with pytest.raises(SourceError, match="several splits") as caught:
        pairs.listing(root)
    for command in str(caught.value).rpartition("by itself: ")[2].split(";"):
        program, verb, source, out, *options = shlex.split(command)
        assert (program, verb, source) == ("packio", "pack", str(root))
        names = [option.removeprefix("--") for option in options[::2]]
        given: dict[str, Any] = dict(zip(names, options[1::2], strict=True))
        found = pairs.listing(root, **given)
        split = out.removesuffix(".lmdb")
        assert [(i.split(b"/")[-1], m.split(b"/")[-1]) for i, m in _pairs(found)] == [
            (f"{city}_000001_000019_leftImg8bit.png".encode(),
             f"{city}_000001_000019_gtFine_labelIds.png".encode())
            for city in {"train": ("aachen", "ulm"), "val": ("bonn",)}[split]
        ]  # fmt: skip
        assert (found.unlisted, found.warnings) == ([], [])
    color = pairs.listing(
        root, images="leftImg8bit/val", masks="gtFine/val", mask_suffix="_gtFine_color.png"
    )
    assert _pairs(color)[0][1].endswith(b"_gtFine_color.png")


def test_one_folder_with_suffixes(tmp_path: pathlib.Path) -> None:
    root = _tree(tmp_path, *(f"{i}{s}" for i in "ab" for s in (".png", "_mask.png")), "notes.jpg")
    assert not pairs.recognise(root)
    with pytest.raises(SourceError, match="say --images and --masks, or --image-suffix"):
        pairs.listing(root)
    found = pairs.listing(root, image_suffix=".png", mask_suffix="_mask.png")
    assert _pairs(found) == [(b"a.png", b"a_mask.png"), (b"b.png", b"b_mask.png")]
    assert found.unlisted == []
    _tree(root, "c/1.JPG", "c/1.PNG")
    other = pairs.listing(root, images="c", masks="c", image_suffix=".jpg", mask_suffix=".png")
    assert _pairs(other) == [(b"c/1.JPG", b"c/1.PNG")]
    wrong: list[dict[str, Any]] = [
        {"images": "c", "masks": "c"}, {"image_suffix": ".png", "mask_suffix": ".png"},
    ]  # fmt: skip
    for options in wrong:
        with pytest.raises(OptionError, match="in one folder"):
            pairs.listing(root, **options)


@pytest.mark.parametrize(("images", "masks"), [(".", "masks"), ("images", "."), ("images", "m/x")])
def test_one_folder_may_lie_in_the_other(tmp_path: pathlib.Path, images: str, masks: str) -> None:
    _tree(tmp_path, f"{images}/a/1.jpg", f"{masks}/a/1.png")
    found = pairs.listing(tmp_path, images=images, masks=masks)
    assert [os.path.basename(part) for pair in _pairs(found) for part in pair] == [
        b"1.jpg", b"1.png",
    ]  # fmt: skip
    assert found.unlisted == []


def test_masks_may_lie_elsewhere_and_images_not(tmp_path: pathlib.Path) -> None:
    _tree(tmp_path, "s/images/1.jpg", "m/1.png")
    for masks in ("../m", str(tmp_path / "m")):
        found = pairs.listing(tmp_path / "s", images="images", masks=masks)
        assert [item.mask_data for item in made.read(found)] == [MASK]
    for images in ("../s/images", str(tmp_path / "s/images")):
        with pytest.raises(OptionError, match="expected a folder in"):
            pairs.listing(tmp_path / "s", images=images, masks="../m")
    with pytest.raises(SourceError, match="no such folder"):
        pairs.listing(tmp_path / "s", images="images", masks="missing")


def test_what_has_no_partner_is_told(tmp_path: pathlib.Path) -> None:
    root = _stems(tmp_path / "s", "a", "b/c")
    _tree(root, "images/lone.jpg", "masks/lost.png", "images/a.webp", "images/sub/a.jpg")
    (root / "images/notes.txt").touch()
    found = pairs.listing(root)
    assert found.keys == [b"images/a.jpg", b"images/b/c.jpg"]
    assert sorted(found.unlisted) == [
        (b"images/a.webp", "has the stem of b'images/a.jpg'"),
        (b"images/lone.jpg", "no mask has its stem"),
        (b"images/sub/a.jpg", "no mask has its stem"),
        (b"masks/lost.png", "a mask without image"),
    ]
    assert "(.txt 1)" in found.warnings[0]


def test_pairs_of_different_sizes_cannot_be_read(tmp_path: pathlib.Path) -> None:
    root = _stems(tmp_path / "s", "a", "b", "c", "d", "e")
    (root / "masks/b.png").write_bytes(_image("mask", (6, 8)))
    (root / "masks/c.png").write_bytes(b"no image")
    (root / "images/d.jpg").write_bytes(b"")
    (root / "masks/e.png").unlink()
    os.symlink("nowhere", root / "masks/e.png")
    found = pairs.listing(root)
    with found.open_records() as read:
        assert made.of(read(0)).mask_data == MASK
        with pytest.raises(DecodeError, match=r"field 'mask': 'masks/c.png': no image"):
            read(2)
        assert made.of(read(3)).data == b""
        with pytest.raises(FileNotFoundError, match=r"field 'mask': 'masks/e.png': No such file"):
            read(4)
    with pytest.raises(BadImagesError, match="mask: 6x8 pixels, its image has 8x6"):
        packio.pack(root, tmp_path / "x.lmdb")


def test_odd_names_are_kept_byte_for_byte(tmp_path: pathlib.Path) -> None:
    stems = [b"x" + bytes([byte]) for byte in range(1, 256) if byte != ord("/")]
    stems += [b"\xc3\xa9", b"e\xcc\x81", b"caf\xe9/\xff\n", b"a.b", b"a.c", b"K\xe2\x84\xaa", b""]
    stems += ["\u0130".encode(), b"n" * 250]
    for folder, ending in ((b"images/", b".jpg"), (b"masks/", b".png")):
        _tree(tmp_path, *(folder + stem + ending for stem in stems))
    found = pairs.listing(tmp_path, include_hidden=True)
    assert len(stems) > 211
    expected = sorted((b"images/" + s + b".jpg", b"masks/" + s + b".png") for s in stems)
    assert (_pairs(found), found.unlisted) == (expected, [])
    assert all(item.data == JPEG and item.mask_data == MASK for item in made.read(found))
    again = pairs.listing(tmp_path, image_suffix=".jpg", mask_suffix=".PNG", include_hidden=True)
    assert _pairs(again) == expected
    (tmp_path / "list").write_bytes(b"\n".join(s for s in stems if s.strip() == s != b""))
    listed = pairs.listing(tmp_path, list="list")
    assert set(_pairs(listed)) <= set(expected)
    assert len(listed.keys) > 240


@pytest.mark.parametrize(
    "keys",
    [
        ["images/1.jpg", "labels/1.txt"],  # YOLO's
        ["images/1.txt", "masks/1.png"],
        ["images/1.jpg"],
        ["cats/1.jpg", "dogs/1.jpg"],
        ["images/1.jpg", "masks/1.png", "index.packio"],
        ["1.jpg"],
    ],
)
def test_other_folders_are_not_recognised(tmp_path: pathlib.Path, keys: list[str]) -> None:
    assert not pairs.recognise(_tree(tmp_path / "s", *keys))
    assert not pairs.recognise(tmp_path / "missing")
    assert not pairs.recognise(tmp_path / "s" / keys[0])


def test_splits_of_two_folders_are_refused(tmp_path: pathlib.Path) -> None:
    root = _stems(tmp_path / "s", "train/1", "val/2")
    with pytest.raises(SourceError, match="--images images/val --masks masks/val"):
        pairs.listing(root)
    assert pairs.listing(root, images="images/val", masks="masks/val").keys == [b"images/val/2.jpg"]


def test_parts_pickle_and_other_masks_are_another_version(tmp_path: pathlib.Path) -> None:
    root = _stems(tmp_path / "s", *"abcd")
    found = pairs.listing(root)
    part = pickle.loads(pickle.dumps(found.part(range(1, 3))))
    assert part.keys == [b"images/b.jpg", b"images/c.jpg"]
    assert len(made.read(part)) == 2
    assert pairs.listing(root).version == found.version
    (root / "masks/a.png").write_bytes(MASK + b"more")
    assert pairs.listing(root).version != found.version


def test_missing_and_empty_folders_are_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(SourceError, match="no such folder; expected a folder of images and masks"):
        pairs.listing(tmp_path / "missing")
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
    with pytest.raises(SourceError, match="no images"):
        pairs.listing(tmp_path)


@pytest.mark.parametrize("kind", [None, "text"])
def test_a_text_field_holds_the_text_of_its_file(tmp_path: pathlib.Path, kind: str | None) -> None:
    source = _stems(tmp_path, "a", "b", "c")
    (source / "caption").mkdir()
    for stem, text in (("a", "a cat: ä"), ("b", "")):
        (source / "caption" / f"{stem}.txt").write_text(text, "utf-8")
    found = pairs.listing(source, fields={"caption": ("caption", kind)})
    with found.open_records() as read:
        captions = [read(i).fields.get("caption") for i in range(3)]
    assert captions == [Field("text", "a cat: ä".encode()), Field("text", b""), None]
    (source / "caption/a.txt").unlink()
    with (
        found.open_records() as read,
        pytest.raises(OSError, match=r"'caption': 'caption/a\.txt': No such"),
    ):
        read(0)


def test_a_mask_changed_in_place_is_noticed(tmp_path: pathlib.Path) -> None:
    from PIL import Image

    root = tmp_path / "s"
    for folder in ("images", "masks"):
        (root / folder).mkdir(parents=True)
        Image.new("L", (8, 8)).save(root / folder / "1.png")
    out = tmp_path / "x.tar"
    packio.pack(root, out)
    assert packio.pack(root, out).up_to_date
    mask = bytearray((root / "masks/1.png").read_bytes())
    mask[-1] ^= 1  # as long as before
    (root / "masks/1.png").write_bytes(mask)
    with pytest.raises(packio.PackioError, match="packed from other files"):
        packio.pack(root, out)


@pytest.mark.parametrize(
    ("mode", "ending"), [("RGB", "png"), ("LA", "png"), ("RGBA", "png"), ("F", "tif"),
                         ("RGB", "jpg"), ("RGB", "webp")],
)  # fmt: skip
def test_each_mask_of_colours_is_a_bad_sample(
    tmp_path: pathlib.Path, mode: str, ending: str
) -> None:
    root = _stems(tmp_path / "s", "0", "1", "2", "3")
    for stem in ("1", "3"):
        (root / f"masks/{stem}.png").unlink()
        Image.new(mode, (8, 6)).save(root / f"masks/{stem}.{ending}")
    with pytest.raises(BadImagesError, match="bad samples: 2") as error:
        packio.pack(root, tmp_path / "x.lmdb")
    assert [key for key, _ in error.value.skipped] == ["images/1.jpg", "images/3.jpg"]
    assert f"mask: pixels of mode {mode}; expected class ids" in error.value.skipped[0][1]
    report = packio.pack(root, tmp_path / "x.lmdb", on_error="skip")
    assert (report.packed, len(report.skipped)) == (2, 2)


@pytest.mark.parametrize("mode", ["1", "L", "P", "I;16"])
def test_masks_of_one_channel_are_taken_without_a_word(tmp_path: pathlib.Path, mode: str) -> None:
    root = _stems(tmp_path / "s", "1")
    Image.new(mode, (8, 6)).save(root / "masks/1.png")
    assert packio.pack(root, tmp_path / "x.lmdb").warnings == ()


def test_masks_that_are_jpegs_are_counted(tmp_path: pathlib.Path) -> None:
    root = _stems(tmp_path / "s", "1", "2", "3")
    for stem in ("2", "3"):
        (root / f"masks/{stem}.png").unlink()
        Image.new("L", (8, 6)).save(root / f"masks/{stem}.jpg")
    (warning,) = packio.pack(root, tmp_path / "x.lmdb").warnings
    assert warning == (
        "2 masks are JPEGs, which cannot hold exact class ids: kept; save masks as PNG (the first: "
        "'images/2.jpg')"
    )
