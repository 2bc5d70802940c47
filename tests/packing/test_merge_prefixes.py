"""Packs that share keys are merged by a prefix for each pack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from cli_runs import run
from PIL import Image

import packio
from packio.errors import OptionError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def packs(tmp_path: Path) -> list[Path]:
    """Two packs with the same keys, and other images."""
    made = []
    for number, name in enumerate(("monday", "tuesday")):
        (tmp_path / name / "a").mkdir(parents=True)
        for i in range(3):
            Image.new("L", (4, 4), 9 * i + number).save(tmp_path / name / "a" / f"{i}.png")
        made.append(packio.pack(tmp_path / name, tmp_path / f"{name}.tar").out)
    return made


def _samples(path: Path) -> dict[str, bytes]:
    with packio.open(path) as pack:
        return {pack.key(i): pack.read(pack.row(i)) for i in range(len(pack))}


def _expected(packs: list[Path], prefixes: list[str]) -> dict[str, bytes]:
    return {
        prefix + key: data
        for path, prefix in zip(packs, prefixes, strict=True)
        for key, data in _samples(path).items()
    }


@pytest.mark.parametrize(
    ("prefix", "prefixes"),
    [(True, ["monday/", "tuesday/"]), (["", "b-"], ["", "b-"])],
)
@pytest.mark.parametrize("name", ["x.tar", "x.lmdb"])
def test_keys_get_the_prefix_of_their_pack(
    prefix: Any, prefixes: list[str], name: str, packs: list[Path], tmp_path: Path
) -> None:
    out = packio.merge(tmp_path / name, packs, prefix=prefix).out
    assert _samples(out) == _expected(packs, prefixes)
    assert packio.verify(out).ok


def test_the_same_key_twice_is_an_error_with_a_remedy(packs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"is in .*monday.*and in .*tuesday.*prefix=True"):
        packio.merge(tmp_path / "x.tar", packs)


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        (["a"], "1 texts for 2 packs"), ("ab", "expected True, or a list"),
        (["a", "a"], "no key may be there twice"),
    ],
)  # fmt: skip
def test_prefixes_that_do_not_go_are_refused(
    prefix: Any, message: str, packs: list[Path], tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=message):
        packio.merge(tmp_path / "x.tar", packs, prefix=prefix)


def test_a_merge_with_other_prefixes_is_another_pack(packs: list[Path], tmp_path: Path) -> None:
    packio.merge(tmp_path / "x.tar", packs, prefix=True)
    assert packio.merge(tmp_path / "x.tar", packs, prefix=True).up_to_date
    with pytest.raises(packio.PackioError, match="exists"):
        packio.merge(tmp_path / "x.tar", packs, prefix=["1/", "2/"])


def test_the_command_takes_prefix(packs: list[Path], tmp_path: Path) -> None:
    assert run("merge", *packs, "-o", tmp_path / "y.tar", "--prefix", "--quiet").returncode == 0
    assert _samples(tmp_path / "y.tar") == _expected(packs, ["monday/", "tuesday/"])


def test_prefixes_that_do_not_tell_packs_apart_are_told(packs: list[Path], tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    other = packs[1].parent.joinpath("b", "monday.tar")
    packio.merge(other, [packs[1], packio.pack(tmp_path / "tuesday", tmp_path / "c.lmdb").out],
                 prefix=["", "more/"])  # fmt: skip
    with pytest.raises(OptionError, match="prefix of its own"):
        packio.merge(tmp_path / "x.tar", [packs[0], other], prefix=True)
