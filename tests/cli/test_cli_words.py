"""What every command has in common: how it is started, and that it speaks of what was typed."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from typing import Any

import pytest

import packio
from packio.cli import _output
from packio.cli._progress import ProgressLine
from packio.system.progress import Progress

PACKIO = [sys.executable, "-m", "packio"]


def run(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PACKIO, *map(str, arguments)], check=False, capture_output=True, text=True, **options
    )


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory, image_folder: pathlib.Path) -> pathlib.Path:
    return packio.pack(image_folder, tmp_path_factory.mktemp("words") / "x.lmdb").out


def test_python_runs_packio_as_a_module() -> None:
    done = run("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"packio {packio.__version__}\n"


def test_help_shows_no_broken_markup() -> None:
    said = run("pack", "--help").stdout + run("view", "--help").stdout
    assert "one a CPU" in said
    assert "PACK.html" in said


@pytest.mark.parametrize(
    ("message", "typed"),
    [
        ("num_workers=0: expected at least 1", "--num-workers 0: expected at least 1"),
        ("part=(3, 2), finish=False: no", "--part (3, 2), no --finish: no"),
        ("on_error='quarantine', quarantine=None", "--on-error quarantine, no --quarantine"),
        ("finish=True", "--finish"),
        ("quality=90 is not an option here", "quality=90 is not an option here"),
        ("no mask b'masks/4.png'; class 'b'", "no mask 'masks/4.png'; class 'b'"),
    ],
)
def test_a_message_speaks_of_options_and_text(message: str, typed: str) -> None:
    names = ("num_workers", "part", "finish", "on_error", "quarantine")
    options = {name: f"--{name.replace('_', '-')}" for name in names}
    assert _output.as_typed(message, options) == typed


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [(1, "sample", "1 sample"), (0, "sample", "0 samples"), (2000, "class", "2,000 classes")],
)
def test_one_is_counted_as_one(number: int, noun: str, text: str) -> None:
    assert _output.counted(number, noun) == text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--part", "3/2"], "expected I/N with I from 1 to N"),
        (["--part", "x"], "expected I/N with I from 1 to N"),
        (["--part", "1/2", "--finish"], "--part writes a part"),
        (["--threads", "0"], "greater than or equal to 1"),
        (["--num-workers", "0"], "--num-workers 0: expected at least 1"),
        (["--shard-size", "much"], "expected a size in bytes"),
        (["--split", "train"], "expected shares"),
    ],
)
def test_a_value_that_cannot_be_is_refused_in_words_of_the_command(
    image_folder: pathlib.Path, tmp_path: pathlib.Path, options: list[str], said: str
) -> None:
    done = run("pack", image_folder, tmp_path / "x.lmdb", *options)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.replace("│", " ").split())
    assert "finish=" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_packing_goes_on_when_nobody_reads_its_progress(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    code = (
        "import sys, packio.cli._progress as p; p._PLAIN_SECONDS = 0.0\n"
        "from packio.cli import main; main()"
    )
    command = [sys.executable, "-c", code, "pack", str(image_folder), str(tmp_path / "x.lmdb")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(60) == 0
    assert len(packio.open(tmp_path / "x.lmdb")) == 25


def test_a_line_of_progress_that_nobody_reads_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def write(self, text: str) -> int:
            raise BrokenPipeError

        def isatty(self) -> bool:
            return False

        def fileno(self) -> int:
            raise OSError("it has no file")

    monkeypatch.setattr(sys, "stderr", Broken())
    with ProgressLine() as line:
        line(Progress(0, 1, 0, 0, 0, 0.0, "compiling"))


@pytest.mark.parametrize("options", [["--workers", "-1"], ["--threads", "0"], ["--rounds", "0"]])
def test_bench_load_refuses_impossible_numbers(pack: pathlib.Path, options: list[str]) -> None:
    done = run("bench-load", pack, *options)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["info", "bench-load"])
def test_a_plot_of_an_unknown_kind_is_refused_at_once(
    pack: pathlib.Path, tmp_path: pathlib.Path, command: str
) -> None:
    pytest.importorskip("matplotlib")
    done = run(command, pack, "--plot", tmp_path / "x.foo")
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot draw a .foo; expected one of" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_plot_that_cannot_be_written_is_one_line(
    pack: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    pytest.importorskip("matplotlib")
    done = run("info", pack, "--plot", tmp_path / "no" / "x.png")
    assert done.returncode == 73
    assert len(done.stderr.splitlines()) == 1
