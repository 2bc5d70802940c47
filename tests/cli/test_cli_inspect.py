"""`packio info`, `ls` and `cat`: what they say is what the pack holds, whatever the keys are."""

from __future__ import annotations

import base64
import collections
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest
from cli_runs import PACKIO, run, run_on_terminal, run_process
from PIL import Image

import packio
from packio.cli import _output, contents
from packio.index import indexfile
from packio.index.columns import join_values
from packio.inspecting import info

NAMES = {
    "newline": b"new\nline.png",
    "tab": b"tab\there.png",
    "carriage return": b"back\rover.png",
    "terminal escape": b"\x1b[31mred.png",
    "backslash": b"back\\nslash.png",
    "not UTF-8": b"latin-\xe9\xff.png",
    "half a character": b"half-\xe2\x82.png",
    "NFC": "é.png".encode(),
    "NFD": "e\u0301.png".encode(),
    "255 bytes": b"x" * 251 + b".png",
    "emoji": "👩\u200d🔬🎉.png".encode(),
    "right to left": "a\u202egnp.png".encode(),
    "line separator": "a\u2028b.png".encode(),
    "looks like an option": b"--help.png",
    "markup": b"[bold]x[.png",
    "spaces": b"  two  spaces  .png",
}
_LINE = re.compile(rb" *(\d+)  (\S+) +(\d+) +(\d+)x(\d+)  (\w+) +(\d+)  (.*)")


def _png(width: int, height: int) -> bytes:
    pixels = np.random.default_rng(width * height).integers(0, 256, (height, width, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, dict[bytes, bytes]]:
    """A pack of files with difficult names, and what each of them holds."""
    root = tmp_path_factory.mktemp("named")
    files = {b"odd/" + name: _png(i + 1, 3) for i, name in enumerate(NAMES.values())}
    files[b"plain/one.png"] = _png(5, 7)
    for key, data in files.items():
        path = os.path.join(os.fsencode(root), b"source", key)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
    packio.pack(root / "source", root / "named.lmdb")
    return root / "named.lmdb", files


@pytest.fixture(scope="module")
def long_pack(tmp_path_factory: pytest.TempPathFactory, image_folder: pathlib.Path) -> pathlib.Path:
    """A pack whose index says that it has 100,000 samples."""
    out = tmp_path_factory.mktemp("long") / "long.lmdb"
    packio.pack(image_folder, out, seek_points=False)
    keys = [b"c/%06d.jpg" % i for i in range(100_000)]
    with packio.open(out) as pack:
        index, samples = pack.index_file, len(pack)
        columns = {name: index.column(name).array() for name in index.column_names}
        rows = np.arange(len(keys)) % samples
        columns |= {n: a[rows] for n, a in columns.items() if len(a) == samples and a.ndim == 1}
        columns["key_data"], columns["key_offsets"] = join_values(keys)
        columns["key_order"] = np.arange(len(keys), dtype=np.uint32)
        metadata = pack.metadata
        metadata["shards"][0]["samples"] = len(keys)
    indexfile.write(out / "index.packio", columns, metadata)
    return out


def _unescaped(text: bytes) -> bytes:
    """Read what `ls` writes: an own, independent reader."""
    single = {b"\\\\": b"\\", b"\\n": b"\n", b"\\t": b"\t", b"\\r": b"\r"}
    return re.sub(
        rb"\\x([0-9a-f]{2})|\\[\\ntr]",
        lambda m: bytes([int(m[1], 16)]) if m[1] else single[m[0]],
        text,
    )


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_ls_shows_every_key_exactly_on_one_line(
    named: tuple[pathlib.Path, dict[bytes, bytes]], encoding: str
) -> None:
    pack, files = named
    done = run("ls", pack, encoding=encoding)
    assert (done.returncode, done.stderr) == (0, "")
    found = []
    for line in done.stdout.encode(encoding).removesuffix(b"\n").split(b"\n"):
        match = _LINE.fullmatch(line)
        assert match, line
        assert line.decode(encoding).isprintable()
        key = _unescaped(match[8].decode(encoding).encode())
        width, height = Image.open(io.BytesIO(files[key])).size
        assert match.group(3, 4, 5, 6) == (
            b"%d" % len(files[key]), b"%d" % width, b"%d" % height, b"png",
        )  # fmt: skip
        found.append(key)
    with packio.open(pack) as opened:
        assert found == [opened.key_bytes(i) for i in range(len(opened))]
    assert set(found) == set(files)


def test_ls_shows_no_two_keys_alike() -> None:
    names = [b"a\nb", b"a\\nb", b"a\\x0ab", b"\xff", b"\\xff", b"\\", b"\\\\"]
    assert len({_output.escape(name, "utf-8") for name in names}) == len(names)


def test_ls_tsv_has_the_bytes_of_each_sample_where_it_says(
    named: tuple[pathlib.Path, dict[bytes, bytes]],
) -> None:
    pack, files = named
    lines = run("ls", pack, "--tsv").stdout.encode().removesuffix(b"\n").split(b"\n")
    heading = lines[0].decode().split("\t")
    assert len(lines) == 1 + len(files)
    for line in lines[1:]:
        row = dict(zip(heading, line.split(b"\t"), strict=True))
        container = (pack / os.fsdecode(row["file"])).read_bytes()
        offset, size = int(row["offset"]), int(row["bytes"])
        assert container[offset : offset + size] == files[_unescaped(row["key"])]


def test_ls_json_keys_survive_a_round_trip(
    named: tuple[pathlib.Path, dict[bytes, bytes]],
) -> None:
    pack, files = named
    entries = [json.loads(line) for line in run("ls", pack, "--json").stdout.splitlines()]
    assert {os.fsencode(e["key"]) for e in entries} == set(files)
    encoded = {base64.b64decode(e["key_base64"]) for e in entries if "key_base64" in e}
    assert encoded == {b"odd/" + NAMES["not UTF-8"], b"odd/" + NAMES["half a character"]}


def test_ls_filters_by_class_and_stops_at_the_limit(pack: pathlib.Path) -> None:
    def listed(*options: str) -> list[dict[str, Any]]:
        said = run("ls", pack, "--json", *options).stdout
        return [json.loads(line) for line in said.splitlines()]

    everything = listed()
    people = [e for e in everything if e["class"] == "people"]
    assert 0 < len(people) < len(everything)
    assert listed("--class", "people") == people
    assert listed("--class", "people", "--limit", "2") == people[:2]
    assert listed("--limit", "0") == []


def test_ls_of_an_unknown_class_is_refused_with_names_near(pack: pathlib.Path) -> None:
    done = run("ls", pack, "--class", "peple")
    assert done.returncode == 2
    assert "people" in done.stderr


_SHORT_OF_MEMORY = """
import os, resource, sys
import packio.cli
from typer.testing import CliRunner
CliRunner().invoke(packio.cli.build("verify"), sys.argv[1:])  # imports all that the command needs
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * os.sysconf("SC_PAGE_SIZE") + (8 << 20)  # less than a thread needs
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
packio.cli.main()
"""


def test_without_memory_it_ends_in_a_line(pack: pathlib.Path) -> None:
    command = [sys.executable, "-c", _SHORT_OF_MEMORY, "verify", str(pack)]
    done = subprocess.run(command, check=False, capture_output=True, timeout=600)
    assert done.returncode == 74
    assert re.fullmatch(rb"packio: memory ran out; [^\n]*\n", done.stderr)


def test_ls_into_head_ends_in_silence(long_pack: pathlib.Path) -> None:
    command = [*PACKIO, "ls", str(long_pack)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().endswith(b"c/000000.jpg\n")
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


def test_ls_lists_a_long_pack_in_little_memory(long_pack: pathlib.Path) -> None:
    with packio.open(long_pack) as pack:
        tracemalloc.start()
        try:
            count = sum(1 for _ in contents._aligned(pack, info.list_samples(pack)))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert count == 100_000
    assert peak < 8 << 20  # bytes; the lines together have 8 million


def test_cat_gives_every_sample_by_its_key(
    named: tuple[pathlib.Path, dict[bytes, bytes]],
) -> None:
    pack, files = named
    for key, data in files.items():
        done = run("cat", pack, key)
        assert (done.returncode, os.fsencode(done.stdout), done.stderr) == (0, data, "")


def test_cat_gives_a_sample_by_its_index(
    named: tuple[pathlib.Path, dict[bytes, bytes]],
) -> None:
    pack, files = named
    with packio.open(pack) as opened:
        key = opened.key_bytes(3)
    assert os.fsencode(run("cat", pack, "--at", "3").stdout) == files[key]
    assert run("cat", pack, "--at", str(len(files))).returncode == 65
    assert run("cat", pack, "--at", "three").returncode == 2


@pytest.mark.parametrize(
    ("asked", "suggested"),
    [
        ("plain/One.png", "plain/one.png"),
        ("one.png", "plain/one.png"),
        ("plan/one.png", "plain/one.png"),
        ("odd/new line.png", "odd/new\\nline.png"),
        ("3", "--at"),
    ],
)
def test_cat_of_an_unknown_key_suggests_those_near(
    named: tuple[pathlib.Path, dict[bytes, bytes]], asked: str, suggested: str
) -> None:
    done = run("cat", named[0], asked)
    assert (done.returncode, done.stdout) == (65, "")
    assert suggested in done.stderr


def test_cat_refuses_a_terminal_unless_forced(
    named: tuple[pathlib.Path, dict[bytes, bytes]],
) -> None:
    pack, files = named
    code, said = run_on_terminal("cat", pack, "plain/one.png")
    assert code == 2
    assert "--force" in said
    assert "PNG" not in said
    code, said = run_on_terminal("cat", pack, "plain/one.png", "--force")
    assert code == 0
    assert files[b"plain/one.png"][:4] == os.fsencode(said)[:4]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_cat_to_a_full_disk_is_an_error(named: tuple[pathlib.Path, dict[bytes, bytes]]) -> None:
    with open("/dev/full", "wb") as full:
        done = run_process("cat", named[0], "plain/one.png", stdout=full)
    assert done.returncode == 74
    assert "No space left" in done.stderr


def test_info_counts_what_is_in_the_folder(pack: pathlib.Path, image_folder: pathlib.Path) -> None:
    said = json.loads(run("info", pack, "--json").stdout)
    files = [p for p in image_folder.rglob("*") if p.is_file()]
    images = [Image.open(io.BytesIO(p.read_bytes())) for p in files]
    sizes = [p.stat().st_size for p in files]
    per_class = collections.Counter(p.relative_to(image_folder).parts[0] for p in files)
    assert said["samples"] == len(files)
    assert said["bytes"] == sum(sizes)
    assert said["counts"] == {"found": len(files), "packed": len(files), "skipped": 0}
    assert said["classes"] == {"count": len(per_class), "names": sorted(per_class)}
    assert said["sizes"]["bytes"] == _spread(sizes)
    assert said["sizes"]["width"] == _spread([i.width for i in images])
    assert said["sizes"]["height"] == _spread([i.height for i in images])
    assert said["encodings"] == collections.Counter(str(i.format).lower() for i in images)
    assert said["oriented"] == sum(i.getexif().get(0x112, 1) != 1 for i in images)
    assert said["progressive"] == sum("progressive" in i.info for i in images)
    assert said["labels"]["samples_per_class"] == _spread(list(per_class.values()))
    assert said["index"]["bytes"] == (pack / "index.packio").stat().st_size
    for entry in said["files"]:
        assert (pack / entry["path"]).stat().st_size == entry["bytes"]


def _spread(values: list[int]) -> dict[str, float]:
    return {"min": min(values), "median": float(np.median(values)), "max": max(values)}


def test_info_says_what_buckets_get_and_cut_away(pack: pathlib.Path) -> None:
    """As the sampler counts; tests/datasets/test_bucket_batches.py checks that."""
    sizes = [(96, 64), (80, 80), (64, 96), (200, 10)]
    ds = packio.LmdbDataset(pack, crop=packio.BucketCrop())
    counted = packio.BucketSampler(ds, sizes, batch_size=1).buckets
    text = ",".join(f"{h}x{w}" for h, w in sizes)
    said = json.loads(run("info", pack, "--buckets", text, "--json").stdout)["buckets"]
    for bucket, own in zip(said["sizes"], counted, strict=True):
        assert (tuple(bucket["size"]), bucket["images"]) == (own.size, own.images)
        assert bucket["enlarged"] == own.enlarged
        lost = [bucket["lost_mean"], bucket["lost_worst"]]
        assert lost == pytest.approx([own.lost_mean, own.lost_worst], abs=1e-3)
    assert said["all"]["images"] == sum(own.images for own in counted) == 25
    means = [own.lost_mean * own.images for own in counted]
    assert said["all"]["lost_mean"] == pytest.approx(sum(means) / 25, abs=1e-3)
    plain = run("info", pack, "--buckets", text).stdout
    assert "1 size without an image" in plain
    assert f"{counted[1].images} images, lost " in plain
    coloured = run("info", pack, "--buckets", "area=6400,step=16", terminal=True)
    assert coloured.returncode == 0
    assert "80x80" in coloured.stdout
    for wrong in ("80", "area=x", "80x80,area=4", "area=100"):
        assert run("info", pack, "--buckets", wrong).returncode == 2


def test_info_is_plain_text_in_a_pipe_and_coloured_on_a_terminal(
    pack: pathlib.Path,
) -> None:
    done = run("info", pack)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    code, coloured = run_on_terminal("info", pack)
    assert code == 0
    for text in ("samples", "25", "progressive", "nature", "machines"):
        assert text in done.stdout
        assert text in coloured


def test_info_of_no_pack_says_so(tmp_path: pathlib.Path) -> None:
    done = run("info", tmp_path)
    assert done.returncode == 65
    assert "no index, and no container that packio knows" in done.stderr


@pytest.mark.parametrize(
    ("command", "more"),
    [
        ("info", ()), ("ls", ()), ("cat", ("{key}",)), ("verify", ("-q",)),
        ("view", ("-o", "{folder}/sheet.html")), ("extract", ("{folder}/out",)),
        ("convert", ("{folder}/out.h5",)), ("doctor", ("--seconds", "1", "--workers", "0")),
        ("export", ("{folder}/out.parquet",)), ("find-duplicates", ()),
    ],
)  # fmt: skip
def test_commands_that_read_take_an_index_that_is_elsewhere(
    command: str, more: tuple[str, ...], tmp_path: pathlib.Path, image_folder: pathlib.Path
) -> None:
    packio.pack(image_folder, tmp_path / "x.tar")
    key = packio.open(tmp_path / "x.tar").key(3)
    elsewhere = tmp_path / "elsewhere" / "moved.packio"
    elsewhere.parent.mkdir()
    (tmp_path / "x.tar.packio").rename(elsewhere)
    rest = [text.format(folder=tmp_path, key=key) for text in more]
    words, env = [command, tmp_path / "x.tar", *rest], {"PACKIO_CACHE_DIR": f"{tmp_path}/cache"}
    done = run(*words, "--index", elsewhere, env=env)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "cache" / "indexes").exists()  # nobody has made another index
    if command == "cat":
        assert os.fsencode(done.stdout) == (image_folder / key).read_bytes()
    if command == "convert":
        assert len(packio.open(tmp_path / "out.h5")) == 25
    if command == "info":
        missing = run(*words, "--index", "nowhere", env=env)
        assert missing.returncode == packio.errors.NotAPackError.exit_code
        assert "no such index" in missing.stderr
