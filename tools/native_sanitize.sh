#!/bin/sh
# Fuzz the native core with GCC's sanitizers for addresses and undefined behaviour.
#
#     tools/native_sanitize.sh [RUNS [SEED]]     1000000 and 1 if none are given
#
# tools/native_fuzz.c says what is checked. PYTHON is an interpreter that has packio's dependencies
# and scikit-image; it makes the JPEGs that the fuzzer begins with. CFLAGS are added; -O2 is worth its
# compiling for a million runs and more.
set -eu

repository=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

PYTHONPATH="$repository" "${PYTHON:-python}" "$repository/tools/native_jpegs.py" "$work"

cd "$repository"
gcc -std=gnu11 -g -O1 -Wall -fno-omit-frame-pointer -ffp-contract=off ${CFLAGS:-} \
    -fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=all -DWALKER_BYTES=80 \
    -Wl,--wrap=packio_reserve -o "$work/native_fuzz" \
    tools/native_fuzz.c packio/images/native/*.c
# Freed memory is kept from use for some runs, not for thousands: page faults took a third of the time.
ASAN_OPTIONS="quarantine_size_mb=16${ASAN_OPTIONS:+:$ASAN_OPTIONS}" \
    "$work/native_fuzz" "$work" "${1:-1000000}" "${2:-1}"
