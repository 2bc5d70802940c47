"""Extracting: the samples of a pack as files again, and what no file says in one table.

The image of a sample lies at the path that is the sample's key. Any other field lies beside the
image: ``cat/1.jpg`` has its mask in ``cat/1.mask.png``, its field ``caption`` in
``cat/1.caption.txt``. If two samples differ in their ending only, the later one has the whole key
in the name: ``cat/1.png.mask.png``. Labels, splits, boxes and metadata are in ``packio.jsonl``; see
`packio.inspecting.annotations`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from packio.datasets.selection import selected
from packio.errors import (
    CannotCreateError,
    IntegrityError,
    OptionError,
    OutputError,
    OutputExistsError,
)
from packio.images import encodings
from packio.index.indexfile import SEEKABLE
from packio.inspecting.annotations import (
    CLASS_NAMES,
    HEAD,
    TABLE,
    Annotations,
    annotations_of,
    head,
    packing_command,
)
from packio.packs import packs
from packio.sample.fields import PIXELS
from packio.sample.record import IMAGE
from packio.storage import workshop
from packio.storage.folder import path_problem
from packio.system.progress import PROGRESS_SECONDS, Progress, ProgressCallback

_ENDINGS = {"array": ".npy", "text": ".txt", "bytes": ".bin"}  # by kind of field
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS


@dataclasses.dataclass(frozen=True, slots=True)
class ExtractReport:
    """What an extraction did.

    Attributes:
        out: The folder.
        samples: Samples extracted.
        fields: Files written, by name of the field.
        bytes: In these files.
        table: Path of ``packio.jsonl``; None if there was nothing to write into it.
        annotations: What is in the table beside the names of files: "label", "split", …
        command: Packs the table again, with everything; None without a table.
        empty_classes: Folders made for classes that have no sample.
        seekable: JPEGs among the files that carry the restart markers of ``seekable=True``. Their
            pixels are the source's, their bytes are the pack's.
        seconds: The whole run took.
    """

    out: Path
    samples: int
    fields: dict[str, int]
    bytes: int
    table: Path | None
    annotations: tuple[str, ...]
    command: str | None
    empty_classes: int
    seekable: int
    seconds: float


def extract(
    pack: packs.Pack | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    classes: Iterable[str] | None = None,
    fields: Iterable[str] | None = None,
    overwrite: bool = False,
    progress: ProgressCallback | None = None,
) -> ExtractReport:
    """Write the samples of a pack into a folder, byte for byte, at the paths that are their keys.

    The folder appears in one step when all files are written and synced. Until then the folder is
    built in ``out.packio-tmp``. Classes without samples become empty folders.

    Args:
        pack: An open pack, or the path of one.
        out: The folder to make; it may exist if it is empty.
        classes: Names of classes to extract; None extracts all.
        fields: Names of fields, and any of "label", "split", "boxes" and "meta". None extracts
            everything; labels that the folders' names say are then not written again.
        overwrite: Replace a folder that is not empty, with everything in it.
        progress: Called with a `Progress` about ten times a second, and at the end.

    Raises:
        OutputExistsError: ``out`` is not empty.
        IntegrityError: a key is no path below a folder, or a sample's bytes are damaged.
        OutputError: writing fails, as on a full disk; nothing stays behind.
        OptionError: no such class or field, or ``out`` and the pack lie within each other.
        LockedError: another process writes to ``out``.
    """
    if isinstance(pack, (str, os.PathLike)):
        with packs.open(pack) as opened:
            return extract(
                opened, out, classes=classes, fields=fields, overwrite=overwrite, progress=progress
            )
    names = None if classes is None else list(classes)
    target = Path(os.path.realpath(out))
    _check_place(pack, target, overwrite=overwrite)
    run = _Run(pack, target, names, None if fields is None else list(fields), progress)
    with workshop.opened(target) as shop:
        run.into(shop.built)
        run.report_progress("publishing")
        shop.publish()
    return run.report()


class _Run:
    """One extraction: what is chosen, and how much of it is done."""

    def __init__(
        self, pack: packs.Pack, out: Path, classes: list[str] | None, fields: list[str] | None,
        progress: ProgressCallback | None,
    ) -> None:  # fmt: skip
        self._pack, self._out, self._classes, self._progress = pack, out, classes, progress
        self._began, self._called = time.monotonic(), 0.0
        self._annotations = annotations_of(pack, classes, fields)
        self._fields = [n for n in pack.fields if fields is None or n in fields]
        self._others = [name for name in self._fields if name != IMAGE]
        self._has_table = bool(self._others or self._annotations)
        self._samples = self._total = self._total_bytes = 0
        for rows in selected(pack, classes):
            self._samples += len(rows)
            for name in self._fields:
                there = self._column(name, "offset", rows) >= 0
                self._total += int(np.count_nonzero(there))
                self._total_bytes += int(self._column(name, "length", rows)[there].sum())
        self._written = dict.fromkeys(self._fields, 0)
        self._bytes = self._empty = self._seekable = 0

    def _column(self, field: str, name: str, rows: np.ndarray) -> np.ndarray:
        return self._pack.index_file.column(f"{field}/{name}").take(rows)

    def into(self, folder: Path) -> None:
        """Write everything chosen into a folder that does not exist yet."""
        folder.mkdir()
        root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if IMAGE in self._fields:  # all images first: no other file may take a key's place
                for rows in selected(self._pack, self._classes):
                    self._seekable += np.count_nonzero(
                        self._column(IMAGE, "flags", rows) & SEEKABLE
                    )
                    self._write_field(root, IMAGE, rows)
            if self._has_table:
                self._write_table(root)
            for name in _empty_classes(self._pack, self._classes):
                self._make(name, lambda name: _make_parents(root, name + b"/"))
                self._empty += 1
        finally:
            os.close(root)

    def _write_table(self, root: int) -> None:
        """Write the table, and all fields but the image."""
        lines, table = Annotations(self._pack, self._annotations), os.fsencode(TABLE)
        self._make(table, functools.partial(_write, root, b""))
        with open(os.open(table, os.O_WRONLY | _FLAGS, dir_fd=root), "wb") as file:
            for rows in selected(self._pack, self._classes):
                self._write_rows(root, lines, rows, file)
        text = head(self._pack, self._fields)
        self._make(os.fsencode(HEAD), functools.partial(_write, root, text))
        if lines.has_classes:
            text = b"".join(os.fsencode(name) + b"\n" for name in self._pack.classes)
            self._make(os.fsencode(CLASS_NAMES), functools.partial(_write, root, text))

    def _write_rows(self, root: int, lines: Annotations, rows: np.ndarray, file: BinaryIO) -> None:
        files: dict[int, dict[str, bytes]] = {row: {} for row in rows.tolist()}
        for name in self._others:
            for row, path in self._write_field(root, name, rows).items():
                files[row][name] = path
        file.writelines(lines.line(row, paths) for row, paths in files.items())

    def _write_field(self, root: int, name: str, rows: np.ndarray) -> dict[int, bytes]:
        """Write the files of one field, in the order of the container; return their paths."""
        paths: dict[int, bytes] = {}
        order = np.lexsort((self._column(name, "offset", rows), self._column(name, "file", rows)))
        for row in rows[order].tolist():
            data = self._pack.read_field(name, row)
            if data is None:
                continue
            write = functools.partial(_write, root, data)
            names = self._names(name, row)
            paths[row] = next(path for path in names if self._make(path, write, last=names[-1]))
            self._written[name] += 1
            self._bytes += len(data)
            if time.monotonic() - self._called >= PROGRESS_SECONDS:
                self.report_progress("writing")
        return paths

    def _names(self, field: str, row: int) -> list[bytes]:
        """Paths that the file of a field may have, the best first."""
        key, kind = self._pack.key_bytes(row), self._pack.fields[field]
        if field == IMAGE:
            return [key]
        ending = _ENDINGS.get(kind, ".bin")
        if kind in PIXELS:
            ending = encodings.SUFFIXES.get(self._pack.facts(field, row).encoding, ".bin")
        return [stem + os.fsencode(f".{field}{ending}") for stem in (os.path.splitext(key)[0], key)]

    def _make(
        self, key: bytes, make: Callable[[bytes], None], *, last: bytes | None = None
    ) -> bool:
        """Make a file or a folder.

        Returns:
            False if the name is taken, and is not the last one to try.
        """
        problem = path_problem(key)
        if problem is not None:
            raise IntegrityError(
                f"{self._pack.path}: the key {os.fsdecode(key)!r} {problem}; it would not lie "
                f"below {self._out}, and nothing was extracted"
            )
        try:
            make(key)
        except FileExistsError as error:
            if last not in (None, key):
                return False
            raise OutputError(
                f"{self._out}: {os.fsdecode(key)!r} exists; another key is the same to this "
                "file system (case, Unicode form), or is a folder; nothing was extracted"
            ) from error
        except OSError as error:
            raise OutputError(
                f"{self._out}: {error.strerror} while writing {os.fsdecode(key)!r}; "
                "nothing was extracted"
            ) from error
        return True

    def report_progress(self, stage: str) -> None:
        """Call the callback, if there is one."""
        self._called = time.monotonic()
        if self._progress is not None:
            seconds = self._called - self._began
            done = sum(self._written.values())
            self._progress(
                Progress(done, self._total, self._bytes, self._total_bytes, 0, seconds, stage)
            )

    def report(self) -> ExtractReport:
        """Sum up."""
        table = command = None
        if self._has_table:
            table = self._out / TABLE
            command = packing_command(self._out)
        return ExtractReport(
            self._out, self._samples, self._written, self._bytes, table, tuple(self._annotations),
            command, self._empty, int(self._seekable), time.monotonic() - self._began,
        )  # fmt: skip


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
    try:
        descriptor = os.open(key, _NEW, 0o666, dir_fd=root)
    except FileNotFoundError:  # tried first: most folders are there already
        _make_parents(root, key)
        descriptor = os.open(key, _NEW, 0o666, dir_fd=root)
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
