#!/usr/bin/env bash
# Compare RecordIO files with those of mxnet 1.9.1, byte for byte, both ways. mxnet is no longer
# maintained and wants numpy 1.23 and Python 3.11 or older, so it gets an environment of its own.
#
#     tools/interop_mxnet.sh [FOLDER]     the environment's; made if missing, 300 MB
#
# PYTHON is the interpreter that has packio's dependencies, PYTHON_OLD one of 3.8 to 3.11.
set -euo pipefail

repository=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:-$(mktemp -d)}
python=${PYTHON:-python}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ ! -x "$folder/bin/python" ]; then
    "${PYTHON_OLD:-python3.11}" -m venv "$folder"
    "$folder/bin/pip" install --quiet 'numpy==1.23.5' 'mxnet==1.9.1'
fi

# The same records for both, label and image.
cat > "$work/records.py" <<'PYTHON'
import random
import struct

MAGIC = struct.pack("<I", 0xCED7230A)


def records():
    rng = random.Random(1)
    found = []
    for i in range(300):
        pieces = [rng.choice((MAGIC, b"", rng.randbytes(rng.randrange(9)), bytes(4)))
                  for _ in range(rng.randrange(40))]
        label = rng.choice((i, -i, 2**24, [rng.random() for _ in range(rng.randrange(1, 6))]))
        found.append((label, b"".join(pieces)))
    magic_label = struct.unpack("<f", MAGIC)[0]
    return [*found, (3, b""), (4, MAGIC), ([magic_label, 1.0], b"image"), ([0.0, magic_label], MAGIC)]
PYTHON

cat > "$work/theirs.py" <<'PYTHON'
import sys

import mxnet
from records import records

name = sys.argv[1]
out = mxnet.recordio.MXIndexedRecordIO(f"{name}.idx", f"{name}.rec", "w")
for i, (label, image) in enumerate(records()):
    out.write_idx(i, mxnet.recordio.pack(mxnet.recordio.IRHeader(0, label, i, 0), image))
out.close()

ours = mxnet.recordio.MXIndexedRecordIO(sys.argv[2] + ".idx", sys.argv[2] + ".rec", "r")
for i, (label, image) in enumerate(records()):
    header, found = mxnet.recordio.unpack(ours.read_idx(i))
    labels = [label] if isinstance(label, int) else label
    there = [header.label] if isinstance(header.label, float) else header.label.tolist()
    assert found == image, i
    assert header.id == i, i
    assert [mxnet.np.float32(v) for v in labels] == there, (i, labels, there)
print(f"mxnet {mxnet.__version__} reads all {len(ours.keys)} records")
PYTHON

cat > "$work/ours.py" <<'PYTHON'
import sys
from pathlib import Path

import numpy as np
from records import records

from packio.formats import Record, recordio

path = Path(sys.argv[1])
if not path.exists():
    writer = recordio.Writer(path)
    writer.add([Record(image, label if isinstance(label, int) else np.array(label, np.float32), b"k")
                for label, image in records()])
    writer.close()
whole = path.read_bytes()
split = 0
for entry, (label, image) in zip(recordio.scan(path), records(), strict=True):
    raw = whole[entry.offset : entry.offset + entry.length]
    assert (recordio.unsplit(raw) if entry.split else raw) == image, entry
    expected = label if isinstance(label, int) else tuple(np.array(label, np.float32).tolist())
    assert entry.label == expected, entry
    split += entry.split
print(f"packio reads {path.name}, {split} records of it split")
PYTHON

export PYTHONPATH="$work:$repository"
"$python" "$work/ours.py" "$work/ours.rec"
PYTHONPATH="$work" "$folder/bin/python" "$work/theirs.py" "$work/theirs" "$work/ours"
"$python" "$work/ours.py" "$work/theirs.rec"
cmp "$work/ours.rec" "$work/theirs.rec"
cmp "$work/ours.idx" "$work/theirs.idx"
echo "the same bytes"
