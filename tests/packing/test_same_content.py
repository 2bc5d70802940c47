"""The same is decided by content: by pack, append, convert and resume, whatever times say."""

from __future__ import annotations

import os
import pathlib
import shutil
from typing import Any

import made
import numpy as np
import pytest

import packio
from packio.errors import BadImagesError, OutputExistsError
from packio.sample.packed import Sample

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def _same_looks(old: pathlib.Path, new: pathlib.Path) -> None:
    """Make other files of the same names, sizes and times."""
    for path in sorted(p for p in old.rglob("*") if p.is_file()):
        target = new / path.relative_to(old)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes()[:-1] + b"?")
        shutil.copystat(path, target)


def _later(*files: pathlib.Path) -> None:
    """Date files an hour later, as if their sources had been old when they were made."""
    for path in files:
        then = path.stat().st_mtime + 3600
        os.utime(path, (then, then))


def _parquet(path: pathlib.Path, seed: int) -> pathlib.Path:
    """A file without statistics, whose footer is the same for each seed."""
    draw = np.random.default_rng(seed)
    images = [made.png(3, 3) + draw.bytes(20) for _ in range(4)]
    table = pa.table({"image": images, "label": [0, 1, 0, 1]})
    pq.write_table(table, path, write_statistics=False, compression="none", use_dictionary=False)
    os.utime(path, (0, 0))
    return path


def test_other_files_of_the_same_names_sizes_and_times_are_another_pack(
    tmp_path: pathlib.Path,
) -> None:
    one = made.image_tree(tmp_path / "one", 6, 2, most=9, seed=1)
    _same_looks(one, tmp_path / "two")
    packio.pack(one, tmp_path / "x.lmdb")
    _later(tmp_path / "x.lmdb" / "index.packio")
    assert packio.pack(one, tmp_path / "x.lmdb").up_to_date
    with pytest.raises(OutputExistsError, match="other files"):
        packio.pack(tmp_path / "two", tmp_path / "x.lmdb")


def test_a_changed_parquet_file_without_statistics_is_another_pack(tmp_path: pathlib.Path) -> None:
    path, out = tmp_path / "a.parquet", tmp_path / "x.tar"
    size = _parquet(path, 1).stat().st_size
    packio.pack(path, out, shards=2)
    assert packio.pack(path, out, shards=2).up_to_date
    assert packio.append(out, path, compare=True).changed == ()
    assert _parquet(path, 2).stat().st_size == size
    with pytest.raises(OutputExistsError):
        packio.pack(path, out, shards=2)
    assert len(packio.append(out, path, compare=True).changed or ()) == 4


def test_a_resumed_run_mixes_nothing(tmp_path: pathlib.Path) -> None:
    source = made.image_tree(tmp_path / "s", 6, 2, most=9, seed=1)
    bad, good = source / "class 1" / "9.png", made.png()  # in the last shard
    bad.write_bytes(bytes(len(good)))  # of the size that it will have: the plan stays the same
    with pytest.raises(BadImagesError):
        packio.pack(source, tmp_path / "x.tar", shards=3)
    written = [p.name for p in (tmp_path / "x.tar.packio-tmp").rglob("*.tar")]
    assert written  # shards that a resumed run may take over
    _later(*(p for p in (tmp_path / "x.tar.packio-tmp").rglob("*") if p.is_file()))
    other = tmp_path / "other"
    _same_looks(source, other)
    shutil.rmtree(source)
    other.rename(source)
    bad.write_bytes(good)
    packio.pack(source, tmp_path / "x.tar", shards=3)
    pack = packio.open(tmp_path / "x.tar")
    assert all(s.data == (source / s.key).read_bytes() for s in pack)
    assert len(pack) == 7


@pytest.mark.parametrize("verb", ["pack", "append"])
def test_swapped_labels_of_a_list_are_seen(verb: str, tmp_path: pathlib.Path) -> None:
    made.image_tree(tmp_path, 2, 1, most=9, seed=1)
    path, out = tmp_path / "list.csv", tmp_path / "x.tar"
    rows = ["class 0/0.png,{}", "class 0/1.png,{}"]
    path.write_text("\n".join(["path,label", *rows]).format(0, 1))
    packio.pack(path, out, shards=1, shard_size=1 << 20)
    path.write_text("\n".join(["path,label", *rows]).format(1, 0))
    if verb == "append":
        assert len(packio.append(out, path, compare=True).changed or ()) == 2
    else:
        with pytest.raises(OutputExistsError):
            packio.pack(path, out, shards=1, shard_size=1 << 20)


def _boxed(last: float) -> list[Sample]:
    boxes = np.zeros((600, 4), np.float32)
    boxes[:, 2:] = 1
    boxes[300, 3] = last
    return [Sample(0, "a.png", made.png(), "png", 0, 3, 4, boxes=boxes)]


def test_a_changed_box_among_many_is_seen(tmp_path: pathlib.Path) -> None:
    one, two, copy = (tmp_path / f"{name}.tar" for name in ("one", "two", "copy"))
    options: dict[str, Any] = {"shards": 1, "shard_size": 1 << 20}
    packio.pack(_boxed(1), one, **options)
    packio.pack(_boxed(2), two, **options)
    packio.convert(one, copy)
    assert packio.convert(one, copy).up_to_date
    with pytest.raises(OutputExistsError):
        packio.convert(two, copy)
    with pytest.raises(OutputExistsError):
        packio.pack(_boxed(2), one, **options)
    assert packio.append(one, _boxed(1), compare=True).changed == ()
    assert packio.append(one, _boxed(2), compare=True).changed == ("a.png",)
