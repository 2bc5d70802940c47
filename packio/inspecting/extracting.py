"""Extracting: the samples of a pack as files again, each at the path that is its key."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from packio.datasets.selection import selected
from packio.errors import (
    CannotCreateError,
    IntegrityError,
    OptionError,
    OutputError,
    OutputExistsError,
)
from packio.index import indexfile
from packio.packs import packs
from packio.storage import workshop
from packio.storage.folder import path_problem
from packio.system.progress import Progress, ProgressCallback

_PROGRESS_SECONDS = 0.1  # between two calls of the callback


@dataclasses.dataclass(frozen=True, slots=True)
class ExtractReport:
    """What an extraction did.

    Attributes:
        out: The folder.
        samples: Files written.
        bytes: In them.
        empty_classes: Folders made for classes that have no sample.
        seekable: JPEGs among the files that carry the restart markers of ``seekable=True``: their
            pixels are the source's, their bytes are the pack's.
        seconds: The whole run took.
    """

    out: Path
    samples: int
    bytes: int
    empty_classes: int
    seekable: int
    seconds: float


def extract(
    pack: packs.Pack | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    classes: Iterable[str] | None = None,
    overwrite: bool = False,
    progress: ProgressCallback | None = None,
) -> ExtractReport:
    """Write the samples of a pack into a folder, byte for byte, at the paths that are their keys.

    The folder appears in one step when all of it is written and synced; until then it is built in
    ``out.packio-tmp``. Classes without samples become empty folders.

    Args:
        pack: An open pack, or the path of one.
        out: The folder to make; it may exist if it is empty.
        classes: Names of classes to extract; None extracts all.
        overwrite: Replace a folder that is not empty, with everything in it.
        progress: Called with a `Progress` about ten times a second, and at the end.

    Raises:
        OutputExistsError: ``out`` is not empty.
        IntegrityError: a key is no path below a folder, or a sample's bytes are damaged.
        OutputError: writing fails, as on a full disk; nothing stays behind.
        OptionError: no such class, or ``out`` and the pack lie within each other.
        LockedError: another process writes to ``out``.
    """
    if isinstance(pack, (str, os.PathLike)):
        with packs.open(pack) as opened:
            return extract(opened, out, classes=classes, overwrite=overwrite, progress=progress)
    names = None if classes is None else list(classes)
    target = Path(os.path.realpath(out))
    _check_place(pack, target, overwrite=overwrite)
    run = _Run(pack, target, names, progress)
    with workshop.opened(target) as shop:
        run.into(shop.built)
        run.report_progress("publishing")
        shop.publish()
    return run.report()


class _Run:
    """One extraction: what is chosen, and how much of it is done."""

    def __init__(
        self,
        pack: packs.Pack,
        out: Path,
        classes: list[str] | None,
        progress: ProgressCallback | None,
    ) -> None:
        self._pack, self._out, self._classes, self._progress = pack, out, classes, progress
        self._began, self._called = time.monotonic(), 0.0
        self._total = self._total_bytes = 0
        for rows in selected(pack, classes):
            self._total += len(rows)
            self._total_bytes += int(pack.index_file.column("length").take(rows).sum())
        self._done = self._bytes = self._empty = self._seekable = 0

    def into(self, folder: Path) -> None:
        """Write everything chosen into a folder that does not exist yet."""
        folder.mkdir()
        root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for rows in selected(self._pack, self._classes):
                self._write_rows(root, rows)
            for name in _empty_classes(self._pack, self._classes):
                self._make(name, lambda name: _make_parents(root, name + b"/"))
                self._empty += 1
        finally:
            os.close(root)

    def _write_rows(self, root: int, indices: np.ndarray) -> None:
        rows = self._pack.rows(indices)
        flags = self._pack.index_file.column("flags").take(indices)
        self._seekable += int(np.count_nonzero(flags & indexfile.SEEKABLE))
        for i in rows.file_order():
            data = self._pack.read(rows[i])
            key = self._pack.key_bytes(rows[i].position)
            self._make(key, functools.partial(_write, root, data))
            self._done += 1
            self._bytes += len(data)
            if time.monotonic() - self._called >= _PROGRESS_SECONDS:
                self.report_progress("writing")

    def _make(self, key: bytes, make: Callable[[bytes], None]) -> None:
        problem = path_problem(key)
        if problem is not None:
            raise IntegrityError(
                f"{self._pack.path}: the key {os.fsdecode(key)!r} {problem}; it would not lie "
                f"below {self._out}, and nothing was extracted"
            )
        try:
            make(key)
        except FileExistsError as error:
            raise OutputError(
                f"{self._out}: {os.fsdecode(key)!r} exists; another key is the same to this "
                "file system (case, Unicode form), or is a folder; nothing was extracted"
            ) from error
        except OSError as error:
            raise OutputError(
                f"{self._out}: {error.strerror} while writing {os.fsdecode(key)!r}; "
                "nothing was extracted"
            ) from error

    def report_progress(self, stage: str) -> None:
        """Call the callback, if there is one."""
        self._called = time.monotonic()
        if self._progress is not None:
            seconds = self._called - self._began
            self._progress(
                Progress(self._done, self._total, self._bytes, self._total_bytes, 0, seconds, stage)
            )

    def report(self) -> ExtractReport:
        """Sum up."""
        seconds = time.monotonic() - self._began
        return ExtractReport(
            self._out, self._done, self._bytes, self._empty, self._seekable, seconds
        )


def _check_place(pack: packs.Pack, out: Path, *, overwrite: bool) -> None:
    place, here = Path(os.path.realpath(pack.path)), Path(os.path.realpath(os.curdir))
    if out == place or out in place.parents or place in out.parents:
        raise OptionError(
            f"{out}: lies within the pack {pack.path}, or the pack within it; choose another place"
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


def _write(root: int, data: bytes, key: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(key, flags, 0o666, dir_fd=root)
    except FileNotFoundError:  # tried first: most folders are there already
        _make_parents(root, key)
        descriptor = os.open(key, flags, 0o666, dir_fd=root)
    with open(descriptor, "wb") as file:
        file.write(data)


def _make_parents(root: int, key: bytes) -> None:
    end = key.find(b"/")
    while end >= 0:
        with contextlib.suppress(FileExistsError):
            os.mkdir(key[:end], dir_fd=root)
        end = key.find(b"/", end + 1)


def _empty_classes(pack: packs.Pack, classes: list[str] | None) -> Iterator[bytes]:
    """Classes that are folders in the source and have no sample."""
    labels = pack.labels
    source = pack.metadata.get("source") or {}
    if labels is None or labels.ndim != 1 or source.get("kind") != "image_folder":
        return  # elsewhere a class's name is not a path
    names = pack.classes
    taken = np.zeros(len(names), bool)
    taken[labels[(labels >= 0) & (labels < len(names))]] = True
    wanted = set(names if classes is None else classes)
    for name, has_samples in zip(names, taken.tolist(), strict=True):
        if not has_samples and name in wanted:
            yield os.fsencode(name)
