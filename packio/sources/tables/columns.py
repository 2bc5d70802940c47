"""Columns of tables: their usual names, paths as keys, and cells as metadata."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
import os
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from packio.errors import SourceError
from packio.sample.labelling import Labels

IMAGE_NAMES = ("image", "img", "pixel_values", "jpg", "jpeg", "png", "webp", "image_bytes", "bytes")
LABEL_NAMES = (
    "label", "labels", "class", "cls", "classes", "class_name", "class_label", "category", "target",
    "targets", "class_id", "class_idx", "label_id", "fine_label", "y",
)  # fmt: skip
MASK_NAMES = (
    "mask", "segmentation_mask", "seg_mask", "segmentation", "seg_map", "semantic_mask",
    "annotation", "seg",
)  # fmt: skip


_is_odd = re.compile(r"//|/\.\.?(/|$)|/$").search  # of an absolute path
_TIMES = (dt.date, dt.time, dt.timedelta, decimal.Decimal, uuid.UUID)


def guess(columns: Iterable[str], usual: Sequence[str]) -> str | None:
    """Find the column whose name comes first in a list of usual names, in any case; or None."""
    plain: dict[str, str] = {}
    for column in columns:
        plain.setdefault(re.sub(r"[\s-]+", "_", column.strip()).lower(), column)
    return next((plain[name] for name in usual if name in plain), None)


def relative(paths: Sequence[str], root: str | os.PathLike[str]) -> tuple[str, list[bytes]]:
    """Make keys of paths; return the folder that the keys are relative to, and the keys.

    The folder is the root. If a path leads out of the root, the folder is the one that root and
    paths share. Paths are compared as text: links are not followed.
    """
    root, text = os.fspath(root), "\n".join(("", *paths, ""))
    if any(odd in text for odd in ("\n/", "\n.", "/.", "//", "/\n")):  # a tenth of a regex's time
        root = os.path.abspath(root)
        full = [path if path[:1] == "/" else os.path.join(root, path) for path in paths]
        full = [os.path.normpath(path) if _is_odd(path) else path for path in full]
        if not all(path.startswith(os.path.join(root, "")) for path in full):
            root = os.path.commonpath({root, *(path.rpartition("/")[0] or "/" for path in full)})
        skipped = len(os.path.join(root, ""))
        paths = [path[skipped:] for path in full]
    return root, [path.encode("utf-8", "surrogateescape") for path in paths]


def keys_of(paths: Sequence[Any]) -> list[bytes] | None:
    """Make keys of the paths of images; absolute paths become relative to their shared folder.

    Returns:
        None if a path is missing, leads out of its folder, or is there twice.
    """
    if not all(isinstance(path, str) and path and "\0" not in path for path in paths):
        return None
    is_absolute = all(path.startswith("/") for path in paths)
    shared = os.path.commonpath({os.path.dirname(p) for p in paths}) if is_absolute else "/-"
    root, keys = relative(paths, shared)
    return keys if root == shared and len(set(keys)) == len(keys) else None


def choice(
    table: str, role: str, column: str, label_columns: Sequence[str], found: Labels,
    fields: Mapping[str, tuple[str, str | None]], meta: Sequence[str],
) -> str:  # fmt: skip
    """Say which columns of a table were taken; `role`, "path" or "image", is that of `column`."""
    label = f"{', '.join(map(repr, label_columns))} as label"
    if not label_columns or found.values is None:
        label = "none as label" + "".join(f" ({name!r} is blank)" for name in label_columns[:1])
    elif found.classes:
        label += f" ({len(found.classes):,} classes)"
    more = "".join(f", {origin!r} as {name}" for name, (origin, _) in fields.items())
    more += f", {', '.join(map(repr, meta))} as meta" if meta else ""
    return (
        f"{table}: took column {column!r} as {role}, {label}{more}; "
        f"--{role}-col and --label-col say otherwise"
    )


def meta(values: dict[str, Any]) -> bytes:
    """Encode metadata as JSON: dates and decimals as text, NaN as null."""
    text = json.dumps(_plain(values), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, _TIMES):
        return str(value)
    if callable(getattr(value, "tolist", None)):  # numpy's and torch's
        return _plain(value.tolist())
    raise SourceError(f"{type(value).__name__} {ascii(value)[:60]}; JSON cannot hold it")
