"""What commands print of files that others made, where a shell calls them, and cut-off output."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
from cli_runs import run
from PIL import Image

import packio
import packio.cli
from packio.errors import SourceError, without_credentials

NAMES = sorted(name.replace("_", "-") for name in packio.cli.COMMANDS)
EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\x7f"
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
needs_bash = pytest.mark.skipif(not os.path.exists("/bin/bash"), reason="needs bash")


# No argument, one, a wrong one, and TAB


def test_packio_alone_shows_its_help() -> None:
    done = run()
    assert (done.returncode, done.stderr) == (2, "")
    assert "Usage: packio" in done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_each_command_bears_no_argument_and_wrong_ones(name: str, tmp_path: pathlib.Path) -> None:
    without = {"cache", "bench-decode", "bench-memory-format"}  # they need none
    for words in ([], ["missing"], ["missing", "--no-such-option"], ["--no-such-option"]):
        if name in without and not words:
            continue
        done = run(name, *words, cwd=tmp_path, env={"PACKIO_CACHE_DIR": f"{tmp_path}/cache"})
        assert done.returncode in (2, 65, 73, 74), (words, done)
        assert done.stderr.strip(), words


def test_an_unknown_command_is_refused() -> None:
    done = run("no-such-command")
    assert done.returncode == 2
    assert "no-such-command" in done.stderr


@pytest.mark.parametrize("word", ["", "l", "no-such-command"])
def test_completion_lists_commands(word: str) -> None:
    asked = {"_PACKIO_COMPLETE": "complete_bash", "COMP_WORDS": f"packio {word}", "COMP_CWORD": "1"}
    done = run(env=asked)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == [n for n in NAMES if n.startswith(word)]


@needs_bash
def test_tab_completes_in_bash(tmp_path: pathlib.Path) -> None:
    """As a shell of the user's: packio on the PATH, its completion loaded, TAB after a blank."""
    script = tmp_path / "packio"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m packio "$@"\n')
    script.chmod(0o755)
    line = (
        "source <(_PACKIO_COMPLETE=source_bash packio); COMP_WORDS=(packio ls --js); COMP_CWORD=2; "
        "_packio_completion packio; echo ${COMPREPLY[@]}"
    )
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["/bin/bash", "-c", line], env={**os.environ, "PATH": path}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("--json\n", "")


def test_python_without_docstrings_runs_packio() -> None:
    done = subprocess.run(
        [sys.executable, "-OO", "-m", "packio", "cache", "--json"], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


# Escapes


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A pack whose classes, splits, fields, metadata, keys and source would drive a terminal."""
    folder = tmp_path_factory.mktemp("evil")
    rows = []
    for number in range(4):
        Image.fromarray(np.full((30, 40, 3), 60 * number, np.uint8)).save(folder / f"{number}.jpg")
        label = ("cat", f"dog{EVIL}")[number % 2]
        rows.append({"file": f"{number}.jpg", "label": label, f"m{EVIL}": EVIL})
    import csv

    with (folder / "list.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], quoting=csv.QUOTE_ALL)
        writer.writeheader()
        writer.writerows(rows)
    shares = (("train", 0.5), (f"val{EVIL}", 0.5))
    return packio.pack(folder / "list.csv", folder / "evil.tar", split=shares).out


@pytest.mark.parametrize(
    "words",
    [
        ["info"], ["ls"], ["ls", "--tsv"], ["ls", "--json"], ["info", "--json"], ["verify"],
        ["cat", "nothing"], ["ls", "--class", "bird"], ["ls", "--split", "bird"],
        ["select", "nothing = 1", "-o", "x.selection"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_nothing_that_a_pack_holds_reaches_the_terminal_as_it_is(
    words: list[str], evil: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    done = run(words[0], evil, *words[1:], cwd=tmp_path)
    assert done.stdout + done.stderr
    assert not _CONTROLS.search(done.stdout + done.stderr), repr(done)


def test_info_escapes_what_a_coloured_terminal_shows(evil: pathlib.Path) -> None:
    done = run("info", evil, terminal=True)
    assert "\x1b]" not in done.stdout
    assert "\x07" not in done.stdout
    assert "\\x1b]0;owned\\x07" in done.stdout


def test_errors_escape_what_they_quote() -> None:
    error = SourceError(f"no class a{EVIL}; there are:\n\tb")
    assert (
        str(error) == "no class a\\x1b]0;owned\\x07\\x1b[2J\\xc2\\x9b31m\\x0d\\x7f; there are:\n\tb"
    )


def test_a_name_among_wrong_arguments_is_escaped() -> None:
    done = run("verify", "pack", EVIL)
    assert done.returncode == 2
    assert "\x1b]" not in done.stderr


def test_commands_print_by_one_function() -> None:
    """Whoever adds a command cannot pass the escaping by."""
    for path in pathlib.Path(packio.cli.__path__[0]).glob("*.py"):
        if path.name != "_output.py":
            found = re.findall(
                r"(?<![\w.])print\(|sys\.stdout\.write|typer\.secho", path.read_text()
            )
            assert not found, path.name


# Credentials


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:pw@host/a.tar", "https://host/a.tar"),
        ("https:/me:pw@host/a.tar?sig=1: gone", "https://host/a.tar: gone".replace("//", "/")),
        ("sftp://me:p@w@host/a", "sftp://host/a"),
        ("zip://a.jpg::http://u@h/x.zip?t=1", "zip://a.jpg::http://h/x.zip"),
        ("see 'https://h/x-{0..9}.tar?a=1&b=2' there", "see 'https://h/x-{0..9}.tar' there"),
        ("s3://bucket/a@b.jpg, c?d", "s3://bucket/a@b.jpg, c?d"),
        ("mail a@b, C:/x and is it?", "mail a@b, C:/x and is it?"),
    ],
)
def test_credentials_are_left_out_of_urls_and_nothing_else(text: str, shown: str) -> None:
    assert without_credentials(text) == shown
    assert str(SourceError(text)) == shown


# Output that is cut off


@needs_bash
@pytest.mark.parametrize("words", [["ls"], ["ls", "--json"], ["info"], ["cat", "--at", "0"]],
                         ids=" ".join)  # fmt: skip
def test_unbuffered_output_that_is_cut_off_is_an_error(
    words: list[str], evil: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """The file may grow to half a kilobyte: the system takes so much of one write, then no more."""
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200)); "
        "from packio.cli import main; main()"
    )
    with (tmp_path / "out").open("wb") as out:
        done = subprocess.run(
            [sys.executable, "-c", code, words[0], str(evil), *words[1:]], stdout=out,
            stderr=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": "1"}, text=True,
            check=False,
        )  # fmt: skip
    assert (tmp_path / "out").stat().st_size == 200
    assert done.returncode == 74, done.stderr
    assert done.stderr == "packio: standard output: File too large\n"
