"""Export the index of a pack as a Parquet file: one row for each sample, no bytes of samples.

`packio.packs.querying.columns` describes the columns. The file is written batch by batch, so that
memory does not grow with the pack.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from packio import __version__, registry
from packio.errors import CannotCreateError, OptionError, OutputError, OutputExistsError
from packio.index.indexfile import canonical_json
from packio.packs import opening
from packio.packs.querying import columns
from packio.packs.querying.columns import EXTRA, META, ArrowColumns
from packio.system import files

_SUFFIX = ".parquet"
_ROWS = 1 << 16  # of a batch, which is a row group of the file
_MOST_NAMES = 1000  # of metadata that become columns


@dataclasses.dataclass(frozen=True, slots=True)
class ExportReport:
    """What an export wrote."""

    out: Path  # the file
    samples: int  # number of its rows
    columns: tuple[str, ...]  # names of its columns
    bytes: int  # of the file
    seconds: float  # duration


def export(
    pack: opening.Pack | str | os.PathLike[str], out: str | os.PathLike[str], *,
    overwrite: bool = False, progress: Callable[[int, int], object] | None = None,
) -> ExportReport:  # fmt: skip
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
    schema, batches = _table(pack)
    kind: type[OutputError] = CannotCreateError
    try:
        with files.replacing(path) as file:
            kind = OutputError
            with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
                done = 0
                for batch in batches:
                    writer.write_batch(batch, row_group_size=len(batch))
                    done += len(batch)
                    if progress is not None:
                        progress(done, len(pack))
    except OSError as error:
        raise kind(f"{path}: {error.strerror or error}") from error
    seconds = time.monotonic() - began
    return ExportReport(path, len(pack), tuple(schema.names), path.stat().st_size, seconds)


def _table(pack: opening.Pack) -> tuple[Any, Iterator[Any]]:
    """Schema of the table, and its batches."""
    arrow: Any = registry.require("pyarrow", EXTRA)
    fixed = ArrowColumns(pack)
    names = [name for name in fixed.names if name != META]
    types = columns.types(pack) if META in fixed.names else {}
    if len(types) > _MOST_NAMES:
        types, names = {}, list(fixed.names)
    known = {name.lower() for name in fixed.names}
    column_of = {name: columns.column_of(name, known, types) for name in types}
    said = {"version": __version__, "digest": pack.digest, "format": pack.metadata["format"],
            "samples": len(pack), "classes": pack.classes}  # fmt: skip
    added = [(column_of[n], getattr(arrow, columns.ARROW[kind])()) for n, kind in types.items()]
    schema = arrow.schema(
        [*fixed.schema(names), *(arrow.field(*one) for one in added)],
        metadata={"packio": canonical_json(said)},
    )

    def batches() -> Iterator[Any]:
        each = columns.iterate_metadata(pack, _ROWS) if types else itertools.repeat([])
        for batch, rows in zip(fixed.batches(names, _ROWS), each, strict=False):
            more = [
                arrow.array(columns.values_of(name, kind, rows), schema.field(column_of[name]).type)
                for name, kind in types.items()
            ]
            yield arrow.record_batch([*batch.columns, *more], schema=schema)

    return schema, batches()
