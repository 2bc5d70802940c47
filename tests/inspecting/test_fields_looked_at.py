"""Looking at named fields: `verify` checks each of them, `info` tells of each."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import TYPE_CHECKING

import fielded
import pytest
from typer.testing import CliRunner

import packio
from packio import cli
from packio.inspecting.info import describe
from packio.inspecting.verifying import verify
from packio.sample.record import Field

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
