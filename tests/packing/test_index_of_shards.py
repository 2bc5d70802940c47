"""Packs whose index is a manifest over an index for each shard: every verb takes them."""

from __future__ import annotations

import io
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

import packio
from packio import registry
from packio.index import columns, indexfile, shards
from packio.index.columns import OF_FILES, RAGGED
from packio.index.indexfile import Index

if TYPE_CHECKING:
    from pathlib import Path

_SUFFIXES = sorted(
    form.caps.suffixes[0] for form in registry.load_all("formats").values() if form.caps.writes
)
Content = dict[str, tuple[str, bytes]]  # key → name of its class, and its bytes


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACKIO_CACHE_DIR", str(tmp_path / "cache"))


def _photos(folder: Path, first: int, count: int) -> Content:
    """Write images in three class folders; tell what they are."""
    found = {}
    for i in range(first, first + count):
        pixels = np.random.default_rng(i).integers(0, 256, (20 + i % 7, 24, 3), np.uint8)
        data, name = io.BytesIO(), f"class{i % 3}"
        Image.fromarray(pixels).save(data, "jpeg")
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / f"{i:03d}.jpg").write_bytes(data.getvalue())
        found[f"{name}/{i:03d}.jpg"] = name, data.getvalue()
    return found


def _content(path: Path) -> Content:
    with packio.open(path) as pack:
        assert len(pack) == len(set(pack.keys()))
        return {s.key: (pack.classes[int(str(s.label))], s.data) for s in pack}


def _part(table: dict[str, np.ndarray], start: int, stop: int) -> dict[str, np.ndarray]:
    """The columns of some samples."""
    offsets = {data: name for name, data in RAGGED.items()}
    part = {}
    for name, column in table.items():
        data = name.partition("/")[0]
        if name in RAGGED:
            part[name] = column[start : stop + 1] - column[start]
        elif data in offsets:
            part[name] = column[slice(*table[offsets[data]][[start, stop]])]
        else:
            part[name] = column[start:stop]
    return part | columns.of_joined_keys(part["key_data"], part["key_offsets"])[0]


def _divide(path: Path) -> None:
    """Write an index beside each shard of a pack, and a manifest in the place of its index."""
    with packio.open(path) as pack:
        index, metadata = pack.index_file, pack.metadata
        table = {name: index.column(name).array().copy() for name in index.column_names}
        files = index.files()
    of_files = {name: table.pop(name) for name in OF_FILES}
    table.pop("key_order")
    made, paths, firsts, start = [], [], [], 0
    for shard in metadata["shards"]:
        part = _part(table, start, start + shard["samples"])
        start += shard["samples"]
        numbers = [name for name in part if name.endswith("/file")]
        first, last = (f(int(part[name][0]) for name in numbers) for f in (min, max))
        for name in numbers:
            part[name] = part[name] - np.uint32(first)
        own = columns.of_files(path, [name for name, _, _ in files[first : last + 1]])
        paths.append(f"{shard['name']}.packio")
        indexfile.write(path / paths[-1], part | own, {"version": 2, "fields": metadata["fields"]})
        made.append(Index(path / paths[-1]))
        firsts.append(first)
    manifest, kinds = shards.table(made, paths, firsts)
    indexfile.write(
        path / indexfile.INDEX_NAME, manifest | of_files, {**metadata, "columns": kinds}
    )


@pytest.fixture(params=_SUFFIXES)
def divided(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Content]:
    """A pack with a manifest, and what is in it."""
    content, path = _photos(tmp_path / "photos", 0, 14), tmp_path / f"x{request.param}"
    packio.pack(tmp_path / "photos", path, shards=3)
    _divide(path)
    with packio.open(path) as pack:
        assert pack.index_file.shards is not None
    assert _content(path) == content
    assert packio.verify(path).ok
    return path, content


def test_a_far_manifest_leaves_blocks_to_its_shards(divided: tuple[Path, Content]) -> None:
    with packio.open(divided[0]) as pack:
        index = pack.index_file
        joined = set(index.column_names) - set(index.own_columns)
        assert "image/offset" in joined
        assert [index.column(name).lacking(np.arange(2)) for name in joined] == [[]] * len(joined)


def test_samples_are_appended(divided: tuple[Path, Content], tmp_path: Path) -> None:
    path, content = divided
    content |= _photos(tmp_path / "photos", 100, 5)
    packio.append(path, tmp_path / "photos")
    assert _content(path) == content
    assert packio.verify(path).ok
    packio.append(path, tmp_path / "photos")  # nothing is new
    assert _content(path) == content


def test_it_is_linked_and_copied_into_another(
    divided: tuple[Path, Content], tmp_path: Path
) -> None:
    path, content = divided
    content |= _photos(tmp_path / "more", 100, 5)
    other = tmp_path / f"other{path.suffix}"
    packio.pack(tmp_path / "more", other, shards=2)
    for by, options in (("link", {}), ("copy", {"shards": 2})):
        out = tmp_path / f"{by}{path.suffix}"
        report = packio.merge(out, [path, other], by=by, **options)  # type: ignore[arg-type]  # two kinds of options
        assert report.packed == len(content)
        assert _content(out) == content
        assert packio.verify(out).ok


def test_it_is_copied_to_a_disk(divided: tuple[Path, Content], tmp_path: Path) -> None:
    path, content = divided
    (tmp_path / "disk").mkdir()
    there = packio.PackDataset(path, local_copy=tmp_path / "disk").pack
    moved = path.rename(path.with_name(f"moved{path.suffix}"))
    assert {s.key: s.data for s in there} == {key: data for key, (_, data) in content.items()}
    shutil.rmtree(moved)


@pytest.mark.parametrize("lost", [False, True])
def test_it_is_indexed_anew(divided: tuple[Path, Content], lost: bool) -> None:
    path, content = divided
    if lost:
        (path / indexfile.INDEX_NAME).unlink()
    packio.reindex(path)
    with packio.open(path) as pack:
        assert pack.index_file.shards is None
        assert [s.data for s in pack] == [content[key][1] for key in sorted(content)]
    assert packio.verify(path).ok


def test_a_field_joins_it_and_leaves_it(divided: tuple[Path, Content]) -> None:
    path, content = divided
    values: dict[str, Any] = {key: f"a text of {key}" for key in content}
    packio.add_field(path, "caption", values)
    with packio.open(path) as pack:
        assert {s.key: bytes(pack.read_field("caption", i) or b"").decode()
                for i, s in enumerate(pack)} == values  # fmt: skip
    packio.drop_field(path, "caption")
    assert _content(path) == content
    assert packio.verify(path).ok


def test_it_is_converted_and_packed_again(divided: tuple[Path, Content], tmp_path: Path) -> None:
    path, content = divided
    packio.convert(path, tmp_path / "y.h5")
    assert _content(tmp_path / "y.h5") == content
    assert packio.pack(tmp_path / "photos", path, shards=3).up_to_date
    content = _photos(tmp_path / "others", 200, 4)
    packio.pack(tmp_path / "others", path, shards=2, overwrite=True)
    assert _content(path) == content
    assert not [p for p in path.iterdir() if p.name.endswith(".packio")][1:]
