"""Named fields: every writable format, every kind, through every verb."""

from __future__ import annotations

import io
import pathlib

import latents
import made
import numpy as np
import pytest
from PIL import Image

import packio
from packio.errors import BadImagesError, OptionError
from packio.sample import fields
from packio.sample.packed import Sample
from packio.sample.record import Field


def _png(seed: int, *, deep: bool = False, classes: int = 256) -> bytes:
    draw = np.random.default_rng(seed)
    pixels = draw.integers(0, 1 << 16 if deep else classes, (9, 12)).astype(
        np.uint16 if deep else np.uint8
    )
    return made.saved(pixels)


def _value(kind: str, i: int) -> Field:
    return {
        "image": lambda: Field("image", _png(i, deep=True)),
        "mask": lambda: Field("mask", _png(i, classes=5)),
        "array": lambda: fields.encode(np.arange(i + 1, dtype=np.float32)),
        "text": lambda: fields.encode(f"caption {i} ü"),
        "bytes": lambda: Field("bytes", b"\0" * i + b"end"),
    }[kind]()


def _fields(i: int) -> dict[str, Field]:
    """A field of each kind, which every third sample lacks."""
    return {
        f"my_{kind}": _value(kind, i)
        for number, kind in enumerate(fields.KINDS) if (i + number) % 3 != 2
    }  # fmt: skip


def _samples(numbers: range) -> list[Sample]:
    return [
        Sample(i, f"{i:03d}.png", _png(100 + i), "png", i % 2, 9, 12, 1, 1, fields=_fields(i))
        for i in numbers
    ]


def _check(path: pathlib.Path, numbers: range) -> None:
    with packio.open(path) as pack:
        assert pack.fields == {"image": "image"} | {f"my_{kind}": kind for kind in fields.KINDS}
        assert len(pack) == len(numbers)
        for i in numbers:
            sample = pack.by_key(f"{i:03d}.png")
            expected = {name: field.data for name, field in _fields(i).items()}
            assert {n: f.data for n, f in sample.fields.items()} == expected
            assert sample.data == _png(100 + i)
    assert packio.verify(path).ok


@pytest.mark.parametrize("name", latents.FORMATS)
def test_fields_go_through_every_verb(name: str, tmp_path: pathlib.Path) -> None:
    a, b, whole, other = (
        tmp_path / f"{stem}{latents.suffix(name)}" for stem in ("a", "b", "whole", "other")
    )
    packio.pack(_samples(range(4)), a, shards=2)
    packio.pack(_samples(range(4, 7)), b)
    _check(a, range(4))
    _check(b, range(4, 7))
    packio.convert(a, other)
    _check(other, range(4))
    packio.merge(whole, [a, b])
    _check(whole, range(7))
    assert packio.append(a, _samples(range(7))).added == 3
    _check(a, range(7))


def test_resizing_moves_every_field_of_pixels(tmp_path: pathlib.Path) -> None:
    deep = np.full((40, 60), 40_000, np.uint16)
    ids = np.repeat(np.arange(60, dtype=np.uint8)[None] // 30 * 7, 40, 0)
    data = {"image": made.saved(ids), "depth": made.saved(deep), "ids": made.saved(ids)}
    sample = Sample(
        0, "a.png", data["image"], "png", None, 40, 60, 1, 1,
        boxes=np.array([[0, 0, 30, 20]], np.float32),
        fields={"depth": Field("image", data["depth"]), "ids": Field("mask", data["ids"]),
                "note": Field("text", b"as it is")},
    )  # fmt: skip
    out = tmp_path / "x.tar"
    packio.pack([sample], out, resize="short=20", encode="jpeg")
    found = packio.open(out)[0]
    depth = np.asarray(Image.open(io.BytesIO(found.fields["depth"].data)))
    assert (depth.dtype.name, depth.shape) == ("uint16", (20, 30))
    assert set(depth.ravel().tolist()) == {40_000}
    moved = np.asarray(Image.open(io.BytesIO(found.fields["ids"].data)))
    assert (moved.shape, set(moved.ravel().tolist())) == ((20, 30), {0, 7})
    assert found.fields["note"].data == b"as it is"
    assert found.boxes is not None
    assert found.boxes.tolist() == [[0, 0, 15, 10]]
    assert (found.encoding, found.height, found.width) == ("jpeg", 20, 30)


@pytest.mark.parametrize("verb", ["pack", "append"])
@pytest.mark.parametrize(("kind", "reason"), [("text", "UTF-8"), ("array", "no array")])
def test_bytes_that_are_not_of_their_kind_are_refused(
    verb: str, kind: str, reason: str, tmp_path: pathlib.Path
) -> None:
    def sample(i: int, field: Field) -> Sample:
        return Sample(i, f"{i}.png", made.png(), "png", None, 3, 4, fields={"more": field})

    good = sample(0, fields.encode("good" if kind == "text" else np.zeros(3)))
    bad = sample(1, Field(kind, b"\xff\xfe broken"))
    out = tmp_path / "x.tar"
    packio.pack([good], out, shards=1, shard_size=1000)
    with pytest.raises(BadImagesError, match=f"more: .*{reason}"):
        packio.append(out, [good, bad]) if verb == "append" else packio.pack(
            [good, bad], tmp_path / "y.tar"
        )


def test_a_field_that_no_sample_has_is_refused(tmp_path: pathlib.Path) -> None:
    made.image_tree(tmp_path, 2, 1, most=9, seed=1)
    path = tmp_path / "list.csv"
    path.write_text("path,latent\nclass 0/0.png,\nclass 0/1.png,\n")
    with pytest.raises(OptionError, match="no sample has a field latent"):
        packio.pack(path, tmp_path / "x.tar", fields={"latent": ("latent", "array")})
    assert not (tmp_path / "x.tar").exists()
    items = [{"image": np.zeros((4, 4, 3), np.uint8), "n": i} for i in range(2)]
    with pytest.raises(OptionError, match="caption"):
        packio.pack(items, tmp_path / "x.tar", fields={"caption": "caption"})
