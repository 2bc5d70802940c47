#!/bin/sh
# Check the decoder plugin "torchcodec" where it loads: beside PyPI's own build of torch.
#
#     tools/test_torchcodec.sh [FOLDER]
#
# Makes a virtual environment in a temporary folder, installs torch and torchcodec there (about
# 6 GB), compares the plugin's pixels to Pillow's on the JPEG and PNG files of FOLDER (default: a few
# made images), runs the contract tests, and removes the environment. TORCHCODEC_VENV=DIR keeps
# it in DIR for the next time.
set -eu

repository=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:+$(cd "$1" && pwd)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
venv=${TORCHCODEC_VENV:-$work/venv}

if [ ! -x "$venv/bin/python" ]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet torch 'torchcodec>=0.16'
fi
mkdir "$work/source"  # building in the repository would leave files there
(cd "$repository" && cp -R packio pyproject.toml README.md LICENSE "$work/source")
"$venv/bin/pip" install --quiet "$work/source" pytest pytest-timeout scikit-image scikit-learn

cd "$work"
cat >compare.py <<'PYTHON'
"""Compare torchcodec's pixels to Pillow's on a folder's images, or on made ones."""

import io
import pathlib
import sys

import numpy as np
from PIL import Image

from packio import registry
from packio.errors import DecodeError


def made():
    random = np.random.default_rng(0)
    y, x, c = np.ogrid[:123, :187, :3]
    for seed in range(8):
        waves = 128 + 70 * np.sin(x / (5 + c + seed)) + 50 * np.cos(y / (7 + seed - c))
        pixels = (waves + random.normal(0, 9, waves.shape)).clip(0, 255).astype(np.uint8)
        for kind, options in (
            *(("JPEG", {"subsampling": s, "progressive": p}) for s in (0, 1, 2) for p in (0, 1)),
            ("PNG", {}),
        ):
            buffer = io.BytesIO()
            Image.fromarray(pixels).save(buffer, kind, **options)
            yield f"{kind}{options}", buffer.getvalue()


def found(folder):
    for path in sorted(pathlib.Path(folder).rglob("*")):
        if path.suffix.lower() in (".jpg", ".jpeg", ".png"):
            yield str(path), path.read_bytes()


plugin = registry.load("decoders", "torchcodec")
pillow = registry.load("decoders", "pillow")
equal = refused = different = worst = 0
for name, data in found(sys.argv[1]) if len(sys.argv) > 1 else made():
    try:
        pixels = plugin.decode(data, "RGB")
    except DecodeError:
        refused += 1
        continue
    difference = np.abs(pixels.astype(np.int16) - pillow.decode(data, "RGB"))
    worst = max(worst, int(difference.max()))
    equal += not difference.any()
    different += bool(difference.any())
print(
    f"torchcodec {plugin.version()}: {equal} images equal to Pillow's, {different} different "
    f"(by {worst} at most), {refused} refused"
)
sys.exit(not equal or (plugin.EXACT and different))
PYTHON
"$venv/bin/python" compare.py ${folder:+"$folder"}
cd "$repository"
"$venv/bin/python" -m pytest -q -p no:cacheprovider -k torchcodec tests/images/test_decoders.py
