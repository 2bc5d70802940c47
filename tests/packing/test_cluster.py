"""Nodes of a Ray cluster that are as other machines: what the work carries, and what they miss."""

from __future__ import annotations

import os
import pathlib
import shlex
import tarfile
from typing import TYPE_CHECKING, Any

import ground as grounds
import pytest
import ray_nodes
import user_space

import packio
from packio.errors import ReadError

pytest.importorskip("ray", reason="Ray has no wheel for this Python")
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),  # Ray's own
    pytest.mark.skipif(not ray_nodes.can_be_apart(), reason="this user may have no namespaces"),
]

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packio.system.progress import Progress


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder that only this machine sees, with a source in it."""
    folder = tmp_path_factory.mktemp("hidden")
    grounds.make_source(folder / "source", 60, 2000)
    return folder


@pytest.fixture(scope="module")
def cluster(hidden: pathlib.Path) -> Iterator[ray_nodes.Nodes]:
    """A cluster with one node, which sees neither the hidden folder nor this machine's processes.

    It has its own /proc; another folder of temporary files; and another working folder.
    """
    with ray_nodes.cluster() as nodes:
        nodes.add_apart(f"mount -t tmpfs none {hidden}")
        yield nodes


@pytest.fixture
def source(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "source"
    grounds.make_source(folder, 60, 2000)
    return folder


def _same(
    tmp_path: pathlib.Path, cluster: ray_nodes.Nodes, source: Any, suffix: str = ".tar",
    **options: Any,
) -> None:  # fmt: skip
    """Pack here and on the cluster; compare every byte."""
    for name, engine in (("here", "local"), ("there", f"ray:{cluster.address}")):
        (tmp_path / name).mkdir()
        made = source() if callable(source) else source
        out = tmp_path / name / f"x{suffix}"
        packio.pack(made, out, shards=3, engine=engine, **options)
    trees = [grounds.tree(tmp_path / name) for name in ("here", "there")]
    assert grounds.differences(*trees) == grounds.differences({}, {})
    assert len(trees[0]) >= 4


def test_a_dataset_goes_to_nodes_with_its_samples(
    cluster: ray_nodes.Nodes, source: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    files = sorted(p for p in source.rglob("*.png"))
    items = [(path.read_bytes(), i % 3) for i, path in enumerate(files)]
    _same(tmp_path, cluster, items)


def test_samples_that_a_generator_makes_once_are_packed(
    cluster: ray_nodes.Nodes, source: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    files = sorted(p for p in source.rglob("*.png"))
    _same(tmp_path, cluster, lambda: ({"image": p.read_bytes(), "key": p.name} for p in files))


def test_a_compressed_archive_that_only_this_machine_sees_is_packed(
    cluster: ray_nodes.Nodes, source: pathlib.Path, hidden: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    archive = hidden / "photos.tgz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(source, "photos")
    _same(tmp_path, cluster, archive)
    archive.unlink()


def test_relative_paths_are_those_of_this_process(
    cluster: ray_nodes.Nodes, source: pathlib.Path, tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(source.parent)
    _same(tmp_path, cluster, "source")


def test_a_relative_pack_is_packed_again(
    cluster: ray_nodes.Nodes, source: pathlib.Path, tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    packio.pack(source, tmp_path / "first.tar")
    monkeypatch.chdir(tmp_path)
    _same(tmp_path, cluster, "first.tar", ".lmdb")


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_source_that_nodes_do_not_see_is_an_error_before_packing(
    on_error: str, cluster: ray_nodes.Nodes, hidden: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(ReadError, match="a node of the Ray cluster") as raised:
        packio.pack(
            hidden / "source", tmp_path / "x.tar", engine=f"ray:{cluster.address}",
            on_error=on_error,
        )  # fmt: skip
    assert f"{hidden}/source: No such file or directory" in str(raised.value)
    assert os.listdir(tmp_path) == []


def test_other_bytes_under_the_same_path_are_an_error(
    cluster: ray_nodes.Nodes, hidden: pathlib.Path, source: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """The link leads to the same bytes here, and nowhere there."""
    first = min(source.rglob("*.png"))
    moved = hidden / "moved.png"
    first.rename(moved)
    first.symlink_to(moved)
    with pytest.raises(ReadError, match=r"No such file or directory"):
        packio.pack(
            source, tmp_path / "x.tar", engine=f"ray:{cluster.address}", on_error="skip", shards=3
        )


def test_an_output_that_nodes_do_not_see_is_an_error_before_packing(
    cluster: ray_nodes.Nodes, hidden: pathlib.Path, source: pathlib.Path
) -> None:
    out = hidden / "x.tar"
    with pytest.raises(ReadError, match="a node of the Ray cluster") as raised:
        packio.pack(source, out, engine=f"ray:{cluster.address}")
    assert f"{out}.packio-tmp/shards: No such file or directory" in str(raised.value)


@pytest.mark.long
def test_late_names_of_a_network_file_system_are_awaited(
    source: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Each machine has its own mount of the output, which keeps for seconds what it knows."""
    seconds = 3
    alone = tmp_path / "alone"
    alone.mkdir()
    digest = packio.pack(source, alone / "x.tar", shards=3).digest
    with user_space.mounted(tmp_path, seconds) as (below, folder), ray_nodes.cluster() as nodes:
        again = shlex.join(user_space.command(below, folder, seconds))
        nodes.add_apart(f"umount {folder} && {again}")
        report = packio.pack(source, folder / "x.tar", shards=3, engine=f"ray:{nodes.address}")
        assert report.digest == digest
        assert grounds.tree(below) == grounds.tree(alone)
        assert packio.verify(folder / "x.tar").ok


def test_a_node_without_packio_is_an_error_before_packing(
    source: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Of another packio, too, as far as it lacks what this packio asks of nodes."""
    inside = pathlib.Path(packio.__file__).parent / "packing"
    with ray_nodes.cluster() as nodes:
        nodes.add_apart(f"mount -t tmpfs none {inside}")
        with pytest.raises(ReadError, match=r"a node of the cluster cannot") as raised:
            packio.pack(source, tmp_path / "x.tar", engine=f"ray:{nodes.address}")
    assert "packio.packing" in str(raised.value)


@pytest.mark.long
def test_a_node_that_joins_blind_leaves_nothing_out(
    hidden: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """The node that sees the source dies; the node that takes its place would skip everything.

    On a machine that is busy the seeing node may have done all of it before it dies.
    """
    with ray_nodes.cluster() as nodes:
        seeing, joined, told = nodes.add(), list[int](), list[str]()

        def replace(progress: Progress) -> None:
            if not joined:  # the nodes have shown what they see, and no task has begun
                joined.append(progress.done)
                nodes.kill(seeing)
                nodes.add_apart(f"mount -t tmpfs none {hidden}")

        out, options = tmp_path / "x.tar", dict[str, Any](shards=3, on_error="skip")
        try:
            report = packio.pack(
                hidden / "source", out, engine=f"ray:{nodes.address}", progress=replace, **options
            )
        except ReadError as error:
            told.append(str(error))
            report = packio.pack(hidden / "source", out, **options)
    assert joined
    assert all("No such file or directory" in text for text in told)
    assert (report.packed, report.skipped) == (61, ())
