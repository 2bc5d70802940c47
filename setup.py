"""Compiles the native core, a plain library that any Python loads; see pyproject.toml for the rest.

Without a C compiler, packio is installed without the core, and works more slowly.
"""

from __future__ import annotations

import glob
import os
from typing import Any

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

_FOLDER = "packio/images/native"


class BuildCore(build_ext):
    """Builds the core under the name by which `packio.images.native` loads it."""

    def get_ext_filename(self, fullname: str) -> str:
        """The name of the file, the same for every Python."""
        return os.path.join(*fullname.split(".")) + ".so"

    def build_extension(self, ext: Extension) -> None:
        """Compile the core, or say what is lost."""
        try:
            super().build_extension(ext)
        except Exception as error:  # noqa: BLE001 (whatever a compiler does: packio works without)
            reason = str(error).splitlines()[0]
            self.warn(f"packio gets no native core, and is slower: {reason}")


class Wheel(bdist_wheel):
    """A wheel for any Python 3 on one kind of machine; for all machines if there is no core."""

    def get_tag(self) -> tuple[str, str, str]:
        """The wheel's tag."""
        folder: Any = self.bdist_dir
        self.root_is_pure = not os.path.exists(os.path.join(folder, _FOLDER, "_core.so"))
        _, _, platform = super().get_tag()
        return "py3", "none", "any" if self.root_is_pure else platform


setup(
    ext_modules=[
        Extension(
            "packio.images.native._core",
            sorted(glob.glob(f"{_FOLDER}/*.c")),
            depends=sorted(glob.glob(f"{_FOLDER}/**/*.h", recursive=True)),
            extra_compile_args=["-O3", "-fvisibility=hidden", "-ffp-contract=off"],
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildCore, "bdist_wheel": Wheel},
)
