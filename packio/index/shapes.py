"""Which columns an index has to have, and of which shape: checked when an index is opened."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from packio.errors import NotAPackError
from packio.index.column import Column
from packio.index.columns import OF_FILES, RAGGED

# Columns of a field of any kind, and what a field of kind image or mask has beside them.
OF_VALUES = {"file": "<u4", "offset": "<i8", "length": "<i8", "crc32c": "<u4", "flags": "u1"}
OF_PIXELS = {
    "height": "<u4", "width": "<u4", "encoding": "u1", "orientation": "u1", "channels": "u1",
    "dtype": "u1",
}  # fmt: skip
PER_SAMPLE = {f"image/{name}": code for name, code in (OF_VALUES | OF_PIXELS).items()}
_OF_KEYS = {"key_data": ("u1",), "key_offsets": ("<i8",), "key_order": ("<u4", "<i8")}
REQUIRED = {  # name → dtypes
    **{n: (code,) for n, code in PER_SAMPLE.items()}, **_OF_KEYS, **OF_FILES
}  # fmt: skip


def check_shapes(
    columns: dict[str, Column], path: Path, required: Mapping[str, tuple[str, ...]] = REQUIRED
) -> None:
    """Check the columns that an index has to have, and the lengths of all others."""
    missing = [n for n in required if n not in columns]
    if missing:
        raise NotAPackError(f"{path}: columns missing: {', '.join(missing)}")
    shapes = {name: columns[name].shape for name in required}
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    samples, files = sizes.get("image/offset", 0), sizes["file_bytes"]
    expected = dict.fromkeys((*PER_SAMPLE, "key_order"), (samples,)) | {
        "key_offsets": (samples + 1,), "key_data": (sizes.get("key_data", 0),),
        "file_bytes": (files,), "file_digest": (files, 32),
        "file_path_offsets": (files + 1,), "file_path_data": (sizes["file_path_data"],),
    }  # fmt: skip
    for name, codes in required.items():
        if shapes[name] != expected[name] or columns[name].dtype not in codes:
            raise NotAPackError(
                f"{path}: column {name} is {columns[name].dtype} {shapes[name]}, "
                f"expected {' or '.join(codes)} {expected[name]}"
            )
    label = columns.get("label")
    if label is not None and not (
        label.shape[:1] == (samples,)
        and (label.dtype.str, len(label.shape)) in (("<i8", 1), ("<f4", 2), ("<i8", 2))
    ):
        raise NotAPackError(f"{path}: column label is {label.dtype} {label.shape}")
    if "image/offset" in required:
        _check_optional(columns, samples, path)


def _check_optional(columns: dict[str, Column], samples: int, path: Path) -> None:
    """Check the columns of further fields, of boxes, metadata and splits."""
    boxes = columns["boxes"].shape[0] if "boxes" in columns else 0
    expected: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {
        "split": ((samples,), ("u1",)),
        "meta_offsets": ((samples + 1,), ("<i8",)),
        "meta_data": (columns["meta_data"].shape[:1] if "meta_data" in columns else (), ("u1",)),
        "box_offsets": ((samples + 1,), ("<i8",)),
        "seek_offsets": ((samples + 1,), ("<i8",)),
        "seek_data": (columns["seek_data"].shape[:1] if "seek_data" in columns else (), ("u1",)),
        "boxes": ((boxes, 4), ("<f4",)),
    }
    codes = OF_VALUES | OF_PIXELS
    for name, column in columns.items():
        field, slash, part = name.partition("/")
        if slash and field == "boxes":
            expected[name] = (boxes,), ("<i8",) if part == "labels" else ("<i8", "<f4")
        elif slash and part in codes:
            expected[name] = (samples,), (codes[part],)
        elif name not in expected:
            continue
        wanted, dtypes = expected[name]
        if column.shape != wanted or column.dtype not in dtypes:
            raise NotAPackError(
                f"{path}: column {name} is {column.dtype} {column.shape}, "
                f"expected {' or '.join(dtypes)} {wanted}"
            )
    for starts, data in RAGGED.items():  # of the keys both are required anyway
        if (data in columns) != (starts in columns):
            raise NotAPackError(f"{path}: only one of the columns {data} and {starts} is there")
