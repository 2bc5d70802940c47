"""What every store of bytes has to do: a class of tests that the tests of each store inherit."""

from __future__ import annotations

import abc
import os
import pathlib
import pickle
import threading
import warnings
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING

import pytest

from packio.errors import IntegrityError, ReadError
from packio.storage.store import MOST_BYTES

if TYPE_CHECKING:
    from packio.storage.store import Range, Store

FILES = {"a.bin": bytes(range(256)) * 40, "inner/b c.bin": os.urandom(99), "empty": b""}


class StoreContract(abc.ABC):
    """Inherit it, and say how files come into the store."""

    files: dict[str, bytes] = FILES
    lists = True  # whether the service lists folders
    writes = True
    notices = True  # whether a file that is replaced by one as long is noticed

    @abc.abstractmethod
    def put(self, name: str, data: bytes) -> None:
        """Write a file, or replace it by another one."""

    @abc.abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file."""

    @abc.abstractmethod
    def at(self, names: list[str], sizes: list[int]) -> Store:
        """The store of these files."""

    def made(self) -> Store:
        """The store of all files."""
        for name, data in self.files.items():
            self.put(name, data)
        return self.at([*self.files], [len(data) for data in self.files.values()])

    @property
    def largest(self) -> bytes:
        """The content of the first file."""
        return next(iter(self.files.values()))

    def ranges(self) -> list[Range]:
        """Some ranges of all files."""
        found = []
        for number, data in enumerate(self.files.values()):
            size = len(data)
            edges = [(0, 1), (0, size), (size // 3, size // 2), (size - 1, size), (size, size)]
            found += [(number, a, b - a) for a, b in edges if 0 <= a <= b <= size]
        return found

    def _check(self, store: Store) -> None:
        contents = [*self.files.values()]
        for file, offset, length in self.ranges():
            assert store.read(file, offset, length) == contents[file][offset : offset + length]

    def test_a_range_is_its_bytes(self) -> None:
        self._check(self.made())

    def test_what_is_outside_is_refused(self) -> None:
        store, size = self.made(), len(self.largest)
        for wanted in [
            (0, 0, size + 1), (0, size, 1), (0, -1, 2), (0, 5, -1), (len(self.files), 0, 1),
            (0, 0, MOST_BYTES + 1),
        ]:  # fmt: skip
            with pytest.raises(IntegrityError):
                store.read(*wanted)

    def test_facts_tell_size_and_version(self) -> None:
        store = self.made()
        for name, data in self.files.items():
            facts = store.facts(name)
            assert facts is not None
            assert (facts.size, facts.is_file) == (len(data), True)
            assert facts.version
        assert store.facts("nothing") is None
        name = next(iter(self.files))
        before = store.facts(name)
        self.put(name, self.largest[::-1] + b"more")
        after = store.facts(name)
        assert before is not None
        assert after is not None
        assert (after.size, after.version) != (before.size, before.version)

    def test_what_is_put_is_there(self, tmp_path: pathlib.Path) -> None:
        if not self.writes:
            return
        store = self.at(["new"], [7])
        (tmp_path / "data").write_bytes(b"content")
        for data in (b"CONTENT", tmp_path / "data"):
            facts = store.put("new", data)
            assert facts.size == 7
            asked = store.facts("new")
            assert asked is not None
            assert asked[:2] == facts[:2]
        assert self.at(["new"], [7]).read(0, 0, 7) == b"content"
        store.remove("new")
        store.remove("new")
        assert store.facts("new") is None

    def test_a_list_has_every_file(self) -> None:
        store = self.made()
        if not self.lists:
            assert store.list() == {}
            return
        found = store.list()
        assert {name: facts.size for name, facts in found.items()} == {
            name: len(data) for name, data in self.files.items()
        }
        assert store.list(deep=False).keys() == {n for n in self.files if "/" not in n}
        for name, facts in found.items():
            assert (asked := store.facts(name)) is not None
            assert (facts.size, facts.version) == (asked.size, asked.version)

    def test_a_check_compares_sizes(self) -> None:
        store = self.made()
        store.check(lambda _: True)
        names, sizes = [*self.files], [len(data) for data in self.files.values()]
        with pytest.raises(IntegrityError):
            self.at(names, [sizes[0] + 1, *sizes[1:]]).check(lambda _: True)
        self.at(names, [sizes[0] + 1, *sizes[1:]]).check(lambda _: False)

    def test_a_missing_file_is_an_error_if_it_is_read(self) -> None:
        self.made()
        name = next(iter(self.files))
        self.remove(name)
        store = self.at([name], [len(self.largest)])
        with pytest.raises((IntegrityError, ReadError)):
            store.check(lambda _: True)
        with pytest.warns(UserWarning, match="missing"):
            store.check(lambda _: False)
        with pytest.raises((IntegrityError, ReadError)):
            store.read(0, 0, 1)

    def test_ranges_that_were_announced_are_the_same(self) -> None:
        store, contents = self.made(), [*self.files.values()]
        store.expect(self.ranges()[:4])
        ahead = store.prefetch(self.ranges())
        for file, offset, length in reversed(self.ranges()):
            assert ahead.read(file, offset, length) == contents[file][offset : offset + length]
        store.expect(self.ranges())
        store.forget()
        self._check(store)
        store.close()
        self._check(store)

    def test_a_file_that_is_shorter_now_is_an_error(self) -> None:
        store = self.made()
        store.check(lambda _: True)
        self.put(next(iter(self.files)), self.largest[:10])
        with pytest.raises((IntegrityError, ReadError)):
            store.read(0, 0, len(self.largest))

    def test_a_file_that_is_another_one_now_is_an_error(self) -> None:
        store = self.made()
        store.check(lambda _: True)
        self.put(next(iter(self.files)), self.largest[::-1])
        if self.notices:
            with pytest.raises(IntegrityError, match="was replaced"):
                store.read(0, 1, 9)
        else:  # the checksums of samples tell it
            assert store.read(0, 1, 9) == self.largest[::-1][1:10]

    def test_threads_share_it(self) -> None:
        store, failed = self.made(), []

        def read() -> None:
            try:
                self._check(store)
            except BaseException as error:  # noqa: BLE001 (the test tells it)
                failed.append(error)

        threads = [threading.Thread(target=read) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed

    def test_a_fork_goes_on_with_it(self) -> None:
        store = self.made()
        self._check(store)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's, of threads and forks
            child = os.fork()
        if not child:
            try:
                self._check(store)
                self._check(store.prefetch(self.ranges()))
            except BaseException:  # noqa: BLE001 (the status tells it)
                os._exit(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        self._check(store)

    def test_it_pickles(self) -> None:
        store = self.made()
        self._check(store)
        self._check(pickle.loads(pickle.dumps(store)))
        self._check(pickle.loads(ForkingPickler.dumps(store)))

    def test_a_path_names_the_file(self) -> None:
        store = self.made()
        assert isinstance(store.path(0), pathlib.Path)
        with pytest.raises(IntegrityError):
            store.path(len(self.files))
