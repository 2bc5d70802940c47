"""Keys that several packs share, against sets of Python."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import pytest

from packio.errors import IntegrityError
from packio.index import columns, indexfile
from packio.index.building import IndexBuilder, Ranges
from packio.index.indexfile import Index
from packio.packing.plan import shared_keys
from packio.sample.facts import Facts
from packio.sample.record import Field, Record

if TYPE_CHECKING:
    from pathlib import Path

_FACTS = Facts("jpeg", 7, 9, 3, "uint8", 1, progressive=False)


def _index(path: Path, keys: list[bytes], starts: list[int] | None = None) -> Index:
    """An index of samples with these keys; `starts` replaces where each of them begins."""
    builder = IndexBuilder()
    for key in keys:
        builder.add(Record(key, {"image": Field("image", b"x", _FACTS)}, None, None, None, {}, b""))
    where = np.arange(len(keys), dtype=np.int64)
    table = builder.columns({"image": Ranges(np.zeros(len(keys), np.uint32), where, where + 1)})
    if starts is not None:
        table["key_offsets"] = np.array(starts, np.int64)
    indexfile.write(path, table | columns.of_objects(["a"], [1], [bytes(32)]), {"version": 2})
    return Index(path)


def _is_right(found: shared_keys.Shared | None, each: list[set[bytes]]) -> bool:
    """Tell whether an answer is one that sets of the keys give."""
    if found is None:
        return sum(map(len, each)) == len(set().union(*each))
    return (
        found.one != found.other and found.key in each[found.one] and found.key in each[found.other]
    )


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("alike", ["all keys have one hash", "a few have", "few or none have"])
def test_packs_share_a_key_exactly_if_sets_do(
    seed: int, alike: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    if alike != "few or none have":
        some = 1 if alike == "all keys have one hash" else 5
        monkeypatch.setattr(shared_keys, "hash", lambda key: len(key) % some, raising=False)
        monkeypatch.setattr(shared_keys, "_MOST", 2)
    packs = [
        [b"%x" % n for n in draw.sample(range(draw.choice([60, 10_000])), draw.randrange(12))]
        for _ in range(draw.randrange(2, 6))
    ]
    prefixes = [draw.choice([b"", b"", b"1", b"a/"]) for _ in packs]
    each = [{prefix + key for key in keys} for prefix, keys in zip(prefixes, packs, strict=True)]
    indexes = [_index(tmp_path / f"{i}.packio", keys) for i, keys in enumerate(packs)]
    assert _is_right(shared_keys.first(indexes, prefixes), each)


def test_prefixes_may_make_keys_alike(tmp_path: Path) -> None:
    indexes = [
        _index(tmp_path / "a.packio", [b"x", b"b/x"]), _index(tmp_path / "b.packio", [b"/x"]),
    ]  # fmt: skip
    assert shared_keys.first(indexes, [b"a", b"ac"]) is None
    assert shared_keys.first(indexes, [b"a", b"ab"]) == (b"ab/x", 0, 1)


def test_keys_that_do_not_add_up_are_refused(tmp_path: Path) -> None:
    index = _index(tmp_path / "a.packio", [b"ab", b"cd", b"ef"], [0, 4, 2, 6])
    with pytest.raises(IntegrityError, match="keys do not add up"):
        list(index.every_key())
