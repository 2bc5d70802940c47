"""Files and folders that nobody made for the dataset are left out and told, by every source."""

from __future__ import annotations

import json
import pathlib
import warnings
from typing import TYPE_CHECKING

import made
import pytest
from cli_runs import run
from PIL import Image

import packio
from packio.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Sequence

GOOD = ("cats/1.jpg", "dogs/2.jpg")
HIDDEN = (
    ".git/1.jpg", ".ipynb_checkpoints/1.jpg", "__MACOSX/cats/1.jpg", "@eaDir/1.jpg",
    "cats/.ipynb_checkpoints/1-checkpoint.jpg", "cats/@eaDir/1.jpg/SYNOPHOTO_THUMB_M.jpg",
    "cats/.thumbs/1.jpg", "cats/__MACOSX/1.jpg", "cats/.hidden.jpg", "cats/._1.jpg",
    "$RECYCLE.BIN/1.jpg", "System Volume Information/1.jpg", "lost+found/1.jpg",
)  # fmt: skip
NO_IMAGES = ("cats/Thumbs.db", "cats/desktop.ini", "cats/.DS_Store", ".gitignore")


def _jpeg() -> bytes:
    return made.saved(Image.new("RGB", (40, 30), (200, 100, 50)), "JPEG")


JPEG = _jpeg()


def _tree(root: pathlib.Path, names: Sequence[str]) -> pathlib.Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        twin = path.name.startswith("._") or path.suffix in (".db", ".ini", "")
        path.write_bytes(b"\0\5\x16\7 no image" if twin else JPEG)
    return root


def _keys(out: pathlib.Path) -> list[str]:
    with packio.open(out) as pack:
        return list(pack.keys())


def _told(lines: Sequence[str]) -> str:
    (line,) = [line for line in lines if "--include-hidden" in line]
    return line


def test_an_image_folder_leaves_hidden_and_system_folders_out(tmp_path: pathlib.Path) -> None:
    root = _tree(tmp_path / "s", (*GOOD, *HIDDEN, *NO_IMAGES))
    report = packio.pack(root, tmp_path / "x.lmdb")
    assert (report.packed, report.found, report.classes) == (2, 2, 2)
    assert _keys(tmp_path / "x.lmdb") == [*GOOD]
    assert "11 hidden or system folders and 2 hidden files" in _told(report.warnings)
    assert not any(".db" in line or ".ini" in line for line in report.warnings)


def test_what_is_hidden_is_taken_when_asked(tmp_path: pathlib.Path) -> None:
    root = _tree(tmp_path / "s", (*GOOD, ".git/1.jpg", "cats/.hidden.jpg", "cats/@eaDir/1.jpg"))
    report = packio.pack(root, tmp_path / "x.lmdb", include_hidden=True)
    assert (report.packed, report.classes) == (5, 3)
    assert not any("hidden" in line for line in report.warnings)


def test_only_hidden_folders_are_no_class_folders(tmp_path: pathlib.Path) -> None:
    root = _tree(tmp_path / "s", (".git/1.jpg",))
    with pytest.raises(SourceError, match="no class folders"):
        packio.pack(root, tmp_path / "x.lmdb")


def test_splits_beside_hidden_folders_are_splits(tmp_path: pathlib.Path) -> None:
    root = _tree(tmp_path / "s", ("train/a/1.jpg", "val/a/1.jpg", ".cache/1.jpg"))
    with pytest.raises(SourceError, match=r"splits \(train, val\)"):
        packio.pack(root, tmp_path / "x.lmdb")


def test_a_path_that_leads_through_a_hidden_folder_is_a_source(tmp_path: pathlib.Path) -> None:
    root = _tree(tmp_path / ".data" / "@eaDir", GOOD)
    assert packio.pack(root, tmp_path / "x.lmdb").packed == 2


def test_a_flat_folder_leaves_hidden_files_out(tmp_path: pathlib.Path) -> None:
    root = _tree(tmp_path / "s", ("1.jpg", "._1.jpg", ".2.jpg", "@eaDir/1.jpg", "Thumbs.db"))
    report = packio.pack(root, tmp_path / "x.lmdb")
    assert _keys(tmp_path / "x.lmdb") == ["1.jpg"]
    assert "1 hidden or system folder and 2 hidden files" in _told(report.warnings)


def test_a_list_of_labels_counts_no_hidden_image(tmp_path: pathlib.Path) -> None:
    root = _tree(tmp_path / "s", ("1.jpg", "2.jpg", "._1.jpg"))
    (tmp_path / "labels.txt").write_text("3\n4\n")
    packio.pack(root, tmp_path / "x.lmdb", labels=tmp_path / "labels.txt")
    with packio.open(tmp_path / "x.lmdb") as pack:
        assert [sample.label for sample in pack] == [3, 4]


def test_pairs_leave_hidden_files_out(tmp_path: pathlib.Path) -> None:
    root = _tree(tmp_path / "s", ("images/1.jpg", "images/._1.jpg", "images/.thumbs/1.jpg"))
    (root / "masks").mkdir()
    for name in ("1.png", "._1.png"):
        (root / "masks" / name).write_bytes(made.png(40, 30))
    report = packio.pack(root, tmp_path / "x.lmdb")
    assert _keys(tmp_path / "x.lmdb") == ["images/1.jpg"]
    assert "1 hidden or system folder and 2 hidden files" in _told(report.warnings)


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_an_archive_leaves_hidden_members_out(kind: str, tmp_path: pathlib.Path) -> None:
    files = made.files_below(_tree(tmp_path / "s", (*GOOD, *HIDDEN, *NO_IMAGES)))
    path = (made.zipped if kind == "zip" else made.tar)(tmp_path / f"a.{kind}", files)
    report = packio.pack(path, tmp_path / "x.lmdb", folder=".")
    assert _keys(tmp_path / "x.lmdb") == [*GOOD]
    assert report.classes == 2
    assert "11 hidden or system folders and 2 hidden files" in _told(report.warnings)


def test_the_folder_in_common_is_that_of_the_images_that_are_taken(tmp_path: pathlib.Path) -> None:
    names = ("data/cats/1.jpg", "data/dogs/2.jpg", "__MACOSX/data/cats/1.jpg")  # as macOS makes it
    path = made.zipped(tmp_path / "a.zip", dict.fromkeys(names, JPEG))
    packio.pack(path, tmp_path / "x.lmdb")
    assert _keys(tmp_path / "x.lmdb") == [*GOOD]


def test_a_folder_at_a_url_leaves_hidden_objects_out(tmp_path: pathlib.Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]
    fs.pipe({f"/hidden/{name}": JPEG for name in (*GOOD, *HIDDEN, *NO_IMAGES)})
    report = packio.pack("memory://hidden", tmp_path / "x.lmdb")
    assert _keys(tmp_path / "x.lmdb") == [*GOOD]
    assert "11 hidden or system folders and 2 hidden files" in _told(report.warnings)
    assert not any(".db" in line for line in report.warnings)


def test_a_folder_dataset_leaves_hidden_files_out(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACKIO_CACHE_DIR", str(tmp_path / "cache"))
    root = _tree(tmp_path / "s", (*GOOD, *HIDDEN, *NO_IMAGES))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ds = packio.FolderDataset(root)
    assert (len(ds), ds.classes) == (2, ["cats", "dogs"])
    assert "hidden" in _told([str(one.message) for one in caught])


def test_shards_of_a_folder_are_not_their_twins_of_macos(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACKIO_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "shards").mkdir()
    made.tar(tmp_path / "shards/a.tar", {"1.jpg": JPEG, "1.cls": b"0"})
    (tmp_path / "shards/._a.tar").write_bytes(b"\0\5\x16\7" + bytes(600))
    with packio.open(tmp_path / "shards") as pack:
        assert len(pack) == 1


def test_the_command_takes_hidden_files_when_asked(tmp_path: pathlib.Path) -> None:
    root = _tree(tmp_path / "s", (*GOOD, ".git/1.jpg"))
    for number, (packed, options) in enumerate(((2, []), (3, ["--include-hidden"]))):
        done = run("pack", root, tmp_path / f"{number}.lmdb", "--json", *options)
        assert json.loads(done.stdout)["packed"] == packed
