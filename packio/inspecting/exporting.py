"""Export the index of a pack as a Parquet file: one row for each sample, no bytes of samples.

`packio.packs.querying.columns` describes the columns, `packio.packs.querying.metadata` those of the
samples' metadata. The file is written batch by batch, so that memory does not grow with the pack.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from packio import __version__, registry
from packio.errors import CannotCreateError, OptionError, OutputError, OutputExistsError
from packio.index.indexfile import canonical_json
from packio.packs import opening
from packio.packs.querying import metadata
from packio.packs.querying.columns import EXTRA, META, ArrowColumns
from packio.system import files

_SUFFIX = ".parquet"
_ROWS = 1 << 16  # of a batch, which is a row group of the file
_MOST_NAMES = 1000  # of metadata that become columns


@dataclasses.dataclass(frozen=True, slots=True)
class ExportReport:
    """What an export wrote.

    Attributes:
        out: The file.
        samples: Number of its rows.
        columns: Names of its columns.
        bytes: Of the file.
        seconds: Duration.
    """

    out: Path
    samples: int
    columns: tuple[str, ...]
    bytes: int
    seconds: float


def export(
    pack: opening.Pack | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    progress: Callable[[int, int], object] | None = None,
) -> ExportReport:
    """Write what the index says of each sample into a Parquet file, for DuckDB, pandas and others.

    The columns are ``index``, ``key``, ``label``, ``class``, ``split``, sizes, encodings and bytes
    of the fields, boxes as lists, and the samples' metadata, a column for each name: of one type
    where all values agree, else JSON text. The file appears when it is complete.

    Args:
        pack: An open pack, or the path of one.
        out: The file to make, ``.parquet``.
        overwrite: Replace a file.
        progress: Called with the number of samples that are done, and of all.

    Raises:
        OptionError: ``out`` has another suffix.
        OutputExistsError: ``out`` exists.
        CannotCreateError: the folder of ``out`` does not exist.
        OutputError: writing fails, as on a full disk; nothing stays behind.
        MissingPackageError: pyarrow is not installed.
        IntegrityError: the index is damaged.
    """
    if isinstance(pack, (str, os.PathLike)):
        with opening.open(pack) as opened:
            return export(opened, out, overwrite=overwrite, progress=progress)
    began, path = time.monotonic(), Path(out)
    if path.suffix.lower() != _SUFFIX:
        raise OptionError(f"{path}: expected a name that ends in {_SUFFIX}")
    files.check_folder_of(path)
    if path.is_dir():
        raise OutputExistsError(f"{path}: a folder; expected the name of a file")
    if os.path.lexists(path) and not overwrite:
        raise OutputExistsError(f"{path}: exists; choose another name, or say overwrite=True")
    parquet: Any = registry.require("pyarrow.parquet", EXTRA)
    table = _Table(pack)
    kind: type[OutputError] = CannotCreateError
    try:
        with files.replacing(path) as file:
            kind = OutputError
            with parquet.ParquetWriter(file, table.schema, compression="zstd") as writer:
                done = 0
                for batch in table.batches():
                    writer.write_batch(batch, row_group_size=len(batch))
                    done += len(batch)
                    if progress is not None:
                        progress(done, len(pack))
    except OSError as error:
        raise kind(f"{path}: {error.strerror or error}") from error
    names = tuple(table.schema.names)
    return ExportReport(
        path, len(pack), names, path.stat().st_size, time.monotonic() - began
    )  # fmt: skip


class _Table:
    def __init__(self, pack: opening.Pack) -> None:
        self._pack, self._arrow = pack, registry.require("pyarrow", EXTRA)
        self._columns = ArrowColumns(pack)
        self._names = [name for name in self._columns.names if name != META]
        self._types: dict[str, str] = {}
        if META in self._columns.names:
            self._types = metadata.types(pack)
        if len(self._types) > _MOST_NAMES:
            self._types, self._names = {}, list(self._columns.names)
        known = {name.lower() for name in self._columns.names}
        self._named = {metadata.column_of(n, known, self._types): n for n in self._types}
        added = [
            (column, getattr(self._arrow, metadata.ARROW[self._types[name]])())
            for column, name in self._named.items()
        ]
        said = {"version": __version__, "digest": pack.digest, "format": pack.metadata["format"],
                "samples": len(pack), "classes": pack.classes}  # fmt: skip
        self.schema = self._arrow.schema(
            [*self._columns.schema(self._names), *(self._arrow.field(*f) for f in added)],
            metadata={"packio": canonical_json(said)},
        )

    def batches(self) -> Iterator[Any]:
        if not self._named:
            for batch in self._columns.batches(self._names, _ROWS):
                yield batch.replace_schema_metadata(self.schema.metadata)
            return
        batches = self._columns.batches(self._names, _ROWS)
        for batch, rows in zip(batches, metadata.parsed(self._pack, _ROWS), strict=True):
            added = [
                self._arrow.array(values, self.schema.field(column).type)
                for column, name in self._named.items()
                for values in [metadata.values_of(name, self._types[name], rows)]
            ]
            yield self._arrow.record_batch([*batch.columns, *added], schema=self.schema)
