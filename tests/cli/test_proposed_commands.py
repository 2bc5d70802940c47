"""The commands that messages propose work when they are pasted, also where names have blanks."""

from __future__ import annotations

import pathlib
import re
import shlex
import shutil
import tarfile
import zipfile
from typing import TYPE_CHECKING, Any

import lmdb
import numpy as np
import pytest
from cli_runs import run
from PIL import Image

import packio

if TYPE_CHECKING:
    from collections.abc import Callable

# A command ends where the sentence goes on.
_PROPOSED = re.compile(
    r"(?<=[\s(])packio ([a-z-]+(?: (?:'[^']*'|[^\s;,()']+)+)+)(?=[;,)\n]|$| or | \()"
)


def _image(path: pathlib.Path, shade: int = 0, *, mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.full((30, 40) if mode == "P" else (30, 40, 3), shade, np.uint8)
    if mode == "P":
        Image.fromarray(values).convert("P").save(path)
    else:
        Image.fromarray(values).save(path)


def _photos(top: pathlib.Path, *folders: str) -> pathlib.Path:
    for number, folder in enumerate(folders):
        for i in range(2):
            _image(top / folder / f"{i}.jpg", 40 * number + 9 * i)
    return top


def _pack(here: pathlib.Path, name: str = "a pack.tar", **options: Any) -> pathlib.Path:
    return packio.pack(_photos(here / "photos", "cat", "dog"), here / name, **options).out


def _said(work: Callable[[], Any]) -> str:
    with pytest.raises(packio.PackioError) as caught:
        work()
    return str(caught.value)


# Each makes a situation in an empty folder, whose name has a blank, and returns the message.


def folder_that_is_no_pack(here: pathlib.Path) -> str:
    _photos(here / "photos", "cat", "dog")
    return _said(lambda: packio.open(here / "photos"))


def reindexing_what_is_no_container(here: pathlib.Path) -> str:
    _photos(here / "photos", "cat", "dog")
    return _said(lambda: packio.reindex(here / "photos"))


def field_that_is_there(here: pathlib.Path) -> str:
    out = _pack(here)
    keys = [f"{name}/{i}.jpg" for name in ("cat", "dog") for i in range(2)]
    packio.add_field(out, "words", dict.fromkeys(keys, "some"))
    return _said(lambda: packio.add_field(out, "words", dict.fromkeys(keys, "others")))


def level_that_is_dropped(here: pathlib.Path) -> str:
    for name in ("a", "b"):
        path = here / "large" / name / "0.jpg"
        path.parent.mkdir(parents=True)
        Image.effect_noise((1600, 1600), 40).convert("RGB").save(path, quality=60)
    out = packio.pack(here / "large", here / "a pack.tar", levels=1).out
    with packio.open(out) as opened:
        level = next(name for name in opened.fields if name != "image")
    return _said(lambda: packio.drop_field(out, level))


def pack_without_an_index_beside_it(here: pathlib.Path) -> str:
    out = _pack(here)
    out.with_name(f"{out.name}.packio").unlink()
    return _said(lambda: packio.add_field(out, "words", {"cat/0.jpg": "a"}, missing=True))


def appending_to_a_file(here: pathlib.Path) -> str:
    out = _pack(here)
    return _said(lambda: packio.append(here / "photos", out))


def pack_that_was_renamed(here: pathlib.Path) -> str:
    out, other = _pack(here), here / "its new name.tar"
    for ending in ("", ".packio"):
        shutil.move(f"{out}{ending}", f"{other}{ending}")
    return _said(lambda: packio.open(other))


def index_that_is_missing(here: pathlib.Path) -> str:
    out = _pack(here)
    return _said(lambda: packio.open(out, index=here / "an index.packio"))


def selection_named_as_a_pack(here: pathlib.Path) -> str:
    out = _pack(here)
    packio.select(out, "class = 'cat'", out=here / "some of it.selection")
    return _said(lambda: packio.select(out, "class = 'cat'", out=here / "some of it.tar"))


def selection_named_as_a_table(here: pathlib.Path) -> str:
    out = _pack(here)
    packio.select(out, "class = 'cat'", out=here / "some of it.selection")
    return _said(lambda: packio.select(out, "class = 'cat'", out=here / "some of it.parquet"))


def selection_of_a_pack_that_changed(here: pathlib.Path) -> str:
    out = _pack(here)
    packio.select(out, "class = 'cat'", out=here / "old ones.selection")
    packio.pack(_photos(here / "photos", "cat", "dog", "owl"), out, overwrite=True)
    return _said(lambda: packio.open(here / "old ones.selection"))


def _sub_databases(path: pathlib.Path) -> None:
    with lmdb.open(str(path), max_dbs=2, map_size=1 << 20) as env:
        for number, name in enumerate((b"one of two", b"other")):
            database = env.open_db(name)
            with env.begin(write=True, db=database) as txn:
                for key in "ab":
                    image = pathlib.Path(path.parent, "photos", "cat", "0.jpg").read_bytes()
                    txn.put(f"{key}{number}".encode(), image)


def lmdb_of_named_databases(here: pathlib.Path) -> str:
    _photos(here / "photos", "cat")
    _sub_databases(here / "several.lmdb")
    return _said(lambda: packio.open(here / "several.lmdb"))


def zip_that_is_called_pth(here: pathlib.Path) -> str:
    _photos(here / "photos", "cat", "dog")
    with zipfile.ZipFile(here / "my photos.pth", "w") as archive:
        for path in (here / "photos").rglob("*.jpg"):
            archive.write(path, path.relative_to(here / "photos"))
    return _said(lambda: packio.open(here / "my photos.pth"))


def folder_of_splits(here: pathlib.Path) -> str:
    _photos(here / "all of it", "train/cat", "train/dog", "val/cat", "val/dog")
    return _said(lambda: packio.pack(here / "all of it", here / "x.tar"))


def archive_of_splits(here: pathlib.Path) -> str:
    _photos(here / "photos", "train/cat", "train/dog", "val/cat", "val/dog")
    with tarfile.open(here / "all of it.tgz", "w:gz") as archive:
        archive.add(here / "photos", "photos")
    return _said(lambda: packio.pack(here / "all of it.tgz", here / "x.tar"))


def folder_that_holds_an_archive(here: pathlib.Path) -> str:
    _photos(here / "photos", "cat", "dog")
    (here / "download").mkdir()
    with zipfile.ZipFile(here / "download" / "my photos.zip", "w") as archive:
        for path in (here / "photos").rglob("*.jpg"):
            archive.write(path, path.relative_to(here / "photos"))
    return _said(lambda: packio.pack(here / "download", here / "x.tar"))


def list_of_splits(here: pathlib.Path) -> str:
    _photos(here, "train", "val")
    lines = ["file_name,label", *(f"{s}/{i}.jpg,{i}" for s in ("train", "val") for i in range(2))]
    (here / "metadata.csv").write_text("\n".join(lines))
    return _said(lambda: packio.pack(here, here.parent / "x.tar"))


def pairs_of_splits(here: pathlib.Path) -> str:
    for split in ("train", "val"):
        for i in range(2):
            _image(here / "street" / "images" / split / f"{i}.jpg")
            _image(here / "street" / "masks" / split / f"{i}.png", mode="P")
    return _said(lambda: packio.pack(here / "street", here / "x.tar"))


def masks_that_look_like_a_class(here: pathlib.Path) -> str:
    for i in range(3):
        _image(here / "street" / "pictures" / f"{i}.jpg")
        _image(here / "street" / "areas" / f"{i}.png", mode="P")
    return _said(lambda: packio.pack(here / "street", here / "x.tar"))


SITUATIONS: list[Callable[[pathlib.Path], str]] = [
    folder_that_is_no_pack, reindexing_what_is_no_container, field_that_is_there,
    level_that_is_dropped, pack_without_an_index_beside_it, appending_to_a_file,
    pack_that_was_renamed, index_that_is_missing, selection_named_as_a_pack,
    selection_named_as_a_table, selection_of_a_pack_that_changed, lmdb_of_named_databases,
    zip_that_is_called_pth, folder_of_splits, archive_of_splits, folder_that_holds_an_archive,
    list_of_splits, pairs_of_splits, masks_that_look_like_a_class,
]  # fmt: skip


def proposed(message: str) -> list[list[str]]:
    """The commands in a message, as a shell splits them."""
    return [shlex.split(found) for found in _PROPOSED.findall(message)]


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda made: made.__name__)
def test_what_a_message_proposes_works(
    situation: Callable[[pathlib.Path], str], tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("PACKIO_CACHE_DIR", str(tmp_path / "cache"))
    here = tmp_path / "my data"
    here.mkdir()
    monkeypatch.chdir(here)
    message = situation(here)
    commands = proposed(message)
    assert commands, message
    there = {*here.iterdir()}
    for words in commands:
        if len(words) > 2 and (out := here / words[2]).exists() and out not in there:
            shutil.rmtree(out)  # of another way, which excludes this one
        done = run(*words)
        assert done.returncode == 0, (message, words, done.stderr)
