#!/usr/bin/env bash
# Runs packio's checks on a machine with an NVIDIA GPU, without a network; at most 13 minutes.
#
#   tools/gpu/run.sh FOLDER OUT [PART…]
#
# FOLDER is what tools/gpu/prepare.sh made. PARTs are tests, benchmark and doctor; none: all. Each has
# a time limit of its own; doctor reads the pack of benchmark. Results come into OUT as they are found:
# gpu.json, and a log for each part.
set -uo pipefail
folder="$(realpath -m "${1:?FOLDER, of the wheels}")"
out="$(realpath -m "${2:?OUT, for the results}")"
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
parts="${*:3}"
site="${TMPDIR:-/tmp}/packio-gpu"
mkdir -p "$out" "$site"
for piece in "$folder"/*.whl.00; do
    [ -e "$piece" ] && cat "${piece%00}"* > "${piece%.00}"
done
export PYTHONPATH="$site/site:." PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1  # the wheel is first
python3 -m pip install --quiet --no-index --no-deps --no-compile --upgrade --target "$site/site" \
    "$folder"/*.whl || exit 1
python3 -c 'import torch; print(torch.__version__, torch.cuda.get_device_name())' || exit 1
for part in ${parts:-tests benchmark doctor}; do
    began=$SECONDS
    case "$part" in
        tests) grep --recursive --files-with-matches --null 'mark\.gpu' tests --include '*.py' \
            | timeout 150 xargs -0 python3 -P -m pytest -m gpu -q -n 8 --dist loadfile \
                -p no:cacheprovider -p no:benchmark ;;  # which warns of xdist
        benchmark) timeout 560 python3 benchmarks/gpu.py --folder "$site" --out "$out/gpu.json" ;;
        doctor) timeout 60 python3 -P -m packio doctor "$site/plain.tfrecord" --json --quiet ;;
        *) echo "$part: expected tests, benchmark or doctor" >&2; exit 2 ;;
    esac > "$out/$part.log" 2>&1
    echo "$part: exit status $?, $((SECONDS - began)) s; $(tail -n 1 "$out/$part.log" | cut -c 1-200)"
done
