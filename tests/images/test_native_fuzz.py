"""The native core under a fuzzer and the compiler's sanitizers; see tools/native_fuzz.c."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_TOOLS = Path(__file__).parents[2] / "tools"
_RUNS = os.environ.get("PACKIO_NATIVE_RUNS", "20000")


def _has_sanitizers(folder: Path) -> bool:
    """Whether gcc is there, with the libraries that its sanitizers need, on x86-64."""
    (folder / "a.c").write_text('int main(void) { return __builtin_cpu_supports("avx2") < 0; }')
    if not sys.platform.startswith("linux") or not shutil.which("gcc"):
        return False
    command: list[str | Path] = ["gcc", "-fsanitize=address,undefined", "-o", folder / "a"]
    made = subprocess.run([*command, folder / "a.c"], capture_output=True, check=False)
    return made.returncode == 0 and subprocess.run([folder / "a"], check=False).returncode == 0


def test_damaged_jpegs_do_no_harm(tmp_path: Path) -> None:
    """Nothing is read or written beyond what is there; both kinds of kernels make the same."""
    if not _has_sanitizers(tmp_path):
        pytest.skip("no gcc with sanitizers for x86-64 Linux")
    environment = {**os.environ, "PYTHON": sys.executable, "TMPDIR": str(tmp_path)}
    ran = subprocess.run(
        ["sh", _TOOLS / "native_sanitize.sh", _RUNS, "1"],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    counts = [int(word) for word in ran.stdout.split() if word.isdigit()]
    assert counts[0] == int(_RUNS)
    assert int(ran.stderr.split()[-5]) > 4 * int(_RUNS)  # calls
    assert min(counts[1:4]) > int(_RUNS) // 50  # made, of other kinds, damaged
    assert min(counts[10:]) > int(_RUNS) // 50  # stored open, changed and made, changed and written


def test_other_compilers_and_processors_make_the_same(tmp_path: Path) -> None:
    """Digests of all outputs are equal; a compiler that is absent is left out."""
    if not _has_sanitizers(tmp_path):
        pytest.skip("no gcc for x86-64 Linux")
    environment = {**os.environ, "PYTHON": sys.executable, "TMPDIR": str(tmp_path)}
    ran = subprocess.run(
        ["sh", _TOOLS / "native_machines.sh", "500", "1"],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    digests = [line.partition("digest ")[2] for line in ran.stdout.splitlines() if "digest" in line]
    assert len(digests) >= 2
    assert len(set(digests)) == 1
