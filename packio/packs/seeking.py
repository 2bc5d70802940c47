"""Seek points of a pack that has an index: added to the index, or taken out of it."""

from __future__ import annotations

from pathlib import Path

from packio.images import native
from packio.index import columns, indexfile
from packio.index.indexfile import PROGRESSIVE, SEEKABLE, Index


def change(path: Path, index: Path, *, wanted: bool) -> None:
    """Write an index anew, with seek points or without, unless it is so already.

    Args:
        path: The pack.
        index: Its index, which no other process changes.
        wanted: Whether the index is to have seek points, as far as its JPEGs need them.
    """
    old = Index(index)
    if wanted == ("seek_data" in old) or (wanted and native.why_not()):
        return
    names = [n for n in old.column_names if n not in ("seek_data", "seek_offsets")]
    table = {name: old.column(name).array() for name in names}
    if wanted:
        found = _found(path, index)
        if not any(found):
            return
        table["seek_data"], table["seek_offsets"] = columns.ragged(found)
    indexfile.write(index, table, old.metadata)


def _found(path: Path, index: Path) -> list[bytes]:
    """The seek points of each sample; empty where its image needs none."""
    from packio.packs import opening

    points = []
    with opening.open(path, index=index) as pack:
        for position in range(len(pack)):
            row = pack.row(position)
            needs = row.encoding == "jpeg" and not row.flags & (SEEKABLE | PROGRESSIVE)
            points.append(native.seek_points(pack.read(row)) if needs else b"")
    return points
