"""Extracting: the samples of a pack as files again, and what no file says in one table.

The image of a sample lies at the path that is the sample's key. Any other field lies beside the
image: ``cat/1.jpg`` has its mask in ``cat/1.mask.png``, its field ``caption`` in
``cat/1.caption.txt``. If two samples differ in their ending only, the later one has the whole key
in the name: ``cat/1.png.mask.png``. Labels, splits, boxes and metadata are in ``packio.jsonl``; see
`packio.inspecting.annotations`. Boxes with classes are in ``packio.coco.json``, too.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from packio.datasets.selection import selected
from packio.images import encodings
from packio.inspecting import coco_file
from packio.inspecting.annotations import (
    CLASS_NAMES,
    HEAD,
    TABLE,
    TableLines,
    annotations_of,
    head,
    packing_command,
)
from packio.inspecting.tree import Tree, check_place
from packio.packs import opening
from packio.sample import levels
from packio.sample.fields import PIXELS
from packio.sample.record import IMAGE
from packio.storage import workshop
from packio.system.progress import PROGRESS_SECONDS, Progress, ProgressCallback

_ENDINGS = {"array": ".npy", "text": ".txt", "bytes": ".bin"}  # by kind of field


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
    seconds: float


def extract(
    pack: opening.Pack | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    classes: Iterable[str] | None = None,
    split: str | None = None,
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
        split: Name of the split to extract; None extracts all.
        fields: Names of fields, and any of "label", "split", "boxes" and "meta". None extracts
            everything but levels, which packing makes again; labels that the folders' names say
            are then not written again.
        overwrite: Replace a folder that is not empty, with everything in it.
        progress: Called with a `Progress` about ten times a second, and at the end.
    """
    if isinstance(pack, (str, os.PathLike)):
        with opening.open(pack) as opened:
            return extract(
                opened, out, classes=classes, split=split, fields=fields, overwrite=overwrite,
                progress=progress,
            )  # fmt: skip
    target = Path(os.path.realpath(out))
    check_place(pack.path, target, overwrite=overwrite)
    names, wanted = (None if given is None else list(given) for given in (classes, fields))
    run = _Extraction(pack, target, names, split, wanted, progress)
    with workshop.opened(target) as shop:
        run.into(shop.built)
        run.report_progress("publishing")
        shop.publish()
    return run.report()


class _Extraction:
    """One extraction: the chosen samples and fields, and the progress."""

    def __init__(
        self, pack: opening.Pack, out: Path, classes: list[str] | None, split: str | None,
        fields: list[str] | None, progress: ProgressCallback | None,
    ) -> None:  # fmt: skip
        self._pack, self._out, self._classes, self._progress = pack, out, classes, progress
        self._chosen = functools.partial(selected, pack, classes, split)
        self._began, self._called = time.monotonic(), 0.0
        self._annotations = annotations_of(pack, self._chosen, fields)
        names = levels.others(pack.fields) if fields is None else fields
        self._fields = [name for name in pack.fields if name in names]
        self._others = [name for name in self._fields if name != IMAGE]
        self._has_table = bool(self._others or self._annotations)
        self._samples = self._total = self._total_bytes = 0
        for rows in self._chosen():
            self._samples += len(rows)
            for name in self._fields:
                there = self._column(name, "offset", rows) >= 0
                self._total += int(np.count_nonzero(there))
                self._total_bytes += int(self._column(name, "length", rows)[there].sum())
        self._written = dict.fromkeys(self._fields, 0)
        self._bytes = self._empty = 0

    def _column(self, field: str, name: str, rows: np.ndarray) -> np.ndarray:
        return self._pack.index_file.column(f"{field}/{name}").take(rows)

    def into(self, folder: Path) -> None:
        """Write everything chosen into a folder that does not exist yet."""
        with Tree(folder, self._out, self._pack.path) as tree:
            if IMAGE in self._fields:  # all images first: no other file may take a key's place
                for rows in self._chosen():
                    self._write_field(tree, IMAGE, rows)
            if self._has_table:
                self._write_table(tree)
            for name in _empty_classes(self._pack, self._classes):
                tree.make_folder(name)
                self._empty += 1

    def _write_table(self, tree: Tree) -> None:
        """Write the table, and all fields but the image."""
        lines = TableLines(self._pack, self._annotations)
        with tree.new(os.fsencode(TABLE)) as file:
            for rows in self._chosen():
                files: dict[int, dict[str, bytes]] = {row: {} for row in rows.tolist()}
                for name in self._others:
                    for row, path in self._write_field(tree, name, rows).items():
                        files[row][name] = path
                file.writelines(lines.line(row, paths) for row, paths in files.items())
        tree.write(head(self._pack, self._fields), os.fsencode(HEAD))
        if lines.has_boxes_of_classes:
            with tree.new(os.fsencode(coco_file.NAME)) as file:
                file.writelines(coco_file.pieces(self._pack, self._chosen))
        if lines.has_classes:
            names = b"".join(os.fsencode(name) + b"\n" for name in self._pack.classes)
            tree.write(names, os.fsencode(CLASS_NAMES))

    def _write_field(self, tree: Tree, name: str, rows: np.ndarray) -> dict[int, bytes]:
        """Write the files of one field, in the order of the container; return their paths."""
        paths: dict[int, bytes] = {}
        order = np.lexsort((self._column(name, "offset", rows), self._column(name, "file", rows)))
        for row in rows[order].tolist():
            data = self._pack.read_field(name, row)
            if data is None:
                continue
            paths[row] = tree.write(data, *self._names(name, row))
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
            command, self._empty, time.monotonic() - self._began,
        )  # fmt: skip


def _empty_classes(pack: opening.Pack, classes: list[str] | None) -> Iterator[bytes]:
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
