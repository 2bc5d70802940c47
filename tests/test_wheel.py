"""The wheel: built with and without a C compiler, checked by auditwheel, installed and run."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

_ROOT = pathlib.Path(__file__).parents[1]
_COMPILER = os.environ.get("CC", "cc").split()[0]
_CORE = "packio/images/native/_core.so"
# Nothing of the repository is seen but what was installed.
_ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


class _Built(NamedTuple):
    """A wheel, and what was said while it was built."""

    wheel: pathlib.Path
    said: str


pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], _Built]:
    """Builds the wheel with a compiler, each one once."""
    wheels: dict[str, _Built] = {}

    def build(compiler: str) -> _Built:
        if compiler not in wheels:
            wheels[compiler] = _build(tmp_path_factory.mktemp("wheel"), compiler)
        return wheels[compiler]

    return build


def _build(folder: pathlib.Path, compiler: str) -> _Built:
    source, out = folder / "source", folder / "out"
    source.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(_ROOT / name, source)
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(_ROOT / "packio", source / "packio", ignore=ignored)
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-v", "--no-index", "--no-deps",
         "--no-build-isolation", "-w", str(out), str(source)],
        env=_ENVIRONMENT | {"CC": compiler}, check=False, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    (wheel,) = out.iterdir()
    return _Built(wheel, done.stdout)


def _system(wheel: pathlib.Path, folder: pathlib.Path) -> str:
    """What `packio info --system` says where a wheel is installed, with the packages of here."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "packages_of_here.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    python = folder / "bin" / "python"
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-index",
         "--no-deps", "--ignore-installed", str(wheel)],
        check=True, env=_ENVIRONMENT,
    )  # fmt: skip
    where = [str(python), "-c", "import packio; print(packio.__file__)"]
    found = subprocess.run(
        where, check=True, capture_output=True, text=True, cwd=folder, env=_ENVIRONMENT
    )
    assert found.stdout.startswith(str(site))
    command = [str(folder / "bin" / "packio"), "info", "--system"]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=folder, env=_ENVIRONMENT
    )
    return next(line for line in done.stdout.splitlines() if "native core" in line)


needs_a_compiler = pytest.mark.skipif(
    shutil.which(_COMPILER) is None, reason="there is no C compiler"
)


@needs_a_compiler
def test_with_a_compiler_it_is_of_this_platform_and_any_python(
    built: Callable[[str], _Built],
) -> None:
    wheel = built(_COMPILER).wheel
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert wheel.name.endswith(f"-py3-none-{platform}.whl")
    assert _CORE in zipfile.ZipFile(wheel).namelist()


@needs_a_compiler
def test_auditwheel_takes_it(built: Callable[[str], _Built]) -> None:
    pytest.importorskip("auditwheel")
    command = [sys.executable, "-m", "auditwheel", "show", str(built(_COMPILER).wheel)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert '"manylinux_2_' in done.stdout or '"musllinux_' in done.stdout


@needs_a_compiler
def test_with_a_compiler_the_core_runs(
    built: Callable[[str], _Built], tmp_path: pathlib.Path
) -> None:
    assert "yes" in _system(built(_COMPILER).wheel, tmp_path)


def test_without_a_compiler_one_line_says_what_is_lost(built: Callable[[str], _Built]) -> None:
    wheel, said = built("/bin/false")
    (line,) = (line for line in said.splitlines() if "native core" in line)
    assert "packio gets no native core, and is slower" in line
    assert wheel.name.endswith("-py3-none-any.whl")
    assert _CORE not in zipfile.ZipFile(wheel).namelist()


def test_without_a_compiler_it_runs_and_says_why_it_is_slower(
    built: Callable[[str], _Built], tmp_path: pathlib.Path
) -> None:
    said = _system(built("/bin/false").wheel, tmp_path)
    assert "no: it was not compiled when packio was installed" in said
