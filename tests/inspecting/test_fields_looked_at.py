"""Looking at named fields: `verify` checks each of them, `info` tells of each."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import os
import re
from typing import TYPE_CHECKING

import fielded
import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import packio
from packio import cli
from packio.inspecting.gallery import make_thumbnail, write_contact_sheet
from packio.inspecting.info import describe
from packio.inspecting.verifying import verify
from packio.sample.record import Facts, Field

if TYPE_CHECKING:
    import pathlib

NAMES = list(fielded.records()[0].fields)


@pytest.fixture
def pack(tmp_path: pathlib.Path) -> pathlib.Path:
    """A pack with fields of every kind."""
    return fielded.write(tmp_path / "pack")


def test_a_pack_as_it_was_written_has_no_damage(pack: pathlib.Path) -> None:
    report = verify(pack, decode=True)
    assert (report.damages, report.samples, report.ok) == ((), 6, True)


@pytest.mark.parametrize("name", NAMES)
def test_a_flipped_bit_is_told_with_the_field_and_the_key(pack: pathlib.Path, name: str) -> None:
    with packio.open(pack) as opened:
        offset = opened.index_file.column(f"{name}/offset").item(4)
        length = opened.index_file.column(f"{name}/length").item(4)
    data = bytearray((pack / "data.tar").read_bytes())
    data[offset + length - 1] ^= 4
    (pack / "data.tar").write_bytes(data)
    (damage,) = verify(pack, structure=False).damages
    assert damage.problem == ("" if name == "image" else f"{name}: ") + "CRC32C differs"
    assert (damage.position, damage.offset, damage.length) == (4, offset, length)
    assert os.fsencode(damage.key or "") == fielded.records()[4].key


@pytest.mark.parametrize(
    ("name", "kind", "data"),
    [("mask", "mask", b"no image"), ("depth", "image", b""), ("latent", "array", b"\x93NUMPY"),
     ("caption", "text", b"\xff")],
)  # fmt: skip
def test_decoding_tells_of_values_that_were_bad_when_packed(
    tmp_path: pathlib.Path, name: str, kind: str, data: bytes
) -> None:
    given = fielded.records()
    given[1] = dataclasses.replace(given[1], fields={**given[1].fields, name: Field(kind, data)})
    pack = fielded.write(tmp_path / "pack", given)
    assert verify(pack).ok
    (damage,) = verify(pack, decode=True).damages
    assert damage.position == 1
    assert damage.problem.startswith(f"{name}: does not decode: ")


def test_info_tells_of_each_field_boxes_metadata_and_splits(pack: pathlib.Path) -> None:
    with packio.open(pack) as opened:
        found = describe(opened)
    fields = found["fields"]
    assert [fields[name]["kind"] for name in NAMES] == [
        "image", "mask", "image", "text", "array", "bytes",
    ]  # fmt: skip
    assert {name: fields[name]["lacking"] for name in NAMES} == {
        **dict.fromkeys(NAMES, 0), "mask": 1, "caption": 1,
    }  # fmt: skip
    held = sum(len(r.fields["latent"].data) for r in fielded.records())
    assert fields["latent"] == {"kind": "array", "samples": 6, "lacking": 0, "bytes": held}
    assert fields["mask"]["encodings"] == {"png": 5}
    assert (found["boxes"]["count"], found["boxes"]["samples"]) == (6, 4)
    assert sorted(found["boxes"]["columns"]) == ["area", "crowd", "labels"]
    assert found["metadata"]["samples"] == 6
    assert found["splits"] == {"train": 3, "val": 3}


def test_the_command_prints_the_fields(pack: pathlib.Path) -> None:
    done = CliRunner().invoke(cli.build("info"), ["info", str(pack)])
    text = " ".join(done.stdout.split())
    assert "Fields image image, " in text
    assert ", lacking in 1" in text
    assert "boxes 6 in 4 samples, with " in text
    assert "splits train: 3, val: 3" in text
    done = CliRunner().invoke(cli.build("info"), ["info", str(pack), "--json"])
    assert json.loads(done.stdout)["fields"]["mask"]["samples"] == 5


def test_the_gallery_has_all_that_a_sample_has(pack: pathlib.Path, tmp_path: pathlib.Path) -> None:
    write_contact_sheet(pack, tmp_path / "x.html", size=16)
    text = (tmp_path / "x.html").read_text()
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text)
    assert found is not None
    samples = json.loads(found[1])["samples"]
    more = [{one["name"]: one for one in sample["more"]} for sample in samples]
    assert more[1]["split"]["text"] == "val"
    assert [m.get("boxes", {}).get("text") for m in more[:3]] == [None, "1: cat", "2: cat, dog"]
    assert json.loads(more[1]["metadata"]["text"]) == {"place": "ü", "n": 1}
    assert (more[0]["caption"]["text"], "caption" in more[3]) == ("ü 0\n", False)
    assert more[0]["latent"]["text"] == "array of float32, 4"
    assert more[0]["blob"]["text"] == "7 bytes"
    assert more[0]["depth"]["jpeg"]
    with packio.open(pack) as opened:
        ids = np.asarray(Image.open(io.BytesIO(opened.mask(0) or b"")))
    colours = np.asarray(Image.open(io.BytesIO(base64.b64decode(more[0]["mask"]["mask"]))))
    assert colours.shape == (*ids.shape, 4)
    pairs = {(int(i), tuple(c)) for i, c in zip(ids.flat, colours.reshape(-1, 4), strict=True)}
    assert len(pairs) == len(np.unique(ids))
    assert np.array_equal(colours[..., 3] == 0, ids == 0)  # an image is seen below
    assert "mask" not in more[2]


def test_the_gallery_draws_boxes() -> None:
    file = io.BytesIO()
    Image.new("RGB", (60, 40)).save(file, "PNG")
    boxes = np.array([[10, 5, 50, 30], [55, 35, 5, 2]], np.float32)  # the second one upside down
    facts = Facts("png", 40, 60, 3, "uint8", 6, progressive=False)
    drawn = Image.open(io.BytesIO(make_thumbnail(file.getvalue(), 60, facts, boxes)))
    pixels = np.asarray(drawn.convert("L"))
    assert pixels.shape == (60, 40)
    lit = np.argwhere(pixels > 60)
    assert (lit.min(0) >= (3, 2)).all()
    assert len(lit) > 100
