"""A new folder of files at paths that are keys; no file is made outside the folder."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import BinaryIO

from packio.errors import (
    CannotCreateError,
    IntegrityError,
    OptionError,
    OutputError,
    OutputExistsError,
)
from packio.storage.folder import path_problem

_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS


class Tree:
    """A folder that is being filled; a context manager."""

    def __init__(self, folder: Path, out: Path, pack: Path | str) -> None:
        folder.mkdir()
        self._root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._out, self._pack = out, pack

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._root)

    def write(self, data: bytes, *paths: bytes) -> bytes:
        """Write a file at the first of some paths that is free; return this path."""
        for path in paths:
            try:
                with self._opened(path) as file:
                    file.write(data)
            except FileExistsError as error:
                if path == paths[-1]:
                    raise OutputError(
                        f"{self._out}: {os.fsdecode(path)!r} exists; another key is the same to "
                        "this file system (case, Unicode form), or is a folder; nothing was "
                        "extracted"
                    ) from error
                continue
            except OSError as error:
                raise self._error(error, path) from error
            break
        return path

    def new(self, path: bytes) -> BinaryIO:
        """Open a new file to write into, as long as the caller likes."""
        self.write(b"", path)
        return os.fdopen(os.open(path, os.O_WRONLY | _FLAGS, dir_fd=self._root), "wb")

    def _opened(self, path: bytes) -> BinaryIO:
        self._check(path)
        try:
            return os.fdopen(os.open(path, _NEW, 0o666, dir_fd=self._root), "wb")
        except FileNotFoundError:  # opened first: most folders are there already
            self._make_parents(path)
            return os.fdopen(os.open(path, _NEW, 0o666, dir_fd=self._root), "wb")

    def make_folder(self, path: bytes) -> None:
        """Make a folder, and the folders above it; folders may exist."""
        self._check(path)
        try:
            self._make_parents(path + b"/")
        except OSError as error:
            raise self._error(error, path) from error

    def _make_parents(self, path: bytes) -> None:
        end = path.find(b"/")
        while end >= 0:
            with contextlib.suppress(FileExistsError):
                os.mkdir(path[:end], dir_fd=self._root)
            end = path.find(b"/", end + 1)

    def _check(self, path: bytes) -> None:
        problem = path_problem(path)
        if problem is not None:
            raise IntegrityError(
                f"{self._pack}: the key {os.fsdecode(path)!r} {problem}; it would not lie "
                f"below {self._out}, and nothing was extracted"
            )

    def _error(self, error: OSError, path: bytes) -> OutputError:
        return OutputError(
            f"{self._out}: {error.strerror} while writing {os.fsdecode(path)!r}; "
            "nothing was extracted"
        )


def check_place(pack: Path | str, out: Path, *, overwrite: bool) -> None:
    """Check that a folder may be made at a place."""
    place, here = Path(os.path.realpath(pack)), Path(os.path.realpath(os.curdir))
    if out == place or out in place.parents or place in out.parents:
        raise OptionError(
            f"{out}: lies within the pack {pack}, or the pack within it; choose another place"
        )
    if not os.path.lexists(out):
        return
    if not out.is_dir():
        raise CannotCreateError(f"{out}: a file; expected the name of a folder")
    if out == here or out in here.parents:
        raise OptionError(f"{out}: cannot put a new folder where we are; name a folder to be made")
    with contextlib.closing(os.scandir(out)) as entries:
        if not overwrite and next(entries, None) is not None:
            raise OutputExistsError(
                f"{out}/: not empty; choose another name, or say --overwrite, which removes all "
                "that is in it"
            )
