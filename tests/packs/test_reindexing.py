"""Making an index anew never changes what a label means, and drops nothing that is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import latents
import numpy as np
import pytest
from made import png

import packio
from packio import registry
from packio.errors import IntegrityError, MissingPackageError, OptionError
from packio.packs.collecting import SampleCollector
from packio.sample.record import Place, Record

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.usefixtures("own_cache")

FIRST = ("cat/0.png", "dog/1.png", "dog/2.png")


def packed(folder: Path, names: Sequence[str], out: Path, **options: Any) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(png(width=4 + int(Path(name).stem)))
    try:
        packio.pack(folder, out, **options)
    except MissingPackageError as error:
        pytest.skip(str(error))
    return out


def meanings(path: Path) -> dict[int, str]:
    """Width of each image → name of its class."""
    with packio.open(path) as pack:
        return {s.width: pack.classes[int(str(s.label))] for s in pack}


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("name", latents.FORMATS)
def test_a_pack_of_packios_own_loses_nothing(name: str, shards: int, tmp_path: Path) -> None:
    out = packed(
        tmp_path / "a", FIRST, tmp_path / f"p{latents.suffix(name)}", shards=shards,
        split={"train": 0.5, "val": 0.5}, seed=3,
    )  # fmt: skip
    with packio.open(out) as pack:
        before, keys, metadata = pack.digest, list(pack.keys()), pack.metadata
    index = packio.reindex(out)
    with packio.open(out) as pack:
        assert (list(pack.keys()), pack.classes) == (keys, ["cat", "dog"])
        assert pack.metadata == metadata
        assert pack.digest == before  # the same index, byte for byte
    assert index.exists()


@pytest.mark.parametrize("name", ["tar", "lmdb"])
def test_labels_with_class_names_are_not_moved(name: str, tmp_path: Path) -> None:
    out = packed(tmp_path / "a", FIRST, tmp_path / f"p{latents.suffix(name)}")
    with pytest.raises(OptionError, match="the name of another class"):
        packio.reindex(out, label_offset=-1)
    with packio.open(out) as pack:
        assert pack.classes == ["cat", "dog"]


def test_labels_that_are_numbers_are_moved_and_the_rest_stays(tmp_path: Path) -> None:
    folder = tmp_path / "flat"
    folder.mkdir()
    (folder / "list.csv").write_text("path,label\n" + "".join(f"{i}.png,{i + 7}\n" for i in (0, 1)))
    for i in (0, 1):
        (folder / f"{i}.png").write_bytes(png(width=4 + i))
    packio.pack(folder / "list.csv", tmp_path / "p.lmdb")
    packio.reindex(tmp_path / "p.lmdb", label_offset=-7)
    with packio.open(tmp_path / "p.lmdb") as pack:
        assert pack.keys()[0] == "0.png"
        assert np.array_equal(pack.labels if pack.labels is not None else [], [0, 1])
        assert "recipe" in pack.metadata
    assert packio.verify(tmp_path / "p.lmdb", structure="always").ok
    packio.reindex(tmp_path / "p.lmdb", label_offset=-6)  # counts from the container's labels
    with packio.open(tmp_path / "p.lmdb") as pack:
        assert np.array_equal(pack.labels if pack.labels is not None else [], [1, 2])


def test_a_damaged_old_index_is_warned_about(tmp_path: Path) -> None:
    out = packed(tmp_path / "a", FIRST, tmp_path / "p.tar")
    index = tmp_path / "p.tar.packio"
    content = bytearray(index.read_bytes())
    content[-1] ^= 1
    index.write_bytes(content)
    with pytest.warns(UserWarning, match="the old index is damaged"):
        packio.reindex(out)
    index.write_bytes(b"nothing of the kind")
    with pytest.warns(UserWarning, match="nothing of the old index is kept"):
        packio.reindex(out)
    assert meanings(out) == {4: "cat", 5: "dog", 6: "dog"}


def test_a_renamed_pack_is_reindexed_with_all_it_had(tmp_path: Path) -> None:
    packed(tmp_path / "a", FIRST, tmp_path / "p.tar", split={"train": 0.5, "val": 0.5})
    for old in tmp_path.glob("p.tar*"):
        old.rename(tmp_path / old.name.replace("p.tar", "renamed.tar"))
    with pytest.raises(IntegrityError, match=r"packio reindex .*renamed\.tar"):
        packio.open(tmp_path / "renamed.tar")
    packio.reindex(tmp_path / "renamed.tar")
    with packio.open(tmp_path / "renamed.tar") as pack:
        assert pack.classes == ["cat", "dog"]
        assert pack.metadata["splits"] == ["train", "val"]
        assert [json.loads(f"{s.width}") for s in pack] == [4, 5, 6]
    assert packio.verify(tmp_path / "renamed.tar").ok


def test_a_format_that_finds_no_range_of_a_further_field_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(png())
    size = len(png())
    places = {"image": Place("image", "file", 0, size), "mask": Place("mask", "file", -1, 100)}
    collector = SampleCollector(tmp_path, ["file"], registry.load("formats", "tar"), 0)
    with pytest.raises(IntegrityError, match="record 0: 'mask' is no range of bytes"):
        collector.add_shard("file", [Record(b"a", places)], None)
