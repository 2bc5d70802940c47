"""An image folder is listed as torchvision lists it, whatever lies in it, and nothing is lost."""

from __future__ import annotations

import os
import pathlib
import shlex
import socket
import subprocess
import tempfile
from typing import TYPE_CHECKING, Any

import made
import numpy as np
import pytest
from cli_runs import run

import packio
from packio.errors import NotAPackError, OptionError, PackioError, ReadError, SourceError
from packio.sources._files import EXTENSIONS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from packio.sources import Listing

image_folder = made.Asked("image_folder")
NASTY = (
    b"cats/1.jpg", b"cats/10.jpg", b"cats/2.JPG", b"cats/.hidden.jpg", b"cats/.jpg", b"cats/jpg",
    b"cats/deep/er/x.png", b"cats/deep/a.png", b"cats/deep-er/x.png", b"cats/deep.png",
    b"cats/z.txt", b"cats/a.jpg.txt", b"cats/a.jpeg", b"cats/A.JpEg", b"cats/b.webp", b"cats/c.gif",
    b"cats/d.tif", b"cats/e.TIFF", b"cats/f.ppm", b"cats/g.pgm", b"cats/h.bmp", b"cats/i.pbm",
    b"a/b/1.png", b"a/b-c/1.png", b"a/b.png", b"a/b/c/1.png", b"a/b c/1.png", b"a-b/1.png",
    b"a b/1.png", b"B/1.png", b"\xc3\xa9/nfc.png", b"e\xcc\x81/nfd.png", b"caf\xe9/latin.png",
    b"cats/\xff\xfe.jpg", b"cats/\xc3\xa9.jpg", b"cats/e\xcc\x81.jpg", b"cats/new\nline.jpg",
    b"cats/tab\t.jpg", b"cats/\xf0\x9f\x90\x88.jpg", b"cats/\xef\xbf\xbd.jpg", b"cats/-rf.jpg",
    b"cats/ .jpg", b"cats/" + b"x" * 251 + b".jpg", b"cats/" + "ü".encode() * 125 + b".jpg",
    b"cats/x.jpg/inside.png", b"cats/i\xcc\x87.JPG", b"cats/K.\xe2\x84\xaapg", b".git/1.png",
    "\u0130/1.jpg".encode(), b"cats/empty.jpg",
)  # fmt: skip


def _png() -> bytes:
    return made.saved(np.zeros((3, 4, 3), np.uint8), "PNG")


PNG = _png()


def _tree(root: pathlib.Path, *keys: bytes) -> pathlib.Path:
    for key in keys:
        path = os.path.join(os.fsencode(root), key)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(PNG)
    return root


def _seen_by_torchvision(root: pathlib.Path, torchvision: ModuleType) -> list[tuple[bytes, int]]:
    found = torchvision.datasets.ImageFolder(root)
    return [(os.fsencode(os.path.relpath(path, root)), label) for path, label in found.samples]


def _seen(listing: Listing) -> list[tuple[bytes, int]]:
    assert isinstance(listing.labels, list)
    return list(zip(listing.keys, listing.labels, strict=True))


@pytest.fixture
def nasty(tmp_path: pathlib.Path) -> pathlib.Path:
    """Files with every kind of name, links to files and to folders, and what is no file."""
    root = _tree(tmp_path / "nasty", *NASTY)
    (root / "loose.txt").touch()
    os.symlink("1.jpg", root / "cats/link.jpg")
    os.symlink("z.txt", root / "cats/text-link.jpg")
    os.symlink("nowhere.jpg", root / "cats/dangling.jpg")
    os.symlink("nowhere", root / "cats/dangling")
    os.symlink("itself.jpg", root / "cats/itself.jpg")
    os.symlink("itself", root / "itself")
    os.symlink("../a", root / "cats/sibling")
    os.symlink("cats", root / "same-cats")
    os.mkfifo(root / "cats/fifo.jpg")
    with socket.socket(socket.AF_UNIX) as unix:
        here = os.getcwd()
        os.chdir(root / "cats")  # a socket's path has at most 107 bytes
        try:
            unix.bind("socket.jpg")
        finally:
            os.chdir(here)
    return root


def test_listing_agrees_with_torchvision(nasty: pathlib.Path, torchvision: ModuleType) -> None:
    os.unlink(nasty / "itself")  # torchvision cannot list beside it
    listing = image_folder.listing(nasty, include_hidden=True)
    assert _seen(listing) == _seen_by_torchvision(nasty, torchvision)
    assert listing.classes == torchvision.datasets.ImageFolder(nasty).classes
    assert listing.unlisted == []


def test_extensions_are_torchvisions(torchvision: ModuleType) -> None:
    assert torchvision.datasets.folder.IMG_EXTENSIONS == EXTENSIONS


def _reference(root: pathlib.Path) -> Iterator[tuple[bytes, int]]:
    """Torchvision's rules by `os.walk`, written down once more."""
    classes = sorted(name for name in os.listdir(root) if os.path.isdir(os.path.join(root, name)))
    for label, name in enumerate(classes):
        for folder, _, files in sorted(os.walk(os.path.join(root, name), followlinks=True)):
            for file in sorted(files):
                if file.lower().endswith(EXTENSIONS):
                    path = os.path.join(folder, file)
                    yield os.fsencode(path)[len(os.fsencode(root)) + 1 :], label


def test_listing_agrees_with_a_walk(nasty: pathlib.Path) -> None:
    assert _seen(image_folder.listing(nasty, include_hidden=True)) == list(_reference(nasty))


def test_every_path_is_packed_or_listed_as_skipped(
    nasty: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    report = packio.pack(nasty, tmp_path / "x.lmdb", on_error="skip", include_hidden=True)
    with packio.open(tmp_path / "x.lmdb") as pack:
        packed = [pack.key_bytes(i) for i in range(len(pack))]
        assert pack.by_key(b"cats/link.jpg").data == pack.by_key("cats/1.jpg").data == PNG
    skipped = {s.key: s.reason for s in report.skipped}
    odd = {
        b"cats/dangling.jpg": "No such file",
        b"cats/fifo.jpg": "not a regular file",
        b"cats/itself.jpg": "symbolic links",
        b"cats/socket.jpg": "No such device",
    }
    assert set(skipped) == {*odd, *(b"same-" + key for key in odd)}
    assert all(reason in skipped[key] for key, reason in odd.items())
    assert sorted([*packed, *skipped]) == sorted(key for key, _ in _reference(nasty))
    assert report.found == report.packed + len(report.skipped) == len(packed) + len(skipped)


@pytest.mark.parametrize("target", ["..", "../..", ".", "../deep"])
def test_a_cycle_is_cut_and_told(tmp_path: pathlib.Path, target: str) -> None:
    root = _tree(tmp_path / "s", b"cats/1.png", b"cats/deep/2.png", b"cats/deep/er/3.png")
    os.symlink(target, root / "cats/deep/back")
    listing = image_folder.listing(root)
    assert listing.keys == [b"cats/1.png", b"cats/deep/2.png", b"cats/deep/er/3.png"]
    assert listing.warnings == ["'cats/deep/back' leads back to a folder above; not entered"]


def test_two_siblings_that_link_to_each_other_end(tmp_path: pathlib.Path) -> None:
    root = _tree(tmp_path / "s", b"a/1.png", b"b/2.png")
    os.symlink("../b", root / "a/b")
    os.symlink("../a", root / "b/a")
    listing = image_folder.listing(root)
    assert listing.keys == [b"a/1.png", b"a/b/2.png", b"b/2.png", b"b/a/1.png"]
    assert len(listing.warnings) == 2


@pytest.mark.parametrize("target", [".", "../s"])
def test_a_class_that_links_back_is_refused_and_kept_empty_when_asked(
    tmp_path: pathlib.Path, target: str
) -> None:
    root = _tree(tmp_path / "s", b"a/1.png")
    os.symlink(target, root / "z")
    listing = image_folder.listing(root)
    ((key, reason),) = listing.unlisted
    assert (key, "has no images" in reason) == (b"z/", True)
    assert any("leads back" in warning for warning in listing.warnings)
    listing = image_folder.listing(root, allow_empty=True)
    assert listing.keys == [b"a/1.png"]
    assert listing.classes == ["a", "z"]
    assert any("leads back" in warning for warning in listing.warnings)


def test_very_deep_folders_are_listed(tmp_path: pathlib.Path) -> None:
    here = os.getcwd()
    root = tmp_path / "s"
    (root / "c").mkdir(parents=True)
    try:
        os.chdir(root / "c")
        for _ in range(1500):
            os.mkdir("d")
            os.chdir("d")
        pathlib.Path("1.png").write_bytes(PNG)
    finally:
        os.chdir(here)
    assert image_folder.listing(root).keys == [b"c/" + b"d/" * 1500 + b"1.png"]
    subprocess.run(["rm", "-rf", root / "c"], check=True)  # shutil.rmtree is recursive


def test_an_empty_class_is_refused_unless_skipping(tmp_path: pathlib.Path) -> None:
    root = _tree(tmp_path / "s", b"a/1.png", b"b/readme.txt")
    with pytest.raises(SourceError, match="b/: a class folder that has no images"):
        packio.pack(root, tmp_path / "x.lmdb")
    report = packio.pack(root, tmp_path / "x.lmdb", on_error="skip")
    assert (report.packed, report.classes) == (1, 2)
    assert "'b' has no images" in report.warnings[0]
    assert packio.open(tmp_path / "x.lmdb").classes == ["a", "b"]


def test_images_beside_the_class_folders_are_told(tmp_path: pathlib.Path) -> None:
    root = _tree(tmp_path / "s", b"a/1.png", b"loose.png", b"LOOSE.JPG", b"notes.txt")
    assert image_folder.listing(root).warnings == [
        "2 images beside the class folders belong to no class (LOOSE.JPG, loose.png)"
    ]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ((), "no class folders"),
        ((b"a/x.txt",), "has no images"),
    ],
)
def test_a_folder_of_nothing_is_refused(
    tmp_path: pathlib.Path, keys: tuple[bytes, ...], message: str
) -> None:
    root = tmp_path / "s"
    root.mkdir()
    with pytest.raises(SourceError, match=message):
        packio.pack(_tree(root, *keys), tmp_path / "x.lmdb")
    assert os.listdir(tmp_path) == ["s"]


def test_what_is_no_folder_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").touch()
    for name in ("file", "missing", "file/below"):
        with pytest.raises(SourceError, match="expected a folder of class folders"):
            packio.pack(tmp_path / name, tmp_path / "x.lmdb")
        with pytest.raises(SourceError):
            image_folder.listing(tmp_path / name)


def test_split_folders_are_refused_with_commands_that_work(tmp_path: pathlib.Path) -> None:
    root = _tree(tmp_path / "my data", b"val/a/1.png", b"train/a/1.png", b"train/b/1.png")
    with pytest.raises(SourceError, match="splits") as caught:
        packio.pack(root, tmp_path / "x.lmdb")
    commands = str(caught.value).rpartition("by itself: ")[2].split("; ")
    assert len(commands) == 2
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "packio"
        assert run(*arguments, cwd=tmp_path).returncode == 0
    assert packio.open(tmp_path / "train.lmdb").classes == ["a", "b"]
    assert packio.open(tmp_path / "val.lmdb").classes == ["a", "b"]


def test_a_class_that_is_named_as_a_split_among_others_is_a_class(tmp_path: pathlib.Path) -> None:
    root = _tree(tmp_path / "s", b"train/1.png", b"plane/1.png")
    assert image_folder.listing(root).classes == ["plane", "train"]


def test_classes_come_from_a_pack_a_file_or_a_list(tmp_path: pathlib.Path) -> None:
    train = _tree(tmp_path / "t", b"a/1.png", b"b/1.png", "é/1.png".encode(), b"caf\xe9/1.png")
    val = _tree(tmp_path / "v", b"b/1.png", "é/1.png".encode(), b"caf\xe9/1.png")
    packio.pack(train, tmp_path / "t.lmdb")
    names = ["a", "b", "caf\udce9", "é"]
    text = "\r\n".join(names) + "\r\n\r\n"
    (tmp_path / "classes.txt").write_bytes(
        b"\xef\xbb\xbf" + text.encode("utf-8", "surrogateescape")
    )
    sources: list[Any] = [tmp_path / "t.lmdb", str(tmp_path / "classes.txt"), names]
    for i, given in enumerate(sources):
        out = tmp_path / f"{i}.lmdb"
        packio.pack(val, out, classes_from=given)
        with packio.open(out) as pack:
            assert pack.labels is not None
            assert pack.classes == names
            assert pack.labels.tolist() == [1, 2, 3]


def test_classes_have_the_order_given(tmp_path: pathlib.Path) -> None:
    root = _tree(tmp_path / "s", b"a/1.png", b"b/1.png")
    packio.pack(root, tmp_path / "x.lmdb", classes_from=["b", "z", "a"])
    with packio.open(tmp_path / "x.lmdb") as pack:
        labels = {sample.key: sample.label for sample in pack}
        assert labels == {"a/1.png": 2, "b/1.png": 0}
        assert pack.class_to_idx == {"b": 0, "z": 1, "a": 2}


def test_classes_that_cannot_be_meant_are_refused(tmp_path: pathlib.Path) -> None:
    root = _tree(tmp_path / "s", b"a/1.png", b"b/1.png")
    (tmp_path / "empty.txt").touch()
    given: list[tuple[Any, type[PackioError]]] = [
        (["a"], SourceError), (["a", "a", "b"], OptionError), ([], OptionError),
        ([0, 1], OptionError), (tmp_path / "empty.txt", OptionError),
        (tmp_path / "missing", NotAPackError), (root, NotAPackError),
        (tmp_path / "s/a/1.png", PackioError),
    ]  # fmt: skip
    for wrong, error in given:
        with pytest.raises(error):
            packio.pack(root, tmp_path / "x.lmdb", classes_from=wrong)
    assert sorted(os.listdir(tmp_path)) == ["empty.txt", "s"]


def _as_nobody(root: pathlib.Path, out: pathlib.Path, **options: str) -> tuple[str, str]:
    """Pack as a user whom the modes of files concern; tell the error's name and message."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = ""
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            report = packio.pack(root, out, **options)  # type: ignore[arg-type]  # strings all
            said = f"packed {report.packed}, " + "; ".join(
                f"{os.fsdecode(s.key)}: {s.reason}" for s in report.skipped
            )
        except Exception as error:  # noqa: BLE001 (told to the parent)
            said = f"{type(error).__name__} {error}"
        finally:
            os.write(writing, said.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        kind, _, message = pipe.read().partition(" ")
    os.waitpid(child, 0)
    return kind, message


@pytest.fixture
def public(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A folder that another user may reach and write into, in a process that can pack."""
    temporary = pathlib.Path(tempfile.gettempdir())
    for folder in (tmp_path, *tmp_path.parents):
        if temporary in folder.parents:
            folder.chmod(0o755)
    packio.pack(_tree(tmp_path / "s", b"a/1.png"), tmp_path / "x.lmdb")  # imports what it needs
    place = tmp_path / "public"
    place.mkdir()
    place.chmod(0o777)
    yield place
    for root, _, _ in os.walk(place):
        os.chmod(root, 0o700)


def test_an_unreadable_folder_is_told_never_left_out(public: pathlib.Path) -> None:
    root = _tree(public / "s", b"a/1.png", b"a/secret/2.png", b"b/3.png", b"ab/4.png")
    (root / "a/secret").chmod(0)
    kind, message = _as_nobody(root, public / "x.lmdb")
    assert kind == "BadImagesError"
    assert "a/secret/: folder cannot be listed: Permission denied" in message
    assert not (public / "x.lmdb").exists()
    kind, message = _as_nobody(root, public / "x.lmdb", on_error="skip")
    assert (kind, message.split(", ")[0]) == ("packed", "3")
    assert "a/secret/: folder cannot be listed" in message


def test_an_unreadable_class_is_not_an_empty_one(public: pathlib.Path) -> None:
    root = _tree(public / "s", b"a/1.png", b"b/3.png")
    (root / "b").chmod(0)
    kind, message = _as_nobody(root, public / "x.lmdb")
    assert kind == "BadImagesError"
    assert "b/: folder cannot be listed" in message


def test_a_link_into_an_unreadable_folder_is_told(public: pathlib.Path) -> None:
    root = _tree(public / "s", b"a/1.png", b"b/3.png")
    _tree(public, b"private/c/4.png")
    (public / "private").chmod(0)
    os.symlink("../../private/c", root / "a/more")
    kind, message = _as_nobody(root, public / "x.lmdb")
    assert (kind, "a/more/: folder cannot be listed" in message) == ("BadImagesError", True)
    os.symlink("../private/c", root / "c")
    kind, message = _as_nobody(root, public / "x.lmdb", on_error="skip")
    assert (kind, "s/c: cannot be looked into" in message) == ("SourceError", True)


def test_an_unreadable_source_is_an_error(public: pathlib.Path) -> None:
    root = _tree(public / "s", b"a/1.png")
    (public / "classes.txt").write_text("a\n")
    (public / "classes.txt").chmod(0)
    kind, _ = _as_nobody(root, public / "x.lmdb", classes_from=str(public / "classes.txt"))
    assert kind == ReadError.__name__
    for folder in (root, public):
        folder.chmod(0)
        kind, message = _as_nobody(root, public.parent / "x.lmdb")
        assert (kind, "Permission denied" in message) == ("SourceError", True)


def test_an_unreadable_file_is_skipped_with_its_reason(public: pathlib.Path) -> None:
    root = _tree(public / "s", b"a/1.png", b"a/2.png")
    (root / "a/2.png").chmod(0)
    kind, message = _as_nobody(root, public / "x.lmdb", on_error="skip")
    assert (kind, message) == ("packed", "1, a/2.png: cannot be read: Permission denied")


def test_files_with_other_endings_are_told(tmp_path: pathlib.Path) -> None:
    root = _tree(tmp_path / "t", b"a/1.png", b"a/b/2.PNG")
    for name in ("a/x.GIF", "a/b/y.gif", "a/notes.txt", "a/.hidden"):
        (root / name).write_bytes(b"")
    report = packio.pack(root, tmp_path / "t.lmdb")
    assert report.packed == report.found == 2
    (warning,) = report.warnings
    assert warning.startswith("3 files with other endings are not taken as images (.gif 2, .txt 1)")
