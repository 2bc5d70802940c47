#!/bin/sh
# Check that old and new versions of py-lmdb read the packs packio writes, and packio their databases.
#
#     tools/interop_lmdb.sh [VERSION...]     of py-lmdb; 1.6.2 2.1.1 2.3.0 3.0.0 if none is given
#
# PYTHON is the interpreter that has packio's dependencies; each py-lmdb gets an environment of its
# own in a temporary folder, with nothing else in it.
set -eu

repository=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${PYTHON:-python}
script=$repository/tools/interop_lmdb.py
export PACKIO_CACHE_DIR="$work/cache"

[ $# -gt 0 ] || set -- 1.6.2 2.1.1 2.3.0 3.0.0
for version; do
    "$python" -m venv "$work/$version"
    "$work/$version/bin/pip" install --quiet --disable-pip-version-check "lmdb==$version"
    mkdir "$work/packs-$version"
    PYTHONPATH="$repository" "$python" "$script" write "$work/packs-$version"
    PYTHONPATH= "$work/$version/bin/python" "$script" read "$work/packs-$version"
    PYTHONPATH="$repository" "$python" "$script" check "$work/packs-$version"
done
