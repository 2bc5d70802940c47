#!/bin/sh
# Fuzz the native core with GCC's sanitizers for addresses and undefined behaviour.
#
#     tools/native_sanitize.sh [RUNS [SEED]]     1000000 and 1 if none are given
#
# tools/native_fuzz.c says what is checked. PYTHON is an interpreter that has packio's dependencies
# and scikit-image; it makes the JPEGs that the fuzzer begins with. CFLAGS are added.
set -eu

repository=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

PYTHONPATH="$repository" "${PYTHON:-python}" - "$work" <<'PYTHON'
import io, pathlib, sys

from PIL import Image
from skimage import data

from packio.images.jpeg import restarts

folder = pathlib.Path(sys.argv[1])
photos = [Image.fromarray(getattr(data, name)()) for name in ("astronaut", "coffee", "chelsea")]
SIZES = ((40, 48), (9, 17), (75, 60), (1, 1), (33, 5), (8, 130), (17, 16), (120, 90))
WAYS = ({}, {"optimize": True}, {"restart_marker_blocks": 2}, {"seekable": True})


def write(image, name, seekable=False, **options):
    held = io.BytesIO()
    image.save(held, "JPEG", **options)
    jpeg = held.getvalue()
    if seekable:
        jpeg = restarts.make_seekable(jpeg) or jpeg
    (folder / f"{name}.jpg").write_bytes(jpeg)


for number, (height, width) in enumerate(SIZES):
    photo = photos[number % 3].resize((150, 140)).crop((10, 5, 10 + width, 5 + height))
    for quality in (75, 97):
        for way, options in enumerate(WAYS):
            name = f"{number}-{quality}-{way}"
            write(photo.convert("L"), f"{name}-gray", quality=quality, **options)
            for sampling in range(3 if width > 4 else 1):
                write(photo, f"{name}-{sampling}", quality=quality, subsampling=sampling, **options)
PYTHON

cd "$repository"
gcc -std=gnu11 -g -O1 -Wall -fno-omit-frame-pointer -ffp-contract=off ${CFLAGS:-} \
    -fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=all -DWALKER_BYTES=80 \
    -Wl,--wrap=packio_reserve -o "$work/native_fuzz" \
    tools/native_fuzz.c packio/images/native/*.c
"$work/native_fuzz" "$work" "${1:-1000000}" "${2:-1}"
