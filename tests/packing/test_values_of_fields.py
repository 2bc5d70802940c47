"""Where values of an added field come from: what tables, folders and mappings may say, and how."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys
import time
from typing import Any

import numpy as np
import pytest
from cli_runs import run

import packio
from packio.cli.fields import import_function
from packio.errors import BadImagesError, OptionError, SourceError
from packio.system.progress import Progress

KEYS = ["cats/1.jpg", "cats/2.jpg", "dogs/3.jpg"]
CAPTIONS = ["a cat, asleep", 'a "cat"\nof two lines', "café"]
TABLE = """key,caption
cats/1.jpg,"a cat, asleep"
cats/2.jpg,"a ""cat""
of two lines"
dogs/3.jpg,café
"""


@pytest.fixture
def pack(tmp_path: pathlib.Path) -> pathlib.Path:
    pixels = np.zeros((8, 8, 3), np.uint8)
    packio.pack([{"image": pixels, "key": key} for key in KEYS], tmp_path / "x.tar")
    return tmp_path / "x.tar"


def _captions(pack: pathlib.Path) -> list[str]:
    with packio.open(pack) as opened:
        return [sample.fields["caption"].data.decode() for sample in opened]


@pytest.mark.parametrize(
    "text",
    [
        TABLE,
        "\ufeff" + TABLE,
        TABLE.replace("key,caption", "Key, Caption "),
        TABLE.replace("key,caption", "File Name,CAPTION"),
        TABLE.replace(".jpg,", ","),
        TABLE.replace("key,caption\n", "key;caption\n").replace(".jpg,", ".jpg;"),
        TABLE.replace("\ncats/2", "\n\ncats/2").replace("\n", "\r\n").replace('"\r\nof', '"\nof'),
    ],
)
def test_a_csv_is_read_as_a_csv_that_is_packed_is(pack: pathlib.Path, text: str) -> None:
    table = pack.with_name("captions.csv")
    table.write_bytes(text.encode())
    packio.add_field(pack, "caption", table)
    assert _captions(pack) == [caption.replace("\n", "\r\n") if "\r\nof" in text else caption
                               for caption in CAPTIONS]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.csv", b"key,caption\ncats/1.jpg,a cat, asleep\n", "2: 3 cells; expected 2.*quotes"),
        ("x.csv", b"key,caption\ncats/1.jpg\n", "2: 1 cells; expected 2"),
        ("x.csv", b"key,caption\ncats/1.jpg,caf\xe9\n", "2: .* is not utf-8; save"),
        ("x.csv", b"\xff\xfek\0e\0y\0", "no UTF-8 text"),
        ("x.csv", b"", "nothing in it"),
        ("x.csv", b"key,caption\n", "no line below"),
        ("x.csv", b"cats/1.jpg,a cat\n", "first line names no columns"),
        ("x.csv", b"id,text\n1,a cat\n", "has the columns id, text; expected caption"),
        ("x.csv", b"key,caption\na,1\na,2\n", "3: 'a' is there twice"),
        ("x.csv", b"key,caption\n,1\n", "2: '' as key; expected the key"),
        ("x.jsonl", b'{"key": "a", "caption": "b"}\n{oops\n', "2: no JSON object"),
        ("x.jsonl", b'"a"\n', "1: no JSON object"),
        ("x.jsonl", b"3\n", "1: no JSON object"),
        ("x.jsonl", b'{"caption": "b", "path": null}\n', "1: None as key; expected the key"),
        ("x.jsonl", b'{"key": "a", "caption": ["b", "c"]}\n', "1: a list that is no array"),
        ("x.jsonl", b'{"key": "a", "caption": [[1, 2], [3]]}\n', "1: a list that is no array"),
        ("x.jsonl", b'{"key": "a", "caption": ["x"]}\n', "1: a list that is no array"),
        ("x.jsonl", b'{"key": "a", "caption": [1, null]}\n', "1: a list that is no array"),
        ("x.jsonl", b'{"key": "a", "caption": [1e300]}\n', "too large"),
        ("x.jsonl", b'{"key": true, "caption": "b"}\n', "1: True as key"),
        ("x.jsonl", b'{"key": "a", "caption": "b"}\n{"caption": "c"}\n', "2: None as key"),
        ("x.csv", b"key,caption,caption\na,1,2\n", "two columns are called 'caption'; rename one"),
        ("x.csv", b"key,caption\na," + b"x" * 200_000, "2: field larger than field limit"),
        ("x.csv", b"key,caption\nx/1.jpg,b\n", "values have 'x/1.jpg'; samples have 'cats/1.jpg'"),
        ("x.jsonl", b'{"key": 1, "caption": "b"}\n', "values have '1'; samples have"),
    ],
)
def test_a_table_that_is_none_is_refused_with_its_line(
    pack: pathlib.Path, name: str, content: bytes, said: str
) -> None:
    table = pack.with_name(name)
    table.write_bytes(content)
    with pytest.raises(SourceError, match=f"(?s){said}"):
        packio.add_field(pack, "caption", table, missing=True)


def test_rows_of_json_may_lack_what_others_have(pack: pathlib.Path) -> None:
    table = pack.with_name("x.jsonl")
    rows: list[dict[str, Any]] = [{"key": KEYS[0]}, {"key": KEYS[1], "caption": "b"}]
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert packio.add_field(pack, "caption", table, missing=True).missing == 2


def test_the_whole_key_wins_over_the_key_without_its_ending(tmp_path: pathlib.Path) -> None:
    pixels, out = np.zeros((8, 8, 3), np.uint8), tmp_path / "x.tar"
    packio.pack([{"image": pixels, "key": key} for key in ("a", "a.jpg", "b.png")], out)
    report = packio.add_field(out, "caption", {"a": "1", "a.jpg": "2", "b": "3", "c": "4"})
    assert _captions(out) == ["1", "2", "3"]
    assert report.unused == ("c",)
    assert packio.add_field(out, "only", {"a": "1"}, missing=True).missing == 2


@pytest.mark.parametrize(("kept", "reason"), [(0, "EOF"), (20, "EOF|header"), (140, "bytes for")])
def test_a_file_that_is_cut_off_is_named_with_its_size(
    pack: pathlib.Path, kept: int, reason: str
) -> None:
    latents = pack.with_name("latents")
    for key in KEYS:
        path = (latents / key).with_suffix(".npy")
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, np.zeros((4, 8)))
    cut = latents / "cats" / "2.npy"
    cut.write_bytes(cut.read_bytes()[:kept])
    with pytest.raises(BadImagesError, match=reason) as caught:
        packio.add_field(pack, "latent", latents)
    assert f"({cut}, {kept:,} bytes)" in str(caught.value)
    assert str(caught.value).count("no array in the .npy format") == 1


def test_arrays_of_several_shapes_are_counted_and_told(pack: pathlib.Path) -> None:
    arrays = [np.zeros((4, 8), np.float16), np.zeros((4, 8), np.float16), np.zeros(3)]
    report = packio.add_field(pack, "latent", dict(zip(KEYS, arrays, strict=True)))
    assert report.shapes == {"(4, 8) float16": 2, "(3,) float64": 1}
    rows = [{"key": key, "v": [1, 2]} for key in KEYS]
    table = pack.with_name("x.jsonl")
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "v (array, (2,) int64) of 3 samples" in run("add", pack, "--field", f"v={table}").stdout
    rows[1]["v"] = [1, 2, 3]
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = run("add", pack, "--field", f"v={table}", "--overwrite").stdout
    assert "(2,) int64: 2\n  (3,) int64: 1\n" in said


def test_progress_moves_before_a_task_ends(pack: pathlib.Path) -> None:
    seen: list[Progress] = []

    def slow(sample: packio.Sample) -> str:
        while sample.index == 2 and not any(0 < p.done < 3 for p in seen):
            time.sleep(0.01)  # as long as it takes until the first two are told
        return "x"

    packio.add_field(pack, "caption", slow, progress=seen.append)
    assert {p.done for p in seen if p.stage == "reading"} >= {2, 3}


def test_ctrl_c_ends_a_task_at_the_next_row_and_the_next_run_goes_on(pack: pathlib.Path) -> None:
    called: list[str] = []

    def interrupting(sample: packio.Sample) -> str:
        called.append(sample.key)
        if len(called) == 1:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.5)  # the main thread learns of it meanwhile
        return sample.key

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # main() sets another one
    try:
        with pytest.raises(KeyboardInterrupt):
            packio.add_field(pack, "name", interrupting)
    finally:
        signal.signal(signal.SIGINT, before)
    assert called == KEYS[:1]
    with pytest.raises(OptionError):
        packio.drop_field(pack, "nmae")
    with pytest.raises(OptionError):
        packio.add_field(pack, "image", interrupting)
    assert packio.add_field(pack, "name", interrupting).resumed == 1
    assert called == KEYS


def process_of(_: packio.Sample) -> str:
    """The process that made a value."""
    time.sleep(0.3)  # as long as the other worker needs to take the next
    return str(os.getpid())


def test_a_small_pack_keeps_all_workers_busy(tmp_path: pathlib.Path) -> None:
    pixels, out = np.zeros((8, 8, 3), np.uint8), tmp_path / "x.tar"
    packio.pack([{"image": pixels, "key": f"{i}"} for i in range(12)], out)
    packio.add_field(out, "by", process_of, workers=2)
    with packio.open(out) as pack:
        makers = {sample.fields["by"].data for sample in pack}
    assert len(makers) == 2
    assert str(os.getpid()).encode() not in makers


def test_bytes_of_a_replaced_field_that_stay_are_told(tmp_path: pathlib.Path) -> None:
    pixels, out = np.zeros((8, 8, 3), np.uint8), tmp_path / "x.tar"
    packio.pack(
        [{"image": pixels, "key": "a", "caption": "four"}], out, fields={"caption": "caption"}
    )
    assert packio.add_field(out, "caption", {"a": "better"}, overwrite=True).remaining == 4
    assert packio.add_field(out, "caption", {"a": "best"}, overwrite=True).remaining == 0


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("torch.zeros(3, dtype=torch.bfloat16)", "bfloat16.*half"),
        ("(1, 'a')", "an array of <U21; expected numbers"),
        ("sample.nothing", "AttributeError.*at .*my_makers.py:5"),
    ],
)
def test_a_function_that_gives_no_value_is_told_where(
    pack: pathlib.Path, monkeypatch: pytest.MonkeyPatch, value: str, said: str
) -> None:
    text = f"import torch\n\n\ndef make(sample):\n    return {value}\n"
    pack.with_name("my_makers.py").write_text(text)
    monkeypatch.syspath_prepend(str(pack.parent))
    monkeypatch.delitem(sys.modules, "my_makers", raising=False)
    with pytest.raises(BadImagesError, match=said):
        packio.add_field(pack, "latent", import_function("my_makers:make"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--field", "a=nowhere"], "nowhere: does not exist; expected a folder"),
        (["--field", "a=my.py:make"], "expected package.module:function, as my:make"),
        (["--field", "a=packio:__version__"], "is of type str; expected a function"),
        (["--field", "a=x.csv", "--field", "b=x.csv"], "--field a=x.csv --field b=x.csv: add one"),
        (["--field", "a=s3://b/x.csv"], "s3://b/x.csv: a URL; expected a folder or a table"),
    ],
)
def test_slips_of_the_command_line_are_told(
    pack: pathlib.Path, words: list[str], said: str
) -> None:
    done = run("add", pack, *words)
    assert done.returncode in (2, 65)
    assert said in done.stderr


def test_values_of_samples_that_have_one_are_not_called_values_of_no_sample(
    tmp_path: pathlib.Path,
) -> None:
    out, pixels = tmp_path / "x.tar", np.zeros((8, 8, 3), np.uint8)
    samples = [{"image": pixels, "key": key} for key in KEYS]
    packio.pack(samples, out, shards=2)
    captions = dict(zip(KEYS, CAPTIONS, strict=True))
    packio.add_field(out, "caption", captions)
    packio.append(out, [{"image": pixels, "key": "new/1.jpg"}])
    with pytest.raises(SourceError, match=r"needs one: values have 'cats/1.jpg'.*have 'new/1.jpg'"):
        packio.add_field(out, "caption", captions, only_new=True)
