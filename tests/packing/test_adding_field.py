"""Adding a field to a pack: old files stay, other readers see the values, kills lose nothing."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import itertools
import json
import os
import pathlib
import shutil
import tarfile
import warnings
from typing import Any

import killing
import numpy as np
import pytest
from cli_runs import run

import packio
from packio import registry
from packio.cli import main
from packio.errors import (
    BadImagesError,
    LockedError,
    OptionError,
    OutputExistsError,
    PackioError,
    SourceError,
)
from packio.formats import is_added_shard, name_added_shard
from packio.packing.fields import job, parts
from packio.storage import workshop

FORMATS = [n for n in registry.names("formats") if registry.load("formats", n).caps.writes]


def _suffix(name: str) -> str:
    return str(registry.load("formats", name).caps.suffixes[0])


def _with_latents(
    name: str, images: pathlib.Path, latents: pathlib.Path, folder: pathlib.Path
) -> pathlib.Path:
    """Pack images of a format into two shards, and add a field."""
    out = folder / f"x{_suffix(name)}"
    packio.pack(images, out, shards=2)
    packio.add_field(out, "latent", latents)
    return out


def _latent(key: str) -> np.ndarray:
    """Any array that the key alone tells."""
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "little")
    return np.random.default_rng(seed).normal(size=(4, 3, 2)).astype(np.float16)


def latent_of(sample: packio.Sample) -> np.ndarray:
    """A value for workers, which import it by its name."""
    return _latent(sample.key)


def _files(folder: pathlib.Path) -> dict[str, tuple[str, int]]:
    """Digest and time of each file that is no index."""
    return {
        str(path.relative_to(folder)): (
            hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns
        )
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith(".packio")
    }  # fmt: skip


def _described(pack: packio.Pack) -> list[Any]:
    return [(s.key, s.data, s.label, s.height, s.width) for s in pack]


@pytest.fixture
def folder(image_folder: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """Latents as files beside which nothing else lies, named as the images are."""
    top = tmp_path / "latents"
    for path in sorted(p for p in image_folder.rglob("*") if p.is_file()):
        key = str(path.relative_to(image_folder))
        target = (top / key).with_suffix(".npy")
        target.parent.mkdir(parents=True, exist_ok=True)
        np.save(target, _latent(key))
    return top


def _check(out: pathlib.Path, lacking: frozenset[str] = frozenset()) -> None:
    """All samples of a pack have their latents, but for some."""
    with packio.open(out) as pack:
        assert pack.fields["latent"] == "array"
        for i in range(len(pack)):
            field, key = pack.field("latent", i), pack.key(i)
            assert (field is None) == (key in lacking)
            if field is not None:
                found = np.load(io.BytesIO(field.data))
                assert found.dtype == np.float16
                assert np.array_equal(found, _latent(key))
    assert packio.verify(out).ok


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("name", FORMATS)
def test_a_field_joins_and_leaves_while_all_other_files_stay(
    name: str, shards: int, image_folder: pathlib.Path, folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = tmp_path / "out" / f"x{_suffix(name)}"
    out.parent.mkdir()
    packio.pack(image_folder, out, shards=shards)
    before = _files(out.parent)
    with packio.open(out) as pack:
        described = _described(pack)
    report = packio.add_field(out, "latent", folder)
    packio.add_field(out, "caption", lambda sample: f"picture {sample.key}")
    _check(out)
    after = _files(out.parent)
    assert {n: after[n] for n in before} == before
    with packio.open(out) as pack:
        assert _described(pack) == described
        assert report.samples == len(pack) == report.resumed + report.samples
        sample = pack[3]
        assert sample.fields["caption"].data.decode() == f"picture {sample.key}"
    assert packio.drop_field(out, "latent").removed
    with packio.open(out) as pack:
        assert pack.fields == {"image": "image", "caption": "text"}
        assert [pack[i].fields["caption"].data.decode() for i in range(len(pack))] == [
            f"picture {key}" for key in map(pack.key, range(len(pack)))
        ]
    dropped = packio.drop_field(out, "caption")
    assert dropped.remaining == 0
    assert _files(out.parent) == before
    with packio.open(out) as pack:
        assert _described(pack) == described
    assert packio.verify(out).ok


def _by_tarfile(path: pathlib.Path) -> list[bytes]:
    with tarfile.open(path) as tar:
        names = sorted(n for n in tar.getnames() if n.endswith((".latent.npy", ".npy")))
        return [file.read() for n in names if (file := tar.extractfile(n)) is not None]


def _by_lmdb(path: pathlib.Path) -> list[bytes]:
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open(str(path), readonly=True, lock=False) as env, env.begin() as txn:
        return [bytes(value) for _, value in txn.cursor()]


def _by_h5py(path: pathlib.Path) -> list[bytes]:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path) as file:
        starts = file["latent_offsets"][:]
        data = file["latent_data"]
        return [data[a:b].tobytes() for a, b in itertools.pairwise(starts)]


def _by_torch(path: pathlib.Path) -> list[bytes]:
    import torch

    found = torch.load(path, weights_only=True)
    starts = found["latent_offsets"].tolist()
    data = found["latent_data"].numpy()
    return [data[a:b].tobytes() for a, b in itertools.pairwise(starts)]


def _by_zarr(path: pathlib.Path) -> list[bytes]:
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(str(path), mode="r")
    data, starts, lengths = (group[f"latent_{n}"][:] for n in ("data", "offsets", "length"))
    return [data[a : a + n].tobytes() for a, n in zip(starts[:-1], lengths, strict=True)]


def _by_tensorstore(path: pathlib.Path) -> list[bytes]:
    tensorstore = pytest.importorskip("tensorstore")

    def column(name: str) -> Any:
        spec = {"driver": "n5", "kvstore": {"driver": "file", "path": f"{path}/latent_{name}"}}
        return tensorstore.open(spec, open=True).result().read().result()

    data, starts, lengths = map(column, ("data", "offsets", "length"))
    return [data[a : a + n].tobytes() for a, n in zip(starts[:-1], lengths, strict=True)]


def _by_tfrecord(path: pathlib.Path) -> list[bytes]:
    reader = pytest.importorskip("tfrecord.reader")
    found = reader.tfrecord_loader(str(path), None, {"latent/encoded": "byte"})
    return [bytes(record["latent/encoded"]) for record in found]


def _by_frames(path: pathlib.Path) -> list[bytes]:
    """Walk the frames of a RecordIO file: records here have no magic in them."""
    data, found = path.read_bytes(), []
    while data:
        assert data[:4] == b"\x0a\x23\xd7\xce"
        length = int.from_bytes(data[4:8], "little") & (1 << 29) - 1
        found.append(data[8 + 24 : 8 + length])
        data = data[8 + length + -length % 4 :]
    return found


_READERS = {
    "tar": _by_tarfile, "lmdb": _by_lmdb, "hdf5": _by_h5py, "pth": _by_torch, "zarr": _by_zarr,
    "n5": _by_tensorstore, "tfrecord": _by_tfrecord, "recordio": _by_frames,
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_other_libraries_read_the_new_shards(
    name: str, image_folder: pathlib.Path, folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = _with_latents(name, image_folder, folder, tmp_path)
    form, found = registry.load("formats", name), list[bytes]()
    with packio.open(out) as pack:
        for shard in pack.metadata["shards"]:
            found += _READERS[name](out / name_added_shard(form, shard["name"], "latent", "array"))
        for key, data in zip(map(pack.key, range(len(pack))), found, strict=True):
            assert np.array_equal(np.load(io.BytesIO(data)), _latent(key))


def _steps(run: Any, before: Any, after: Any, tmp_path: pathlib.Path) -> int:
    """Kill a run at each change that it makes on disk; run it again each time. Count the kills."""
    for step in range(1, 10_000):
        place = tmp_path / f"step-{step}"
        shutil.copytree(tmp_path / "fresh", place)
        was_killed = killing.killed(lambda: run(place), step)  # noqa: B023 (called at once)
        if before(place):
            assert was_killed
            run(place)
        after(place)
        shutil.rmtree(place)
        if not was_killed:
            return step - 1
    raise AssertionError


@pytest.mark.long
@pytest.mark.parametrize(("name", "shards"), [("tar", 1), ("lmdb", 2), ("zarr", 1)])
def test_a_run_killed_at_any_step_leaves_the_pack_and_goes_on(
    name: str, shards: int, image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:  # fmt: skip
    fresh = tmp_path / "fresh" / f"x{_suffix(name)}"
    fresh.parent.mkdir()
    packio.pack(image_folder, fresh, shards=shards, include=["*/*00*"])
    old = _files(fresh.parent)

    def run(place: pathlib.Path) -> None:
        packio.add_field(place / fresh.name, "latent", latent_of)

    def is_as_before(place: pathlib.Path) -> bool:
        with packio.open(place / fresh.name) as pack:
            found = _files(place)
            assert {n: found[n][0] for n in old} == {n: old[n][0] for n in old}
            if "latent" in pack.fields:
                return False
            assert pack.fields == {"image": "image"}
            return True

    def is_complete(place: pathlib.Path) -> None:
        _check(place / fresh.name)
        with contextlib.suppress(OptionError):  # the journal of a run that was killed late is there
            assert packio.add_field(place / fresh.name, "latent", latent_of).kept
        with pytest.raises(OptionError, match="has a field"):
            packio.add_field(place / fresh.name, "latent", latent_of)
        assert not list(place.glob("*.packio-add"))
        packio.drop_field(place / fresh.name, "latent")
        found = _files(place)
        assert {n: found[n][0] for n in found} == {n: old[n][0] for n in old}

    assert _steps(run, is_as_before, is_complete, tmp_path) > 10


@pytest.mark.long
def test_adding_files_killed_at_any_step_is_up_to_date_in_the_end(
    image_folder: pathlib.Path, folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    fresh = tmp_path / "fresh" / "x.tar"
    fresh.parent.mkdir()
    packio.pack(image_folder, fresh, include=["*/*00*"])

    def run(place: pathlib.Path) -> packio.AddReport:
        return packio.add_field(place / "x.tar", "latent", folder)

    for step in range(1, 10_000):
        place = tmp_path / f"step-{step}"
        shutil.copytree(fresh.parent, place)
        was_killed = killing.killed(lambda: run(place), step)  # noqa: B023 (called at once)
        first, second = run(place), run(place)
        assert (first.samples or first.kept, second.samples, second.kept) == (1, 0, 1)
        assert not list(place.glob("*.packio-add"))
        _check(place / "x.tar")
        if not was_killed:
            break
    assert step > 10


def named_old(sample: packio.Sample) -> str:  # noqa: ARG001 (a field's function)
    return "old"


def named_new(sample: packio.Sample) -> str:  # noqa: ARG001 (likewise)
    return "new"


@pytest.mark.long
def test_replacing_a_field_killed_at_any_step_never_takes_old_values_for_new(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    fresh = tmp_path / "fresh" / "x.tar"
    fresh.parent.mkdir()
    packio.pack(image_folder, fresh, include=["*/*00*"])
    packio.add_field(fresh, "name", named_old)
    values = set[bytes | None]()
    for step in range(1, 10_000):
        place = tmp_path / f"step-{step}" / "x.tar"
        shutil.copytree(fresh.parent, place.parent)
        was_killed = killing.killed(
            lambda: packio.add_field(place, "name", named_new, overwrite=True),  # noqa: B023 (called at once)
            step,
        )
        with contextlib.suppress(OptionError):  # it has a field of this name: the old one
            packio.add_field(place, "name", named_new)
            assert _values(place) == {b"new"}
        values |= _values(place)
        with contextlib.suppress(OutputExistsError):  # new values wait in the journal, and stay
            packio.drop_field(place, "name")
        packio.add_field(place, "name", named_new, overwrite=True)
        assert _values(place) == {b"new"}
        if not was_killed:
            break
    assert step > 10
    assert values == {b"old", b"new"}


def _values(out: pathlib.Path) -> set[bytes | None]:
    with packio.open(out) as pack:
        return {pack.read_field("name", row) for row in range(len(pack))}


def test_other_values_than_those_of_the_pack_are_refused(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = tmp_path / "x.tar"
    packio.pack(image_folder, out)
    texts = {sample.key: f"of {sample.key}" for sample in packio.open(out)}
    packio.add_field(out, "caption", texts)
    digest = packio.open(out).digest
    assert packio.add_field(out, "caption", texts).digest == digest
    for other in ({**texts, next(iter(texts)): "new"}, dict(list(texts.items())[1:])):
        with pytest.raises(OptionError, match="has a field 'caption' already"):
            packio.add_field(out, "caption", other)


@pytest.mark.long
def test_dropping_killed_at_any_step_ends_when_it_runs_again(
    image_folder: pathlib.Path, folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:  # fmt: skip
    fresh = tmp_path / "fresh" / "x.zarr"
    fresh.parent.mkdir()
    packio.pack(image_folder, fresh, include=["*/*00*"])
    old = _files(fresh.parent)
    packio.add_field(fresh, "latent", folder)

    def run(place: pathlib.Path) -> None:
        packio.drop_field(place / "x.zarr", "latent")

    def is_there(place: pathlib.Path) -> bool:
        with packio.open(place / "x.zarr") as pack:
            return "latent" in pack.fields

    def is_gone(place: pathlib.Path) -> None:
        packio.add_field(place / "x.zarr", "latent", folder)
        packio.drop_field(place / "x.zarr", "latent")
        found = _files(place)
        assert {n: found[n][0] for n in found} == {n: old[n][0] for n in old}

    assert _steps(run, is_there, is_gone, tmp_path) > 5


def test_a_function_that_fails_is_called_only_for_what_is_left(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = tmp_path / "x.tar"
    packio.pack(image_folder, out)
    calls = list[str]()
    limit = [10]

    def value(sample: packio.Sample) -> np.ndarray:
        if len(calls) == limit[0]:
            raise RuntimeError("out of patience")
        calls.append(sample.key)
        return _latent(sample.key)

    with pytest.raises(BadImagesError, match="out of patience") as caught:
        packio.add_field(out, "latent", value)
    with packio.open(out) as pack:
        assert pack.key(10) in str(caught.value)
        assert pack.fields == {"image": "image"}
        count = len(pack)
    limit[0] = 10_000
    report = packio.add_field(out, "latent", value)
    assert (report.resumed, len(calls), len(set(calls))) == (10, count, count)
    _check(out)
    packio.drop_field(out, "latent")
    limit[0] = len(calls) + 5
    with pytest.raises(BadImagesError):
        packio.add_field(out, "latent", value)
    limit[0] = 10_000
    assert packio.add_field(out, "latent", value, resume=False).resumed == 0


def test_values_of_several_kinds_of_source_are_the_same(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = tmp_path / "x.tar"
    packio.pack(image_folder, out)
    with packio.open(out) as pack:
        texts = {key: f'a "{key}", or b' for key in map(pack.key, range(len(pack)))}
    rows = [{"key": key, "caption": text} for key, text in texts.items()]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with (tmp_path / "c.csv").open("w", newline="") as file:
        import csv

        writer = csv.DictWriter(file, ["key", "caption"])
        writer.writeheader()
        writer.writerows(rows)
    for key, text in texts.items():
        target = tmp_path / "texts" / f"{key}.txt"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    given: list[Any] = [
        texts, tmp_path / "c.jsonl", tmp_path / "c.csv", tmp_path / "texts",
        lambda sample: texts[sample.key],
    ]  # fmt: skip
    for values in given:
        packio.add_field(out, "caption", values)
        with packio.open(out) as pack:
            assert pack.fields["caption"] == "text"
            found = {s.key: s.fields["caption"].data.decode() for s in pack}
        assert found == texts
        packio.drop_field(out, "caption")


def test_missing_values_are_refused_with_counts_or_allowed(
    image_folder: pathlib.Path, folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = tmp_path / "x.tar"
    packio.pack(image_folder, out, shards=2)
    gone = sorted(folder.rglob("*.npy"))[-3:]
    for path in gone:
        path.unlink()
    np.save(folder / "stranger.npy", np.zeros(1))
    with pytest.raises(SourceError, match=r"3 of 25 samples have no value.*'stranger.npy'"):
        packio.add_field(out, "latent", folder)
    report = packio.add_field(out, "latent", folder, missing=True)
    assert (report.samples, report.missing, report.unused) == (22, 3, ("stranger.npy",))
    stems = {str(path.relative_to(folder))[:-4] for path in gone}
    with packio.open(out) as pack:
        lacking = frozenset(
            key for key in map(pack.key, range(len(pack))) if os.path.splitext(key)[0] in stems
        )
    assert len(lacking) == 3
    _check(out, lacking)
    packio.drop_field(out, "latent")
    with pytest.raises(SourceError, match="3 of 25"):
        packio.add_field(out, "latent", lambda s: None if s.key in lacking else _latent(s.key))
    packio.add_field(out, "latent", lambda s: _latent(s.key))
    _check(out)


def test_bad_values_are_refused_or_left_out(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = tmp_path / "x.tar"
    packio.pack(image_folder, out)

    def value(sample: packio.Sample) -> Any:
        return np.array([object()]) if sample.index == 4 else _latent(sample.key)

    with pytest.raises(BadImagesError, match="expected numbers"):
        packio.add_field(out, "latent", value)
    report = packio.add_field(out, "latent", value, on_error="skip")
    with packio.open(out) as pack:
        bad = pack.key(4)
    assert [key for key, _ in report.skipped] == [bad]
    assert (report.missing, report.samples) == (1, 24)
    _check(out, frozenset({bad}))
    with pytest.raises(SourceError, match="of kind text"):
        packio.add_field(out, "odd", lambda s: "text" if s.index % 2 else b"bytes")
    with pytest.raises(BadImagesError):
        packio.add_field(
            out, "depth", dict.fromkeys(_keys(out), b"no image"), kind="image", resume=False
        )


def _keys(out: pathlib.Path) -> list[str]:
    with packio.open(out) as pack:
        return [pack.key(i) for i in range(len(pack))]


def test_what_cannot_be_meant_is_refused(
    image_folder: pathlib.Path, tmp_path: pathlib.Path, folder: pathlib.Path
) -> None:
    out = tmp_path / "x.tar"
    packio.pack(image_folder, out)
    packio.add_field(out, "latent", folder)
    for name in ("image", "label", "key", "a/b", "image_div2", ""):
        with pytest.raises(OptionError):
            packio.add_field(out, name, folder)
    with pytest.raises(OptionError, match="drop-field"):
        packio.add_field(out, "latent", latent_of)
    for name in ("image", "nothing", "image_div2"):
        with pytest.raises(OptionError):
            packio.drop_field(out, name)
    with pytest.raises(OptionError, match="at a URL"):
        packio.add_field("s3://bucket/x.tar", "other", folder)
    with pytest.raises(OptionError, match="workers=0"):
        packio.add_field(out, "other", lambda s: s.key, workers=2)
    bare = tmp_path / "bare.tar"
    shutil.copy(out, bare)
    with pytest.raises(OptionError, match="packio reindex"):
        packio.add_field(bare, "other", folder)
    (tmp_path / "x.other.array.tar").write_text("of somebody else")
    with pytest.raises(OutputExistsError, match="no part of"):
        packio.add_field(out, "other", folder)
    assert (tmp_path / "x.other.array.tar").read_text() == "of somebody else"
    _check(out)


def test_of_two_runs_at_once_one_ends_with_exit_75(
    image_folder: pathlib.Path, folder: pathlib.Path, tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    out = tmp_path / "x.tar"
    packio.pack(image_folder, out, shards=2)

    def value(sample: packio.Sample) -> np.ndarray:
        if sample.index == 0:
            with pytest.raises(LockedError):
                packio.add_field(out, "other", folder)
            with pytest.raises(LockedError):
                packio.append(out, image_folder)
            with pytest.raises(LockedError):
                packio.drop_field(out, "other")
            monkeypatch.setattr("sys.argv", ["packio", "add", str(out), "--field", f"b={folder}"])
            with pytest.raises(SystemExit) as ended:
                main()
            assert ended.value.code == 75
        return _latent(sample.key)

    packio.add_field(out, "latent", value)
    _check(out)


def test_the_command_line_adds_and_drops(
    image_folder: pathlib.Path, folder: pathlib.Path, tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    out = tmp_path / "x.tar"
    packio.pack(image_folder, out)
    (tmp_path / "my_values.py").write_text("def size(sample):\n    return f'{sample.width}'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for field in (f"latent={folder}", "width=my_values:size"):
        assert run("add", out, "--field", field).returncode == 0
    _check(out)
    with packio.open(out) as pack:
        assert all(s.fields["width"].data == b"%d" % s.width for s in pack)
    assert "width is dropped; 2 files removed" in run("drop-field", out, "width").stdout


def test_workers_make_the_same_files(
    image_folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(pathlib.Path(__file__).parent))
    monkeypatch.setattr(parts, "ROWS", 4)
    found = []
    for workers in (0, 2):
        place = tmp_path / str(workers)
        place.mkdir()
        packio.pack(image_folder, place / "x.tar", shards=2)
        by_name = importlib.import_module("test_adding_field").latent_of
        packio.add_field(place / "x.tar", "latent", by_name, workers=workers)
        _check(place / "x.tar")
        found.append({name: digest for name, (digest, _) in _files(place).items()})
    assert found[0] == found[1]


def test_overwriting_takes_the_new_values(
    image_folder: pathlib.Path, folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = tmp_path / "x.lmdb"
    packio.pack(image_folder, out, shards=2)
    packio.add_field(out, "latent", lambda _: np.zeros(3))
    packio.add_field(out, "latent", folder, overwrite=True)
    _check(out)
    with packio.open(out) as pack:
        assert list(pack.fields) == ["image", "latent"]


@pytest.mark.parametrize("name", FORMATS)
def test_other_verbs_carry_the_field(
    name: str, image_folder: pathlib.Path, folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = _with_latents(name, image_folder, folder, tmp_path)
    assert packio.pack(image_folder, out, shards=2).up_to_date
    packio.convert(out, tmp_path / "converted.tar")
    _check(tmp_path / "converted.tar")
    more = tmp_path / "more"
    shutil.copytree(image_folder, more / "new")
    for path in [path for path in more.rglob("*") if path.is_file()]:  # append asks for new names
        path.rename(path.with_name(f"new {path.name}"))
    packio.pack(more, tmp_path / f"y{_suffix(name)}", shards=2)
    new = frozenset(_keys(tmp_path / f"y{_suffix(name)}"))
    merged = tmp_path / f"merged{_suffix(name)}"
    packio.merge(merged, [out, tmp_path / f"y{_suffix(name)}"], shards=2)
    _check(merged, new)
    packio.append(out, more)
    _check(out, new)
    packio.reindex(out)
    _check(out, new)
    packio.drop_field(merged, "latent")
    assert packio.verify(merged).ok
    _check(out, new)


@pytest.mark.parametrize("name", FORMATS)
def test_a_lost_index_loses_no_sample_and_makes_no_wrong_ones(
    name: str, image_folder: pathlib.Path, folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = tmp_path / f"x{_suffix(name)}"
    packio.pack(image_folder, out, shards=2)
    with packio.open(out) as pack:
        data = [sample.data for sample in pack]
    packio.add_field(out, "latent", folder)
    (out / "index.packio").unlink()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        packio.reindex(out)
    with packio.open(out) as pack:
        assert [sample.data for sample in pack] == data
        if registry.load("formats", name).caps.fields_apart:
            assert pack.fields == {"image": "image", "latent": "array"}
        else:
            assert pack.fields == {"image": "image"}
            assert any("latent" in str(w.message) for w in told)
    assert packio.verify(out).ok


def test_a_batch_stacks_arrays_of_one_shape(
    image_folder: pathlib.Path, folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = _with_latents("tar", image_folder, folder, tmp_path)
    packio.add_field(out, "ragged", lambda s: np.zeros(1 + s.index % 2))
    ds = packio.PackDataset(out, fields=("latent", "ragged", "key"))
    latents, ragged, keys = packio.collate(ds.__getitems__([3, 20, 7, 7]))
    assert latents.shape == (4, 4, 3, 2)
    assert isinstance(ragged, list)
    for latent, key in zip(latents, keys, strict=True):
        assert np.array_equal(latent.numpy(), _latent(key))
    for batch, _, _ in packio.Loader(ds, batch_size=5):
        assert batch.shape == (5, 4, 3, 2)


def test_a_field_that_was_packed_is_dropped_for_good(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    paths = sorted(path for path in image_folder.rglob("*") if path.is_file())
    rows = [{"path": str(path), "caption": f"picture {path.name}"} for path in paths]
    table, out = tmp_path / "rows.jsonl", tmp_path / "x.tar"
    table.write_text("".join(json.dumps(row) + "\n" for row in rows[:20]))
    packio.pack(table, out, shards=2, fields={"caption": ("caption", "text")})
    before = _files(out)
    dropped = packio.drop_field(out, "caption")
    assert dropped.removed == ()
    assert dropped.remaining == sum(len(row["caption"]) for row in rows[:20])
    assert _files(out) == before
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert packio.append(out, table).added == len(rows) - 20
    packio.convert(out, tmp_path / "converted.lmdb")
    for pack in map(packio.open, (out, tmp_path / "converted.lmdb")):
        assert pack.fields == {"image": "image"}
        assert len(pack) == len(rows)
    packio.add_field(out, "caption", lambda sample: f"new {sample.key}")
    with packio.open(out) as pack:
        assert {s.fields["caption"].data.decode() for s in pack} == {f"new {s.key}" for s in pack}
    assert packio.verify(out).ok


def test_names_of_added_shards_are_told_from_others() -> None:
    names = {"a.tar", "a.latent.array.tar", "a.b.tar", "b.latent.array.tar", "latent.array.tar"}
    assert {n for n in names if is_added_shard(n, names)} == {"a.latent.array.tar"}


def test_the_workshop_of_another_user_is_not_touched(
    image_folder: pathlib.Path, folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = tmp_path / "x.tar"
    packio.pack(image_folder, out)
    strange = workshop.Workshop.locate(out, job.SUFFIX).folder
    strange.mkdir()
    (strange / "thesis.txt").write_text("years of work")
    with pytest.raises(PackioError, match="not made by packio"):
        packio.add_field(out, "latent", folder)
    assert (strange / "thesis.txt").read_text() == "years of work"
