"""``packio export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from packio.cli import _options as option
from packio.cli._output import as_size, counted, escaped, print_json, say


def run(
    pack: option.Pack,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File to make, .parquet.")],
    index: option.Index = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT.")] = False,
    as_json: option.Json = False,
    quiet: option.Quiet = False,
) -> None:
    """Write what the index says of each sample into a Parquet file, for DuckDB, pandas and others.

    A row is a sample: its key, label, class, split, the sizes, encodings and bytes of its fields,
    its boxes as lists, and its metadata. The bytes of images stay in the pack.

    Example: packio export photos.lmdb photos.parquet

    Example: duckdb -c "SELECT class, count(*), avg(width) FROM 'photos.parquet' GROUP BY class"
    """
    import packio
    from packio.inspecting.exporting import export

    with packio.open(pack, index=index) as opened:
        report = export(opened, out, overwrite=overwrite)
    if as_json:
        print_json({"out": str(report.out), "samples": report.samples,
                    "columns": list(report.columns), "bytes": report.bytes,
                    "seconds": report.seconds})  # fmt: skip
    elif not quiet:
        say(f"{escaped(str(report.out))}: {counted(report.samples, 'sample')}, "
              f"{len(report.columns)} columns, {as_size(report.bytes)}")  # fmt: skip
        say(f"  {', '.join(map(escaped, report.columns))}")
