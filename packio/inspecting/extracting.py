"""Extracting: the samples of a pack as files again, and what no file says in one table.

The image of a sample lies at the path that is the sample's key. Any other field lies beside the
image: ``cat/1.jpg`` has its mask in ``cat/1.mask.png``, its field ``caption`` in
``cat/1.caption.txt``. If two samples differ in their ending only, the later one has the whole key
in the name: ``cat/1.png.mask.png``. Labels, splits, boxes and metadata are in ``packio.jsonl``; see
`packio.inspecting.annotations`. Boxes with classes are in ``packio.coco.json``, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import shlex
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from packio.datasets.selection import iterate_selected
from packio.errors import (
    CannotCreateError,
    IntegrityError,
    OptionError,
    OutputError,
    OutputExistsError,
)
from packio.images import encodings
from packio.images.dct import as_file, file_encoding
from packio.inspecting import annotations as annotation_files
from packio.packs import opening
from packio.sample import levels
from packio.sample.fields import PIXELS
from packio.sample.record import IMAGE
from packio.storage import workshop
from packio.storage.local import path_problem
from packio.system.progress import Meter, ProgressCallback

_ENDINGS = {"array": ".npy", "text": ".txt", "bytes": ".bin"}  # by kind of field


@dataclasses.dataclass(frozen=True, slots=True)
class ExtractReport:
    """What an extraction did."""

    out: Path
    samples: int
    fields: dict[str, int]  # name → files written
    bytes: int  # in these files
    table: Path | None  # packio.jsonl; None if there was nothing to write into it
    annotations: tuple[str, ...]  # in the table beside the names of files: "label", "split", …
    command: str | None  # packs the table again, with everything; None without a table
    empty_classes: int  # folders made for classes that have no sample
    seconds: float


def extract(
    pack: opening.Pack | str | os.PathLike[str], out: str | os.PathLike[str], *,
    classes: Iterable[str] | None = None, split: str | None = None,
    fields: Iterable[str] | None = None, overwrite: bool = False,
    progress: ProgressCallback | None = None,
) -> ExtractReport:  # fmt: skip
    """Write the samples of a pack into a folder, byte for byte, at the paths that are their keys.

    The folder appears in one step when all files are written and synced. Until then the folder is
    built in ``out.packio-tmp``. Classes without samples become empty folders.

    Fields are their names, and any of "label", "split", "boxes" and "meta"; None extracts
    everything but levels, which packing makes again, and labels that the folders' names say. To
    overwrite is to replace a folder that is not empty, with everything in it. The progress is told
    about ten times a second, and at the end.
    """
    if isinstance(pack, (str, os.PathLike)):
        with opening.open(pack) as opened:
            return extract(
                opened, out, classes=classes, split=split, fields=fields, overwrite=overwrite,
                progress=progress,
            )  # fmt: skip
    target = Path(os.path.realpath(out))
    _check_place(pack.path, target, overwrite=overwrite)
    names, wanted = (None if given is None else list(given) for given in (classes, fields))
    run = _Extraction(pack, target, names, split, wanted, progress)
    with workshop.open_workshop(target) as shop:
        run.into(shop.built)
        run.meter.stage = "publishing"
        run.meter.step(0, 0)
        shop.publish(overwrite=overwrite)
    return run.report()


class _Extraction:
    def __init__(
        self, pack: opening.Pack, out: Path, classes: list[str] | None, split: str | None,
        fields: list[str] | None, progress: ProgressCallback | None,
    ) -> None:  # fmt: skip
        self._pack, self._out, self._classes = pack, out, classes
        self._chosen = functools.partial(iterate_selected, pack, classes, split)
        self._began = time.monotonic()
        self._annotations = annotation_files.choose_annotations(pack, self._chosen, fields)
        names = levels.others(pack.fields) if fields is None else fields
        self._fields = [name for name in pack.fields if name in names]
        self._others = [name for name in self._fields if name != IMAGE]
        self._has_table = bool(self._others or self._annotations)
        self._samples = total = total_bytes = 0
        for rows in self._chosen():
            self._samples += len(rows)
            for name in self._fields:
                there = rows[self._column(name, "offset", rows) >= 0]
                total += len(there)
                total_bytes += int(self._column(name, "length", there).sum())
        self._written = dict.fromkeys(self._fields, 0)
        self._bytes = self._empty = 0
        self.meter = Meter(progress, self._began)
        self.meter.begin("writing", total, total_bytes)

    def _column(self, field: str, name: str, rows: np.ndarray) -> np.ndarray:
        return self._pack.index_file.column(f"{field}/{name}").take(rows)

    def into(self, folder: Path) -> None:
        tree = _Tree(folder, self._out, self._pack.path)
        if IMAGE in self._fields:  # all images first: no other file may take a key's place
            for rows in self._chosen():
                self._write_field(tree, IMAGE, rows)
        if self._has_table:
            self._write_table(tree)
        for name in _empty_classes(self._pack, self._classes):
            tree.make_folder(name)
            self._empty += 1

    def _write_table(self, tree: _Tree) -> None:
        """Write the table, and all fields but the image."""
        lines = annotation_files.TableLines(self._pack, self._annotations)
        with tree.new(os.fsencode(annotation_files.TABLE)) as file:
            for rows in self._chosen():
                files: dict[int, dict[str, bytes]] = {row: {} for row in rows.tolist()}
                for name in self._others:
                    for row, path in self._write_field(tree, name, rows).items():
                        files[row][name] = path
                file.writelines(lines.line(row, paths) for row, paths in files.items())
        tree.write(
            annotation_files.make_head(self._pack, self._fields), os.fsencode(annotation_files.HEAD)
        )
        if lines.has_boxes_of_classes:
            with tree.new(os.fsencode(annotation_files.COCO)) as file:
                file.writelines(annotation_files.make_coco_file(self._pack, self._chosen))
        if self._pack.classes and {"label", "boxes"} & set(self._annotations):
            names = b"".join(os.fsencode(name) + b"\n" for name in self._pack.classes)
            tree.write(names, os.fsencode(annotation_files.CLASS_NAMES))

    def _write_field(self, tree: _Tree, name: str, rows: np.ndarray) -> dict[int, bytes]:
        """Write the files of one field, in the order of the container; return their paths."""
        paths: dict[int, bytes] = {}
        order = np.lexsort((self._column(name, "offset", rows), self._column(name, "file", rows)))
        for row in rows[order].tolist():
            data = self._pack.read_field(name, row)
            if data is None:
                continue
            data = self._as_file(name, row, data)
            paths[row] = tree.write(data, *self._names(name, row))
            self._written[name] += 1
            self._bytes += len(data)
            self.meter.step(1, len(data))
        return paths

    def _as_file(self, name: str, row: int, data: bytes) -> bytes:
        """The file of a value: of an image with open coefficients, its JPEG."""
        if self._pack.fields[name] not in PIXELS:
            return data
        with self._pack.naming(self._pack.row(row), name):
            return as_file(data, self._pack.facts(name, row).encoding)

    def _names(self, field: str, row: int) -> list[bytes]:
        """Paths that the file of a field may have, the best first."""
        key, kind = self._pack.key_bytes(row), self._pack.fields[field]
        if field == IMAGE:
            return [key]
        ending = _ENDINGS.get(kind, ".bin")
        if kind in PIXELS:
            encoding = file_encoding(self._pack.facts(field, row).encoding)
            ending = encodings.SUFFIXES.get(encoding, ".bin")
        return [stem + os.fsencode(f".{field}{ending}") for stem in (os.path.splitext(key)[0], key)]

    def report(self) -> ExtractReport:
        table = command = None
        if self._has_table:
            table = self._out / annotation_files.TABLE
            command = shlex.join(["packio", "pack", str(self._out), "NEW.tar"])
        return ExtractReport(
            self._out, self._samples, self._written, self._bytes, table, tuple(self._annotations),
            command, self._empty, time.monotonic() - self._began,
        )  # fmt: skip


def _empty_classes(pack: opening.Pack, classes: list[str] | None) -> Iterator[bytes]:
    """Classes that are folders in the source and have no sample."""
    labels, source = pack.labels, pack.metadata.get("source") or {}
    if labels is None or labels.ndim != 1 or source.get("kind") != "image_folder":
        return  # elsewhere a class's name is not a path
    taken = set(np.unique(labels).tolist())
    wanted = set(pack.classes if classes is None else classes)
    for number, name in enumerate(pack.classes):
        if number not in taken and name in wanted:
            yield os.fsencode(name)


class _Tree:
    """A new folder of files at paths that are keys; no file is made outside the folder."""

    def __init__(self, folder: Path, out: Path, pack: Path | str) -> None:
        folder.mkdir()
        self._root, self._out, self._pack = os.fsencode(folder), out, pack

    def write(self, data: bytes, *paths: bytes) -> bytes:
        """Write a file at the first of some paths that is free; return this path."""
        for path in paths:
            with contextlib.suppress(FileExistsError), self._making(path) as whole:
                with _open_new(whole) as file:
                    file.write(data)
                return path
        raise OutputError(
            f"{self._out}: {os.fsdecode(path)!r} exists; another key is the same to this file "
            "system (case, Unicode form), or is a folder; nothing was extracted"
        )

    def new(self, path: bytes) -> BinaryIO:
        self.write(b"", path)
        return open(os.path.join(self._root, path), "wb")

    def make_folder(self, path: bytes) -> None:
        with self._making(path) as whole:
            os.makedirs(whole, exist_ok=True)

    @contextlib.contextmanager
    def _making(self, path: bytes) -> Iterator[bytes]:
        """Check a path before something is made there, and tell what fails."""
        name = repr(os.fsdecode(path))
        if (problem := path_problem(path)) is not None:
            raise IntegrityError(
                f"{self._pack}: the key {name} {problem}; it would not lie below {self._out}, and "
                "nothing was extracted"
            )
        try:
            yield os.path.join(self._root, path)
        except FileExistsError:
            raise
        except OSError as error:
            raise OutputError(
                f"{self._out}: {error.strerror} while writing {name}; nothing was extracted"
            ) from error


def _open_new(path: bytes) -> BinaryIO:
    try:
        return open(path, "xb")
    except FileNotFoundError:  # opened first: most folders are there already
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return open(path, "xb")


def _check_place(pack: Path | str, out: Path, *, overwrite: bool) -> None:
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
