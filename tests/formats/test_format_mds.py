"""MDS, checked against shards made here by the format's description alone."""

from __future__ import annotations

import gzip
import json
import random
import struct
import subprocess
from pathlib import Path
from typing import Any

import made
import mds_shards
import pytest

import packio
from packio import errors
from packio.formats import mds
from packio.formats.mds import FORMAT

_JPEG = b"\xff\xd8\xff\xe0 a photo"
_COLUMNS = {
    "filename": "str", "image": "jpeg", "label": "int", "mask": "png", "meta": "json",
    "score": "float32", "thumbnail": "jpeg",
}  # fmt: skip


def _samples(count: int, seed: int = 0) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    return [
        {
            "image": _JPEG + rng.randbytes(rng.choice((0, 100, 90_000))), "label": i - 2,
            "filename": f"é/{i}.jpg", "mask": b"mask" * i, "meta": {"i": i}, "score": i / 4,
            "thumbnail": b"small",
        }
        for i in range(count)
    ]  # fmt: skip


def _folder(path: Path, shards: list[bytes], counts: list[int], **changes: Any) -> None:
    path.mkdir(exist_ok=True)
    listed = []
    for i, (shard, count) in enumerate(zip(shards, counts, strict=True)):
        name = f"shard.{i:05d}.mds"
        (path / name).write_bytes(shard)
        raw = {"basename": name, "bytes": len(shard), "hashes": {}}
        listed.append(
            {"version": 2, "format": "mds", "samples": count, "raw_data": raw, "zip_data": None}
            | changes
        )
    (path / "index.json").write_text(json.dumps({"version": 2, "shards": listed}))


def _read(folder: Path, file: str, offset: int, length: int) -> bytes:
    return (folder / file).read_bytes()[offset:][:length]


def _is(entry: made.Found, sample: dict[str, Any], folder: Path) -> bool:
    assert entry.mask is not None
    assert entry.meta is not None
    found = {
        "image": _read(folder, entry.file, entry.offset, entry.length),
        "mask": _read(folder, *entry.mask),
        "label": entry.label,
        "filename": entry.key and entry.key.decode(),
        "meta": json.loads(entry.meta),
    }
    return all(sample[name] == value for name, value in found.items())


def _scanned(path: Path, content: bytes) -> list[made.Found]:
    path.write_bytes(content)
    return list(made.scanned(FORMAT, path))


@pytest.mark.parametrize("count", [0, 1, 50])
def test_scan_reads_a_shard(tmp_path: Path, count: int) -> None:
    samples = _samples(count)
    entries = _scanned(tmp_path / "a.mds", mds_shards.shard(_COLUMNS, samples))
    assert len(entries) == count
    assert all(_is(e, s, tmp_path) for e, s in zip(entries, samples, strict=True))


def test_scan_reads_the_shards_of_a_folder_in_order(tmp_path: Path) -> None:
    samples = _samples(30)
    parts = [samples[:10], samples[10:11], [], samples[11:]]
    _folder(tmp_path / "d", [mds_shards.shard(_COLUMNS, p) for p in parts], [len(p) for p in parts])
    entries = list(made.scanned(FORMAT, tmp_path / "d"))
    assert len(entries) == 30
    assert all(_is(e, s, tmp_path / "d") for e, s in zip(entries, samples, strict=True))


@pytest.mark.parametrize("suffix", [".lmdb", ".tar", ".h5"])
def test_converting_keeps_columns_of_every_encoding(suffix: str, tmp_path: Path) -> None:
    columns = {
        "image": "png", "label": "int", "points": "ndarray:float32:2,3", "caption": "str",
        "score": "float32", "box list": "json", "small": "png", "index": "bytes",
    }  # fmt: skip
    samples: list[dict[str, Any]] = [
        {
            "image": made.png(4, 3), "label": i, "points": struct.pack("<6f", *range(i, i + 6)),
            "caption": f"é {i}", "score": i / 4, "box list": [i], "small": made.png(2, 1),
            "index": b"\x00%d" % i,
        }
        for i in range(3)
    ]  # fmt: skip
    _folder(tmp_path / "d", [mds_shards.shard(columns, samples)], [3])
    packio.convert(tmp_path / "d", tmp_path / f"x{suffix}")
    for path in (tmp_path / "d", tmp_path / f"x{suffix}"):
        with packio.open(path) as pack:
            for i, (found, given) in enumerate(zip(pack, samples, strict=True)):
                values = {name: found.fields[name].data for name in found.fields}
                assert (found.label, found.data) == (i, given["image"])
                assert values == {
                    "small": given["small"], "points": given["points"],
                    "caption": f"é {i}".encode(), "score": struct.pack("<f", i / 4),
                    "box_list": b"[%d]" % i, "_index": given["index"],
                }  # fmt: skip


@pytest.mark.parametrize("encoding", [*mds_shards.FIXED, "str_int"])
def test_labels_are_integers_of_any_encoding(tmp_path: Path, encoding: str) -> None:
    shard = mds_shards.shard({"x": "png", "y": encoding}, [{"x": b"PNG", "y": 77}])
    (entry,) = _scanned(tmp_path / "a.mds", shard)
    assert entry.label == (None if encoding == "float32" else 77)
    assert (entry.key, entry.mask, entry.meta) == (b"0", None, None)


@pytest.mark.parametrize(
    ("columns", "image"),
    [
        ({"a": "png", "image": "jpeg"}, "image"),
        ({"mask": "png", "picture": "png"}, "picture"),
        ({"a": "bytes", "b": "bytes"}, "b"),
        ({"a": "bytes", "img": "str", "z": "jpeg"}, "z"),
        ({"JPG": "jpeg", "a": "jpeg"}, "JPG"),
        ({"extra": "pkl", "z": "jpeg"}, "z"),
    ],
)
def test_the_column_of_images_is_found(tmp_path: Path, columns: Any, image: str) -> None:
    sample = dict.fromkeys(columns, b"no image") | {image: _JPEG}
    (entry,) = _scanned(tmp_path / "a.mds", mds_shards.shard(columns, [sample]))
    assert _read(tmp_path, entry.file, entry.offset, entry.length) == _JPEG


def test_metadata_that_are_no_object_are_left_out(tmp_path: Path) -> None:
    columns = {"image": "png", "meta": "json"}
    (entry,) = _scanned(tmp_path / "a", mds_shards.shard(columns, [{"image": b"", "meta": [1]}]))
    assert entry.meta is None


@pytest.mark.parametrize("name", ["image", "label", "key", "mask"])
def test_pickled_columns_are_refused_by_name(tmp_path: Path, name: str) -> None:
    columns = {"x": "jpeg", name: "pkl"}
    with pytest.raises(errors.NotAPackError, match=rf"a\.mds: the column '{name}' is pickled"):
        _scanned(
            tmp_path / "a.mds", mds_shards.shard(columns, [{"x": _JPEG, name: b"cos\nsystem\n"}])
        )


def test_a_shard_without_images_is_refused_with_its_columns(tmp_path: Path) -> None:
    shard = mds_shards.shard({"text": "str", "tokens": "bytes"}, [{"text": "a", "tokens": b"b"}])
    with pytest.raises(errors.NotAPackError, match=r"text \(str\), tokens \(bytes\); expected"):
        _scanned(tmp_path / "a.mds", shard)


def test_compressed_shards_are_refused_with_a_way_out_that_works(tmp_path: Path) -> None:
    samples = _samples(3)
    shard = mds_shards.shard(_COLUMNS, samples)
    zipped = {"basename": "shard.00000.mds.gz", "bytes": 1, "hashes": {}}
    _folder(tmp_path / "a b", [shard], [3], zip_data=zipped)
    (tmp_path / "a b/shard.00000.mds").unlink()
    (tmp_path / "a b/shard.00000.mds.gz").write_bytes(gzip.compress(shard))
    for path in (tmp_path / "a b", tmp_path / "a b/shard.00000.mds.gz"):
        with pytest.raises(errors.NotAPackError, match="compressed as a whole") as e:
            list(made.scanned(FORMAT, path))
    command = str(e.value).partition("unpack the file first: ")[2]
    subprocess.run(command, shell=True, check=True)  # noqa: S602 (what we tell users)
    entries = list(made.scanned(FORMAT, tmp_path / "a b"))
    assert all(_is(e, s, tmp_path / "a b") for e, s in zip(entries, samples, strict=True))


@pytest.mark.parametrize("suffix", ["zstd", "br", "bz2", "snappy"])
def test_each_compression_has_its_command(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(errors.NotAPackError, match=f"{suffix[:2]}.* .*a.mds.{suffix} .*a.mds"):
        _scanned(tmp_path / f"a.mds.{suffix}", b"")


# What is no MDS


@pytest.mark.parametrize(
    "config",
    [
        {"version": 3},
        {"format": "json"},
        {"column_names": ["image"]},
        {"column_names": None},
        {"column_names": [1, 2]},
        {"column_sizes": [None, 4]},
        {"column_sizes": [None, None]},
        {"column_sizes": [-1, 8]},
        {"column_sizes": [0, 8]},
        {"column_sizes": [2**70, 8]},
        {"column_sizes": [True, 8]},
        {"column_encodings": [["jpeg"], "int"]},
        {"column_names": []},
    ],
)
def test_configs_that_make_no_sense_are_refused(tmp_path: Path, config: Any) -> None:
    shard = mds_shards.shard(
        {"image": "jpeg", "label": "int"}, [{"image": b"", "label": 1}], **config
    )
    with pytest.raises(errors.PackioError, match=r"a\.mds: the (config|columns of the config)"):
        _scanned(tmp_path / "a.mds", shard)


def test_a_deeply_nested_config_is_refused(tmp_path: Path) -> None:
    nested = b"[" * 200_000
    content = struct.pack("<II", 0, 8 + len(nested)) + nested
    with pytest.raises(errors.NotAPackError, match="no config at 8"):
        _scanned(tmp_path / "a.mds", content)
    (tmp_path / "index.json").write_bytes(nested)
    with pytest.raises(errors.IntegrityError, match=r"index\.json: no JSON"):
        list(made.scanned(FORMAT, tmp_path))


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.ReadError, match="No such file"):
        list(made.scanned(FORMAT, tmp_path / "absent"))
    with pytest.raises(errors.NotAPackError, match=r"no index\.json"):
        list(made.scanned(FORMAT, tmp_path))
    _folder(tmp_path, [mds_shards.shard(_COLUMNS, _samples(1))], [1])
    (tmp_path / "shard.00000.mds").unlink()
    with pytest.raises(errors.ReadError, match=r"shard\.00000\.mds: is not there, but"):
        list(made.scanned(FORMAT, tmp_path))


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("[]", "lists no shards"),
        ("{", "no JSON"),
        ('{"shards": [[]]}', "shard 0 is not of format mds"),
        ('{"shards": [{"version": 2, "format": "json"}]}', "shard 0 is not of format mds"),
        ('{"shards": [{"version": 2, "format": "mds"}]}', "shard 0 has no basename"),
    ],
)
def test_other_indexes_are_refused(tmp_path: Path, index: str, message: str) -> None:
    (tmp_path / "index.json").write_text(index)
    with pytest.raises(errors.PackioError, match=message):
        list(made.scanned(FORMAT, tmp_path))


@pytest.mark.parametrize("name", ["../a.mds", "/a.mds", "a/../../b.mds", "", "a\0b"])
def test_shards_outside_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    raw = {"basename": name, "bytes": 1}
    _folder(tmp_path, [b""], [1], raw_data=raw)
    with pytest.raises(errors.IntegrityError, match="is not within the folder"):
        list(made.scanned(FORMAT, tmp_path))


@pytest.mark.parametrize("count", [2, 4])
def test_a_shard_that_the_index_contradicts_is_refused(tmp_path: Path, count: int) -> None:
    _folder(tmp_path, [mds_shards.shard(_COLUMNS, _samples(3))], [count])
    with pytest.raises(errors.IntegrityError, match=rf"3 samples, index\.json .* and {count}"):
        list(made.scanned(FORMAT, tmp_path))


# Damage


def _victim() -> bytes:
    return mds_shards.shard(_COLUMNS, [s | {"image": _JPEG} for s in _samples(6)])


def test_a_truncated_shard_is_refused_at_any_length(tmp_path: Path) -> None:
    whole = _victim()
    for length in range(len(whole)):
        assert made.survives(FORMAT, tmp_path / "cut", whole[:length]) is None


def test_turned_bits_crash_nothing(tmp_path: Path) -> None:
    """One of each byte: `test_format_damage` seldom meets the few lengths of values."""
    whole, rng = _victim(), random.Random(4)
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << rng.randrange(8)
        made.survives(FORMAT, tmp_path / "flip", bytes(damaged))


def test_a_huge_config_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mds, "_MOST_CONFIG", 50)
    with pytest.raises(errors.NotAPackError, match="config"):
        _scanned(tmp_path / "a", _victim())
