"""Fields that are renamed, replaced, dropped or added: what the source gives stays in its place."""

from __future__ import annotations

import itertools
import pathlib
import random
from collections.abc import Mapping, Sequence
from typing import Any

import made
import numpy as np
import pytest
from PIL import Image

import packio
from packio.errors import OptionError, OutputExistsError
from packio.sample import origins

SHARDS: dict[str, Any] = {"format": "tar", "shard_size": 10**6}
BOTH = {"txt": ".txt", "cap": ".caption"}


def _png(value: int) -> bytes:
    return made.saved(np.full((9, 9), value, np.uint8))


def _texts(
    folder: pathlib.Path, numbers: Sequence[int], endings: Sequence[str] = (".txt", ".caption")
) -> pathlib.Path:
    """Images in a folder of one class, with files beside them: 3.txt says "txt 3"."""
    (folder / "a").mkdir(parents=True, exist_ok=True)
    for i in numbers:
        (folder / f"a/{i}.png").write_bytes(_png(i))
        for ending in endings:
            (folder / f"a/{i}{ending}").write_text(f"{ending[1:]} {i}")
    return folder


def _pairs(folder: pathlib.Path, numbers: Sequence[int]) -> pathlib.Path:
    """Images, and masks of class 1."""
    for name, value in (("images", 7), ("masks", 1)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in numbers:
            (folder / name / f"{i}.png").write_bytes(_png(value))
    return folder


def _tar(path: pathlib.Path, count: int) -> pathlib.Path:
    """A tar that others wrote: 0.png, 0.txt, 1.png and so on."""
    members = [((f"{i}.png", _png(i)), (f"{i}.txt", b"txt %d" % i)) for i in range(count)]
    path.write_bytes(made.tar_bytes(itertools.chain(*members)))
    return path


def _table(folder: pathlib.Path, count: int, *, score: bool = True) -> pathlib.Path:
    folder.mkdir(exist_ok=True)
    for i in range(count):
        (folder / f"{i}.png").write_bytes(_png(i))
    rows = [f"{i}.png,{i % 2},cap {i}" + f",{i}" * score for i in range(count)]
    (folder / "l.csv").write_text(
        "\n".join(["path,label,caption" + ",score" * score, *rows, ""])
    )  # fmt: skip
    return folder / "l.csv"


class Items:
    """A dataset whose items have an array."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, i: int) -> dict[str, Any]:
        if i >= self._count:
            raise IndexError
        pixels = np.full((9, 9, 3), i, np.uint8)
        return {"image": Image.fromarray(pixels), "label": i % 2, "key": f"k{i}",
                "emb": np.full(3, i, np.float32)}  # fmt: skip


def _values(out: Any) -> dict[str, dict[str, bytes | None]]:
    """Key → name of a field → its bytes."""
    with packio.open(out) as pack:
        names = [name for name in pack.fields if name != "image"]
        return {
            pack.key(i): {name: pack.read_field(name, i) for name in names}
            for i in range(len(pack))
        }


def _each(out: pathlib.Path, text: str) -> dict[str, str]:
    with packio.open(out) as pack:
        return {pack.key(i): text for i in range(len(pack))}


def _metas(out: pathlib.Path) -> list[Any]:
    with packio.open(out) as pack:
        return [pack.meta(i) for i in range(len(pack))]


# Names that follow each other


def _renamed(held: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    return {names.get(name, name): value for name, value in held.items()}


@pytest.mark.parametrize("seed", range(400))
def test_what_the_source_gives_is_known_after_any_changes(seed: int) -> None:
    """The pack is modelled as name → "source NAME", or another text for values of its own."""
    draw = random.Random(seed)
    names = list("abcde")
    given = names[: draw.randint(0, 4)]
    held, found = {name: f"source {name}" for name in given}, dict[str, str | None]()
    for number in range(draw.randint(1, 8)):
        what = draw.choice(["rename", "rename", "add", "drop"])
        if what == "rename" and held:
            old = draw.sample(sorted(held), draw.randint(1, len(held)))
            free = [name for name in names if name not in held or name in old]
            moved = dict(zip(old, draw.sample(free, len(old)), strict=True))
            moved = {a: b for a, b in moved.items() if a != b}
            if (held.keys() - moved.keys()) & set(moved.values()):
                continue
            held, found = _renamed(held, moved), origins.rename(found, moved)
        elif what == "add":
            name = draw.choice(names)
            held[name], found = f"own {number}", origins.remove(found, name)
        elif held:
            name = draw.choice(sorted(held))
            del held[name]
            found = origins.remove(found, name)
        for name, value in held.items():
            wanted = value.removeprefix("source ") if value.startswith("source ") else None
            assert origins.origin_of(name, found) == wanted, (name, held, found)
        taken = origins.take_fields({name: f"source {name}" for name in given}, found)
        assert taken == {n: v for n, v in held.items() if v.startswith("source ")}


# From end to end


def test_fields_that_change_names_are_told_apart_by_append(tmp_path: pathlib.Path) -> None:
    source = _texts(tmp_path / "s", range(2))
    packio.pack(source, tmp_path / "p", fields=BOTH, **SHARDS)
    packio.convert(tmp_path / "p", tmp_path / "q", fields={"txt": "cap", "cap": "txt"}, **SHARDS)
    _texts(source, [2])
    assert packio.append(tmp_path / "q", source, compare=True).changed == ()
    report = packio.append(tmp_path / "q", source)
    assert (report.added, report.warnings) == (1, ())
    assert _values(tmp_path / "q") == {
        f"a/{i}.png": {"txt": b"caption %d" % i, "cap": b"txt %d" % i} for i in range(3)
    }


def test_merging_renames_as_converting_does(tmp_path: pathlib.Path) -> None:
    for name, numbers in (("1", range(2)), ("2", range(2, 4))):
        source = _texts(tmp_path / f"s{name}", numbers)
        packio.pack(source, tmp_path / f"p{name}", fields=BOTH, **SHARDS)
    packs = [tmp_path / "p1", tmp_path / "p2"]
    packio.merge(tmp_path / "m", packs, fields={"txt": "cap", "cap": "txt"}, **SHARDS)
    _texts(tmp_path / "s1", [4])
    assert packio.append(tmp_path / "m", tmp_path / "s1", compare=True).changed == ()
    packio.append(tmp_path / "m", tmp_path / "s1")
    assert _values(tmp_path / "m") == {
        f"a/{i}.png": {"txt": b"caption %d" % i, "cap": b"txt %d" % i} for i in range(5)
    }
    with pytest.raises(OptionError, match="the pack has a field 'cap' too"):
        packio.merge(tmp_path / "n", packs, fields={"cap": "txt"}, **SHARDS)


@pytest.mark.parametrize("is_replaced", [True, False])
def test_masks_that_were_replaced_or_dropped_do_not_come_back(
    is_replaced: bool, tmp_path: pathlib.Path
) -> None:
    source, out = _pairs(tmp_path / "s", range(2)), tmp_path / "p"
    packio.pack(source, out, **SHARDS)
    if is_replaced:
        better = dict.fromkeys(_each(out, ""), _png(100))
        packio.add_field(out, "mask", better, kind="mask", overwrite=True)
    else:
        packio.drop_field(out, "mask")
    assert packio.append(out, _pairs(source, range(3)), compare=True).changed == ()
    report = packio.append(out, _pairs(source, range(3)))
    assert report.added == 1
    assert _values(out)["images/2.png"] == ({"mask": None} if is_replaced else {})
    assert any("no mask" in line for line in report.warnings) == is_replaced


@pytest.mark.parametrize("kind", ["tar", "pairs", "dataset"])
def test_fields_that_nobody_asked_for_keep_their_new_names(
    kind: str, tmp_path: pathlib.Path
) -> None:
    def source(count: int) -> Any:
        if kind == "tar":
            return _tar(tmp_path / "f.tar", count)
        if kind == "pairs":
            return _pairs(tmp_path / "s", range(count))
        return Items(count)

    old = {"tar": "txt", "pairs": "mask", "dataset": "emb"}[kind]
    first, out = source(2), tmp_path / "q"
    if kind in ("pairs", "dataset"):
        packio.pack(first, tmp_path / "p", **SHARDS)
        first = tmp_path / "p"
    packio.convert(first, out, fields={"new": old}, **SHARDS)
    assert packio.append(out, source(3), compare=True).changed == ()
    report = packio.append(out, source(3))
    assert report.added == 1
    assert not any("have no new" in line for line in report.warnings)
    found = _values(out)
    assert len(found) == 3
    assert all(list(fields) == ["new"] and fields["new"] for fields in found.values())


def test_a_field_of_another_source_is_taken_though_its_name_was_dropped(
    tmp_path: pathlib.Path,
) -> None:
    packio.pack(_texts(tmp_path / "s", range(2)), tmp_path / "q", **SHARDS)
    packio.add_field(tmp_path / "q", "caption", _each(tmp_path / "q", "mine"))
    packio.drop_field(tmp_path / "q", "caption")
    other = _texts(tmp_path / "other", [2])
    packio.pack(other, tmp_path / "p", fields={"caption": ".txt"}, **SHARDS)
    packio.append(tmp_path / "q", tmp_path / "p")
    assert _values(tmp_path / "q")["a/2.png"] == {"caption": b"txt 2"}


@pytest.mark.parametrize(
    "names", [{"cap2": "cap", "cap": "txt"}, {"cap": "txt", "txt": "cap"}], ids=["moved", "swapped"]
)
def test_a_change_is_seen_under_the_name_of_an_added_field(
    names: dict[str, str], tmp_path: pathlib.Path
) -> None:
    source = _texts(tmp_path / "s", range(3))
    packio.pack(source, tmp_path / "p", fields={"txt": ".txt"}, **SHARDS)
    packio.add_field(tmp_path / "p", "cap", _each(tmp_path / "p", "mine"))
    packio.convert(tmp_path / "p", tmp_path / "q", fields=names, **SHARDS)
    assert packio.append(tmp_path / "q", source, compare=True).changed == ()
    (source / "a/1.txt").write_text("other")
    assert packio.append(tmp_path / "q", source, compare=True).changed == ("a/1.png",)


def test_what_was_dropped_stays_away_under_every_name(tmp_path: pathlib.Path) -> None:
    packio.pack(Items(2), tmp_path / "p", fields={"e": "emb"}, **SHARDS)
    packio.drop_field(tmp_path / "p", "e")
    assert packio.append(tmp_path / "p", Items(3), compare=True).changed == ()
    packio.append(tmp_path / "p", Items(3))
    assert list(_values(tmp_path / "p").values()) == [{}] * 3


def test_images_beside_images_do_not_become_samples_once_their_field_is_dropped(
    tmp_path: pathlib.Path,
) -> None:
    source = _texts(tmp_path / "s", range(2), ["_depth.png"])
    for i in range(3):
        (source / f"a/{i}_depth.png").write_bytes(_png(i))
    packio.pack(source, tmp_path / "p", fields={"depth": "_depth.png"}, **SHARDS)
    packio.drop_field(tmp_path / "p", "depth")
    (source / "a/2.png").write_bytes(_png(2))
    assert packio.append(tmp_path / "p", source).added == 1
    assert _values(tmp_path / "p") == {f"a/{i}.png": {} for i in range(3)}
    for i in range(3):
        (source / f"a/{i}_depth.png").unlink()  # as one may whose pack has them no more
    (source / "a/3.png").write_bytes(_png(3))
    assert packio.append(tmp_path / "p", source).added == 1


def test_a_name_that_only_the_recipe_knows_is_taken_over(tmp_path: pathlib.Path) -> None:
    source = _texts(tmp_path / "s", range(4), [".caption"])
    (source / "a/0.txt").write_text("txt 0")
    packio.pack(source, tmp_path / "p", fields=BOTH, **SHARDS)
    packio.convert(tmp_path / "p", tmp_path / "q", exclude="a/0.png", **SHARDS)
    packio.convert(tmp_path / "q", tmp_path / "r", fields={"txt": "cap"}, **SHARDS)
    _texts(source, [5])
    assert packio.append(tmp_path / "r", source, compare=True).changed == ()
    report = packio.append(tmp_path / "r", source)
    assert report.added == 1
    assert {k: v["txt"] for k, v in _values(tmp_path / "r").items()} == {
        f"a/{i}.png": b"caption %d" % i for i in (1, 2, 3, 5)
    }


def test_the_mask_of_samples_in_a_list_is_no_free_name(tmp_path: pathlib.Path) -> None:
    packio.pack(_pairs(tmp_path / "s", [0]), tmp_path / "p", **SHARDS)
    packio.add_field(tmp_path / "p", "seg", {"images/0.png": _png(100)}, kind="mask")
    with packio.open(tmp_path / "p") as pack:
        samples = list(pack)
    with pytest.raises(OptionError, match="the pack has a field 'mask' too"):
        packio.pack(samples, tmp_path / "q", fields={"mask": "seg"}, **SHARDS)
    with pytest.raises(OptionError, match="field 'x' from 'image'"):
        packio.convert(tmp_path / "p", tmp_path / "q", fields={"x": "image"}, **SHARDS)


@pytest.mark.parametrize("score", [False, True])
@pytest.mark.parametrize("change", ["drop", "replace", "drop and add"])
def test_a_column_does_not_come_back_in_the_metadata(
    change: str, score: bool, tmp_path: pathlib.Path
) -> None:
    table, out = _table(tmp_path / "s", 2, score=score), tmp_path / "p"
    packio.pack(table, out, fields={"cap": "caption"}, **SHARDS)
    if change.startswith("drop"):
        packio.drop_field(out, "cap")
    if change != "drop":
        packio.add_field(out, "cap", _each(out, "mine"), overwrite=change == "replace")
    table = _table(tmp_path / "s", 3, score=score)
    assert packio.append(out, table, compare=True).changed == ()
    packio.append(out, table)
    assert _metas(out) == [{"score": i} if score else None for i in range(3)]
    wanted = [{}] * 3 if change == "drop" else [{"cap": b"mine"}] * 2 + [{"cap": None}]
    assert list(_values(out).values()) == wanted


# What overwriting loses


def _with_words(folder: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """A source, and a pack of it in shards with an added field."""
    source, out = _texts(folder / "s", range(4), []), folder / "p.tar"
    packio.pack(source, out, shards=2)
    packio.add_field(out, "words", _each(out, "w"))
    return source, out


def _says_words(warnings: Sequence[str]) -> bool:
    return any("packio add: words;" in line for line in warnings)


def test_overwriting_at_a_url_says_which_added_fields_are_lost(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("fsspec")
    source, out = _with_words(tmp_path)
    url = f"memory://{tmp_path.name}/q.tar"
    packio.convert(out, url)
    assert _says_words(packio.pack(source, url, limit=2, overwrite=True).warnings)


def test_overwriting_in_parts_says_which_added_fields_are_lost(tmp_path: pathlib.Path) -> None:
    source, out = _with_words(tmp_path)
    for part in ((1, 2), (2, 2)):
        packio.pack(source, out, shards=2, limit=3, overwrite=True, part=part)
    report = packio.pack(source, out, shards=2, limit=3, overwrite=True, finish=True)
    assert _says_words(report.warnings)


def test_overwriting_that_was_cut_short_says_which_added_fields_are_lost(
    tmp_path: pathlib.Path,
) -> None:
    source, out = _with_words(tmp_path)

    def stop(_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        packio.pack(source, out, shards=2, limit=3, overwrite=True, progress=stop)
    assert set(_values(out)) == {f"a/{i}.png" for i in range(4)} or not out.exists()
    report = packio.pack(source, out, shards=2, limit=3, overwrite=True)
    assert _says_words(report.warnings)


def test_overwriting_by_what_has_dropped_a_field_says_that_it_is_lost(
    tmp_path: pathlib.Path,
) -> None:
    _, out = _with_words(tmp_path)
    packio.convert(out, tmp_path / "q.tar")
    with pytest.raises(OutputExistsError) as error:
        packio.convert(out, tmp_path / "q.tar", limit=2)
    assert "loses" not in str(error.value)  # the words would be converted again
    packio.drop_field(out, "words")
    assert _says_words(packio.convert(out, tmp_path / "q.tar", overwrite=True).warnings)


def test_a_field_that_was_renamed_was_not_added(tmp_path: pathlib.Path) -> None:
    source = _pairs(tmp_path / "s", [0])
    packio.pack(source, tmp_path / "p", **SHARDS)
    packio.convert(tmp_path / "p", tmp_path / "q", fields={"seg": "mask"}, **SHARDS)
    assert packio.pack(source, tmp_path / "q", overwrite=True, **SHARDS).warnings == ()


# Which source it is


def test_filling_in_what_new_samples_lack_keeps_a_field_the_sources(
    tmp_path: pathlib.Path,
) -> None:
    source, out = _texts(tmp_path / "s", range(2), [".txt"]), tmp_path / "p"
    packio.pack(source, out, fields={"cap": "txt"}, **SHARDS)
    packio.append(out, _texts(source, [2], []))
    packio.add_field(out, "cap", {"a/2.png": "mine"}, only_new=True)
    assert packio.append(out, _texts(source, [3], [".txt"]), compare=True).changed == ()
    report = packio.append(out, _texts(source, [3], [".txt"]))
    assert report.added == 1
    assert [each["cap"] for each in _values(out).values()] == [
        b"txt 0", b"txt 1", b"mine", b"txt 3",
    ]  # fmt: skip


def test_samples_in_a_list_have_their_own_names(tmp_path: pathlib.Path) -> None:
    packio.pack(_texts(tmp_path / "s", range(3)), tmp_path / "p", fields=BOTH, **SHARDS)
    packio.convert(tmp_path / "p", tmp_path / "p2", fields={"new": "cap"}, **SHARDS)
    packio.add_field(tmp_path / "p2", "more", _each(tmp_path / "p2", "mine"))
    with packio.open(tmp_path / "p") as pack, packio.open(tmp_path / "p2") as later:
        packio.pack(list(pack)[:2], tmp_path / "q", **SHARDS)
        packio.convert(tmp_path / "q", tmp_path / "r", fields={"new": "cap"}, **SHARDS)
        packio.add_field(tmp_path / "r", "more", _each(tmp_path / "r", "other"))
        with packio.open(tmp_path / "r") as own:
            assert packio.append(tmp_path / "r", list(own), compare=True).changed == ()
        packio.append(tmp_path / "r", list(later))
    assert _values(tmp_path / "r")["a/2.png"] == {
        "txt": b"txt 2", "new": b"caption 2", "more": b"mine",
    }  # fmt: skip


def test_a_recipe_that_renames_refuses_no_pack_of_its_own_names(tmp_path: pathlib.Path) -> None:
    packio.pack(_texts(tmp_path / "s", range(3)), tmp_path / "p", fields=BOTH, **SHARDS)
    with packio.open(tmp_path / "p") as pack:
        samples = list(pack)
    for name, part in (("q", samples[:2]), ("q2", samples)):
        packio.pack(part, tmp_path / name, fields={"new": "cap"}, **SHARDS)
    packio.append(tmp_path / "q", tmp_path / "q2")
    assert _values(tmp_path / "q")["a/2.png"] == {"txt": b"txt 2", "new": b"caption 2"}


def test_a_pack_gives_its_fields_under_its_own_names_unless_it_is_asked(
    tmp_path: pathlib.Path,
) -> None:
    for name, numbers in (("p", range(2)), ("more", [2]), ("most", [3])):
        source = _texts(tmp_path / f"s {name}", numbers)
        packio.pack(source, tmp_path / name, fields={"txt": ".txt"}, **SHARDS)
    packio.convert(tmp_path / "p", tmp_path / "q", fields={"new": "txt"}, **SHARDS)
    report = packio.append(tmp_path / "q", tmp_path / "more")
    assert any("have no new" in line for line in report.warnings)
    packio.append(tmp_path / "q", tmp_path / "most", fields={"new": "txt"})
    values = _values(tmp_path / "q")
    assert values["a/1.png"] == {"new": b"txt 1", "txt": None}
    assert values["a/2.png"] == {"new": None, "txt": b"txt 2"}
    assert values["a/3.png"] == {"new": b"txt 3", "txt": None}


def test_what_was_replaced_comes_from_no_source_like_it_unless_it_is_asked(
    tmp_path: pathlib.Path,
) -> None:
    out = tmp_path / "r"
    packio.pack(Named("a", 2), out, **SHARDS)
    better = {key: np.zeros(3, np.float32) for key in _each(out, "")}
    packio.add_field(out, "emb", better, overwrite=True)
    report = packio.append(out, Named("b", 1))
    assert any("have no emb" in line for line in report.warnings)
    assert _values(out)["b0"] == {"emb": None}
    packio.append(out, Named("c", 1), fields={"emb": "emb"})
    assert _values(out)["c0"]["emb"] is not None


class Named(Items):
    """Items of other keys."""

    def __init__(self, name: str, count: int) -> None:
        super().__init__(count)
        self._name = name

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {**super().__getitem__(i), "key": f"{self._name}{i}"}


def test_columns_of_dropped_fields_stay_away_whatever_is_asked(tmp_path: pathlib.Path) -> None:
    def table(count: int) -> pathlib.Path:
        _table(tmp_path / "s", count)
        rows = [f"{i}.png,{i % 2},a{i},b{i}" for i in range(count)]
        (tmp_path / "s/l.csv").write_text("\n".join(["path,label,a,b", *rows, ""]))
        return tmp_path / "s/l.csv"

    packio.pack(table(2), tmp_path / "p", fields={"A": "a", "B": "b"}, **SHARDS)
    packio.drop_field(tmp_path / "p", "A")
    assert packio.append(tmp_path / "p", table(3), fields={"B": "b"}, compare=True).changed == ()
    report = packio.append(tmp_path / "p", table(3), fields={"B": "b"})
    assert report.added == 1
    assert _metas(tmp_path / "p") == [None] * 3
    assert _values(tmp_path / "p")["2.png"] == {"B": b"b2"}


def test_files_of_a_dropped_field_are_not_missed(tmp_path: pathlib.Path) -> None:
    source = _texts(tmp_path / "s", range(2), [".txt"])
    packio.pack(source, tmp_path / "p", fields={"txt": "txt"}, **SHARDS)
    packio.drop_field(tmp_path / "p", "txt")
    report = packio.append(tmp_path / "p", _texts(source, [2], []))
    assert (report.added, report.warnings) == (1, ())
