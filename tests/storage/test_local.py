"""Local files, read by threads and by forked processes."""

from __future__ import annotations

import multiprocessing
import pathlib
import threading
import weakref
from types import ModuleType

import leftovers
import pytest

from packio.errors import IntegrityError
from packio.storage import local
from packio.storage.local import LocalStore
from packio.system import mapping


def _reads(files: LocalStore) -> None:
    assert files.read(0, 1, 2) == b"bc"


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_reads_though_its_parent_held_the_lock(tmp_path: pathlib.Path) -> None:
    (tmp_path / "x").write_bytes(b"abcd")
    files = LocalStore(tmp_path, ["x"], [4])
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with files._lock:
            held.set()
            over.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    child = multiprocessing.get_context("fork").Process(target=_reads, args=(files,))
    child.start()
    over.set()
    holder.join()
    child.join(600)
    hangs = child.is_alive()
    child.kill()
    assert not hangs
    assert child.exitcode == 0


def test_a_file_truncated_while_it_is_open_is_an_error(tmp_path: pathlib.Path) -> None:
    (tmp_path / "x").write_bytes(b"abcd")
    files = LocalStore(tmp_path, ["x"], [4])
    (tmp_path / "x").write_bytes(b"ab")
    with pytest.raises(IntegrityError, match="x: 2 bytes, the index says 4"):
        files.read(0, 0, 4)


@pytest.mark.parametrize("module", [local, mapping])
def test_files_are_closed_when_python_has_let_go_of_its_modules(
    module: ModuleType, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").write_bytes(b"abcd")
    before = leftovers.descriptors_below(tmp_path)
    held: object
    if module is local:
        held = LocalStore(tmp_path, ["x"], [4])
        held.read(0, 0, 4)
    else:
        held = mapping.MappedFiles([tmp_path / "x"], [4])
    with monkeypatch.context() as gone:
        gone.setattr(module, "os", None)
        del held
    assert leftovers.descriptors_below(tmp_path) == before


def test_packs_that_are_not_read_leave_their_files_to_others(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_all", weakref.WeakSet())  # tests before may have left packs open
    monkeypatch.setattr(local, "spare_descriptors", lambda: 200)
    names = [f"{i:03d}" for i in range(200)]
    for name in names:
        (tmp_path / name).write_bytes(name.encode())
    idle = [LocalStore(tmp_path, names, [3] * 200) for _ in range(5)]
    read, other = (LocalStore(tmp_path, names, [3] * 200) for _ in range(2))
    before = leftovers.descriptors_below(tmp_path)
    for i, name in enumerate(names):
        assert read.read(i, 0, 3) == name.encode()
    assert leftovers.descriptors_below(tmp_path) - before == 200
    for i in range(200):
        other.read(i, 0, 3)
    read.close()  # and gives its share back
    for i in range(200):
        other.read(i, 0, 3)
    assert leftovers.descriptors_below(tmp_path) - before == 200
    del idle
