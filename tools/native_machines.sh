#!/bin/sh
# Compare what the native core makes when other compilers compile it, and on other processors.
#
#     tools/native_machines.sh [RUNS [SEED]]     20000 and 1 if none are given
#
# The inputs are those of tools/native_fuzz.c, damaged ones and good ones; all builds must print the
# same digest of all outputs. A build whose compiler or emulator is absent is left out:
#
#     apt-get install clang gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
set -eu

repository=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
PYTHONPATH="$repository" "${PYTHON:-python}" "$repository/tools/native_jpegs.py" "$work"
cd "$repository"

# build NAME EMULATOR COMPILER OPTION...
build() {
    name=$1 emulator=$2 compiler=$3
    shift 3
    echo 'int main(void) { return 0; }' >"$work/one.c"
    if ! "$compiler" "$@" -o "$work/one" "$work/one.c" 2>/dev/null || ! $emulator "$work/one" 2>/dev/null; then
        echo "$name: left out, no $compiler that works${emulator:+, or no $emulator}"
        return
    fi
    "$compiler" -std=gnu11 -Wall -Wextra -Werror -ffp-contract=off "$@" -Wl,--wrap=packio_reserve \
        -o "$work/$name" tools/native_fuzz.c packio/images/native/*.c -lm
    $emulator "$work/$name" "$work" "$runs" "$seed" >"$work/$name.txt"
    echo "$name: $(cat "$work/$name.txt")"
    cmp "$work/$name.txt" "$work/first.txt" 2>/dev/null || [ ! -e "$work/first.txt" ] || failed=1
    [ -e "$work/first.txt" ] || cp "$work/$name.txt" "$work/first.txt"
}

runs=${1:-20000} seed=${2:-1} failed=0
build gcc "" gcc -O3
build gcc-few-bytes-a-walker "" gcc -O2 -DWALKER_BYTES=80
build clang "" clang -O3
build aarch64 qemu-aarch64 aarch64-linux-gnu-gcc -O3 -static
exit $failed
