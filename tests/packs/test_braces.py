"""Several containers named by braces, as WebDataset's users name them, are one pack."""

from __future__ import annotations

import pathlib
import pickle
import shutil
import subprocess

import latents
import made
import pytest
from cli_runs import run

import packio
from packio.errors import NotAPackError, OptionError
from packio.index.indexfile import INDEX_NAME, INDEX_SUFFIX
from packio.packs import recognising


@pytest.mark.parametrize(
    "pattern",
    ["x", "{0..3}.tar", "a{08..11}b", "{000..2}", "{0..10}", "{3..1}", "{a,b}{0..1}", "{,x}y",
     "{a}", "{}", "{a..c}", "{0..1", "{0..1}{1..0}"],
)  # fmt: skip
def test_they_are_expanded_as_in_a_shell(pattern: str) -> None:
    if pattern == "{a..c}":  # of letters, only a shell makes spans
        assert recognising.expand_braces(pattern) == [pattern]
        return
    done = subprocess.run(
        ["bash", "-c", f"echo {pattern}"], capture_output=True, text=True, check=True
    )
    assert recognising.expand_braces(pattern) == done.stdout.split()


def _bare(root: pathlib.Path, suffix: str) -> list[packio.Pack]:
    """Two containers, "0" and "1", without their indexes; and the packs that they were."""
    packs = []
    for number in range(2):
        source = made.image_tree(root / f"source {number}", 5, 2, most=300, seed=number)
        out = packio.pack(source, root / f"{number}{suffix}").out
        shutil.copytree(root, root.with_name(f"kept {number}"), dirs_exist_ok=True)
        packs.append(packio.open(root.with_name(f"kept {number}") / out.name))
        index = out / INDEX_NAME if out.is_dir() else out.with_name(out.name + INDEX_SUFFIX)
        index.unlink()
    return packs


@pytest.mark.parametrize("pattern", ["x-{0..999999999999}.tar", "{0..999}/{0..999}.tar"])
def test_more_than_anybody_means_are_refused(pattern: str) -> None:
    with pytest.raises(OptionError, match="more than 100,000 files"):
        recognising.expand_braces(pattern)


def test_braces_may_name_one_container(tmp_path: pathlib.Path) -> None:
    one, _ = _bare(tmp_path / "x", ".tar")
    found = packio.open(f"{tmp_path}/x/{{0..0}}.tar")
    assert [s.data for s in found] == [s.data for s in one]


@pytest.mark.parametrize("name", latents.FORMATS)
def test_containers_of_every_format_go_together(name: str, tmp_path: pathlib.Path) -> None:
    suffix = latents.suffix(name)
    one, two = _bare(tmp_path / "x", suffix)
    found = packio.open(f"{tmp_path}/x/{{0..1}}{suffix}")
    assert [s.data for s in found] == [s.data for pack in (one, two) for s in pack]
    assert found.metadata["format"] == name
    assert [found.key(i) for i in range(10)] == [s.key for s in pickle.loads(pickle.dumps(found))]
    turned = packio.open(f"{tmp_path}/x/{{1,0}}{suffix}")
    assert [s.data for s in turned] == [s.data for pack in (two, one) for s in pack]


def test_datasets_and_convert_take_them(tmp_path: pathlib.Path) -> None:
    one, two = _bare(tmp_path / "x", ".tar")
    (tmp_path / "x" / "more").mkdir()
    (tmp_path / "x" / "1.tar").rename(tmp_path / "x" / "more" / "1.tar")
    pattern = f"{tmp_path}/x/{{0,more/1}}.tar"
    loader = packio.Loader(
        packio.TarDataset(pattern, crop=packio.Resize((4, 4))), 10, num_workers=1,
        multiprocessing_context="spawn",
    )  # fmt: skip
    assert next(iter(loader))[0].shape == (10, 3, 4, 4)
    assert run("convert", pattern, tmp_path / "y.lmdb", "-q").returncode == 0
    samples = [s.data for s in packio.open(tmp_path / "y.lmdb")]
    assert samples == [s.data for pack in (one, two) for s in pack]


def test_what_does_not_go_together_says_so(tmp_path: pathlib.Path) -> None:
    _bare(tmp_path / "x", ".tar")
    with pytest.raises(
        NotAPackError, match=r"x/2\.tar: does not exist; \S+/\{0\.\.2\}\.tar stands"
    ):
        packio.open(tmp_path / "x" / "{0..2}.tar")
    packio.pack(tmp_path / "x" / "source 0", tmp_path / "x" / "2.tar")
    with pytest.raises(OptionError, match=r"2\.tar: has an index of its own.*packio\.ConcatPacks"):
        packio.open(tmp_path / "x" / "{0..2}.tar")
    packio.pack(tmp_path / "x" / "source 0", tmp_path / "x" / "3.rec")
    (tmp_path / "x" / f"3.rec{INDEX_SUFFIX}").unlink()
    with pytest.raises(OptionError, match="recordio and tar; expected containers of one format"):
        packio.open(f"{tmp_path}/x/{{0.tar,3.rec}}")
    (tmp_path / "x" / "4.txt").write_text("nothing")
    with pytest.raises(NotAPackError, match=r"4\.txt: no container"):
        packio.open(f"{tmp_path}/x/{{0.tar,4.txt}}")
    (tmp_path / "x" / "0.tar").rename(tmp_path / "x" / "{0..1}.tar")
    assert len(packio.open(tmp_path / "x" / "{0..1}.tar")) == 5  # a file of that very name
