"""Verifying: whatever happens to whatever byte of a pack, it is found, and found where it is."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import latents
import numpy as np
import pytest
from made import saved
from typer.testing import CliRunner

import packio
from packio import cli, registry
from packio.errors import MissingPackageError, NotAPackError, OptionError, PackioError
from packio.index import indexfile
from packio.inspecting.verifying import Damage, verify
from packio.sample.packed import Sample
from packio.system.progress import Progress

LONG = bool(
    os.environ.get("PACKIO_LONG")
)  # the long form: PACKIO_LONG=1 pytest tests/inspecting/test_verify.py
FLIPS, TRUNCATIONS = (2100, 200) if LONG else (150, 30)  # for each format
COUNT = 8


def samples(seed: int = 0, *, vectors: bool = False) -> list[Sample]:
    """A few images of about 600 bytes, with all that can belong to them."""
    r = np.random.default_rng(seed)
    made = []
    for i in range(COUNT):
        pixels = r.integers(0, 256, (13, 14, 3), np.uint8)
        mask = saved(r.integers(0, 5, (13, 14), np.uint8), "PNG")
        data = saved(pixels, "PNG") if i % 2 else saved(pixels, "JPEG", quality=50)
        if i == 2:  # ends in what splits a record of RecordIO: its magic number, aligned
            data += bytes(-len(data) % 4) + b"\x0a\x23\xd7\xce" * 2
        label = r.random(3, np.float32) if vectors else i % 3
        made.append(
            Sample(
                i, f"c{i % 3}/{i} ü\udcff\t.png", data, "", label, 13, 14, mask=mask,
                meta={"i": i}, boxes=r.random((i % 3, 4), np.float32), box_labels=np.arange(i % 3),
            )
        )  # fmt: skip
    return made


class Packed(NamedTuple):
    """A pack, and where the values in it are."""

    path: Path
    values: list[tuple[str, int, int, int, bool]]  # file, offset, end, position, is a mask

    def value_at(self, file: Path, offset: int) -> tuple[int, bool] | None:
        """Position of the sample that a byte is of, and whether it is of the mask."""
        name = os.path.relpath(file, self.root)
        hits = [(p, m) for f, a, b, p, m in self.values if f == name and a <= offset < b]
        return hits[0] if hits else None

    @property
    def root(self) -> Path:
        """Folder that the names of files are relative to."""
        return self.path if self.path.is_dir() else self.path.parent

    def files(self) -> list[Path]:
        """All files, the index among them."""
        return sorted(p for p in self.root.rglob("*") if p.is_file())


_MADE: dict[tuple[Any, ...], dict[str, bytes]] = {}  # the files of a pack


def packed(name: str, out: Path, given: list[Sample] | None = None, **options: Any) -> Packed:
    """Make a pack in a folder of its own; one of the usual samples once, then it is copied."""
    out.mkdir(parents=True)
    path = out / f"pack{latents.suffix(name)}"
    files = _MADE.setdefault((name, *options.items()), {}) if given is None else {}
    for file, data in files.items():
        (out / file).parent.mkdir(parents=True, exist_ok=True)
        (out / file).write_bytes(data)
    try:
        if not files:
            packio.pack(samples() if given is None else given, path, **options)
    except MissingPackageError as error:
        pytest.skip(str(error))
    if given is None and not files:
        found = (p for p in out.rglob("*") if p.is_file())
        files.update({str(p.relative_to(out)): p.read_bytes() for p in found})
    index = packio.open(path).index_file
    values = []
    for field in index.fields:
        places = [f"{field}/{n}" for n in ("file", "offset", "length")]
        columns = [index.column(name).array().tolist() for name in places]
        for position, (file, offset, length) in enumerate(zip(*columns, strict=True)):
            place = index.files()[file][0], offset, offset + length
            values.append((*place, position, field == "mask"))
    return Packed(path, values)


@contextlib.contextmanager
def changed(file: Path, data: bytes) -> Iterator[None]:
    """Put other bytes into a file for a while."""
    before = file.read_bytes()
    file.write_bytes(data)
    try:
        yield
    finally:
        file.write_bytes(before)


def damages(pack: Packed, **options: Any) -> tuple[Damage, ...]:
    report = verify(pack.path, **options)
    assert report.ok == (not report.damages)
    return report.damages


def tell(capsys: pytest.CaptureFixture[str], text: str) -> None:
    """Print the figures of the long form."""
    if LONG:
        with capsys.disabled():
            print(f"\n{text}", file=sys.stderr)


@pytest.mark.parametrize("name", latents.FORMATS)
@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("vectors", [False, True])
def test_an_intact_pack_is_fine(name: str, shards: int, vectors: bool, tmp_path: Path) -> None:
    pack = packed(name, tmp_path / "a", samples(vectors=vectors), shards=shards)
    report = verify(pack.path, decode=True, structure="always")
    assert report.damages == ()
    assert report.warnings == ()
    assert report.ok
    assert (report.format, report.samples) == (name, COUNT)
    found = [p for p in pack.files() if p.suffix != ".packio"]
    assert report.files == len(found)
    assert report.bytes == sum(p.stat().st_size for p in found)


@pytest.mark.long
@pytest.mark.parametrize("name", latents.FORMATS)
def test_every_flipped_bit_is_found_where_it_is(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pack = packed(name, tmp_path / "a", shards=2)
    sizes = [(file, file.stat().st_size) for file in pack.files()]
    stride = max(1, sum(size for _, size in sizes) // FLIPS)
    flips, missed, payload, lost = 0, [], 0, []
    for number, (file, size) in enumerate(sizes):
        for offset in range(number % min(stride, max(size, 1)), size, stride):
            data = bytearray(file.read_bytes())
            data[offset] ^= 1 << (flips % 8)
            flips += 1
            with changed(file, bytes(data)):
                found = damages(pack)
                missed += [] if found else [(file.name, offset)]
                value = pack.value_at(file, offset)
                if value is not None and not is_padding(pack, *value):
                    payload += 1
                    lost += [] if is_located(pack, found, file, *value) else [(file, offset)]
    tell(
        capsys,
        f"{name}: {flips - len(missed)}/{flips} flips, {payload - len(lost)}/{payload} located",
    )
    assert flips >= FLIPS
    assert payload >= 1
    assert (missed, lost) == ([], [])
    assert damages(pack) == ()


def is_padding(pack: Packed, position: int, is_mask: bool) -> bool:
    """Whether a flipped byte is none of the value's, which only a split record has: it reads well.

    Whatever else is flipped, the reader has to raise.
    """
    try:
        sample = packio.open(pack.path)[position]
    except PackioError:
        return False
    row = packio.open(pack.path).row(position)
    assert row.flags & indexfile.SPLIT_RECORD
    assert not is_mask
    assert sample.data == samples()[position].data
    return True


def is_located(
    pack: Packed, found: tuple[Damage, ...], file: Path, position: int, is_mask: bool
) -> bool:
    """Whether the first damage of a sample is that of this value, and no other's is told."""
    named = [d for d in found if d.position is not None]
    where = [(f, a, b - a) for f, a, b, p, m in pack.values if (p, m) == (position, is_mask)]
    return (
        len(named) >= 1
        and {d.position for d in named} == {position}
        and (named[0].file, named[0].offset, named[0].length) == where[0]
        and named[0].file == os.path.relpath(file, pack.root)
        and named[0].key == packio.open(pack.path).key(position)
        and any(d.problem.startswith("mask: ") for d in named) == is_mask
    )


@pytest.mark.parametrize("name", latents.FORMATS)
def test_every_truncation_is_found(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pack = packed(name, tmp_path / "a", shards=2)
    files = [file for file in pack.files() if file.stat().st_size]
    r = np.random.default_rng(1)
    missed = []
    for i in range(TRUNCATIONS):
        file = files[i % len(files)]
        data = file.read_bytes()
        size = [0, len(data) - 1][i // len(files)] if i < 2 * len(files) else r.integers(len(data))
        with changed(file, data[:size]):
            missed += [] if damages(pack) else [(file, size)]
    tell(capsys, f"{name}: {TRUNCATIONS - len(missed)}/{TRUNCATIONS} truncations")
    assert missed == []


@pytest.mark.parametrize("name", latents.FORMATS)
def test_a_truncated_file_names_the_samples_that_are_lost(name: str, tmp_path: Path) -> None:
    pack = packed(name, tmp_path / "a")
    file, offset, end, position, _ = max(pack.values, key=lambda v: v[2])
    path = pack.root / file
    with changed(path, path.read_bytes()[: (offset + end) // 2]):
        found = damages(pack)
    assert {d.file for d in found if d.position is not None} == {file}
    assert position in {d.position for d in found}
    assert [d for d in found if d.file == file and "bytes, the index says" in d.problem]


@pytest.mark.parametrize("name", latents.FORMATS)
@pytest.mark.parametrize("shards", [1, 2])
def test_an_appended_byte_is_found_in_every_file(name: str, shards: int, tmp_path: Path) -> None:
    pack = packed(name, tmp_path / "a", shards=shards)
    for file in pack.files():
        with changed(file, file.read_bytes() + b"\0"):
            assert {d.file for d in damages(pack)} >= {os.path.relpath(file, pack.root)}


@pytest.mark.parametrize("name", latents.FORMATS)
@pytest.mark.parametrize("shards", [1, 2])
def test_a_missing_file_is_found(name: str, shards: int, tmp_path: Path) -> None:
    pack = packed(name, tmp_path / "a", shards=shards)
    for file in pack.files():
        file.rename(tmp_path / "away")
        found = [d.problem for d in damages(pack) if d.file == os.path.relpath(file, pack.root)]
        assert any(p.startswith("missing") for p in found), file
        (tmp_path / "away").rename(file)
    assert damages(pack) == ()


@pytest.mark.parametrize("name", latents.FORMATS)
def test_swapped_shards_are_found(name: str, tmp_path: Path) -> None:
    pack = packed(name, tmp_path / "a", shards=2)
    first, second = (pack.path / s["name"] for s in packio.open(pack.path).metadata["shards"])
    first.rename(tmp_path / "away")
    second.rename(first)
    (tmp_path / "away").rename(second)
    shards = {first.name, second.name}
    assert {d.file.partition("/")[0] for d in damages(pack)} >= shards


@pytest.mark.parametrize("name", latents.FORMATS)
@pytest.mark.parametrize("shards", [1, 2])
def test_the_index_of_another_pack_is_found(name: str, shards: int, tmp_path: Path) -> None:
    pack = packed(name, tmp_path / "a", shards=shards)
    other = packed(name, tmp_path / "b", samples(1), shards=shards)
    mine, others = (next(f for f in p.files() if f.suffix == ".packio") for p in (pack, other))
    with changed(mine, others.read_bytes()):
        assert damages(pack)
    if not pack.path.is_dir():  # beside it, under its own name, and with all its files
        foreign = tmp_path / "a" / f"other{pack.path.suffix}"
        packio.pack(samples(1), foreign)
        with changed(mine, Path(f"{foreign}.packio").read_bytes()):
            assert "another pack" in damages(pack)[0].problem


@pytest.mark.parametrize("name", latents.FORMATS)
def test_all_damages_are_told(name: str, tmp_path: Path) -> None:
    pack = packed(name, tmp_path / "a", shards=2)
    hit = [v for v in pack.values if v[3] in (1, 2, 6)]
    for file, offset, end, *_ in hit:
        data = bytearray((pack.root / file).read_bytes())
        data[(offset + end) // 2] ^= 4
        (pack.root / file).write_bytes(data)
    found = {(d.file, d.position, d.offset) for d in damages(pack) if d.position is not None}
    assert found == {(file, position, offset) for file, offset, _, position, _ in hit}


@pytest.mark.parametrize("name", latents.FORMATS)
def test_a_pack_that_was_indexed_anew_is_fine(name: str, tmp_path: Path) -> None:
    pack = packed(name, tmp_path / "a", shards=2)
    (pack.path / "index.packio").unlink()
    assert [d.file for d in damages(pack)] == ["index.packio"]
    packio.reindex(pack.path)
    assert damages(pack, structure="always") == ()


def index_of(pack: Packed) -> Path:
    return next(f for f in pack.files() if f.suffix == ".packio")


def damage_index(index: Path, kind: str) -> None:
    data = bytearray(index.read_bytes())
    data[20 if kind == "header" else -1] ^= 1
    index.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("tar", "header"), *((n, kind) for n in latents.FORMATS for kind in ("missing", "column"))],
)
def test_an_index_that_is_not_sound_is_told_and_reindex_mends_it(
    name: str, kind: str, tmp_path: Path
) -> None:
    pack = packed(name, tmp_path / "a", shards=1 if kind == "header" else 2)
    has_label = "label" in registry.load("formats", name).caps.keeps

    def contents() -> list[Any]:
        found = packio.open(pack.path)
        return [(s.data, s.mask, s.label if has_label else None) for s in found]

    index, before = index_of(pack), contents()
    if kind == "missing":
        index.unlink()
    else:
        damage_index(index, kind)
    files = {f: f.read_bytes() for f in pack.files()}
    assert {damage.file for damage in damages(pack)} == {index.name}
    assert {f: f.read_bytes() for f in pack.files()} == files
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it tells what of the index is lost
        packio.reindex(pack.path)
    assert contents() == before
    assert damages(pack, decode=True, structure="always") == ()


def test_records_that_are_no_ranges_of_bytes_are_verified(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    path, pixels = tmp_path / "a.h5", np.random.default_rng(0).integers(0, 256, (9, 8, 8, 3))
    with h5py.File(path, "w") as file:
        file.create_dataset(
            "images", data=pixels.astype(np.uint8), chunks=(2, 8, 8, 3), compression="gzip"
        )
        file["labels"] = np.arange(9)
    packio.reindex(path, label_offset=1, image="images")
    report = verify(path, decode=True, structure="always")
    assert (report.ok, report.samples) == (True, 9)
    assert np.array_equal(packio.open(path)[4].decode(), pixels[4])
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert "SHA-256 differs" in verify(path, decode=True).damages[0].problem


def raw_pack(out: Path, shards: int) -> Packed:
    """A pack of raw pixels, 400,000 bytes each: two rows a block, with as many a shard as fit."""
    r = np.random.default_rng(0)
    given = [Sample(i, f"{i}", r.bytes(400_000), "raw", i, 400, 1000, channels=1) for i in range(7)]
    pack = packed("tar", out, given, shards=shards)
    index = indexfile.Index(index_of(pack))
    columns = {n: index.column(n).array() for n in index.column_names}
    crcs, first = [], 0
    for shard in index.metadata["shards"]:
        rows = [s.data for s in given[first : first + shard["samples"]]]
        crcs += [indexfile.crc32c(b"".join(rows[i : i + 2])) for i in range(0, len(rows), 2)]
        first += shard["samples"]
    columns["raw_crc32c"] = np.array(crcs, np.uint32)
    indexfile.write(index.path, columns, index.metadata)
    return pack


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_a_pack_of_raw_pixels_is_fine(shards: int, tmp_path: Path) -> None:
    assert damages(raw_pack(tmp_path / "a", shards), decode=True) == ()


def test_an_interrupt_ends_it_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack, calls = packed("tar", tmp_path / "a"), []
    monkeypatch.setattr("packio.inspecting.verifying.files._SPAN", 1)
    monkeypatch.setattr("packio.system.progress.PROGRESS_SECONDS", 0)

    def interrupted(progress: Progress) -> None:
        calls.append(progress)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verify(pack.path, progress=interrupted)
    assert len(calls) <= 2


def test_structure_tells_what_the_container_says_otherwise(tmp_path: Path) -> None:
    pack = packed("tar", tmp_path / "a")
    index = indexfile.Index(Path(f"{pack.path}.packio"))
    columns = {n: index.column(n).array().copy() for n in index.column_names}
    columns["label"][2] += 1
    columns["key_data"][1] ^= 3
    indexfile.write(index.path, columns, index.metadata)
    assert damages(pack) == ()
    found = damages(pack, structure="always")
    assert [d.position for d in found] == [0, 2]
    assert "key" in found[0].problem
    assert "label" in found[1].problem
    indexfile.write(index.path, columns, {**index.metadata, "version": 9})
    (newer,) = damages(pack)
    assert newer.file == "pack.tar.packio"
    assert "update it" in newer.problem


def test_an_image_that_does_not_decode_is_found_by_its_key(tmp_path: Path) -> None:
    given, seen = samples(), list[Progress]()
    broken = given[1].data[:40] + bytes(20) + given[1].data[60:]
    given[1] = dataclasses.replace(given[1], data=broken)
    pack = packed("tar", tmp_path / "a", given)
    (pack.path.parent / "notes.txt").write_text("hello")  # beside a pack of one file: another's
    report = verify(pack.path, progress=seen.append, num_workers=1)
    assert (report.ok, report.warnings) == (True, ())
    assert (seen[-1].done, seen[-1].total, seen[-1].bad) == (COUNT, COUNT, 0)
    assert 0 < seen[-1].done_bytes <= seen[-1].total_bytes
    (found,) = damages(pack, decode=True)
    assert (found.position, found.key) == (1, given[1].key)
    assert found.problem.startswith("does not decode: ")


def test_a_copy_is_verified_from_anywhere_with_files_that_are_not_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = packed("lmdb", tmp_path / "a")
    shutil.copytree(pack.path, tmp_path / "copy.lmdb")
    (tmp_path / "copy.lmdb" / "notes.txt").write_text("hello")
    monkeypatch.chdir(tmp_path)
    report = verify("copy.lmdb")
    assert (report.ok, report.path) == (True, Path("copy.lmdb"))
    assert report.warnings == ("notes.txt: not of the pack",)
    index_of(pack).unlink()
    code, printed = run_command(pack.path)
    assert code == 65
    assert "missing; `packio reindex`" in printed


def test_nothing_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotAPackError, match="a pack was expected"):
        verify(tmp_path / "none.tar")
    (tmp_path / "text").write_text("hello")
    for path in (tmp_path, tmp_path / "text"):
        with pytest.raises(NotAPackError, match="no container that packio knows"):
            verify(path)


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"structure": "never"}])
def test_options_that_cannot_be_meant_are_refused(options: Any, tmp_path: Path) -> None:
    with pytest.raises(OptionError):
        verify(tmp_path, **options)


def test_large_files_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = packed("tar", tmp_path / "a")
    for size in (1, 100, 700, 5000):
        monkeypatch.setattr("packio.inspecting.verifying.files._SPAN", size)
        assert damages(pack) == ()
    monkeypatch.setattr("packio.inspecting.verifying.files._SPAN", 700)
    data = pack.path.read_bytes()
    for _, offset, end, position, is_mask in pack.values:
        for place in (offset, end - 1):
            flipped = bytearray(data)
            flipped[place] ^= 128
            with changed(pack.path, bytes(flipped)):
                assert is_located(pack, damages(pack), pack.path, position, is_mask)


def run_command(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(cli.build("verify"), ["verify", *map(str, arguments)])
    return result.exit_code, result.output


def test_the_command_says_fine_and_ends_with_0(tmp_path: Path) -> None:
    pack = packed("tar", tmp_path / "a")
    code, printed = run_command(pack.path, "--decode")
    assert code == 0
    assert f"{COUNT} samples in " in printed
    assert "all as they were packed" in printed
    assert run_command(pack.path, "--quiet") == (0, "")
    code, printed = run_command(pack.path, "--json")
    assert (code, json.loads(printed)["ok"]) == (0, True)


def test_the_command_lists_damages_and_ends_with_65(tmp_path: Path) -> None:
    pack = packed("tar", tmp_path / "a")
    data = bytearray(pack.path.read_bytes())
    data[pack.values[3][1]] ^= 1
    pack.path.write_bytes(data)
    code, printed = run_command(pack.path, "--quiet")
    file, offset, end, position, _ = pack.values[3]
    assert code == 65
    line = rf"{file}\t3\tc0/3 ü\xff\t.png\tCRC32C differs ({end - offset} bytes at {offset})"
    assert printed.replace("\t", "\\t").splitlines()[0] == line
    code, printed = run_command(pack.path, "--json")
    assert code == 65
    assert json.loads(printed)["damages"][0]["position"] == position


def test_the_command_ends_with_74_where_a_file_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = packed("tar", tmp_path / "a")

    def refuse(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("packio.inspecting.verifying.files._read_through", refuse)
    code, printed = run_command(pack.path)
    assert code == 74
    assert "cannot be read: Input/output error" in printed
