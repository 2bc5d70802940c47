"""Damaged containers: samples that lie within the file, or an error that names it; nothing else.

What is damaged are files that packio's writers made, those of others, and the parsers' own seeds in
tests/fuzz, which has a long campaign of the same.
"""

from __future__ import annotations

import functools
import multiprocessing
import random
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fuzz_targets
import fuzzing
import long
import made
import make_frozen_beton
import numpy as np
import pytest
import torch
from containers import path_of, records, write

from packio import registry
from packio.errors import PackioError
from packio.formats import Reading
from packio.system import isolation

_PIXELS = np.random.default_rng(7).integers(0, 256, (10, 8, 6, 3), np.uint8)


def _own(name: str, folder: Path) -> Path:
    """A container of samples that have all there can be."""
    path = path_of(registry.load("formats", name), folder)
    write(registry.load("formats", name), path, records()[:6])
    return path / "data.mdb" if path.is_dir() else path


def _seed(name: str, number: int, folder: Path) -> Path:
    path = folder / "seed"
    path.write_bytes(fuzz_targets.TARGETS[name].seeds()[number])
    return path


def _tar(form: int, folder: Path) -> Path:
    members = {"d/" * 80 + "x.jpg": b"image", "é.png": bytes(600), "1.jpg": b"", "1.cls": b"1"}
    return made.tar(folder / "a.tar", members, form=form)


def _h5(options: dict[str, Any], folder: Path) -> Path:
    with pytest.importorskip("h5py").File(folder / "a.h5", "w") as file:
        file.create_dataset("images", data=_PIXELS, chunks=(4, 8, 6, 3), **options)
    return folder / "a.h5"


def _h5_of_files(folder: Path) -> Path:
    with pytest.importorskip("h5py").File(folder / "a.h5", "w") as file:
        for i, value in enumerate([b"1", b"22", b"", b"333"]):
            file[f"class {i % 2}/{i}.jpg"] = np.frombuffer(value, np.uint8)
    return folder / "a.h5"


def _pth(value: Any, folder: Path) -> Path:
    torch.save(value, folder / "a.pth")
    return folder / "a.pth"


def _bytes(*values: bytes) -> list[torch.Tensor]:
    return [torch.tensor([*value], dtype=torch.uint8) for value in values]


_BLOB = {"images": _bytes(b"122333")[0], "offsets": torch.tensor([0, 1, 3, 6])}
_OWN = ["tar", "tfrecord", "recordio", "lmdb", "hdf5", "pth"]
_VICTIMS: dict[str, tuple[str, Callable[[Path], Path]]] = {
    **{f"{name} of packio": (name, functools.partial(_own, name)) for name in _OWN},
    "tar of GNU": ("tar", functools.partial(_tar, tarfile.GNU_FORMAT)),
    "tar of pax": ("tar", functools.partial(_tar, tarfile.PAX_FORMAT)),
    "mds": ("mds", functools.partial(_seed, "mds", 0)),
    "beton of FFCV": ("beton", lambda _: make_frozen_beton.PATH),
    "lmdb, version 3": ("lmdb", functools.partial(_seed, "lmdb", -1)),
    "lmdb of branches": ("lmdb", functools.partial(_seed, "lmdb", 1)),
    "hdf5 of pixels": ("hdf5", functools.partial(_h5, {})),
    "hdf5 of compressed pixels": ("hdf5", functools.partial(_h5, {"compression": "gzip"})),
    "hdf5 of files": ("hdf5", _h5_of_files),
    "pth of a blob": ("pth", functools.partial(_pth, _BLOB)),
    "pth of a list": ("pth", functools.partial(_pth, (_bytes(b"1", b"22"), [1, 2]))),
}


def _sealed(name: str, content: bytes) -> bytes:
    """The same with right sums, so that a parser believes what is damaged."""
    if name == "tfrecord":
        return fuzz_targets.TARGETS[name].sealed(content)
    if name != "tar":
        return content
    found = bytearray(content)
    for at in range(0, len(found) - tarfile.BLOCKSIZE + 1, tarfile.BLOCKSIZE):
        if found[at + 257 : at + 262] == b"ustar":
            found[at + 148 : at + 156] = b" " * 8
            found[at + 148 : at + 156] = b"%06o\0 " % sum(found[at : at + tarfile.BLOCKSIZE])
    return bytes(found)


def _read_damaged(name: str, whole: bytes, path: Path, seeds: range) -> None:
    isolation.begin()
    form = registry.load("formats", name)
    for seed in seeds:
        draw = random.Random(seed)
        content = fuzzing.mutated(draw, [whole])
        found = made.survives(form, path, _sealed(name, content) if seed % 2 else content)
        if found and any(entry.offset < 0 for entry in found):  # the library reads it
            reader = form.reader(path, Reading())
            for i, entry in enumerate(found):
                try:
                    assert len(reader.get(i)) == entry.length
                except PackioError as error:
                    assert str(path) in str(error)  # noqa: PT017 (either is right)


@pytest.mark.parametrize("count", long.after(1, (250, 2500)))
@pytest.mark.parametrize("victim", _VICTIMS)
def test_damage_does_no_worse_than_an_error(victim: str, count: int, tmp_path: Path) -> None:
    """In another process: a signal there fails the test, and does not end the run."""
    name, make = _VICTIMS[victim]
    whole = make(tmp_path).read_bytes()
    assert made.survives(registry.load("formats", name), tmp_path / "whole", whole)
    context = multiprocessing.get_context("fork")
    given = (name, whole, tmp_path / "damaged", range(count))
    process = context.Process(target=_read_damaged, args=given)
    process.start()
    process.join(600)
    assert process.exitcode == 0


# Nothing in a file of the others tells how many records there are.
_ENDED = [name for name, (form, _) in _VICTIMS.items() if form not in ("tfrecord", "recordio")]


@pytest.mark.parametrize("count", long.after(1, (150, 3000)))
@pytest.mark.parametrize("victim", _ENDED)
def test_a_file_that_is_cut_short_is_refused(victim: str, count: int, tmp_path: Path) -> None:
    name, make = _VICTIMS[victim]
    form, whole = registry.load("formats", name), make(tmp_path).read_bytes()
    samples = made.survives(form, tmp_path / "file", whole)
    used = len(whole.rstrip(b"\0"))  # a tar and a database may have zeros behind what counts
    steps = range(0, len(whole), max(1, len(whole) // count))
    for length in sorted({*steps, *range(max(used - 20, 0), used)}):
        found = made.survives(form, tmp_path / "file", whole[:length])
        assert found is None or (length >= used and found == samples)
