"""Packing: every file byte for byte, every run the same bytes, and no trace of what went wrong."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import os
import pathlib
import random
import shutil
import tempfile
import threading
from typing import TYPE_CHECKING, Any

import lmdb
import made
import numpy as np
import PIL
import pytest
from made import files_below, image_tree, png
from PIL import Image, features

import packio
from packio.cli.packing import show_dry_run
from packio.errors import (
    BadImagesError,
    CannotCreateError,
    IntegrityError,
    OptionError,
    OutputError,
    OutputExistsError,
    ReadError,
    SourceError,
)
from packio.packing import dry_run, making

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packio.system.progress import Progress

BOMB_SIDE = 50_000  # pixels; 2.5 * 10^9 in all


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """200 files that are quickly packed."""
    return image_tree(tmp_path_factory.mktemp("small") / "source", 200, 7, most=9000, seed=0)


@pytest.fixture
def source(tmp_path: pathlib.Path, image_folder: pathlib.Path) -> pathlib.Path:
    """A copy of the image folder, to be changed."""
    return shutil.copytree(image_folder, tmp_path / "source")


BAD = {
    "zero.jpg": (b"", "empty: 0 bytes"),
    "text.jpg": (b"this is no image\n", "no image that Pillow can identify"),
    "cut.jpg": (b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01", "Truncated"),
    "cut.png": (png()[:20], ""),
    "bomb.png": (png(BOMB_SIDE, BOMB_SIDE), "50000x50000 pixels; the limit is"),
}


@pytest.fixture
def bad(source: pathlib.Path) -> pathlib.Path:
    """The copy with files among it that cannot be packed."""
    for name, (data, _) in BAD.items():
        (source / "nature" / name).write_bytes(data)
    return source


def test_py_lmdb_reads_every_file_byte_for_byte(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = tmp_path / "x.lmdb"
    report = packio.pack(image_folder, out)
    with packio.open(out) as pack:
        keys = list(pack.keys())
    with lmdb.open(str(out), readonly=True, lock=False, create=False) as env, env.begin() as found:
        values = {bytes(k): bytes(v) for k, v in found.cursor()}
    assert values == {b"%08d" % i: (image_folder / key).read_bytes() for i, key in enumerate(keys)}
    assert set(keys) == set(files_below(image_folder))
    assert (report.found, report.packed, report.skipped) == (len(keys), len(keys), ())
    assert report.source_bytes == sum(map(len, values.values()))
    assert report.out_bytes == sum(map(len, files_below(out).values()))


def test_the_index_says_what_is_in_the_files(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    import hashlib

    report = packio.pack(image_folder, tmp_path / "x.lmdb")
    with packio.open(tmp_path / "x.lmdb") as pack:
        assert report.digest == pack.digest
        counts = {"found": len(pack), "packed": len(pack), "skipped": 0}
        assert pack.metadata["counts"] == counts
        assert str(tmp_path) not in json.dumps(pack.metadata)
        for name, size, digest in pack.index_file.files():
            data = (tmp_path / "x.lmdb" / name).read_bytes()
            assert (size, digest) == (len(data), hashlib.sha256(data).digest())


def test_names_do_not_decide_what_an_image_is(tmp_path: pathlib.Path) -> None:
    (tmp_path / "s/a").mkdir(parents=True)
    (tmp_path / "s/a/png.jpg").write_bytes(png())
    packio.pack(tmp_path / "s", tmp_path / "x.lmdb")
    with packio.open(tmp_path / "x.lmdb") as pack:
        assert (pack[0].encoding, pack[0].width, pack[0].height) == ("png", 4, 3)


@pytest.mark.parametrize("num_workers", [1, 16])
def test_any_number_of_workers_gives_the_same_bytes(
    small: pathlib.Path, tmp_path: pathlib.Path, num_workers: int
) -> None:
    first = packio.pack(small, tmp_path / "a.lmdb")
    second = packio.pack(small, tmp_path / "b.lmdb", num_workers=num_workers)
    assert first.digest == second.digest
    assert files_below(tmp_path / "a.lmdb") == files_below(tmp_path / "b.lmdb")


def test_the_order_in_which_files_were_made_changes_nothing(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    made = []
    for seed in (1, 2):
        files = sorted(files_below(image_folder).items())
        random.Random(seed).shuffle(files)
        for name, data in files:
            path = tmp_path / str(seed) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            os.utime(path, (seed, seed))
        packio.pack(tmp_path / str(seed), tmp_path / f"{seed}.lmdb")
        made.append(files_below(tmp_path / f"{seed}.lmdb"))
    assert made[0] == made[1]


def test_bad_images_are_all_listed_and_nothing_is_packed(
    bad: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = tmp_path / "x.lmdb"
    with pytest.raises(BadImagesError) as caught:
        packio.pack(bad, out)
    listed = (tmp_path / "x.lmdb.skipped.jsonl").read_text().splitlines()
    told = {entry["key"]: entry["reason"] for entry in map(json.loads, listed)}
    assert set(told) == {f"nature/{name}" for name in BAD}
    for name, (_, reason) in BAD.items():
        assert reason in told[f"nature/{name}"]
        assert f"\n  nature/{name}: " in str(caught.value)
    assert dict(caught.value.skipped) == told
    assert sorted(os.listdir(tmp_path)) == ["source", "x.lmdb.skipped.jsonl"]


def test_many_bad_images_are_counted_in_a_short_message_and_make_no_pack(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "s/a").mkdir(parents=True)
    for i in range(100):
        (tmp_path / f"s/a/{i}.jpg").touch()
    with pytest.raises(BadImagesError, match="and 90 more") as caught:
        packio.pack(tmp_path / "s", tmp_path / "x.lmdb")
    assert len(str(caught.value).splitlines()) == 12
    with pytest.raises(SourceError, match="none of 100 images can be packed"):
        packio.pack(tmp_path / "s", tmp_path / "x.lmdb", on_error="skip")
    assert len((tmp_path / "x.lmdb.skipped.jsonl").read_text().splitlines()) == 100
    assert sorted(os.listdir(tmp_path)) == ["s", "x.lmdb.skipped.jsonl"]


def test_bad_images_are_left_out_and_listed_when_skipping(
    bad: pathlib.Path, tmp_path: pathlib.Path, image_folder: pathlib.Path
) -> None:
    report = packio.pack(bad, tmp_path / "x.lmdb", on_error="skip")
    assert {s.key.decode() for s in report.skipped} == {f"nature/{name}" for name in BAD}
    assert report.packed + len(report.skipped) == report.found == len(files_below(bad))
    assert report.skipped_file == tmp_path / "x.lmdb.skipped.jsonl"
    with packio.open(tmp_path / "x.lmdb") as pack:
        assert {s.key: s.data for s in pack} == files_below(image_folder)
        assert pack.metadata["counts"]["skipped"] == len(BAD)
    again = packio.pack(bad, tmp_path / "x.lmdb", on_error="skip")
    assert (again.up_to_date, again.skipped_file) == (True, report.skipped_file)
    with pytest.raises(OutputExistsError):
        packio.pack(bad, tmp_path / "x.lmdb")


def test_the_list_of_skipped_images_goes_when_they_are_mended(
    bad: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    packio.pack(bad, tmp_path / "x.lmdb", on_error="skip")
    for name in BAD:
        (bad / "nature" / name).unlink()
    packio.pack(bad, tmp_path / "x.lmdb", overwrite=True)
    assert sorted(os.listdir(tmp_path)) == ["source", "x.lmdb"]


def _meddle(path: pathlib.Path, meddle: Any) -> Any:
    """A progress callback that changes a file once packing has begun."""

    def callback(progress: Progress) -> None:
        if path.exists() and progress.done < progress.total:
            meddle(path)

    return callback


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_file_that_vanishes_is_told(
    small: pathlib.Path, tmp_path: pathlib.Path, on_error: str
) -> None:
    source = shutil.copytree(small, tmp_path / "s")
    last = source / packio_keys(source)[-1]
    options: Any = {"on_error": on_error, "progress": _meddle(last, os.unlink), "num_workers": 1}
    if on_error == "raise":
        with pytest.raises(BadImagesError, match="No such file"):
            packio.pack(source, tmp_path / "x.lmdb", **options)
        assert not (tmp_path / "x.lmdb").exists()
    else:
        report = packio.pack(source, tmp_path / "x.lmdb", **options)
        assert [s.key for s in report.skipped] == [os.fsencode(last.relative_to(source))]
        assert report.packed == report.found - 1 == 199


def packio_keys(source: pathlib.Path) -> list[str]:
    """All keys of a source, in order."""
    from packio.sources import Context
    from packio.sources.image_folder import SOURCE

    return [os.fsdecode(key) for key in SOURCE.listing(source, Context()).keys]


def test_a_file_that_grows_is_packed_whole_as_it_is_then(
    small: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    source = shutil.copytree(small, tmp_path / "s")
    key = packio_keys(source)[-1]
    larger = png(7, 7) * 3 + bytes(100_000)
    packio.pack(
        source, tmp_path / "x.lmdb", num_workers=1,
        progress=_meddle(source / key, lambda path: path.write_bytes(larger)),
    )  # fmt: skip
    with packio.open(tmp_path / "x.lmdb") as pack:
        assert pack.by_key(key).data == larger


@pytest.mark.parametrize("mode", ["ab", "r+b"])
def test_a_file_that_changes_all_the_time_is_skipped(tmp_path: pathlib.Path, mode: str) -> None:
    (tmp_path / "s/a").mkdir(parents=True)
    changing = tmp_path / "s/a/changing.png"
    changing.write_bytes(png())
    os.truncate(changing, 100_000_000)  # long to read
    (tmp_path / "s/a/still.png").write_bytes(png())
    stop = threading.Event()

    def change() -> None:
        with changing.open(mode, buffering=0) as file:
            while not stop.is_set():
                file.seek(99_999_999)
                file.write(b"x")

    thread = threading.Thread(target=change)
    thread.start()
    try:
        report = packio.pack(tmp_path / "s", tmp_path / "x.lmdb", on_error="skip")
    finally:
        stop.set()
        thread.join()
    assert [(s.key, s.reason) for s in report.skipped] == [
        (b"a/changing.png", "changed while it was read, twice")
    ]


def test_packing_again_is_up_to_date(image_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    first = packio.pack(image_folder, tmp_path / "x.lmdb")
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    again = packio.pack(image_folder, tmp_path / "x.lmdb")
    assert again.up_to_date
    assert not first.up_to_date
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before
    for name in ("found", "packed", "classes", "source_bytes", "out_bytes", "digest"):
        assert getattr(again, name) == getattr(first, name)


_CHANGES = {
    "a file more": lambda s: (s / "nature/new.png").write_bytes(png()),
    "a file fewer": lambda s: (s / "nature/tiny.jpg").unlink(),
    "a file renamed": lambda s: (s / "nature/tiny.jpg").rename(s / "nature/small.jpg"),
    "another size": lambda s: (s / "nature/tiny.jpg").write_bytes(png()),
    "a class renamed": lambda s: (s / "nature").rename(s / "natural"),
}


@pytest.mark.parametrize("change", _CHANGES.values(), ids=_CHANGES.keys())
def test_another_plan_is_refused_and_overwrites_when_asked(
    source: pathlib.Path, tmp_path: pathlib.Path, change: Any
) -> None:
    packio.pack(source, tmp_path / "x.lmdb")
    before = files_below(tmp_path / "x.lmdb")
    change(source)
    with pytest.raises(OutputExistsError, match="--overwrite"):
        packio.pack(source, tmp_path / "x.lmdb")
    assert files_below(tmp_path / "x.lmdb") == before
    packio.pack(source, tmp_path / "x.lmdb", overwrite=True)
    with packio.open(tmp_path / "x.lmdb") as pack:
        assert {s.key: s.data for s in pack} == files_below(source)
    assert sorted(os.listdir(tmp_path)) == ["source", "x.lmdb"]


@pytest.mark.parametrize("when", ["after", "while"])
def test_bytes_changed_in_place_with_an_old_date_are_noticed(
    small: pathlib.Path, tmp_path: pathlib.Path, when: str
) -> None:
    source = shutil.copytree(small, tmp_path / "s")
    victim = source / packio_keys(source)[0]

    def change(path: pathlib.Path) -> None:
        old, data = path.stat(), bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns))

    changed: list[int] = []

    def callback(progress: Progress) -> None:
        if progress.stage == "publishing" and not changed:
            changed.append(1)
            change(victim)

    packio.pack(source, tmp_path / "x.lmdb", progress=callback if when == "while" else None)
    if when == "after":
        change(victim)
    with pytest.raises(OutputExistsError):
        packio.pack(source, tmp_path / "x.lmdb")
    victim.chmod(0o600)
    change(victim)  # back again
    assert packio.pack(source, tmp_path / "x.lmdb").up_to_date


def test_a_skipped_image_that_was_mended_is_noticed(tmp_path: pathlib.Path) -> None:
    (tmp_path / "s/a").mkdir(parents=True)
    data = png()
    (tmp_path / "s/a/1.png").write_bytes(data)
    (tmp_path / "s/a/2.png").write_bytes(bytes(len(data)))
    packio.pack(tmp_path / "s", tmp_path / "x.lmdb", on_error="skip")
    assert packio.pack(tmp_path / "s", tmp_path / "x.lmdb", on_error="skip").up_to_date
    (tmp_path / "s/a/2.png").write_bytes(data)
    with pytest.raises(OutputExistsError):
        packio.pack(tmp_path / "s", tmp_path / "x.lmdb", on_error="skip")


def test_overwriting_mends_a_damaged_pack(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    packio.pack(image_folder, tmp_path / "x.lmdb")
    good = files_below(tmp_path / "x.lmdb")
    with (tmp_path / "x.lmdb/data.mdb").open("r+b") as file:
        file.seek(20_000)
        file.write(b"damage")
    packio.pack(image_folder, tmp_path / "x.lmdb", overwrite=True)
    assert files_below(tmp_path / "x.lmdb") == good


def test_the_old_pack_stays_until_the_new_one_is_ready(
    source: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = tmp_path / "x.lmdb"
    packio.pack(source, out)
    before = files_below(out)
    (source / "nature/bad.jpg").touch()
    with pytest.raises(BadImagesError):
        packio.pack(source, out, overwrite=True, progress=lambda _: _same(out, before))
    _same(out, before)
    assert not (tmp_path / "x.lmdb.packio-tmp").exists()


def _same(out: pathlib.Path, before: dict[str, bytes]) -> None:
    assert files_below(out) == before


def test_what_is_no_pack_is_not_overwritten_by_chance(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    precious = tmp_path / "precious.lmdb"
    precious.mkdir()
    (precious / "thesis.tex").write_text("...")
    (tmp_path / "file.lmdb").write_text("...")
    os.symlink("nowhere", tmp_path / "link.lmdb")
    for name in ("precious.lmdb", "file.lmdb", "link.lmdb"):
        with pytest.raises(OutputExistsError):
            packio.pack(image_folder, tmp_path / name)
    with pytest.raises(OutputExistsError, match="no pack is not overwritten"):
        packio.pack(image_folder, precious, overwrite=True)
    assert (precious / "thesis.tex").read_text() == "..."
    for name in ("file.lmdb", "link.lmdb"):
        packio.pack(image_folder, tmp_path / name, overwrite=True)
        assert len(packio.open(tmp_path / name)) == 25
    assert sorted(os.listdir(tmp_path)) == ["file.lmdb", "link.lmdb", "precious.lmdb"]


def test_places_that_cannot_be_meant_are_refused(
    source: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "file").touch()
    os.symlink(source, tmp_path / "link")
    before = files_below(tmp_path)
    wrong: list[tuple[pathlib.Path, pathlib.Path, type[Exception]]] = [
        (source, source / "x.lmdb", OptionError),
        (source, source / "nature/x.lmdb", OptionError),
        (source, tmp_path / "link/x.lmdb", OptionError),
        (tmp_path / "link", source / "x.lmdb", OptionError),
        (source, tmp_path / "x.unknown", OptionError),
        (source, tmp_path / "x", OptionError),
        (source, tmp_path / "missing/x.lmdb", CannotCreateError),
        (source, tmp_path / "file/x.lmdb", CannotCreateError),
        (source, tmp_path / ("x" * 249 + ".lmdb"), CannotCreateError),
    ]
    for from_, to, error in wrong:
        with pytest.raises(error):
            packio.pack(from_, to)
    source.rename(tmp_path / "outer.lmdb")
    with pytest.raises(OptionError, match="lies within"):
        packio.pack(tmp_path / "outer.lmdb/nature", tmp_path / "outer.lmdb")
    (tmp_path / "outer.lmdb").rename(source)
    assert files_below(tmp_path) == before


@pytest.mark.parametrize(
    "options",
    [{"on_error": "ignore"}, {"num_workers": 0}, {"num_workers": -1}, {"format": "zip"},
     {"threads": 0}, {"memory": -1}, {"seed": 1 << 200, "split": {"a": 1.0}}, {"split": "a=1"}],
)  # fmt: skip
def test_options_that_cannot_be_meant_are_refused(
    image_folder: pathlib.Path, tmp_path: pathlib.Path, options: Any
) -> None:
    with pytest.raises(OptionError):
        packio.pack(image_folder, tmp_path / "x.lmdb", **options)
    assert os.listdir(tmp_path) == []


def test_more_shards_than_samples_are_as_many_as_samples(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    report = packio.pack(image_folder, tmp_path / "x.tar", shards=10**20)
    assert len(packio.open(report.out).metadata["shards"]) == 25


def test_what_the_listing_finds_is_told_before_images_are_read(tmp_path: pathlib.Path) -> None:
    source = made.image_tree(tmp_path / "s", 4, 2, most=9, seed=1)
    (source / "empty").mkdir()
    (source / "class 0" / "bad.png").write_bytes(b"no image")
    with pytest.raises(BadImagesError) as caught:
        packio.pack(source, tmp_path / "x.tar")
    assert [key for key, _ in caught.value.skipped] == ["empty/"]
    with pytest.raises(BadImagesError, match=r"bad\.png"):
        packio.pack(source, tmp_path / "x.tar", exclude=["empty/*"])


def test_deep_pixels_are_told(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "s" / "a"
    folder.mkdir(parents=True)
    Image.fromarray(np.full((4, 5), 40_000, np.uint16)).save(folder / "0.png")
    Image.fromarray(np.full((4, 5), 0.5, np.float32)).save(folder / "1.tif")
    (folder / "2.png").write_bytes(made.png())
    out = tmp_path / "x.tar"
    deep, floats = packio.pack(tmp_path / "s", out, shards=2, check="decode").warnings
    assert deep.startswith("1 images have 16-bit pixels")
    assert "mode='UNCHANGED', or pack them with wide='scale'" in deep
    assert floats.startswith("1 images have floating-point pixels")
    Image.fromarray(np.full((4, 5), 40_000, np.uint16)).save(folder / "3.png")
    assert packio.append(out, tmp_path / "s").warnings == (deep,)
    assert len(packio.convert(out, tmp_path / "y.tar").warnings) == 2
    again = packio.pack(tmp_path / "s", tmp_path / "z.tar")
    up_to_date = packio.pack(tmp_path / "s", tmp_path / "z.tar")
    assert up_to_date.up_to_date
    assert up_to_date.warnings == again.warnings
    with pytest.warns(UserWarning) as told:  # noqa: PT030 (two, both looked at)
        packio.FolderDataset(tmp_path / "s")
    deep, floats = (str(one.message) for one in told)
    assert "images have 16-bit" in deep
    assert "images have floating-point" in floats


@pytest.mark.parametrize(
    ("options", "encoded"),
    [
        ({}, False),
        ({"limit": 2, "check": "decode"}, False),
        ({"encode": "png"}, True),
        ({"resize": "short=16"}, True),
        ({"orientation": "bake"}, True),
    ],
)
def test_the_index_tells_what_images_were_encoded_with(
    image_folder: pathlib.Path, tmp_path: pathlib.Path, options: Any, *, encoded: bool
) -> None:
    packio.pack(image_folder, tmp_path / "x.tar", **options)
    with packio.open(tmp_path / "x.tar") as pack:
        versions = pack.metadata["versions"]
    assert versions.pop("packio") == packio.__version__
    if not encoded:
        assert versions == {}
        return
    assert versions.pop("pillow") == PIL.__version__
    assert versions["libjpeg_turbo"] == features.version("libjpeg_turbo")
    assert all(versions.values())


def test_progress_counts_up_to_everything(bad: pathlib.Path, tmp_path: pathlib.Path) -> None:
    seen: list[Progress] = []
    report = packio.pack(bad, tmp_path / "x.lmdb", on_error="skip", progress=seen.append)
    assert [p.done for p in seen] == sorted(p.done for p in seen)
    assert {p.total for p in seen} == {report.found}
    last = seen[-1]
    assert (last.done, last.bad, last.done_bytes, last.stage) == (
        report.found, len(BAD), report.source_bytes, "publishing",
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["image_folder", "flat_folder"])
def test_a_long_listing_tells_how_many_files_it_has_found(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(making, "LISTING_SECONDS", 0)
    image = tmp_path / "image.png"
    image.write_bytes(png())
    for folder, count in (("a", 2100), ("a/deeper", 3), ("b", 1)):
        (tmp_path / "source" / folder).mkdir(parents=True)
        for i in range(count):
            os.link(image, tmp_path / "source" / folder / f"{i:04d}.png")
    seen: list[Progress] = []
    packio.pack(
        tmp_path / "source", tmp_path / "x.tar", source_kind=kind, progress=seen.append, limit=1
    )
    listed = [p for p in seen if p.stage == "listing"]
    counts = [p.done for p in listed]
    assert counts == sorted(counts)
    assert counts[-1] == 2104
    assert max(b - a for a, b in itertools.pairwise([0, *counts])) == 1000
    assert {(p.total, p.bad) for p in listed} == {(0, 0)}
    assert seen[: len(listed)] == listed


def test_a_callback_that_fails_leaves_nothing(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    def fail(_: Progress) -> None:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        packio.pack(image_folder, tmp_path / "x.lmdb", progress=fail)
    assert os.listdir(tmp_path) == []


def _let_others_in(folder: pathlib.Path) -> None:
    temporary = pathlib.Path(tempfile.gettempdir())
    for path in (folder, *folder.parents):
        if temporary in path.parents:
            path.chmod(0o755)


@pytest.mark.parametrize("name", ["new.lmdb", "old.lmdb"])
def test_where_nothing_may_be_written_nothing_changes(
    small: pathlib.Path, tmp_path: pathlib.Path, name: str
) -> None:
    _let_others_in(small)
    _let_others_in(tmp_path)
    place = tmp_path / "place"
    place.mkdir()
    packio.pack(small, place / "old.lmdb")
    before = files_below(place)
    for folder in (place, place / "old.lmdb"):
        folder.chmod(0o555)
    child = _in_child(small, place / name, user=65534, overwrite=True)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == CannotCreateError.exit_code
    assert files_below(place) == before
    child = _in_child(small, place / "old.lmdb", user=65534)
    assert os.waitpid(child, 0)[1] == 0  # it is up to date, and that needs no writing
    for folder in (place, place / "old.lmdb"):
        folder.chmod(0o755)


def test_two_at_once_give_one_pack_and_one_refusal_or_agreement(
    small: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    expected = packio.pack(small, tmp_path / "expected.lmdb").digest
    for attempt in range(10):
        out = tmp_path / f"{attempt}.lmdb"
        ends = [_in_child(small, out) for _ in range(3)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in ends]
        assert set(codes) <= {0, 73, 75}
        assert 0 in codes
        assert packio.open(out).digest == expected
        assert not os.path.lexists(f"{out}.packio-tmp")


def _in_child(source: pathlib.Path, out: pathlib.Path, user: int = 0, **options: Any) -> int:
    """Pack in a forked process; its exit status is the error's exit code."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if user and os.getuid() == 0:
                os.setuid(user)
            packio.pack(source, out, **options)
            status = 0
        except packio.PackioError as error:
            status = error.exit_code
        finally:
            os._exit(status)
    return child


def test_a_relative_path_may_be_left(
    image_folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = packio.pack(image_folder, "x.lmdb")
    monkeypatch.chdir(image_folder.parent)
    second = packio.pack(image_folder.name, tmp_path / "y.lmdb")
    assert first.digest == second.digest
    assert first.out == tmp_path / "x.lmdb"


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    """A process that may open five more files: a workshop, a database and a folder, no image."""
    import resource

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    gc.collect()  # what other tests left open must not make room later
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 9, limits[1]))
    taken = []
    with contextlib.suppress(OSError):  # fill the gaps below the highest, too
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    for _ in range(5):
        os.close(taken.pop())
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    for descriptor in taken:
        os.close(descriptor)


@pytest.mark.usefixtures("few_descriptors")
def test_running_out_of_descriptors_skips_no_image(
    small: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    with pytest.raises((OutputError, ReadError), match="Too many open files"):
        packio.pack(small, tmp_path / "x.lmdb", on_error="skip", num_workers=16)
    assert os.listdir(tmp_path) == []


def test_a_damaged_index_is_no_finished_pack(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = tmp_path / "x.lmdb"
    packio.pack(image_folder, out)
    index = out / "index.packio"
    index.write_bytes(index.read_bytes()[:-1])
    with pytest.raises(IntegrityError):
        packio.open(out)
    with pytest.raises(OutputExistsError, match="no finished pack"):
        packio.pack(image_folder, out)
    packio.pack(image_folder, out, overwrite=True)
    assert len(packio.open(out)) == 25


def test_what_others_wrote_is_packed_as_it_is(tmp_path: pathlib.Path) -> None:
    members = [m for i in range(3) for m in ((f"{i}.png", png(i + 1)), (f"{i}.cls", b"%d" % i))]
    (tmp_path / "x.tar").write_bytes(made.tar_bytes(members))
    pack = packio.open(packio.pack(tmp_path / "x.tar", tmp_path / "y.lmdb").out)
    assert [s.label for s in pack] == [0, 1, 2]
    assert [s.data for s in pack] == [png(i + 1) for i in range(3)]


def test_a_dry_run_knows_the_size_of_images_that_stay_and_says_that_it_looked_at_a_part(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = made.image_tree(tmp_path / "s", 70, 2, most=9, seed=1)
    held = sum(path.stat().st_size for path in source.rglob("*.png"))
    # 64 of 70 are looked at; the coefficients of a PNG cannot be stored open
    kept, opened, *others = dry_run(source, tmp_path / "x.tar").advice
    assert kept.bytes == opened.bytes == held
    assert all(other.bytes != held for other in others)
    for path in source.rglob("*.png"):
        path.write_bytes(b"no image")
    show_dry_run(dry_run(source, tmp_path / "x.tar"), as_json=False)
    assert "bad, of the 64 images that were looked at:" in capsys.readouterr().out
