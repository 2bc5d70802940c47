"""What every command has in common: how it is started, and that it speaks of what was typed."""

from __future__ import annotations

import inspect
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
from typing import Any

import pytest
from cli_runs import join_words, run, run_process

import packio.cli
from packio import registry
from packio.cli import _output
from packio.cli import _packing_options as group
from packio.cli._output import ProgressLine
from packio.packing.run import executors
from packio.system import quantities
from packio.system.progress import Progress


def test_help_has_no_brackets_that_rich_would_take_as_style() -> None:
    """Rich shows "pip install 'packio[query]'" as "pip install 'packio'"."""
    for name in packio.cli.COMMANDS:
        assert not re.search(r"\w\[[a-z]+\]", packio.cli.find_command(name).__doc__ or ""), name


def test_python_runs_packio_as_a_module() -> None:
    done = run_process("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"packio {packio.__version__}\n"


def test_help_lists_formats_and_sources_and_shows_no_broken_markup() -> None:
    said = join_words(run("pack", "--help").stdout)
    assert "one a CPU" in said
    assert "PACK.html" in join_words(run("view", "--help").stdout)
    assert "hdf5, lmdb, n5, pth, recordio, tar, tfrecord, zarr" in said
    assert all(name in said for name in registry.names("sources"))
    assert "<keep|srgb>" in said


@pytest.mark.parametrize(
    ("message", "typed"),
    [
        ("num_workers=0: expected at least 1", "--workers 0: expected at least 1"),
        ("part=(3, 2), finish=False: no", "--part (3, 2), no --finish: no"),
        ("on_error='quarantine', quarantine=None", "--on-error quarantine, no --quarantine"),
        ("finish=True", "--finish"),
        ("parts=[1, 2]: no", "--part 1,2: no"),
        ("part={'a': 0.5}, finish=[]: no", "--part a=0.5, no --finish: no"),
        ("quarantine=/a/b c", "--quarantine /a/b c"),
        ("say quarantine= as well; or finish=", "say --quarantine as well; or --finish"),
        ("quality=90 is not an option here", "quality=90 is not an option here"),
        ("no mask b'masks/4.png'; class 'b'", "no mask 'masks/4.png'; class 'b'"),
    ],
)
def test_a_message_speaks_of_options_and_text(message: str, typed: str) -> None:
    names = ("num_workers", "part", "finish", "on_error", "quarantine")
    options = {name: f"--{name.replace('_', '-')}" for name in names}
    options["num_workers"] = "--workers"
    assert _output.as_typed(message, options) == typed


def test_a_call_in_python_stays_as_it_is() -> None:
    told = "packio.open('a(1).lmdb', trust_plain_pickle=True), LmdbDataset(…, num_workers=1)"
    options = {"trust_plain_pickle": "--trust-plain-pickle", "num_workers": "--num-workers"}
    typed = _output.as_typed(f"num_workers=2: no 'b'; {told}; num_workers=0", options)
    assert typed == f"--num-workers 2: no 'b'; {told}; --num-workers 0"


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [(1, "sample", "1 sample"), (0, "sample", "0 samples"), (2000, "class", "2,000 classes")],
)
def test_one_is_counted_as_one(number: int, noun: str, text: str) -> None:
    assert quantities.pluralize(number, noun) == text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--part", "3/2"], "expected I/N with I from 1 to N"),
        (["--part", "x"], "expected I/N with I from 1 to N"),
        (["--part", "1/2", "--finish"], "--part writes a part"),
        (["--threads", "0"], "greater than or equal to 1"),
        (["--num-workers", "0"], "--workers 0: expected at least 1"),
        (["--shard-size", "much"], "expected a size in bytes"),
        (["--split", "train"], "expected shares"),
    ],
)
def test_a_value_that_cannot_be_is_refused_in_words_of_the_command(
    image_folder: pathlib.Path, tmp_path: pathlib.Path, options: list[str], said: str
) -> None:
    done = run("pack", image_folder, tmp_path / "x.lmdb", *options)
    assert done.returncode == 2
    assert said in join_words(done.stderr)
    assert "finish=" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_packing_goes_on_when_nobody_reads_its_progress(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    code = (
        "import sys, packio.cli._output as p; p._PLAIN_SECONDS = 0.0\n"
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

    monkeypatch.setattr("packio.cli._output._PLAIN_SECONDS", 0.0)
    monkeypatch.setattr(sys, "stderr", Broken())
    with ProgressLine() as line:
        line(Progress(0, 1, 0, 0, 0, 0.0, "reading"))


def test_info_writes_pages_only(pack: pathlib.Path, tmp_path: pathlib.Path) -> None:
    done = run("info", pack, "--plot", tmp_path / "x.png")
    assert (done.returncode, done.stdout) == (2, "")
    assert "a page is written, as info.html" in join_words(done.stderr)


OUTPUTS = {
    "pack": ("{folder}", "{out}.tar"),
    "convert": ("{pack}", "{out}.tar"),
    "extract": ("{pack}", "{out}"),
    "export": ("{pack}", "{out}.parquet"),
    "select": ("{pack}", "width > 0", "-o", "{out}.selection"),
    "reindex": ("{pack}", "--index", "{out}.packio"),
    "view": ("{pack}", "-o", "{out}.html"),
    "find-duplicates": ("{pack}", "--html", "{out}.html"),
    "replay": ("{pack}", "--steps", "0", "--epoch", "0", "--batch-size", "2", "--seed", "0",
               "--crop", "32", "--html", "{out}.html"),
    "info": ("{pack}", "--plot", "{out}.html"),
    "doctor": ("{pack}", "--html", "{out}.html"),
}  # fmt: skip


@pytest.mark.parametrize("command", OUTPUTS)
def test_an_output_in_a_folder_that_is_missing_is_told_at_once(
    command: str, pack: pathlib.Path, image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    for package in {"select": ["duckdb"], "export": ["pyarrow"]}.get(command, []):
        pytest.importorskip(package)
    copy = shutil.copytree(pack, tmp_path / "copy.lmdb")
    places = {"pack": copy, "folder": image_folder, "out": tmp_path / "no such" / "x"}
    done = run(command, *(word.format(**places) for word in OUTPUTS[command]))
    assert (done.returncode, done.stdout) == (73, "")
    assert done.stderr.count("\n") == 1  # before any work, which tells how far it is
    assert f"make it first: mkdir -p '{tmp_path}/no such'" in done.stderr


ON_DISK = {
    **{
        name: words for name, words in OUTPUTS.items() if name not in ("pack", "convert", "reindex")
    },
    "append": ("{out}.tar", "{folder}"),
    "add": ("{out}.tar", "--field", "x={folder}"),
    "drop-field": ("{out}.tar", "x"),
}


@pytest.mark.parametrize("name", ON_DISK)
def test_a_url_is_refused_where_only_disks_are_written(
    name: str, pack: pathlib.Path, image_folder: pathlib.Path
) -> None:
    places = {"pack": pack, "folder": image_folder, "out": "s3://bucket/x"}
    done = run(name, *(word.format(**places) for word in ON_DISK[name]))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("packio: s3://bucket/x")
    assert "name a file or folder on a disk" in done.stderr


@pytest.mark.parametrize("command", [n for n, words in OUTPUTS.items() if "{out}.html" in words])
def test_a_page_takes_the_place_of_no_other_file(
    command: str, pack: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    copy = shutil.copytree(pack, tmp_path / "copy.lmdb")
    notes = tmp_path / "notes.html"
    notes.write_text("import torch\n")
    words = (word.format(pack=copy, out=tmp_path / "notes") for word in OUTPUTS[command])
    done = run(command, *words)
    assert (done.returncode, done.stdout) == (73, "")
    assert done.stderr == f"packio: {notes}: is there, and no HTML page; choose another name\n"
    assert notes.read_text() == "import torch\n"


def test_doctor_checks_the_places_of_profiles_before_it_measures(
    pack: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    done = run("doctor", pack, "--profile", tmp_path / "no" / "x.prof")
    assert (done.returncode, done.stdout) == (73, "")
    assert done.stderr == (
        f"packio: {tmp_path}/no/x.prof: the folder {tmp_path}/no does not exist; "
        f"make it first: mkdir -p {tmp_path}/no\n"
    )


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("export", ["{pack}", "{out}"]),
        ("select", ["{pack}", "width > 0", "--overwrite", "-o", "{out}"]),
        ("view", ["{pack}", "-o", "{out}"]),
        ("find-duplicates", ["{pack}", "--html", "{out}"]),
    ],
)
def test_a_folder_where_a_file_should_be_made_stays(
    command: str, arguments: list[str], pack: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    suffix = {"export": ".parquet", "select": ".selection"}.get(command, ".html")
    out = tmp_path / f"folder{suffix}"
    out.mkdir()
    done = run(command, *(word.format(pack=pack, out=out) for word in arguments))
    assert (done.returncode, done.stdout) == (73, "")
    assert done.stderr.startswith(f"packio: {out}: ")
    assert out.is_dir()


@pytest.mark.parametrize(
    "arguments", [["pack", "", "x.tar"], ["extract", "{pack}", ""], ["select", "{pack}", "-o", ""]]
)
def test_an_empty_name_is_not_the_current_folder(
    arguments: list[str], pack: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """As of a variable of the shell that is not set: packio extract x.tar "$OUT" --overwrite."""
    done = run(*(word.format(pack=pack) for word in arguments), "--overwrite", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "packio: a name is empty; is a variable of the shell not set?\n"
    assert list(tmp_path.iterdir()) == []


def test_an_empty_value_of_an_option_stays_what_it_is(pack: pathlib.Path) -> None:
    done = run("info", pack, "--buckets", "")
    assert "a name is empty" not in done.stderr


def test_a_device_that_torch_does_not_know_is_refused() -> None:
    done = run("bench-memory-format", "--device", "foo")
    assert done.stderr == "packio: --device foo: expected cpu or cuda\n"
    assert done.returncode == 2


@pytest.mark.parametrize(
    ("arguments", "typed"),
    [
        (["replay", "{pack}", "--steps", "1"], "say --batch-size"),
        (["select", "{pack}", "--keys-of", "{pack}", "-o", "{out}"], "--keys-of takes a file"),
        (["merge", "{pack}", "{pack}", "-o", "{out}"], "keys by --prefix"),
        (["convert", "{pack}", "{out}.tar", "--quality", "5"], "say --encode jpeg or --resize as"),
    ],
)
def test_a_remedy_is_said_in_words_of_the_command(
    arguments: list[str], typed: str, pack: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    done = run(*(word.format(pack=pack, out=tmp_path / "x") for word in arguments))
    assert done.returncode == 2
    assert typed in done.stderr


def test_another_word_than_the_choices_is_refused_with_all_of_them(tmp_path: pathlib.Path) -> None:
    done = run("pack", tmp_path, tmp_path / "x.lmdb", "--orientation", "up")
    assert done.returncode == 2
    assert "'keep', 'bake'" in join_words(done.stderr)


def test_defaults_of_options_are_those_of_the_library() -> None:
    library = inspect.signature(packio.pack).parameters
    groups = (group.SOURCE, group.OUTPUT, group.SEEK_POINTS, group.RUN, group.PARTS)
    declared = {name: p.default for options in groups for name, p in options.items()}
    assert {name: library[name].default for name in declared} == declared


def test_only_public_names_are_offered() -> None:
    assert dir(packio) == sorted([*packio.__all__, "ops"])


def test_a_broken_plugin_is_told_of_once(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    info = tmp_path / "site" / "broken-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    points = "[packio.formats]\nbroken = no_such_module\n"
    (info / "entry_points.txt").write_text(points)
    path = os.pathsep.join([str(info.parent), *sys.path])
    env = {**os.environ, "PYTHONPATH": path}
    done = run_process("pack", image_folder, tmp_path / "x.lmdb", env=env)
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith("packio: warning: format 'broken' of the distribution broken 1.0")


def test_merging_replaces_with_overwrite(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    other = packio.pack(image_folder, tmp_path / "a.lmdb", include=["people/*"]).out
    extra = packio.pack(image_folder, tmp_path / "b.lmdb", include=["nature/*"]).out
    out = tmp_path / "x.tar"
    assert run("merge", other, extra, "-o", out).returncode == 0
    assert run("merge", extra, other, "-o", out).returncode == 73
    assert run("merge", extra, other, "-o", out, "--overwrite").returncode == 0


@pytest.fixture(scope="module")
def split_pack(tmp_path_factory: pytest.TempPathFactory, image_folder: pathlib.Path) -> Any:
    out = tmp_path_factory.mktemp("split") / "x.lmdb"
    packio.pack(image_folder, out, split={"train": 0.6, "val": 0.4})
    with packio.open(out) as opened:
        return out, {opened.key(i) for i in opened.split("val").tolist()}


def test_one_split_is_listed_extracted_and_shown(split_pack: Any, tmp_path: pathlib.Path) -> None:
    path, keys = split_pack
    lines = run("ls", path, "--split", "val", "--tsv").stdout.splitlines()[1:]
    assert {line.split("\t")[1] for line in lines} == keys
    assert run("extract", path, tmp_path / "out", "--split", "val").returncode == 0
    found = {str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").glob("*/*")}
    assert found == keys
    done = run("view", path, "-o", tmp_path / "x.html", "--split", "val")
    assert f"{len(keys)} of {len(keys)} samples" in done.stdout
    assert run("convert", path, tmp_path / "val.tar", "--split", "val").returncode == 0
    with packio.open(tmp_path / "val.tar") as opened:
        assert set(opened.keys()) == keys
        assert {opened.split_of(i) for i in range(len(opened))} == {"val"}
    done = run("ls", path, "--split", "tset")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no split 'tset'" in done.stderr


def test_merge_says_where_its_output_goes(pack: pathlib.Path, tmp_path: pathlib.Path) -> None:
    other = shutil.copytree(pack, tmp_path / "other.lmdb")
    done = run("merge", tmp_path / "all.tar", pack, other)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"packio merge {pack} {other} -o {tmp_path}/all.tar" in done.stderr
    done = run("merge", pack, other, tmp_path / "all.tar")  # as of cp, the output last
    assert f"packio merge {pack} {other} -o {tmp_path}/all.tar" in done.stderr
    third = shutil.copytree(pack, tmp_path / "third.lmdb")
    for packs in ((pack, other), (pack, other, third)):  # no pack that is there is the output
        assert "packio merge A.tar B.tar -o ALL.tar" in run("merge", *packs).stderr
    shutil.rmtree(third)
    assert {p.name for p in tmp_path.iterdir()} == {"other.lmdb"}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_that_starts_hears_no_interrupt() -> None:
    worker = executors._Worker()
    try:
        status = pathlib.Path(f"/proc/{worker._process.pid}/status").read_text()
        blocked = int(next(s for s in status.splitlines() if s.startswith("SigBlk")).split()[1], 16)
        assert blocked >> (signal.SIGINT - 1) & 1
    finally:
        worker.kill()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_quarantine_needs_its_folder_and_the_word(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    word, within = ["--on-error", "quarantine"], ["--quarantine", image_folder / "bad"]
    for options, said in (
        (word, "--on-error quarantine: say --quarantine as well, the folder for copies of bad "),
        (["--quarantine", "bad"], "--quarantine bad: say --on-error quarantine as well; now it "),
        ([*word, *within], f"{image_folder}/bad: lies within the source {image_folder}; choose"),
    ):
        done = run("pack", image_folder, tmp_path / "x.lmdb", *options)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.count("\n") == 1
        assert said in done.stderr


@pytest.mark.parametrize(
    ("source", "options", "said"),
    [
        ("tree", ["--label-sep", "|"], "it is an option of manifest: say --source manifest"),
        (
            "tree",
            ["--label-col", "x"],
            (
                "it is an option of extracted, manifest, pack, parquet, torch_dataset: "
                "say --source as well"
            ),
        ),
        ("list.csv", ["--crowd", "keep"], "it is an option of coco: say --source coco"),
    ],
)
def test_an_option_of_another_source_says_whose_it_is(
    source: str, options: list[str], said: str, image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Also where samples are appended, which nothing but the source takes options of."""
    (tmp_path / "tree").symlink_to(image_folder)
    image = next(image_folder.rglob("*.jpg"))
    (tmp_path / "list.csv").write_text(f"path,label\n{image},a\n")
    told = f"{' '.join(options)}: no option of"
    done = run("pack", tmp_path / source, tmp_path / "x.tar", *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"packio: {told} packing from ")
    assert done.stderr.endswith(f"; {said}\n")
    out = packio.pack(image_folder, tmp_path / "y.tar", shards=2).out
    done = run("append", out, tmp_path / source, *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"packio: {told} appending from ")
    assert done.stderr.endswith(f"; {said}\n")


def test_an_option_of_another_format_says_whose_it_is(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    done = run("pack", image_folder, tmp_path / "x.tar", "--values", "datum")
    assert done.returncode == 2
    assert done.stderr == (
        "packio: --values datum: no option of packing from image_folder to tar; it is an option of "
        "writing lmdb\n"
    )
