"""Runs the code blocks of a Markdown page, in the order in which they are printed.

Blocks of ``python`` make one program. Of blocks of ``console``, the lines that begin with ``$ ``
are one script of bash; other lines of them are what the commands print. Blocks of ``text`` and
``diff`` do not run.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import types

REPOSITORY = pathlib.Path(__file__).parents[2]
_BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run(page: pathlib.Path, folder: pathlib.Path) -> int:
    """Run a page's blocks in the working directory, which is the folder; tell how many they are."""
    text = page.read_text()
    program = types.ModuleType("page")
    found = list(_BLOCK.finditer(text))
    for block in found:
        line = text[: block.start(2)].count("\n")
        if block[1] == "python":
            code = compile("\n" * line + block[2], page.name, "exec")
            exec(code, vars(program))  # noqa: S102 (our own pages)
        else:
            _in_bash(block[2], f"{page.name}:{line}", folder)
    return len(found)


def _in_bash(block: str, where: str, folder: pathlib.Path) -> None:
    commands = re.findall(r"^\$ (.*)$", block, re.MULTILINE)
    programs = folder / ".programs"
    if not programs.exists():
        programs.mkdir()
        for name, arguments in (("packio", " -m packio"), ("python", "")):
            (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{arguments} "$@"\n')
            (programs / name).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(map(str, [folder, REPOSITORY])),
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(commands)], cwd=folder, env=environment,
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{where}: {done.stdout}{done.stderr}"
