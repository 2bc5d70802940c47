"""`packio pack`: its exit codes, and a line or a few on stderr for whatever goes wrong."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import cli_runs
import numpy as np
import pytest
from cli_runs import run_on_terminal
from made import image_tree
from PIL import Image

import packio
from packio import registry
from packio.storage import workshop

if TYPE_CHECKING:
    from collections.abc import Callable

# Reads nothing until the run is stopped, so an interrupt never comes too late.
_READING_LATE = """
import threading
from packio.cli import main
from packio.packing.run import reading, shards
stopped, stop, read = threading.Event(), shards.Tally.stop, reading._read_chunk
shards.Tally.stop = lambda self: (stop(self), stopped.set())
reading._read_chunk = lambda *arguments: (stopped.wait(), read(*arguments))[1]
main()
"""
run = functools.partial(cli_runs.run, "pack")
run_process = functools.partial(cli_runs.run_process, "pack")


def one_line(done: cli_runs.Done, code: int) -> str:
    """What a command said that failed with this exit code, on one line."""
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("packio: ")
    return line


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """400 images that take twice their bytes in LMDB, for they need a second page each."""
    root = tmp_path_factory.mktemp("many") / "source"
    for i in range(400):
        path = root / f"c{i % 3}" / f"{i}.bmp"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((40, 52), i % 256, np.uint8)).save(path)
    return root


def _write(path: pathlib.Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def test_a_pack_is_made_and_summed_up(image_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    done = run(image_folder, tmp_path / "x.lmdb")
    assert (done.returncode, done.stderr) == (0, "")
    digest = packio.open(tmp_path / "x.lmdb").digest
    assert re.search(r"x\.lmdb: 25 images in 3 classes, .* img/s", done.stdout)
    assert done.stdout.endswith(f"digest {digest}\n")
    again = run(image_folder, tmp_path / "x.lmdb")
    assert (again.returncode, again.stdout) == (0, f"{tmp_path}/x.lmdb: up to date (25 images)\n")


def test_json_has_the_whole_report(image_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    source = shutil.copytree(image_folder, tmp_path / "source")
    _write(source / "nature" / os.fsdecode(b"bad\xff\n.jpg"), b"")
    done = run(source, tmp_path / "x.lmdb", "--json", "--on-error", "skip")
    said = json.loads(done.stdout)
    assert done.returncode == 0
    assert (said["found"], said["packed"], said["classes"]) == (26, 25, 3)
    assert said["skipped"] == [
        {"key": "nature/bad\udcff\n.jpg", "reason": "empty: 0 bytes, expected an image"}
    ]
    assert said["out"] == str(tmp_path / "x.lmdb")
    assert said["skipped_file"] == str(tmp_path / "x.lmdb.skipped.jsonl")
    assert said["digest"] == packio.open(tmp_path / "x.lmdb").digest
    assert not said["up_to_date"]
    assert json.loads(run(source, tmp_path / "x.lmdb", "--json", "--on-error", "skip").stdout)[
        "up_to_date"
    ]


def test_quiet_says_nothing(image_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    done = run(image_folder, tmp_path / "x.lmdb", "-q")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(packio.open(tmp_path / "x.lmdb")) == 25


def test_every_option_does_something(image_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    run(image_folder, tmp_path / "x.lmdb")
    (tmp_path / "classes.txt").write_text("zebra\npeople\nnature\nmachines\n")
    options = ("--classes-from", tmp_path / "classes.txt", "--num-workers", "1")
    assert run(image_folder, tmp_path / "x.lmdb", *options).returncode == 73
    assert run(image_folder, tmp_path / "x.lmdb", *options, "--overwrite").returncode == 0
    assert packio.open(tmp_path / "x.lmdb").classes == ["zebra", "people", "nature", "machines"]
    assert run(image_folder, tmp_path / "named").returncode == 2
    assert run(image_folder, tmp_path / "named", "--format", "lmdb").returncode == 0
    assert packio.open(tmp_path / "named").metadata["format"] == "lmdb"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("{missing}", "{out}"), 65, "expected a folder of class folders"),
        (("{source}", "{out}.unknown"), 2, "names no format"),
        (("{source}", "{out}", "--format", "zip"), 2, "no format named 'zip'"),
        (("{source}", "{source}/x.lmdb"), 2, "lies within the source"),
        (("{source}/nature", "{source}"), 2, "lies within"),
        (("{source}", "{file}/x.lmdb"), 73, "Not a directory"),
        (("{source}", "{file}"), 73, "exists and is no finished pack"),
        (("{source}", "{folder}"), 73, "exists and is no finished pack"),
        (("{source}", "{folder}", "--overwrite"), 73, "is not overwritten"),
        (("{source}", "{out}", "--classes-from", "{missing}"), 65, "does not exist"),
    ],
)
def test_what_cannot_be_is_one_line_and_leaves_nothing(
    image_folder: pathlib.Path,
    tmp_path: pathlib.Path,
    arguments: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    _write(tmp_path / "file.lmdb", b"")
    _write(tmp_path / "folder.lmdb/file", b"")
    format_ = {
        "source": image_folder, "missing": tmp_path / "missing", "out": tmp_path / "x.lmdb",
        "file": tmp_path / "file.lmdb", "folder": tmp_path / "folder.lmdb",
    }  # fmt: skip
    if code == 2 and "{source}" in arguments[1]:  # into the source
        format_["source"] = shutil.copytree(image_folder, tmp_path / "source.lmdb")
    before = sorted(tmp_path.rglob("*"))
    assert message in one_line(run(*(a.format(**format_) for a in arguments)), code)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("arguments", [(), ("x",), ("a", "b", "c"), ("a", "b", "--unknown")])
def test_wrong_usage_is_exit_code_2(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")


def test_bad_images_are_listed_on_stderr(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    source = shutil.copytree(image_folder, tmp_path / "source")
    _write(source / "nature/zero.jpg", b"")
    _write(source / "people" / os.fsdecode(b"new\nline\xff.jpg"), b"no image")
    done = run(source, tmp_path / "x.lmdb")
    assert (done.returncode, done.stdout) == (65, "")
    head, *listed = done.stderr.splitlines()
    assert "bad samples: 2" in head
    assert "--on-error skip" in head
    assert [line.split(": ")[0] for line in listed] == [
        "  nature/zero.jpg", "  people/new\\nline\\udcff.jpg",
    ]  # fmt: skip
    lines = (tmp_path / "x.lmdb.skipped.jsonl").read_text().splitlines()
    assert [json.loads(line)["key"] for line in lines] == [
        "nature/zero.jpg", "people/new\nline\udcff.jpg",
    ]  # fmt: skip
    assert sorted(os.listdir(tmp_path)) == ["source", "x.lmdb.skipped.jsonl"]
    done = run(source, tmp_path / "x.lmdb", "--on-error", "skip")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"2 of 27 skipped, listed in {tmp_path}/x.lmdb.skipped.jsonl" in done.stdout


def test_time_zone_locale_and_folder_change_no_byte(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    source = shutil.copytree(image_folder, tmp_path / "source")
    shutil.copy(source / "nature/tiny.jpg", source / "nature" / os.fsdecode(b"caf\xe9.jpg"))
    shutil.copy(source / "nature/tiny.jpg", source / "nature/é.jpg")
    base = {"PATH": os.environ["PATH"]}
    places: list[tuple[dict[str, str], pathlib.Path, str]] = [
        ({"TZ": "UTC", "LC_ALL": "C"}, tmp_path, "source"),
        ({"TZ": "Asia/Kathmandu", "LC_ALL": "C.utf8"}, source, "../source"),
        ({"LC_ALL": "POSIX", "PYTHONHASHSEED": "3"}, pathlib.Path("/"), str(source)),
    ]
    made = []
    for i, (environment, folder, name) in enumerate(places):
        out = tmp_path / f"{i}.lmdb"
        done = run_process(name, out, env=base | environment, cwd=folder)
        assert done.returncode == 0, done.stderr
        made.append({p.name: p.read_bytes() for p in out.iterdir()})
    assert made[0] == made[1] == made[2]


SUFFIXES = [
    module.caps.suffixes[0]
    for module in (registry.load("formats", name) for name in registry.names("formats"))
    if module.caps.writes
]
_TIMES = {"1970": 0, "2038": 2**31, "2100": 4_102_444_800}  # seconds


@pytest.mark.long
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_no_container_keeps_when_or_where_it_was_made(suffix: str, tmp_path: pathlib.Path) -> None:
    environments: list[tuple[str, dict[str, str], int]] = [
        ("1970", {"TZ": "America/St_Johns", "LC_ALL": "C"}, 0o022),
        ("2038", {"TZ": "Pacific/Kiritimati", "LC_ALL": "C.utf8", "PYTHONHASHSEED": "7"}, 0o077),
        ("2100", {"TZ": "UTC", "PYTHONHASHSEED": "8", "SOURCE_DATE_EPOCH": "1"}, 0o000),
    ]
    made = []
    for number, (year, environment, mask) in enumerate(environments):
        source = image_tree(tmp_path / year / "source", 12, 3, most=500, seed=4)
        for path in source.rglob("*.png"):
            os.utime(path, (_TIMES[year], _TIMES[year]))
        out = tmp_path / year / f"out{suffix}"
        options = ("--shards", "2", "--num-workers", str(1 + number % 2))
        environment["PATH"] = os.environ["PATH"]
        done = run_process(source, out, *options, env=environment, umask=mask)
        assert done.returncode == 0, done.stderr
        made.append({
            str(p.relative_to(out.parent)): p.read_bytes()
            for p in out.parent.rglob("*") if p.is_file() and source not in p.parents
        })  # fmt: skip
    assert made[0] == made[1] == made[2]


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_a_name_that_the_terminal_lacks_is_said_somehow(
    image_folder: pathlib.Path, tmp_path: pathlib.Path, encoding: str
) -> None:
    name = "café\n.lmdb"
    done = run(image_folder, name, cwd=tmp_path, encoding=encoding)
    assert (done.returncode, done.stderr) == (0, "")
    assert "25 images" in done.stdout
    assert os.listdir(os.fsencode(tmp_path)) == [os.fsencode(name)]


def test_the_loser_of_two_ends_at_once(image_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with workshop.open_workshop(tmp_path / "x.lmdb"):
        said = one_line(run_process(image_folder, tmp_path / "x.lmdb"), 75)
    assert "another packio is packing into it" in said


def _started(
    *arguments: pathlib.Path | str, until: Callable[[], bool], code: str | None = None
) -> subprocess.Popen[str]:
    command = cli_runs.PACKIO if code is None else [sys.executable, "-c", code]
    process = subprocess.Popen(
        [*command, "pack", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while not until() and process.poll() is None:
        time.sleep(0.001)
    return process


@pytest.mark.parametrize("delay", [0, 0.005, 0.02])
def test_an_interrupt_ends_in_three_lines_at_most_and_leaves_nothing(
    tmp_path: pathlib.Path, delay: float
) -> None:
    out = tmp_path / "x.lmdb"
    for i in range(3):
        _write(tmp_path / f"s/c/{i}.bmp", b"")
        Image.new("L", (1, 1)).save(tmp_path / f"s/c/{i}.bmp")
    shop = tmp_path / "x.lmdb.packio-tmp"
    process = _started(tmp_path / "s", out, until=shop.exists, code=_READING_LATE)
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    said, complained = process.communicate(timeout=600)
    assert process.returncode == 130
    assert said == ""
    assert complained == "packio: interrupted; to go on, run the same command again\n"
    assert sorted(os.listdir(tmp_path)) == ["s"]
    assert run(tmp_path / "s", out).returncode == 0
    assert sorted(os.listdir(tmp_path)) == ["s", "x.lmdb"]


def test_a_bar_is_drawn_on_a_terminal_only(many: pathlib.Path, tmp_path: pathlib.Path) -> None:
    code, said = run_on_terminal("pack", many, tmp_path / "x.lmdb")
    assert code == 0
    assert "400/400" in said
    assert "publishing" in said
    assert "\x1b[2K" in said.rpartition("400/400")[2]  # and wiped away
    code, said = run_on_terminal("pack", many, tmp_path / "y.lmdb", "--quiet")
    assert (code, said) == (0, "")


def test_an_error_under_a_bar_is_a_whole_line(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    source = shutil.copytree(image_folder, tmp_path / "source")
    _write(source / "nature/zero.jpg", b"")
    code, said = run_on_terminal("pack", source, tmp_path / "x.lmdb")
    assert code == 65
    assert "Traceback" not in said
    assert "bad samples: 1" in said
    assert said.endswith("nature/zero.jpg: empty: 0 bytes, expected an image\r\n")


def test_elsewhere_progress_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    from packio.cli import _output
    from packio.system.progress import Progress

    with _output.ProgressLine() as line:
        line(Progress(10, 40, 10, 40_000_000, 0, 2.0))
        line._shown -= 60  # as if the last line had been a minute ago
        line(Progress(20, 40, 20_000_000, 40_000_000, 3, 2.0, "checking"))
        line(Progress(30, 40, 30_000_000, 40_000_000, 3, 3.0, "checking"))
        line._shown -= 60
        line(Progress(12_000, 0, 0, 0, 0, 3.0, "listing"))
    assert capsys.readouterr().err == (
        "checking 20/40 (50%), 10 img/s, 10 MB/s, 3 bad\nlisting, 12,000 files so far\n"
    )


def test_a_bar_counts_what_is_listed_and_begins_anew(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from packio.cli import _output
    from packio.system.progress import Progress

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for name, value in {"TERM": "xterm", "COLUMNS": "100", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    with _output.ProgressLine() as line:
        assert line._bar is not None
        line(Progress(12_000, 0, 0, 0, 0, 3.0, "listing"))
        line._bar.refresh()
        listing = capsys.readouterr().err
        line(Progress(10, 12_500, 10_000_000, 40_000_000, 0, 5.0))
        line._bar.refresh()
        reading = capsys.readouterr().err
    assert "listing" in listing
    assert "12000/? files so far" in listing
    assert "10/12500" in reading
    assert "files so far" not in reading.rpartition("reading")[2]


def _can(*command: str) -> bool:
    try:
        return (
            subprocess.run(command, check=False, capture_output=True, timeout=600).returncode == 0
        )
    except OSError:
        return False


_MOUNTS = _can("unshare", "-m", "true")
_STRACE = _can("strace", "-f", "--seccomp-bpf", "-e", "inject=rename:error=EIO", "true")
needs_mounts = pytest.mark.skipif(not _MOUNTS, reason="mounting needs root and unshare")
needs_strace = pytest.mark.skipif(not _STRACE, reason="strace is missing or may not trace")

_ON_A_SMALL_DISK = """
mount -t tmpfs -o size=$1 tmpfs "$2" || exit 99
shift
out=$1; shift
"$@" 2>"$out.log"; echo $? >"$out.code"; ls -A "$out" >"$out.left"
mount -o remount,size=64m "$out"
"$@" 2>>"$out.log" || exit 98
ls -A "$out" >"$out.after"
"""


@needs_mounts
@pytest.mark.parametrize("size", ["1m", "1600k", "8k"])
def test_a_full_disk_is_one_line_and_leaves_nothing(
    many: pathlib.Path, tmp_path: pathlib.Path, size: str
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["unshare", "-m", "sh", "-c", _ON_A_SMALL_DISK, "sh", size, str(disk)]
    done = run_process(many, disk / "x.lmdb", before=command)
    if done.returncode == 99:
        pytest.skip("no tmpfs may be mounted")
    assert done.returncode == 0, done.stderr
    said = (tmp_path / "disk.log").read_text()
    assert (tmp_path / "disk.code").read_text() == "74\n", said
    assert len(said.splitlines()) == 1
    assert said.startswith("packio: ")
    assert "make room" in said
    assert (tmp_path / "disk.left").read_text() == ""
    assert (tmp_path / "disk.after").read_text() == "x.lmdb\n"


def _traced(
    tmp_path: pathlib.Path, expression: list[str], *arguments: str | pathlib.Path
) -> tuple[cli_runs.Done, str]:
    """Run `packio pack` under strace; return also what strace says."""
    options = [option for part in expression for option in ("-e", part)]
    # --seccomp-bpf is much faster, and injects no signals
    fast = [] if any("signal=" in part for part in expression) else ["--seccomp-bpf"]
    before = ["strace", "-f", *fast, "-qq", "-y", "-o", f"{tmp_path}/trace", *options]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = run_process(*arguments, before=before, env=environment)
    return done, (tmp_path / "trace").read_text()


@needs_strace
def test_all_is_on_the_disk_before_it_gets_its_name(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = tmp_path / "x.lmdb"
    done, trace = _traced(tmp_path, ["trace=fsync,rename"], image_folder, out)
    assert done.returncode == 0
    before, renamed, after = trace.rpartition(f'"{out}.packio-tmp/pack", "{out}"')
    assert renamed
    synced = re.findall(r"fsync\(\d+<([^>]*)>", before)
    for name in ("", "/data.mdb", "/labels.tsv", "/index.packio"):
        assert f"{out}.packio-tmp/pack{name}" in synced
    assert str(tmp_path) in re.findall(r"fsync\(\d+<([^>]*)>", after)


@needs_strace
@pytest.mark.parametrize(
    "fault",
    [
        "fsync:error=EIO:when=1", "fsync:error=ENOSPC:when=3", "fsync:error=EIO:when=2",
        "rename:error=EIO:when=1", "rename:error=ENOSPC:when=2", "pwrite64:error=EIO:when=1",
        "pwrite64:error=ENOSPC:when=2", "writev:error=EIO:when=1", "mkdir:error=EROFS:when=1",
        "mkdir:error=ENOSPC:when=2", "flock:error=ENOLCK:when=1",
    ],
)  # fmt: skip
def test_a_write_that_fails_is_one_line_and_no_pack(
    image_folder: pathlib.Path, tmp_path: pathlib.Path, fault: str
) -> None:
    (tmp_path / "out").mkdir()
    expression = [f"trace={fault.partition(':')[0]}", f"inject={fault}"]
    done, trace = _traced(tmp_path, expression, image_folder, tmp_path / "out/x.lmdb")
    assert "(INJECTED)" in trace
    assert done.returncode in (73, 74), done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("packio: ")
    left = os.listdir(tmp_path / "out")
    if left == ["x.lmdb"]:  # it was published, and syncing the folder it is in failed
        assert "fsync" in fault
        assert len(packio.open(tmp_path / "out/x.lmdb")) == 25
    else:  # nothing, or a finished shard, from which the next run goes on
        assert left in ([], ["x.lmdb.packio-tmp"])
    assert run(image_folder, tmp_path / "out/x.lmdb").returncode == 0
    assert os.listdir(tmp_path / "out") == ["x.lmdb"]
