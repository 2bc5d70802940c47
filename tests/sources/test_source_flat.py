"""A flat folder: all images below it, sorted by path, with labels from a list if there is one."""

from __future__ import annotations

import os
import pathlib
import random
import subprocess
from typing import TYPE_CHECKING

import made
import pytest

from packio.errors import OptionError, SourceError

if TYPE_CHECKING:
    from packio.sources import Listing

flat_folder = made.Asked("flat_folder")


def _touch(root: pathlib.Path, *keys: bytes) -> pathlib.Path:
    for i, key in enumerate(keys):
        path = os.path.join(os.fsencode(root), key)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        pathlib.Path(os.fsdecode(path)).write_bytes(bytes(i % 7))
    return root


def _labelled(listing: Listing) -> dict[bytes, int]:
    assert isinstance(listing.labels, list)
    return dict(zip(listing.keys, listing.labels, strict=True))


def test_images_are_sorted_bytewise_at_any_depth(tmp_path: pathlib.Path) -> None:
    names = [b"x" + bytes([byte]) + b".png" for byte in range(1, 256) if byte != ord("/")]
    names += [b"\xc3\xa9.png", b"e\xcc\x81.png", b"a/b/c.JPG", b"a/b-c.jpg", b"a.jpg", b"a/b.jpg"]
    names += ["\U0001f408.png".encode(), b"\xef\xbf\xbd.png", b"\xff.png", b".png", b".h/1.png"]
    random.Random(0).shuffle(names)
    root = _touch(tmp_path / "s", *names, b"notes.txt", b"a/x.gif", b".hidden")
    found = flat_folder.listing(root, include_hidden=True)
    assert len(found.keys) > 211
    assert found.keys == sorted(names)
    assert found.sizes == [names.index(key) % 7 for key in found.keys]
    assert (found.labels, found.classes, found.unlisted) == (None, [], [])
    assert found.others == {".txt": 1, ".gif": 1, "": 1}
    with found.open_records() as read:
        assert [len(read(i).image.data) for i in range(len(found.keys))] == found.sizes
    command = ["env", "LC_ALL=C", "sort", "-z"]
    listed = subprocess.run(
        command, input=b"\0".join(names), check=True, capture_output=True
    ).stdout
    assert found.keys == listed.rstrip(b"\0").split(b"\0")


@pytest.mark.parametrize(
    ("keys", "is_flat"),
    [
        ([b"1.jpg", b"2.PNG", b"notes.txt"], True),
        ([b"1.jpg", b".thumbnails/1.jpg"], True),
        ([b"1.jpg", b"a/2.jpg"], False),
        ([b"1.jpg", b"a/notes.txt"], False),
        ([b"notes.txt"], False),
        ([b"1.jpg", b"index.packio"], False),
        ([], False),
    ],
)
def test_images_without_folders_are_recognised(
    tmp_path: pathlib.Path, keys: list[bytes], *, is_flat: bool
) -> None:
    (tmp_path / "s").mkdir()
    assert flat_folder.recognise(_touch(tmp_path / "s", *keys)) is is_flat
    assert flat_folder.recognise(str(tmp_path / "s")) is is_flat


def test_files_and_what_is_missing_are_not_recognised(tmp_path: pathlib.Path) -> None:
    _touch(tmp_path, b"1.jpg")
    for name in ("1.jpg", "missing", "1.jpg/x", "nul\0"):
        assert not flat_folder.recognise(f"{tmp_path}/{name}")
    for name in ("1.jpg", "missing"):
        with pytest.raises(SourceError, match="expected a folder of images"):
            flat_folder.listing(tmp_path / name)
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="no images"):
        flat_folder.listing(tmp_path / "empty")


def test_links_are_followed_and_cycles_cut(tmp_path: pathlib.Path) -> None:
    root = _touch(tmp_path / "s", b"1.png", b"a/2.png")
    os.symlink("..", root / "a/back")
    os.symlink("a", root / "b")
    os.symlink("nowhere", root / "c.png")
    found = flat_folder.listing(root)
    assert found.keys == [b"1.png", b"a/2.png", b"b/2.png", b"c.png"]
    assert found.sizes[-1] == -1
    assert len(found.warnings) == 2
    with found.open_records() as read, pytest.raises(FileNotFoundError):
        read(3)


@pytest.fixture
def val(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder as ImageNet's validation set."""
    return _touch(tmp_path / "val", *(b"ILSVRC2012_val_%08d.JPEG" % i for i in (3, 1, 2, 10)))


def _list(tmp_path: pathlib.Path, text: str) -> pathlib.Path:
    (tmp_path / "labels.txt").write_bytes(text.encode("utf-8", "surrogateescape"))
    return tmp_path / "labels.txt"


def test_a_label_a_line_goes_to_images_in_sorted_order(
    tmp_path: pathlib.Path, val: pathlib.Path
) -> None:
    labels = _list(tmp_path, "490\n361\n\n171\r\n1\n")
    assert flat_folder.listing(val, labels=labels).labels == [490, 361, 171, 1]
    moved = flat_folder.listing(val, labels=str(labels), label_offset=-1)
    assert (moved.labels, moved.classes) == ([489, 360, 170, 0], [])


@pytest.mark.parametrize("between", [" ", "\t", "   "])
def test_lines_of_path_and_label_have_any_order(
    tmp_path: pathlib.Path, val: pathlib.Path, between: str
) -> None:
    pairs = [(f"ILSVRC2012_val_{i:08d}.JPEG", f"n{i:08d}") for i in (10, 2, 3, 1)]
    labels = _list(tmp_path, "\ufeff" + "".join(f"{n}{between}{label}\n" for n, label in pairs))
    found = flat_folder.listing(val, labels=labels)
    assert found.classes == ["n00000001", "n00000002", "n00000003", "n00000010"]
    assert found.labels == [0, 1, 2, 3]
    given = ["n00000010", "n00000003", "other", "n00000002", "n00000001"]
    again = flat_folder.listing(val, labels=labels, classes=given)
    assert (again.labels, again.classes) == ([4, 3, 1, 0], given)
    with pytest.raises(SourceError, match="--classes-from does not name: n00000001"):
        flat_folder.listing(val, labels=labels, classes=given[:4])


def test_paths_and_class_names_may_have_spaces_and_odd_bytes(tmp_path: pathlib.Path) -> None:
    root = _touch(tmp_path / "s", b"a b.png", b"c.png", b"d/\xff e.png", b"f.png")
    lines = (
        "a b.png golden\nc.png golden retriever\nd/\udcff e.png\tcaf\udce9 au lait\nf.png golden"
    )
    found = flat_folder.listing(root, labels=_list(tmp_path, lines))
    assert found.classes == ["caf\udce9 au lait", "golden", "golden retriever"]
    assert _labelled(found) == {b"a b.png": 1, b"c.png": 2, b"d/\xff e.png": 0, b"f.png": 1}


def test_names_of_classes_that_are_numbers_are_names_where_they_are_given(
    tmp_path: pathlib.Path,
) -> None:
    root = _touch(tmp_path / "s", b"1.png", b"2.png")
    labels = _list(tmp_path, "10\n2\n")
    assert flat_folder.listing(root, labels=labels).labels == [10, 2]
    given = ["1", "10", "2"]
    assert flat_folder.listing(root, labels=labels, classes=given).labels == [1, 2]


def test_what_has_no_partner_is_told(tmp_path: pathlib.Path, val: pathlib.Path) -> None:
    name = "ILSVRC2012_val_0000000{}.JPEG"
    text = f"missing.JPEG 4\n{name.format(3)} 7\n{name.format(1)} 8\n{name.format(1)} 8\n"
    found = flat_folder.listing(val, labels=_list(tmp_path, text))
    assert _labelled(found) == {name.format(1).encode(): 8, name.format(3).encode(): 7}
    assert len(found.sizes) == 2
    assert dict(found.unlisted) == {
        b"missing.JPEG": "in labels.txt, and no image",
        b"ILSVRC2012_val_00000002.JPEG": "no label in labels.txt",
        b"ILSVRC2012_val_00000010.JPEG": "no label in labels.txt",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\n2\n3\n", "3 labels for 4 images"),
        ("", "0 labels for 4 images"),
        ("val/0.png 1\nval/1.png 1\n" * 2, "4 lines name images, as b'val/0.png', and none is"),
        ("val/0 0\nval/1 1\nval/2 0\nval/3 1\n", "4 lines of several words, no two alike, as b'v"),
        ("a.png,cat\nb.png,dog\nc.png,cat\nd.png,cat\n", "each would be a class"),
        ("0\n1\n2\n-1\n", "label -1, with label_offset=0, is -1; expected 0.."),
        ("ILSVRC2012_val_00000001.JPEG a\nILSVRC2012_val_00000001.JPEG b\n", "two labels for"),
    ],
)
def test_lists_that_do_not_fit_are_refused(
    tmp_path: pathlib.Path, val: pathlib.Path, text: str, message: str
) -> None:
    with pytest.raises(SourceError, match=message):
        flat_folder.listing(val, labels=_list(tmp_path, text))


def test_options_that_cannot_be_meant_are_refused(
    tmp_path: pathlib.Path, val: pathlib.Path
) -> None:
    labels = _list(tmp_path, "0\n1\n2\n3\n")
    with pytest.raises(SourceError, match="No such file"):
        flat_folder.listing(val, labels=tmp_path / "missing.txt")
    with pytest.raises(SourceError, match=r"label 3.* expected 0\.\.2"):
        flat_folder.listing(val, labels=labels, classes=["a", "b", "c"])
    with pytest.raises(SourceError, match="label 0, with label_offset=-1"):
        flat_folder.listing(val, labels=labels, label_offset=-1)
    with pytest.raises(OptionError, match="a whole number"):
        flat_folder.listing(val, labels=labels, label_offset="x")
    assert set(flat_folder.source.options) == {
        "labels", "label_offset", "label_regex", "endings", "include_hidden",
    }  # fmt: skip
