"""Make a virtual environment for each peer, with pinned versions, by pip.

    python benchmarks/peers/install.py FOLDER [PEER ...]

FOLDER/PEER is a peer's environment; one that is whole already is left as it is. torchvision loads
only beside the build of torch that it was made for, which brings CUDA's libraries (6 GB); the other
peers that use both borrow them from FOLDER/torchvision, so that all decode and resize with the
same code. FFCV is compiled, against Debian's OpenCV and libjpeg-turbo; SPDL decodes with
FFmpeg's libraries. Where this script runs as root and there is apt-get, it installs those.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple


class Venv(NamedTuple):
    """What a peer's environment has in it."""

    packages: tuple[str, ...]
    borrows_torch: bool = False
    source: str = ""  # a package to compile here, without build isolation
    system: tuple[str, ...] = ()  # Debian's names


TORCH = ("torch===2.13.0", "torchvision==0.28.0")  # "===": not a CPU build, as 2.13.0+cpu
NUMPY, PILLOW = "numpy==2.3.5", "pillow==13.0.0"
FFCV = (
    "torch==2.13.0", NUMPY, PILLOW, "numba==0.68.1", "opencv-python-headless==5.0.0.93",
    "setuptools<81", "wheel", "pkgconfig", "assertpy", "fastargs", "pandas", "psutil",
    "terminaltables", "tqdm",
)  # fmt: skip
PACKIO = (  # what packio needs; itself it is read from this repository
    "simplejpeg==1.9.0", "lmdb==3.0.0", "google-crc32c==1.9.0", "h5py==3.16.0", "numba==0.68.1",
    "opencv-python-headless==5.0.0.93", "PyTurboJPEG==1.8.3", "safetensors", "typer", "rich",
    "isal==1.9.1",
)  # fmt: skip

VENVS = {
    "torchvision": Venv((*TORCH, "torchcodec==0.16.0", NUMPY, PILLOW, "timm==1.0.31")),
    "packio": Venv(PACKIO, borrows_torch=True),
    "webdataset": Venv(("webdataset==1.0.2",), borrows_torch=True),
    "litdata": Venv(("litdata==0.2.76",), borrows_torch=True),
    "streaming": Venv(("mosaicml-streaming==0.13.0",), borrows_torch=True),
    "ffcv": Venv(
        FFCV, source="ffcv==1.0.2", system=("libopencv-dev", "libturbojpeg0-dev", "pkg-config")
    ),
    "dali": Venv(("nvidia-dali-cuda120==2.4.0", NUMPY)),
    "turboloader": Venv(("turboloader==2.39.0", NUMPY, PILLOW)),
    "spdl": Venv(("spdl==0.8.0",), borrows_torch=True, system=("ffmpeg",)),
}


def python_of(folder: Path, peer: str) -> Path:
    """The Python of a peer's environment."""
    return folder / peer / "bin" / "python"


def install(folder: Path, peer: str) -> None:
    """Make one environment, unless it is whole."""
    venv, done = VENVS[peer], folder / peer / "complete"
    if done.exists():
        print(f"{peer}: is there")
        return
    install_system(venv.system)
    run(sys.executable, "-m", "venv", "--clear", folder / peer)
    if venv.borrows_torch:
        borrow(folder, peer)
    pip = (python_of(folder, peer), "-m", "pip")
    run(*pip, "install", "--quiet", *venv.packages)
    if venv.source:
        compile_source(pip, venv.source)
    done.touch()
    print(f"{peer}: made")


def borrow(folder: Path, peer: str) -> None:
    """Let an environment see the packages of torchvision's."""
    install(folder, "torchvision")
    owner, borrower = (site_packages(python_of(folder, name)) for name in ("torchvision", peer))
    (borrower / "torchvision_venv.pth").write_text(f"{owner}\n")


def site_packages(python: Path) -> Path:
    """Where an environment has its packages."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    done = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    return Path(done.stdout.strip())


def compile_source(pip: tuple[str | Path, ...], package: str) -> None:
    """Install a package from its source archive, with what the environment has already."""
    with tempfile.TemporaryDirectory() as folder:
        options = ("--quiet", "--no-deps", "--no-build-isolation")
        run(*pip, "download", *options, "--no-binary", ":all:", "--dest", folder, package)
        run(*pip, "install", *options, *Path(folder).iterdir())


def install_system(packages: tuple[str, ...]) -> None:
    """Install Debian packages where that can be done; else say which are needed."""
    if not packages:
        return
    if os.geteuid() or not shutil.which("apt-get"):
        print(f"needs what Debian calls {' '.join(packages)}", file=sys.stderr)
        return
    run("apt-get", "update", "-qq")
    run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages)


def run(*command: str | Path) -> None:
    """Run a command; CalledProcessError if it fails."""
    subprocess.run(command, check=True)


def main() -> None:
    """Make the environments that are named, or all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("peers", nargs="*", metavar="PEER", help=f"of {', '.join(VENVS)}")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    failed = []
    for peer in given.peers or VENVS:
        try:
            install(given.folder.resolve(), peer)
        except subprocess.CalledProcessError as error:
            print(f"{peer}: {error}", file=sys.stderr)
            failed.append(peer)
    if failed:
        sys.exit(f"not made: {', '.join(failed)}")


if __name__ == "__main__":
    main()
