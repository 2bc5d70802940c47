"""The contract for bytes by range: what a store of files can do, wherever the files are."""

from __future__ import annotations

import abc
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from packio.errors import IntegrityError

MOST_BYTES = 1 << 33  # of a value, as of a member of a tar; an index may claim any number

Range = tuple[int, int, int]  # number of a file, offset and length in bytes


class Facts(NamedTuple):
    """What is known of a file before it is read."""

    size: int  # bytes; -1: the service does not tell
    version: str = ""  # changes when the file is written again; "": the service tells none
    tag: str = ""  # strong entity tag, with its quotes; "": none
    is_file: bool = True
    is_page: bool = False  # a page of the web, which may be the list of a folder


class Store(abc.ABC):
    """Files below a root: by name what is there, by number the bytes of a range.

    A store that is asked for bytes knows the names and the sizes of its files, as an index lists
    them. Safe in threads and after fork; pickles. tests/support/store_contract.py says what each
    store has to do. Names are relative to the root; the files that are read by number are given by
    their names and sizes in bytes, and a read beyond the end is refused.
    """

    is_local = True  # whether the files are this machine's, and have paths
    is_mappable = False  # whether the files may be mapped, and are few
    reads_ahead = True  # whether `prefetch` does anything
    looks_ahead = False  # whether `expect` does anything
    lists_folders = True  # whether `list` is of use: web servers list none as a rule

    def __init__(self, root: Path, names: Sequence[str] = (), sizes: Sequence[int] = ()) -> None:
        self.root = root
        self._names, self._sizes = list(names), list(sizes)

    @abc.abstractmethod
    def facts(self, name: str) -> Facts | None:
        """What a file is; None if there is none."""

    @abc.abstractmethod
    def list(self, *, deep: bool = True) -> dict[str, Facts]:
        """All files below the root, or only those in it, by their names; none if it is missing."""

    @abc.abstractmethod
    def read(self, file: int, offset: int, length: int) -> bytes:
        """Read a whole range.

        Raises:
            IntegrityError: the file has no such range, is another one by now, or was cut short.
            ReadError: the file cannot be read.
        """

    @abc.abstractmethod
    def check(self, is_read: Callable[[int], bool]) -> None:
        """Check that the files are there, and have their sizes.

        A file that packio does not read, as the ``.idx`` that DALI needs, may have another size:
        appending replaces such files before the index. It may be missing: a warning says so.
        """

    @abc.abstractmethod
    def put(self, name: str, data: bytes | Path) -> Facts:
        """Write a file, whole or not at all: some bytes, or those of a file on a disk."""

    @abc.abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""

    def path(self, file: int) -> Path:
        """Path or URL of a file."""
        if file >= len(self._names):
            raise self._outside(file, 0, 0)
        return self.root / self._names[file]

    def prefetch(self, ranges: Sequence[Range]) -> Store:
        """The same files, with some ranges on their way, or announced to the system."""
        return self

    def expect(self, ranges: Iterable[Range]) -> None:  # noqa: B027 (most stores need nothing)
        """Ask for ranges that will be read later, all at the same time; see `prefetch`."""

    def forget(self, ranges: Iterable[Range] | None = None) -> None:  # noqa: B027 (most stores need nothing)
        """Do not keep what was expected and will not be read; None: nothing that was expected."""

    def close(self) -> None:  # noqa: B027 (most stores need nothing)
        """Close what is open; reading opens it again."""

    def _has(self, file: int, offset: int, length: int) -> bool:
        is_there = file < len(self._sizes) and 0 <= offset <= offset + length <= self._sizes[file]
        return is_there and length <= MOST_BYTES

    def _outside(self, file: int, offset: int, length: int) -> IntegrityError:
        if file >= len(self._sizes):
            return IntegrityError(f"{self.root}: no file {file}, there are {len(self._sizes)}")
        found = f"the file has {self._sizes[file]}"
        if offset + length <= self._sizes[file]:
            found = f"a value has {MOST_BYTES} at most"
        return IntegrityError(
            f"{self.path(file)}: the index asks for {length} bytes at {offset}, {found}; restore "
            "the index or pack again"
        )


def warn_of_missing(path: Path) -> None:
    """Warn that a file of a pack is missing that packio does not read."""
    warnings.warn(
        f"{path}: missing, though the index lists it; packio does not read this file, other "
        "readers may need it",
        stacklevel=4,
    )
