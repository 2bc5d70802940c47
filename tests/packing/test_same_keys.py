"""Appending adds nothing twice when the folder that keys are relative to has changed."""

from __future__ import annotations

import pathlib
import zipfile

import made
import pytest

import packio
from packio.errors import OptionError


def _files(folder: pathlib.Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_bytes(made.png(5, 4, 10))


def _list(path: pathlib.Path, *names: str) -> pathlib.Path:
    _files(path.parent, *names)
    path.write_text("path,label\n" + "".join(f"{name},{i % 2}\n" for i, name in enumerate(names)))
    return path


def _keys(path: pathlib.Path) -> list[str]:
    return [sample.key for sample in packio.open(path)]


def test_a_path_outside_the_folder_renames_nothing(tmp_path: pathlib.Path) -> None:
    source, out = tmp_path / "data" / "list.csv", tmp_path / "x.tar"
    source.parent.mkdir()
    packio.pack(_list(source, "a.png", "b.png"), out, shards=2)
    for i in range(2):
        report = packio.append(out, _list(source, "a.png", "b.png", "../other/c.png", "d.png"))
        assert (report.added, report.deleted, report.changed) == (2 - 2 * i, (), ())
    assert "'data/a.png' is 'a.png'" in report.warnings[-1]
    assert _keys(out) == ["a.png", "b.png", "other/c.png", "d.png"]
    deeper = ("a.png", "b.png", "../other/c.png", "d.png", "../../far/e.png")
    report = packio.append(out, _list(source, *deeper))
    assert (report.added, report.deleted, report.total) == (1, (), 5)
    assert {s.data for s in packio.open(out)} == {(source.parent / n).read_bytes() for n in deeper}
    assert packio.verify(out).ok


def test_a_path_outside_the_folder_that_goes_renames_nothing(tmp_path: pathlib.Path) -> None:
    source, out = tmp_path / "data" / "list.csv", tmp_path / "x.tar"
    source.parent.mkdir()
    packio.pack(_list(source, "a.png", "b.png", "../c.png"), out, shards=2)
    report = packio.append(out, _list(source, "a.png", "b.png", "d.png"))
    assert (report.added, report.deleted) == (1, ("c.png",))
    assert _keys(out) == ["data/a.png", "data/b.png", "c.png", "data/d.png"]


def test_an_archive_whose_images_share_no_folder_any_more(tmp_path: pathlib.Path) -> None:
    source, out = tmp_path / "x.zip", tmp_path / "x.tar"
    names = ["top/a/0.png", "top/b/1.png", "beside/c/2.png"]
    _files(tmp_path, *names)
    for count in (2, 3):
        with zipfile.ZipFile(source, "w") as archive:
            for name in names[:count]:
                archive.write(tmp_path / name, name)
        if count == 2:
            packio.pack(source, out, shards=2)
    report = packio.append(out, source)  # the class of the first two is "top" now
    assert (report.added, report.changed, report.total) == (1, ("a/0.png", "b/1.png"), 3)


def test_other_files_under_such_names_are_new(tmp_path: pathlib.Path) -> None:
    one, two, out = tmp_path / "one/list.csv", tmp_path / "two/list.csv", tmp_path / "x.tar"
    one.parent.mkdir()
    two.parent.mkdir()
    packio.pack(_list(one, "a.png", "b.png"), out, shards=2)
    report = packio.append(out, _list(two, "more/a.png", "more/b.png"))
    assert (report.added, report.deleted) == (2, ("a.png", "b.png"))


def test_a_key_that_two_samples_would_have_is_refused(tmp_path: pathlib.Path) -> None:
    source, out = tmp_path / "data" / "list.csv", tmp_path / "x.tar"
    source.parent.mkdir()
    packio.pack(_list(source, "a.png", "b.png"), out, shards=2)
    with pytest.raises(OptionError, match=r"would have the key 'new\.png'"):
        packio.append(out, _list(source, "a.png", "b.png", "new.png", "../new.png"))
