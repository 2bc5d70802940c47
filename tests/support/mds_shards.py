"""Shards of MDS, encoded by the format's description alone."""

from __future__ import annotations

import json
import struct
from typing import Any

FIXED = {
    "int": "<q", "uint8": "<B", "uint16": "<H", "uint32": "<I", "uint64": "<Q", "int8": "<b",
    "int16": "<h", "int32": "<i", "int64": "<q", "float32": "<f",
}  # fmt: skip


def _encoded(encoding: str, value: Any) -> Any:
    if encoding in FIXED:
        return struct.pack(FIXED[encoding], value)
    if encoding in ("str", "str_int"):
        return str(value).encode()
    return json.dumps(value).encode() if encoding == "json" else value


def shard(columns: dict[str, str], samples: list[dict[str, Any]], **config: Any) -> bytes:
    """Encode a shard, independently of packio."""
    names = sorted(columns)
    sizes = [struct.calcsize(FIXED[c]) if (c := columns[n]) in FIXED else None for n in names]
    text = json.dumps({
        "version": 2, "format": "mds", "compression": None, "hashes": [], "size_limit": 1 << 26,
        "column_names": names, "column_encodings": [columns[n] for n in names],
        "column_sizes": sizes, **config,
    }, sort_keys=True).encode()  # fmt: skip
    bodies = []
    for sample in samples:
        values = [_encoded(columns[n], sample[n]) for n in names]
        lengths = [len(v) for v, size in zip(values, sizes, strict=True) if size is None]
        bodies.append(struct.pack(f"<{len(lengths)}I", *lengths) + b"".join(values))
    offsets = [4 + 4 * (len(samples) + 1) + len(text)]
    for body in bodies:
        offsets.append(offsets[-1] + len(body))
    head = struct.pack(f"<{len(offsets) + 1}I", len(samples), *offsets)
    return head + text + b"".join(bodies)
