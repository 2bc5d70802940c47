"""The mmengine backend: files out of packs by key, by itself and through mmengine."""

from __future__ import annotations

import importlib.util
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

import packio
import packio.datasets.mmengine
from packio.datasets.mmengine import PackioBackend
from packio.errors import KeyNotFoundError, MissingPackageError, NotAPackError, OptionError


@pytest.fixture(scope="module", params=["photos.lmdb", "photos.tar"])
def pack(
    request: pytest.FixtureRequest, image_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    out: Path = tmp_path_factory.mktemp("packs") / request.param
    packio.pack(image_folder, out)
    return out


@pytest.fixture
def fileio() -> Any:
    return pytest.importorskip("mmengine.fileio")


def files(image_folder: Path) -> dict[str, bytes]:
    found = [p for p in image_folder.rglob("*") if p.is_file()]
    return {p.relative_to(image_folder).as_posix(): p.read_bytes() for p in found}


def test_files_are_got_by_key(pack: Path, image_folder: Path) -> None:
    backend = PackioBackend(pack)
    for key, data in files(image_folder).items():
        assert backend.get(key) == backend.get(Path(key)) == data
    with pytest.raises(KeyNotFoundError, match="nowhere"):
        backend.get("nature/nowhere.jpg")


@pytest.mark.parametrize("prefix", ["data/train", "data/train/", "s3://bucket/train"])
def test_a_prefix_comes_before_the_keys(pack: Path, image_folder: Path, prefix: str) -> None:
    backend = PackioBackend(pack, prefix=prefix)
    path = backend.join_path(prefix, "nature", "plain.png")
    assert backend.get(path) == (image_folder / "nature/plain.png").read_bytes()
    assert not backend.exists("nature/plain.png")
    with pytest.raises(KeyNotFoundError, match="none of the prefixes"):
        backend.get("data/training/nature/plain.png")


def test_the_longest_prefix_counts(pack: Path, image_folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "root" / "class"
    other.mkdir(parents=True)
    (other / "plain.png").write_bytes((image_folder / "nature/plain.png").read_bytes())
    packio.pack(tmp_path / "root", tmp_path / "other.lmdb")
    backend = PackioBackend(packs={"data": pack, "data/other": tmp_path / "other.lmdb"})
    assert backend.isfile("data/other/class/plain.png")
    assert not backend.isfile("data/class/plain.png")
    assert backend.isfile("data/nature/plain.png")
    assert not backend.isfile("data/other/nature/plain.png")


def test_what_is_there_is_told(pack: Path) -> None:
    backend = PackioBackend(pack, prefix="data")
    assert backend.isfile("data/nature/plain.png")
    assert backend.exists("data/nature/plain.png")
    assert not backend.isdir("data/nature/plain.png")
    for folder in ("data", "data/", "data/nature", "data/nature/"):
        assert backend.isdir(folder)
        assert backend.exists(folder)
        assert not backend.isfile(folder)
    for nothing in ("", "dat", "data/nat", "data/nature/plain", "other/nature"):
        assert not backend.exists(nothing)


def test_a_local_path_lives_as_long_as_its_context(pack: Path, image_folder: Path) -> None:
    backend = PackioBackend(pack)
    with backend.get_local_path("nature/plain.png") as path:
        assert path.endswith(".png")
        assert Path(path).read_bytes() == (image_folder / "nature/plain.png").read_bytes()
    assert not Path(path).parent.exists()


def test_text_is_decoded(tmp_path: Path) -> None:
    (tmp_path / "root" / "c").mkdir(parents=True)
    text = b"P2 2 1 255 # gr\xfcn\n7 8\n"
    (tmp_path / "root" / "c" / "plain.pgm").write_bytes(text)
    packio.pack(tmp_path / "root", tmp_path / "out.lmdb")
    backend = PackioBackend(tmp_path / "out.lmdb")
    assert backend.get_text("c/plain.pgm", "latin-1") == text.decode("latin-1")
    with pytest.raises(UnicodeDecodeError):
        backend.get_text("c/plain.pgm")


LISTINGS: list[dict[str, Any]] = [
    {},
    {"recursive": True},
    {"list_dir": False},
    {"list_dir": False, "recursive": True},
    {"list_file": False, "recursive": True},
    {"list_dir": False, "suffix": ".png", "recursive": True},
    {"list_dir": False, "suffix": (".png", ".JPG"), "recursive": True},
]


@pytest.mark.parametrize("options", LISTINGS)
@pytest.mark.parametrize("folder", ["", "nature", "nature/"])
def test_listings_equal_those_of_the_local_backend(
    pack: Path, image_folder: Path, fileio: Any, folder: str, options: dict[str, Any]
) -> None:
    ours = list(PackioBackend(pack, prefix="data").list_dir_or_file(f"data/{folder}", **options))
    theirs = fileio.LocalBackend().list_dir_or_file(f"{image_folder}/{folder}", **options)
    assert sorted(ours) == sorted(theirs)
    assert len(set(ours)) == len(ours)


def test_listings_are_of_files_and_folders(pack: Path, image_folder: Path) -> None:
    backend = PackioBackend(pack)
    assert list(backend.list_dir_or_file("")) == ["machines", "nature", "people"]
    recursive = backend.list_dir_or_file("", list_dir=False, recursive=True)
    assert list(recursive) == sorted(files(image_folder))
    assert list(backend.list_dir_or_file("nowhere")) == []
    with pytest.raises(TypeError, match="list_dir=False"):
        backend.list_dir_or_file("", suffix=".png")


def test_arguments_that_cannot_be_meant_are_refused(pack: Path, tmp_path: Path) -> None:
    senseless: list[dict[str, Any]] = [
        {},
        {"db_path": pack, "packs": {}},
        {"packs": {"a": pack}, "prefix": "b"},
    ]
    for arguments in senseless:
        with pytest.raises(OptionError, match="packs="):
            PackioBackend(**arguments)
    with pytest.raises(NotAPackError):
        PackioBackend(tmp_path / "nowhere.lmdb")


def get(backend: PackioBackend, key: str) -> bytes:
    return backend.get(key)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_it_travels_to_other_processes(pack: Path, method: str) -> None:
    backend = PackioBackend(pack)
    data = backend.get("nature/plain.png")
    assert pickle.loads(pickle.dumps(backend)).get("nature/plain.png") == data
    with ProcessPoolExecutor(1, mp_context=get_context(method)) as pool:
        assert pool.submit(get, backend, "nature/plain.png").result() == data


def test_mmengine_reads_through_it(pack: Path, image_folder: Path, fileio: Any) -> None:
    packio.datasets.mmengine.register()
    packio.datasets.mmengine.register()  # again is the same
    arguments = {"backend": "packio", "db_path": str(pack), "prefix": "data/train"}
    for key, data in files(image_folder).items():
        assert fileio.get(f"data/train/{key}", backend_args=arguments) == data
    path = "data/train/nature/plain.png"
    assert fileio.exists(path, backend_args=arguments)
    assert fileio.isfile(path, backend_args=arguments)
    assert fileio.isdir("data/train/nature", backend_args=arguments)
    assert fileio.join_path("data/train", "nature", backend_args=arguments) == "data/train/nature"
    with fileio.get_local_path(path, backend_args=arguments) as local:
        assert Path(local).read_bytes() == fileio.get(path, backend_args=arguments)
    listed = fileio.list_dir_or_file("data/train", backend_args=arguments)
    assert list(listed) == ["machines", "nature", "people"]


def test_a_prefix_of_paths_can_mean_it(pack: Path, fileio: Any) -> None:
    packio.datasets.mmengine.register("packio-test", prefixes="packio")
    arguments = {"db_path": str(pack), "prefix": "packio://"}
    assert fileio.get("packio://nature/plain.png", backend_args=arguments)[1:4] == b"PNG"


@pytest.mark.skipif(importlib.util.find_spec("mmengine") is not None, reason="it is installed")
def test_registering_without_mmengine_says_what_is_missing() -> None:
    with pytest.raises(MissingPackageError, match="pip install 'mmengine'"):
        packio.datasets.mmengine.register()
