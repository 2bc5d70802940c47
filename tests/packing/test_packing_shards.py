"""Packing in parallel: the same bytes on any number of workers, engines, parts and attempts."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import latents
import made
import pytest

import packio
from packio import registry
from packio.errors import (
    BadImagesError,
    OptionError,
    OutputError,
    OutputExistsError,
    UnfinishedPackError,
    WorkerDiedError,
)
from packio.packing import planning
from packio.packing.run import executors, reading
from packio.packing.run.shards import Tally
from packio.sample.recipe import Recipe
from packio.sources import Context
from packio.storage.journal import Journal

if TYPE_CHECKING:
    from packio.system.progress import Progress

SHARDS = 5


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """120 files in 6 classes."""
    return made.image_tree(tmp_path_factory.mktemp("small") / "source", 120, 6, most=3000, seed=1)


@pytest.mark.parametrize("name", latents.FORMATS)
def test_every_way_of_packing_gives_the_same_bytes(
    name: str, small: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    ways: dict[str, dict[str, Any]] = {
        "one": {"num_workers": 1, "threads": 1},
        "executor": {"engine": ThreadPoolExecutor(3)},
        "memory": {"memory": 10_000, "num_workers": 1},
    }
    if name in ("tar", "lmdb"):  # a file and a folder: starting processes takes long
        ways["processes"] = {"num_workers": 5 if name == "tar" else 2}
    digests, files = {}, {}
    for way, options in ways.items():
        out = tmp_path / way / f"x{latents.suffix(name)}"
        out.parent.mkdir()
        digests[way] = packio.pack(small, out, shards=SHARDS, **options).digest
        files[way] = made.files_below(out)
    parts = tmp_path / "parts" / f"x{latents.suffix(name)}"
    parts.parent.mkdir()
    for i in (2, 3, 1):
        report = packio.pack(small, parts, shards=SHARDS, part=(i, 3))
        assert (report.part, report.digest) == ((i, 3), "")
        with pytest.raises(UnfinishedPackError):
            packio.open(parts)
    digests["parts"] = packio.pack(small, parts, shards=SHARDS, finish=True).digest
    files["parts"] = made.files_below(parts)
    assert len(set(digests.values())) == 1
    assert all(found == files["one"] for found in files.values())
    assert packio.verify(parts).ok
    assert os.listdir(parts.parent) == [parts.name]


def _bad_later(source: pathlib.Path) -> pathlib.Path:
    """The file that is packed last."""
    return source / max(p.relative_to(source) for p in source.rglob("*.png"))


@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_run_with_bad_images_finished_is_taken_over(
    workers: int, small: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    source = shutil.copytree(small, tmp_path / "s")
    _bad_later(source).write_bytes(b"")
    out = tmp_path / "out" / "x.tar"
    out.parent.mkdir()
    with pytest.raises(BadImagesError):
        packio.pack(source, out, shards=SHARDS, num_workers=workers)
    report = packio.pack(source, out, shards=SHARDS, num_workers=workers, on_error="skip")
    assert (report.resumed, report.packed, report.found) == (SHARDS - 1, 119, 120)
    fresh = packio.pack(source, tmp_path / "x.tar", shards=SHARDS, on_error="skip")
    assert fresh.resumed == 0
    assert report.digest == fresh.digest
    assert sorted(os.listdir(out.parent)) == ["x.tar", "x.tar.skipped.jsonl"]


def test_finished_shards_are_not_written_again_unless_a_file_of_them_changed(
    small: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    source = shutil.copytree(small, tmp_path / "s")
    out = tmp_path / "x.tar"
    for part in (1, 2):
        packio.pack(source, out, shards=SHARDS, part=(part, 2))
    first = min(source.rglob("*.png"))
    data = bytearray(first.read_bytes())
    data[-1] ^= 1  # behind the image's end: as good as before, but another
    time.sleep(0.01)
    first.write_bytes(data)
    report = packio.pack(source, out, shards=SHARDS)
    assert report.resumed == SHARDS - 1
    assert packio.open(out)[0].data == bytes(data)


def test_another_plan_begins_anew_and_parts_of_it_are_refused(
    small: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = tmp_path / "x.tar"
    packio.pack(small, out, shards=SHARDS, part=(1, 2))
    with pytest.raises(OutputExistsError, match="parts of another pack"):
        packio.pack(small, out, shards=SHARDS + 1, part=(2, 2))
    with pytest.raises(OutputError, match="2 of 5 shards are not written yet"):
        packio.pack(small, out, shards=SHARDS, finish=True)
    report = packio.pack(small, out, shards=SHARDS + 1)
    assert report.resumed == 0
    assert os.listdir(tmp_path) == ["x.tar"]
    packio.pack(small, tmp_path / "y.tar", shards=SHARDS, part=(1, 2))
    assert packio.pack(small, tmp_path / "y.tar", shards=SHARDS, resume=False).resumed == 0


def test_finishing_names_the_parts_that_are_missing(
    small: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = tmp_path / "x.tar"
    packio.pack(small, out, shards=SHARDS, part=(3, 3))
    wanted = r"4 of 5 .*--part 1/3, --part 2/3 instead of --finish \(Slurm: sbatch --array=1,2\)"
    for _ in range(2):  # finishing forgets nothing
        with pytest.raises(OutputError, match=wanted):
            packio.pack(small, out, shards=SHARDS, finish=True)
    packio.pack(small, out, shards=SHARDS, part=(1, 3))
    with pytest.raises(OutputError, match=r"2 of 5 .*with --part 2/3 instead"):
        packio.pack(small, out, shards=SHARDS, finish=True)
    packio.pack(small, out, shards=SHARDS, part=(2, 3))
    assert packio.pack(small, out, shards=SHARDS, finish=True).resumed == SHARDS
    assert os.listdir(tmp_path) == ["x.tar"]


@pytest.mark.parametrize("grows", [False, True])
def test_a_file_that_changes_between_parts_is_never_packed_half_old_half_new(
    small: pathlib.Path, tmp_path: pathlib.Path, grows: bool
) -> None:
    source, out = shutil.copytree(small, tmp_path / "s"), tmp_path / "x.tar"
    packio.pack(source, out, shards=SHARDS, part=(1, 2))
    first = min(source.rglob("*.png"))  # of shard 0, which is of part 1
    data = bytearray(first.read_bytes())
    data[-1] ^= 1
    time.sleep(0.01)
    first.write_bytes(data + b"more" * grows)
    if grows:  # the sizes are part of the plan
        with pytest.raises(OutputExistsError, match="files, format or shards"):
            packio.pack(source, out, shards=SHARDS, part=(2, 2))
        with pytest.raises(OutputExistsError, match="files, format or shards"):
            packio.pack(source, out, shards=SHARDS, finish=True)
        return
    packio.pack(source, out, shards=SHARDS, part=(2, 2))
    with pytest.raises(OutputError, match=r"1 of 5 .*--part 1/2 instead"):
        packio.pack(source, out, shards=SHARDS, finish=True)
    packio.pack(source, out, shards=SHARDS, part=(1, 2))
    packio.pack(source, out, shards=SHARDS, finish=True)
    assert packio.open(out)[0].data == bytes(data)


@pytest.mark.parametrize("part", [(0, 2), (3, 2), (1, 0)])
def test_parts_that_cannot_be_are_refused(
    part: tuple[int, int], small: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(OptionError, match="part="):
        packio.pack(small, tmp_path / "x.tar", shards=SHARDS, part=part)


def _children() -> list[int]:
    """Found by their parent: a list by threads breaks where a thread ends meanwhile."""
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            found += [int(stat.parent.name)] if parent == os.getpid() else []
    return found


def test_a_worker_that_is_killed_loses_nothing(small: pathlib.Path, tmp_path: pathlib.Path) -> None:
    before = set(_children())
    killed: list[int] = []

    def kill(_: Progress) -> None:
        if not killed and (new := set(_children()) - before):
            killed.append(new.pop())
            os.kill(killed[0], signal.SIGKILL)

    out = tmp_path / "out" / "x.lmdb"
    out.parent.mkdir()
    report = packio.pack(small, out, shards=SHARDS, num_workers=2, progress=kill)
    assert killed
    assert report.digest == packio.pack(small, tmp_path / "x.lmdb", shards=SHARDS).digest
    assert os.listdir(out.parent) == ["x.lmdb"]
    assert set(_children()) == before


def _die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _answer(value: int) -> int:
    return value + 1


def _fail(_: int) -> None:
    raise OptionError("mine")


def test_processes_run_tasks_and_tell_how_they_end() -> None:
    before = set(_children())
    pool = executors.Processes(2)
    assert [pool.submit(_answer, i).result() for i in range(5)] == [1, 2, 3, 4, 5]
    with pytest.raises(OptionError, match="mine"):
        pool.submit(_fail, 1).result()
    with pytest.raises(WorkerDiedError, match="SIGKILL"):
        pool.submit(_die).result()
    assert pool.submit(_answer, 1).result() == 2
    pool.shutdown()
    assert set(_children()) == before


def test_an_interrupt_leaves_no_process_and_what_is_finished(
    small: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    before = set(_children())

    def interrupt(progress: Progress) -> None:
        if progress.done >= 1:
            raise KeyboardInterrupt

    out = tmp_path / "x.tar"
    with pytest.raises(KeyboardInterrupt):
        packio.pack(small, out, shards=SHARDS, num_workers=2, progress=interrupt)
    assert set(_children()) == before
    assert not out.exists()
    packio.pack(small, out, shards=SHARDS)
    assert os.listdir(tmp_path) == ["x.tar"]


def test_a_chunk_ends_after_the_present_sample_when_the_run_is_to_stop(
    small: pathlib.Path,
) -> None:
    """A chunk has up to 32 samples, each of which an encoder may take seconds for."""
    listing = registry.load("sources", "image_folder").listing(small, Context())
    asked = iter([False, False, False])
    chunks = list(
        reading.read_ahead(listing, range(8), threads=1, stopped=lambda: next(asked, True))
    )
    assert [read.position for chunk in chunks for read in chunk] == [0, 1, 2]


def test_a_writer_that_was_to_stop_stays_stopped_when_the_next_run_begins(
    tmp_path: pathlib.Path,
) -> None:
    """Else a chunk that ended early would pass for a whole chunk."""
    tally, of_next_run = (Tally(tmp_path / "tally", 1) for _ in range(2))
    seen = [tally.stopped]
    tally.stop()
    seen.append(tally.stopped)
    of_next_run.clear()
    assert [*seen, tally.stopped, of_next_run.stopped] == [False, True, True, False]


def test_more_errors_than_allowed_stop_the_run(small: pathlib.Path, tmp_path: pathlib.Path) -> None:
    source = shutil.copytree(small, tmp_path / "s")
    for path in sorted(source.rglob("*.png"))[:10]:
        path.write_bytes(b"no image")
    with pytest.raises(BadImagesError, match="more than 3 images are bad"):
        packio.pack(source, tmp_path / "x.tar", on_error="skip", max_errors=3)
    assert packio.pack(source, tmp_path / "x.tar", on_error="skip", max_errors=10).packed == 110


@pytest.fixture
def bad(small: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """The files, and one that is no image."""
    source = shutil.copytree(small, tmp_path / "s")
    (source / "class 1" / "bad.png").write_bytes(b"no image")
    return source


@pytest.mark.parametrize("quarantine", ["q", "sub/../q"])  # there is no folder "sub"
def test_bad_images_are_copied_to_the_quarantine(
    quarantine: str, bad: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    report = packio.pack(bad, "x.tar", on_error="quarantine", quarantine=quarantine)
    assert (report.packed, report.quarantined) == (120, 1)
    assert made.files_below(tmp_path / "q") == {"class 1/bad.png": b"no image"}
    with pytest.raises(OptionError, match="quarantine"):
        packio.pack(bad, tmp_path / "y.tar", on_error="quarantine")


def test_the_quarantine_has_all_files_of_a_bad_pair(
    small: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Whether the image or the mask is bad; of a pair in an archive, the image."""
    image = next(small.rglob("*.png")).read_bytes()
    source, expected = tmp_path / "s", {}
    for stem, files in {"0": (image, image), "1": (b"no image", image), "2": (image, b"no"),
                        "3": (b"", b"")}.items():  # fmt: skip
        for folder, data in zip(("images", "masks"), files, strict=True):
            path = source / folder / f"{stem}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            expected[f"{folder}/{stem}.png"] = data
    report = packio.pack(
        source, tmp_path / "x.tar", on_error="quarantine", quarantine=tmp_path / "q"
    )
    assert (report.packed, report.quarantined) == (1, 3)
    copies = {name: data for name, data in expected.items() if "/0" not in name}
    assert made.files_below(tmp_path / "q") == copies


_WITHIN = ("x.tar/q", "x.tar.packio-tmp/q")


@pytest.mark.parametrize(
    ("is_link", "place"),
    [
        *[(False, place) for place in ("x.tar", "s3://b/q", *_WITHIN)],
        *[(True, place) for place in ("real/q", "real.packio-tmp/q", *_WITHIN)],
    ],
)
def test_the_quarantine_is_a_folder_on_a_disk_that_lies_not_within_the_output(
    is_link: bool, place: str, small: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    if is_link:
        (tmp_path / "real").mkdir()
        (tmp_path / "x.tar").symlink_to(tmp_path / "real")
    is_far = "://" in place
    with pytest.raises(OptionError, match="a folder on a disk" if is_far else "lies within"):
        packio.pack(
            small, tmp_path / "x.tar", shards=2, on_error="quarantine",
            quarantine=place if is_far else tmp_path / place,
        )  # fmt: skip
    assert sorted(os.listdir(tmp_path)) == (["real", "x.tar"] if is_link else [])


def test_bad_samples_whose_keys_are_no_names_of_files_are_told_alone(
    small: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """One key is the folder of another, one has a zero byte, one is too long."""
    items = [
        {"key": key, "image": b"no image"} for key in ("x", "x/y", "a\0b", "long" * 100, "bad/z")
    ]
    report = packio.pack(
        [*items, {"key": "good", "image": next(small.rglob("*.png")).read_bytes()}],
        tmp_path / "x.tar", on_error="quarantine", quarantine=tmp_path / "q",
    )  # fmt: skip
    assert (report.packed, report.quarantined, len(report.skipped)) == (1, 2, 5)
    copies = made.files_below(tmp_path / "q")
    assert set(copies.values()) == {b"no image"}
    assert copies.keys() in ({"x", "bad/z"}, {"x/y", "bad/z"})


def test_a_quarantine_that_cannot_be_written_stops_the_run(
    bad: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "file").write_bytes(b"")
    asked: dict[str, Any] = {"on_error": "quarantine", "quarantine": tmp_path / "file"}
    for place in ("q" * 300, "file"):
        with pytest.raises(OutputError, match="bad image cannot be copied"):
            packio.pack(bad, tmp_path / "x.tar", **{**asked, "quarantine": tmp_path / place})
    (tmp_path / "file").unlink()
    assert packio.pack(bad, tmp_path / "x.tar", **asked).quarantined == 1


def test_copies_that_are_gone_are_made_again(small: pathlib.Path, tmp_path: pathlib.Path) -> None:
    source = shutil.copytree(small, tmp_path / "s")
    for folder in ("class 0", "class 1", "class 2"):
        (source / folder / "bad.png").write_bytes(b"no image")
    asked: dict[str, Any] = {"shards": 12, "on_error": "quarantine", "quarantine": tmp_path / "q"}
    with pytest.raises(BadImagesError, match="more than 2 images are bad"):
        packio.pack(source, tmp_path / "x.tar", num_workers=1, max_errors=2, **asked)
    shutil.rmtree(tmp_path / "q")
    assert packio.pack(source, tmp_path / "x.tar", **asked).quarantined == 3
    assert len(made.files_below(tmp_path / "q")) == 3


@pytest.mark.parametrize("name", ["x.tar", "x.lmdb", "x.zarr"])
def test_what_appears_at_the_output_meanwhile_stays(
    small: pathlib.Path, tmp_path: pathlib.Path, name: str
) -> None:
    out = tmp_path / name

    def make_file(progress: packio.Progress) -> None:
        if progress.done and not out.exists():
            out.write_bytes(b"precious")

    with pytest.raises(OutputExistsError, match="while this run was at work"):
        packio.pack(small, out, progress=make_file)
    assert out.read_bytes() == b"precious"
    out.unlink()
    assert packio.pack(small, out).packed == 120


def test_finishing_removes_the_lists_of_the_parts(
    bad: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    options: dict[str, Any] = {"shards": 2, "on_error": "skip"}
    for i in (1, 2):
        packio.pack(bad, tmp_path / "x.tar", part=(i, 2), **options)
    assert [p.name for p in tmp_path.glob("*.jsonl")] == ["x.tar.part-1.skipped.jsonl"]
    packio.pack(bad, tmp_path / "x.tar", finish=True, **options)
    assert [p.name for p in tmp_path.glob("*.jsonl")] == ["x.tar.skipped.jsonl"]


def test_check_decode_finds_what_the_header_does_not_tell(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    source = shutil.copytree(image_folder, tmp_path / "s")
    photo = next(p for p in source.rglob("*.jpg") if p.stat().st_size > 4000)
    photo.write_bytes(photo.read_bytes()[:2000])  # as an interrupted download leaves it
    assert packio.pack(source, tmp_path / "x.tar").packed == 25
    with pytest.raises(BadImagesError, match="runcated"):
        packio.pack(source, tmp_path / "y.tar", check="decode")
    report = packio.pack(source, tmp_path / "y.tar", check="decode", on_error="skip")
    assert [s.key for s in report.skipped] == [os.fsencode(photo.relative_to(source))]
    listed = (tmp_path / "y.tar.skipped.jsonl").read_text().splitlines()
    assert json.loads(listed[0])["key"] == str(photo.relative_to(source))


def test_an_option_that_nothing_takes_is_told_with_what_was_meant(
    small: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(OptionError, match="did you mean resize"):
        packio.pack(small, tmp_path / "x.tar", risize="short=8")


def test_a_shard_that_a_network_file_system_shows_late_is_awaited(
    small: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = tmp_path / "x.tar"
    packio.pack(small, out, shards=SHARDS, part=(1, 1))
    listing = registry.load("sources", "image_folder").listing(small, Context())
    plan = planning.make(listing, "tar", Recipe(), shards=SHARDS)
    journal = Journal(tmp_path / "x.tar.packio-tmp" / "shards", plan.digest, len(plan.shards))
    shard, hidden = journal.folder / "00001.packio", tmp_path / "hidden"
    shard.rename(hidden)
    assert journal.wait_for(1, 0.5) is None
    later = threading.Timer(0.5, hidden.rename, [shard])
    later.start()
    assert journal.wait_for(1) is not None
    later.join()
