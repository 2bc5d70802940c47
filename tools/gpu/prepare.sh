#!/usr/bin/env bash
# Collects, as wheels, what a machine with an NVIDIA GPU and no network lacks to run packio's checks.
#
#   tools/gpu/prepare.sh FOLDER [PYTHON] [MB]
#
# PYTHON is the version there (3.12), which has PyTorch and torchvision for CUDA 13, pytest with
# pytest-xdist, h5py and scikit-image. packio's own wheel is for any Python 3. A wheel larger than MB
# (60), for lines that carry no larger file, is cut into pieces. All are about 500 MB, which takes
# some minutes. Copy the repository and FOLDER there, in as many turns as you need, and run there:
# tools/gpu/run.sh FOLDER OUT
set -euo pipefail
folder="$(realpath -m "${1:?FOLDER, for the wheels}")"
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
version="${2:-3.12}"
largest="${3:-60}"
mkdir -p "$folder"
platforms=()
for glibc in 2_17 2_24 2_27 2_28 2_31 2_34 2014; do
    [ "$glibc" = 2014 ] && name=manylinux2014 || name="manylinux_$glibc"
    platforms+=(--platform "${name}_x86_64")
done
download() {
    python3 -m pip download --quiet --disable-pip-version-check --only-binary=:all: \
        --python-version "$version" --implementation cp "${platforms[@]}" --dest "$folder" "$@"
}
echo "making the wheel of packio"
python3 -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$folder" .
echo "downloading wheels for Python $version"
download --no-deps simplejpeg lmdb google-crc32c isal  # of packio's, what PyTorch's friends lack
echo "downloading DALI"
download nvidia-dali-cuda130
rm -f "$folder"/numpy-*.whl  # PyTorch there has one
find "$folder" -name '*.whl' -size "+${largest}M" | while read -r wheel; do
    split --bytes "${largest}M" --numeric-suffixes "$wheel" "$wheel."
    rm "$wheel"
done
ls -l "$folder"
