"""Packs with named fields, made without the writers of any format.

The values of the further fields lie in a file of their own, which the pack's index lists.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

import packio
from packio.index import columns, indexfile
from packio.index.building import IndexBuilder, Ranges
from packio.index.indexfile import SPLIT_RECORD
from packio.sample.record import Field

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Mapping, Sequence


def add_fields(
    path: pathlib.Path, fields: Mapping[str, tuple[str, Sequence[bytes | None]]],
    box_columns: Mapping[str, Sequence[np.ndarray]] | None = None,
) -> pathlib.Path:  # fmt: skip
    """Add fields to a pack of one shard: name → kind, and a value or None for each sample."""
    index_path = path / "index.packio" if path.is_dir() else path.with_name(f"{path.name}.packio")
    extra = index_path.parent / f"{path.name}.fields"
    with packio.open(path) as pack:
        index, builder, blob, number = pack.index_file, IndexBuilder(), b"", len(pack)
        files = index.files()
        places = {name: _ranges(pack, name) for name in pack.fields}
        spans: dict[str, list[tuple[int, int]]] = {name: [] for name in fields}
        for i in range(number):
            record = pack.record(i)
            for name, (kind, values) in fields.items():
                value = values[i]
                spans[name].append((-1, 0) if value is None else (len(blob), len(value)))
                blob += value or b""
                if value is not None:
                    record = record.with_fields(**{name: Field(kind, value)})
            more = {name: column[i] for name, column in (box_columns or {}).items()}
            builder.add(dataclasses.replace(record, box_columns={**record.box_columns, **more}))
        for name, found in spans.items():
            offsets, lengths = np.array(found, np.int64).reshape(-1, 2).T
            places[name] = Ranges(np.full(number, len(files), np.uint32), offsets, lengths)
        files.append((extra.name, len(blob), hashlib.sha256(blob).digest()))
        data, starts = columns.join_values([name.encode() for name, _, _ in files])
        table = builder.columns(places) | {
            "file_bytes": np.array([size for _, size, _ in files], np.int64),
            "file_digest": np.array([list(d) for _, _, d in files], np.uint8),
            "file_path_data": data, "file_path_offsets": starts,
        }  # fmt: skip
        metadata = {**index.metadata, "fields": builder.fields}
    extra.write_bytes(blob)
    indexfile.write(index_path, table, metadata)
    return path


def _ranges(pack: packio.Pack, name: str) -> Ranges:
    file, offset, length, flags = (
        np.array(pack.index_file.column(f"{name}/{n}").array())
        for n in ("file", "offset", "length", "flags")
    )
    return Ranges(file, offset, length, (flags & SPLIT_RECORD) != 0)


def encoded(pixels: np.ndarray, kind: str = "PNG", **options: Any) -> bytes:
    """An image file of pixels, without loss by default."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def npy(array: np.ndarray) -> bytes:
    """An array in the .npy format, as NumPy writes it."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()
