"""Making an index anew never changes what a label means, and drops nothing that is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from made import png

import packio
from packio import registry
from packio.errors import IntegrityError, MissingPackageError, OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

FORMATS = [n for n in registry.names("formats") if registry.load("formats", n).caps.writes]
FIRST, SECOND = ("cat/0.png", "dog/1.png", "dog/2.png"), ("bird/3.png", "cat/4.png", "emu/5.png")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACKIO_CACHE_DIR", str(tmp_path / "cache"))


def suffix(name: str) -> str:
    return str(registry.load("formats", name).caps.suffixes[0])


def packed(folder: Path, names: Sequence[str], out: Path, **options: Any) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(png(width=4 + int(Path(name).stem)))
    try:
        packio.pack(folder, out, **options)
    except MissingPackageError as error:
        pytest.skip(str(error))
    return out


def linked(tmp_path: Path, name: str) -> Path:
    """Two packs with different classes, merged by link."""
    one = packed(tmp_path / "a", FIRST, tmp_path / f"one{suffix(name)}")
    two = packed(tmp_path / "b", SECOND, tmp_path / f"two{suffix(name)}")
    packio.merge(tmp_path / f"all{suffix(name)}", [one, two], by="link")
    return tmp_path / f"all{suffix(name)}"


def meanings(path: Path) -> dict[int, str]:
    """Width of each image → name of its class."""
    with packio.open(path) as pack:
        return {s.width: pack.classes[int(str(s.label))] for s in pack}


EXPECTED = {4 + int(Path(n).stem): n.partition("/")[0] for n in FIRST + SECOND}


@pytest.mark.parametrize("name", FORMATS)
def test_a_linked_pack_keeps_its_labels_without_its_index(name: str, tmp_path: Path) -> None:
    out = linked(tmp_path, name)
    assert meanings(out) == EXPECTED
    (out / "index.packio").unlink()
    assert meanings(out) == EXPECTED  # opened bare
    packio.reindex(out)
    assert meanings(out) == EXPECTED


def test_a_linked_pack_keeps_its_labels_when_it_is_linked_and_appended_to(tmp_path: Path) -> None:
    out = linked(tmp_path, "tar")
    third = packed(tmp_path / "c", ["ant/6.png", "dog/7.png"], tmp_path / "three.tar")
    packio.merge(tmp_path / "more.tar", [third, out], by="link")
    packed(tmp_path / "d", ["bird/8.png", "fox/9.png"], tmp_path / "unused.tar")
    packio.append(tmp_path / "more.tar", tmp_path / "d")
    every = EXPECTED | {10: "ant", 11: "dog", 12: "bird", 13: "fox"}
    assert meanings(tmp_path / "more.tar") == every
    assert packio.verify(tmp_path / "more.tar", structure="always").ok
    packio.reindex(tmp_path / "more.tar")
    assert meanings(tmp_path / "more.tar") == every
    (tmp_path / "more.tar/index.packio").unlink()
    assert meanings(tmp_path / "more.tar") == every  # opened bare
    packio.reindex(tmp_path / "more.tar")
    assert meanings(tmp_path / "more.tar") == every


@pytest.mark.parametrize("name", FORMATS)
def test_a_class_that_was_appended_to_a_linked_pack_keeps_its_name(
    name: str, tmp_path: Path
) -> None:
    out = linked(tmp_path, name)
    packed(tmp_path / "d", ["bird/8.png", "fox/9.png"], tmp_path / "unused.tar")
    packio.append(out, tmp_path / "d")
    every = EXPECTED | {12: "bird", 13: "fox"}
    assert meanings(out) == every
    assert packio.verify(out, structure="always").ok
    (out / "index.packio").unlink()
    packio.reindex(out)
    assert meanings(out) == every
    (tmp_path / "d/gnu").mkdir()
    (tmp_path / "d/gnu/10.png").write_bytes(png(width=14))
    packio.append(out, tmp_path / "d")
    (out / "index.packio").unlink()
    packio.reindex(out)
    assert meanings(out) == every | {14: "gnu"}


def test_nothing_is_appended_where_shard_classes_are_missing(tmp_path: Path) -> None:
    out = linked(tmp_path, "tar")
    (out / "shard-classes.json").unlink()
    more = packed(tmp_path / "d", ["gnu/9.png"], tmp_path / "more.tar")
    with (
        pytest.warns(UserWarning, match=r"shard-classes\.json: missing"),
        pytest.raises(IntegrityError, match=r"shard-classes\.json: missing"),
    ):
        packio.append(out, more)


@pytest.mark.parametrize("text", ["", "[]", '{"classes": [1], "shards": {}}', "\xff", "[" * 9999])
def test_damaged_shard_classes_are_refused(text: str, tmp_path: Path) -> None:
    out = linked(tmp_path, "tar")
    (out / "index.packio").unlink()
    (out / "shard-classes.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(IntegrityError, match=r"shard-classes\.json.*restore it"):
        packio.open(out)


def test_missing_shard_classes_are_refused_if_the_old_index_lists_them(tmp_path: Path) -> None:
    out = linked(tmp_path, "tar")
    (out / "shard-classes.json").unlink()
    packio.reindex(out)  # the old index knows the labels
    assert meanings(out) == EXPECTED


def test_a_linked_pack_whose_shards_changed_is_not_mislabelled(tmp_path: Path) -> None:
    out = linked(tmp_path, "tar")
    shard = out / "all-00001.tar"
    content = shard.read_bytes()
    shard.unlink()
    shard.write_bytes(content + bytes(10240))
    with pytest.warns(UserWarning, match="not those that the old index describes"):
        packio.reindex(out)
    assert meanings(out) == EXPECTED
    shard.write_bytes(content)


def test_without_shard_classes_a_changed_linked_pack_is_refused(tmp_path: Path) -> None:
    out = linked(tmp_path, "tar")
    shard = out / "all-00001.tar"
    content = shard.read_bytes()
    shard.unlink()
    shard.write_bytes(content + bytes(10240))
    (out / "shard-classes.json").unlink()
    with pytest.raises(IntegrityError, match="merge the packs again"):
        packio.reindex(out)


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("name", FORMATS)
def test_a_pack_of_packios_own_loses_nothing(name: str, shards: int, tmp_path: Path) -> None:
    out = packed(
        tmp_path / "a", FIRST, tmp_path / f"p{suffix(name)}", shards=shards,
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
    out = packed(tmp_path / "a", FIRST, tmp_path / f"p{suffix(name)}")
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
