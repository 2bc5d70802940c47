"""Standard output that is closed, full or left by its reader; and names that are no text."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

import packio

PACKIO = [sys.executable, "-m", "packio"]


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory, image_folder: pathlib.Path) -> pathlib.Path:
    return packio.pack(image_folder, tmp_path_factory.mktemp("streams") / "x.tar").out


def _in_shell(
    line: str, *arguments: str | bytes | pathlib.Path
) -> subprocess.CompletedProcess[bytes]:
    """Run a line of bash; in it, "$@" is packio with these arguments."""
    return subprocess.run(
        ["bash", "-c", line, "bash", *PACKIO, *arguments], check=False, capture_output=True
    )


@pytest.mark.parametrize("command", ["info", "ls", "verify", "warm"])
def test_a_closed_output_is_no_error(command: str, pack: pathlib.Path) -> None:
    done = _in_shell('"$@" >&-', command, pack)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_files_are_whole_though_streams_are_closed(
    closed: str, pack: pathlib.Path, image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """A file that took the place of a closed stream would get what is printed there."""
    done = _in_shell(f'"$@" {closed}', "pack", image_folder, tmp_path / "x.tar")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "x.tar").read_bytes() == pack.read_bytes()


def test_a_closed_output_takes_the_bytes_of_cat_nowhere(pack: pathlib.Path) -> None:
    done = _in_shell('"$@" >&-', "cat", pack, "--at", "0")
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("arguments", [["--help"], ["pack", "--help"], ["--version"]])
def test_help_into_head_ends_in_silence(arguments: list[str]) -> None:
    done = _in_shell('"$@" | true; exit ${PIPESTATUS[0]}', *arguments)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [["info"], ["ls"], ["verify"], ["--help"], ["--version"]])
def test_a_full_output_is_named(arguments: list[str], pack: pathlib.Path) -> None:
    target = [] if arguments[0].startswith("-") else [pack]
    done = _in_shell('"$@" > /dev/full', *arguments, *target)
    assert done.returncode == 74
    assert done.stderr == b"packio: standard output: No space left on device\n"


def test_a_path_that_is_no_text_is_shown_by_its_bytes(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = bytes(tmp_path) + b"/p\xff.tar"
    made = _in_shell('"$@"', "pack", image_folder, out)
    shown = _in_shell('"$@"', "info", out)
    gone = _in_shell('"$@"', "info", out + b"\xfe")
    assert made.stdout.split(b":")[0].endswith(rb"p\xff.tar")
    assert shown.stdout.splitlines()[0].endswith(rb"p\xff.tar")
    assert rb"p\xff.tar\xfe: does not exist" in gone.stderr
