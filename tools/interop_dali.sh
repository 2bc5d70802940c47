#!/usr/bin/env bash
# Check that NVIDIA DALI reads the TFRecord, RecordIO, tar and LMDB packs that packio writes, without a GPU.
#
#     tools/interop_dali.sh [FOLDER]     the environment's; made if missing, 1.5 GB
#
# PYTHON is the interpreter that has packio's dependencies; DALI gets an environment of its own.
set -euo pipefail

repository=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
folder=${1:-$work/venv}
python=${PYTHON:-python}

if [ ! -x "$folder/bin/python" ]; then
    "$python" -m venv "$folder"
fi
"$folder/bin/pip" install --quiet nvidia-dali-cuda120 'numpy>=1.26'

PYTHONPATH="$repository" "$python" "$repository/tools/interop_dali.py" write "$work/packs"
"$folder/bin/python" "$repository/tools/interop_dali.py" read "$work/packs"
