"""Appending to packs and merging them: nothing twice, nothing lost, labels that never shift."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import zipfile
from typing import Any

import latents
import numpy as np
import pytest
from cli_runs import run
from made import png

import packio
from packio.errors import (
    BadImagesError,
    LockedError,
    OptionError,
    OutputExistsError,
    PackioError,
    UnfinishedPackError,
)
from packio.inspecting import verifying
from packio.inspecting.verifying import files
from packio.packing.run import executors
from packio.storage import workshop


@pytest.fixture
def half(tmp_path: pathlib.Path, image_folder: pathlib.Path) -> pathlib.Path:
    """A copy of the image folder without every other image, and without one class."""
    source = shutil.copytree(image_folder, tmp_path / "source")
    for path in sorted(p for p in source.rglob("*") if p.is_file())[::2]:
        path.unlink()
    shutil.rmtree(source / min(os.listdir(source)))
    return source


def _contents(pack: packio.Pack) -> dict[str, tuple[bytes, str]]:
    return {s.key: (s.data, pack.classes[int(s.label)]) for s in pack}  # type: ignore[arg-type]  # all have labels


def test_options_that_the_source_does_not_take_or_that_make_no_sense_are_refused(
    half: pathlib.Path, image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    packio.pack(half, tmp_path / "x.tar", shards=2)
    unknown = "no option of appending from image_folder"
    given: list[tuple[dict[str, Any], str]] = [
        ({"encode": "png"}, unknown), ({"endigns": ".jpg"}, unknown),
        ({"num_workers": 0}, "num_workers"), ({"shard_size": -1}, "shard_size"),
        ({"on_error": "x"}, "on_error"),
    ]  # fmt: skip
    for options, said in given:
        with pytest.raises(OptionError, match=said):
            packio.append(tmp_path / "x.tar", image_folder, **options)


@pytest.mark.parametrize("name", latents.FORMATS)
def test_new_samples_come_behind_the_old_ones(
    name: str, half: pathlib.Path, image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = tmp_path / "out" / f"x{latents.suffix(name)}"
    out.parent.mkdir()
    packio.pack(half, out, shards=2)
    old = packio.open(out)
    before, classes = _contents(old), old.classes
    first = old[0].data
    report = packio.append(out, image_folder)
    now = packio.open(out)
    assert report.added + report.known == 25 == report.total == len(now)
    assert now.classes[: len(classes)] == classes
    assert tuple(now.classes[len(classes) :]) == report.new_classes != ()
    assert [now.key(i) for i in range(len(old))] == [old.key(i) for i in range(len(old))]
    assert _contents(now) == _contents(
        packio.open(packio.pack(image_folder, tmp_path / "w.tar").out)
    )
    assert before.items() <= _contents(now).items()
    assert packio.verify(out).ok
    assert old[0].data == first  # who has it open goes on reading
    again = packio.append(out, image_folder)
    assert (again.added, again.known, again.digest) == (0, 25, report.digest)
    assert packio.append(out, image_folder, compare=True).changed == ()
    assert os.listdir(out.parent) == [out.name]


def test_changed_and_deleted_samples_are_listed_and_kept(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    source = shutil.copytree(image_folder, tmp_path / "s")
    out = tmp_path / "x.tar"
    packio.pack(source, out, shards=2)
    names = sorted(p for p in source.rglob("*") if p.is_file())
    was = names[0].read_bytes()
    names[0].write_bytes(names[1].read_bytes())
    names[2].unlink()
    shutil.copy(names[4], names[4].with_name("new.jpg"))
    differs, gone = (str(names[i].relative_to(source)) for i in (0, 2))
    before = packio.open(out).digest
    for total in (25, 26, 26):
        report = packio.append(out, source, compare=True)
        assert report.new == 26 - total
        assert (report.changed, report.deleted) == ((differs,), (gone,))
        assert (report.added, report.total, report.digest) == (0, total, before)
        report = packio.append(out, source)
        assert (report.changed, report.deleted, report.total) == (None, (gone,), 26)
        before = report.digest
    assert packio.open(out).by_key(differs).data == was


def test_a_bad_new_image_adds_nothing_or_is_left_out(
    half: pathlib.Path, image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = tmp_path / "x.tar"
    digest = packio.pack(half, out, shards=1, shard_size=None).digest
    with pytest.raises(OptionError, match="convert"):
        packio.append(out, image_folder)  # a single file
    shutil.rmtree(tmp_path / "x", ignore_errors=True)
    out = tmp_path / "y.tar"
    digest = packio.pack(half, out, shards=2).digest
    grown = shutil.copytree(image_folder, tmp_path / "grown")
    (grown / "nature" / "bad.jpg").write_bytes(b"")
    with pytest.raises(BadImagesError):
        packio.append(out, grown)
    assert packio.open(out).digest == digest
    report = packio.append(out, grown, on_error="skip")
    assert (report.skipped, report.total) == (1, 25)
    counts = {"found": 25, "packed": 25, "skipped": 0}  # what is bad is told, and not counted
    assert packio.open(out).metadata["counts"] == counts
    again = packio.append(out, grown, on_error="skip")
    assert (again.skipped, again.added, again.digest) == (1, 0, report.digest)
    assert packio.open(out).metadata["counts"] == counts


def test_tars_of_others_are_merged(
    image_folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACKIO_CACHE_DIR", str(tmp_path / "cache"))  # where their indexes go
    parts = []
    for name in sorted(os.listdir(image_folder)):
        parts.append(tmp_path / f"{name}.tar")
        with tarfile.open(parts[-1], "w") as tar:
            tar.add(image_folder / name, name)
    merged = tmp_path / "all.tar"
    packio.merge(merged, parts)
    expected = sorted(s.data for part in parts for s in packio.open(part))
    assert sorted(s.data for s in packio.open(merged)) == expected


def test_labels_without_names_stay_numbers(
    tmp_path: pathlib.Path, image_folder: pathlib.Path
) -> None:
    samples = list(packio.open(packio.pack(image_folder, tmp_path / "a.tar").out))
    packio.pack(samples[:10], tmp_path / "b.tar", shards=2)
    packio.append(tmp_path / "b.tar", samples)
    pack = packio.open(tmp_path / "b.tar")
    assert pack.labels is not None
    assert pack.labels.tolist() == [s.label for s in samples]


@pytest.mark.parametrize("is_there", [True, False])
def test_appending_is_locked_out_while_another_run_packs(
    is_there: bool, image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = tmp_path / "x.tar"
    if is_there:
        packio.pack(image_folder, out, shards=2)
    with workshop.open_workshop(out):
        with pytest.raises(LockedError):
            packio.append(out, image_folder)
        with pytest.raises(LockedError):
            packio.pack(image_folder, out)
        if not is_there:
            with pytest.raises(UnfinishedPackError):
                packio.open(out)
    assert packio.pack(image_folder, out, shards=2).up_to_date == is_there
    assert os.listdir(tmp_path) == ["x.tar"]


def test_a_pack_that_another_run_has_made_meanwhile_is_compared(
    half: pathlib.Path, image_folder: pathlib.Path, tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    out = tmp_path / "x.tar"

    def overtaken(*args: Any, **options: Any) -> Any:
        monkeypatch.undo()  # the other run is not overtaken
        packio.pack(image_folder, out)
        return workshop.open_workshop(*args, **options)

    monkeypatch.setattr(workshop, "open_workshop", overtaken)
    assert packio.pack(image_folder, out).up_to_date
    out.unlink()
    out.with_name("x.tar.packio").unlink()
    out.with_name("x.tar.idx").unlink()
    monkeypatch.setattr(workshop, "open_workshop", overtaken)
    with pytest.raises(OutputExistsError, match="packed from other files"):
        packio.pack(half, out)
    assert not [name for name in os.listdir(tmp_path) if "packio-" in name]


def test_appending_few_small_images_starts_no_processes(
    half: pathlib.Path, image_folder: pathlib.Path, tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    packio.pack(half, tmp_path / "x.tar", shards=4)
    monkeypatch.delattr(executors, "Processes")
    assert packio.append(tmp_path / "x.tar", image_folder).added


def test_a_source_before_its_pack_is_refused(half: pathlib.Path, tmp_path: pathlib.Path) -> None:
    out = tmp_path / "x.tar"
    packio.pack(half, out, shards=2)
    with pytest.raises(OptionError, match=r"x\.tar is a pack: name it first, then the source"):
        packio.append(half, out)
    with pytest.raises(PackioError, match="does not exist") as error:
        packio.append(tmp_path / "typo.tar", out)
    assert "first" not in str(error.value)
    assert packio.append(out, half).added == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["source", "x.tar"]


_KILLED = """
import os, sys
import packio

def watch(event, arguments):
    if event == "os.rename" and str(arguments[1]).endswith("index.packio"):
        if "packio-append" not in str(arguments[1]):
            os._exit(9)

sys.addaudithook(watch)
packio.append(sys.argv[1], sys.argv[2], num_workers=1)
"""


def test_an_append_that_was_cut_short_is_told(
    tmp_path: pathlib.Path, half: pathlib.Path, image_folder: pathlib.Path
) -> None:
    out = packio.pack(half, tmp_path / "x.tar", shards=2).out
    before = _contents(packio.open(out))
    killed = subprocess.run([sys.executable, "-c", _KILLED, out, image_folder], check=False)
    assert killed.returncode == 9
    assert _contents(packio.open(out)) == before
    report = packio.verify(out)
    assert any("an append was cut short; run it again" in line for line in report.warnings)
    with pytest.raises(UnfinishedPackError, match=r"run the same `packio append` again"):
        packio.reindex(out)
    packio.append(out, image_folder)
    assert packio.verify(out).ok
    packio.reindex(out)
    assert packio.verify(out).ok
    assert len(packio.open(out)) > len(before)


def test_a_pack_that_grows_while_it_is_verified_is_verified_again(
    tmp_path: pathlib.Path, half: pathlib.Path, image_folder: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    out = packio.pack(half, tmp_path / "x.tar", shards=2).out
    real, calls = files.check_files, []

    def check_files(*arguments: Any) -> int:
        calls.append(1)
        if len(calls) == 1:  # the index was read already
            packio.append(out, image_folder)
        return real(*arguments)

    monkeypatch.setattr(verifying, "check_files", check_files)
    assert packio.verify(out).ok
    assert len(calls) == 2


def test_appending_tells_what_the_patterns_of_the_pack_leave_out(tmp_path: pathlib.Path) -> None:
    class Items:
        def __init__(self, first: int) -> None:
            self.first = first

        def __len__(self) -> int:
            return 3

        def __getitem__(self, i: int) -> dict[str, Any]:
            pixels = np.full((8, 9, 3), self.first + i, np.uint8)
            return {"image": pixels, "label": 0, "key": f"k{self.first + i:03d}"}

    packio.pack(Items(0), tmp_path / "x.tar", include=["k00*"], shards=2)
    report = packio.append(tmp_path / "x.tar", Items(100))
    assert report.added == 0
    assert any("3 samples of the source are left out" in line for line in report.warnings)


def _list(path: pathlib.Path, *names: str) -> pathlib.Path:
    """A table of images; those that are not there are made, each with other pixels."""
    for name in names:
        image = path.parent / name
        image.parent.mkdir(parents=True, exist_ok=True)
        if not image.exists():
            image.write_bytes(png(5, 4, 10))
    path.write_text("path,label\n" + "".join(f"{name},{i % 2}\n" for i, name in enumerate(names)))
    return path


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (["a.png", "b.png"], ["a.png", "b.png", "../other/c.png"], "'data/a.png' is 'a.png'"),
        (["a.png", "b.png", "../c.png"], ["a.png", "b.png", "d.png"], "'a.png' is 'data/a.png'"),
    ],
    ids=["deeper", "shorter"],
)
def test_keys_that_are_relative_to_another_folder_are_refused(
    before: list[str], now: list[str], said: str, tmp_path: pathlib.Path
) -> None:
    source, out = tmp_path / "data" / "list.csv", tmp_path / "x.tar"
    source.parent.mkdir()
    digest = packio.pack(_list(source, *before), out, shards=2).digest
    _list(source, *now)
    for compare in (True, False):
        with pytest.raises(OptionError, match=f"{said} there, .*--root") as error:
            packio.append(out, source, compare=compare)
    assert packio.open(out).digest == digest
    assert "new samples alone" in str(error.value)
    assert packio.append(out, _list(source, now[-1])).added == 1


def test_an_archive_whose_images_share_no_folder_any_more_is_refused(
    tmp_path: pathlib.Path,
) -> None:
    out = tmp_path / "x.tar"
    names = ["top/a/0.png", "top/b/1.png", "beside/c/2.png"]
    _list(tmp_path / "list.csv", *names)
    for count in (2, 3):
        with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
            for name in names[:count]:
                archive.write(tmp_path / name, name)
        if count == 2:
            packio.pack(tmp_path / "x.zip", out, shards=2)
    with pytest.raises(OptionError, match=r"'top/a/0\.png' is 'a/0\.png' there.*--folder"):
        packio.append(out, tmp_path / "x.zip")


def test_other_files_under_such_names_are_new(tmp_path: pathlib.Path) -> None:
    one, two, out = tmp_path / "one/list.csv", tmp_path / "two/list.csv", tmp_path / "x.tar"
    one.parent.mkdir()
    two.parent.mkdir()
    packio.pack(_list(one, "a.png", "b.png"), out, shards=2)
    report = packio.append(out, _list(two, "more/a.png", "more/b.png"))
    assert (report.added, report.deleted) == (2, ("a.png", "b.png"))


def test_a_file_that_was_moved_is_a_new_sample(tmp_path: pathlib.Path) -> None:
    out = tmp_path / "x.tar"
    source = _list(tmp_path / "list.csv", "a.png", "b.png", "c.png")
    packio.pack(source, out, shards=2)
    (tmp_path / "more").mkdir()
    (tmp_path / "c.png").rename(tmp_path / "more/c.png")
    report = packio.append(out, _list(source, "a.png", "b.png", "more/c.png"))
    assert (report.added, report.known, report.deleted) == (1, 2, ("c.png",))


def test_the_command_compares_without_appending(tmp_path: pathlib.Path) -> None:
    out = tmp_path / "x.tar"
    source = _list(tmp_path / "list.csv", "a.png", "b.png")
    packio.pack(source, out, shards=2)
    (tmp_path / "b.png").write_bytes(png(5, 4, 11))
    _list(source, "a.png", "b.png", "c.png")
    said = run("append", out, source, "--compare").stdout
    assert "nothing added, 1 would be; 2 were there, 1 differ; 2 images in all" in said
    assert "1 sample unlike the source; the pack keeps what it has:\n  b.png" in said
    assert len(packio.open(out)) == 2
    said = run("append", out, _list(source, "c.png")).stdout
    assert "\nkept: 2 samples that the source does not have\ndigest" in said
