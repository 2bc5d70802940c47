"""PyTorch files: a dict of tensors as ``torch.save`` writes it, the images in one tensor of bytes.

What packio writes is a dict of tensors under the names of `packio.formats.blobs.columns`, as
``data``, ``offsets``, ``label``, ``mask_data`` and ``mask_offsets``; and ``packio``, a string.
torch loads the file without packio, and at once: only bytes that are used are read. Image i, and
the value of the named field ``depth`` of the same sample, are then::

    pack = torch.load("out.pth", weights_only=True, mmap=True)
    pack["data"][pack["offsets"][i] : pack["offsets"][i + 1]].clone()
    pack["depth_data"][pack["depth_offsets"][i] : pack["depth_offsets"][i + 1]].clone()

or, where ``data`` is an array of pixels, ``pack["data"][i].clone()``. If some samples have no
``depth``, ``pack["depth_present"][i]`` says whether sample i has one.

How the bytes lie on disk: a zip archive whose members are stored, not compressed. ``data.pkl`` in
it is a pickle of the dict, in which a tensor refers to the member ``data/K`` that holds its bytes;
K counts tensors in the order of the dict: the images are ``data/0``, then follow the blobs of the
other fields. A member's bytes begin 30 bytes after its local header, plus the two u16 at 26 and 28
of it. torch 2.7 and newer write them at multiples of 4,096 bytes, older ones at multiples of 64.
torch does not check the archive's checksums; packio's index has its own.

The same records give the same bytes with the same version of torch; other versions may differ.

Sources: ``torch/serialization.py`` of PyTorch 2.13; APPNOTE.TXT 6.3.10, sections 4.3 and 4.5,
https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT
"""

from __future__ import annotations

import contextlib
import functools
import mmap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from packio.formats import Caps, Format, Reading, damage_error
from packio.formats.blobs.by_library import FoundSamples, Reader
from packio.formats.blobs.columns import find_in_file, read_header
from packio.formats.blobs.spool import FileContents, FileWriter
from packio.formats.pth import foreign
from packio.formats.pth.archive import Tensor, TorchFile, members, open_archive
from packio.sample.record import Place, Record

_ALIGNMENT = 4096  # bytes, of every tensor


class Pth(Format):
    caps: Caps = Caps(
        suffixes=(".pth", ".pt"), magic=(b"PK\x03\x04",), package="torch", reads_by_library=True,
        spooled=True, keeps=frozenset(("key", "label", "meta", "boxes")),
    )  # fmt: skip

    def scan(self, path: Path, reading: Reading) -> Iterator[Record[Place]]:
        """Yield every sample; `packio.formats.pth.foreign` says which files of others are read.

        Nothing is unpickled; see `packio.formats.pth.archive`. ``reading.image`` is where the
        images are in the saved value: a key of the dict, a position in the tuple, or a path of
        both, as "train/images"; ``reading.label`` likewise.
        """
        with open_archive(path) as archive:
            value = archive.load()
            if isinstance(value, dict) and "packio" in value and reading.image is None:
                found = _own(value, archive, path)
            else:
                found = foreign.find_samples(value, archive, path, reading)
        yield from found

    def writer(self, path: Path, *, classes: Sequence[str], **_: Any) -> FileWriter:
        return FileWriter(path, classes, "pth", functools.partial(_fill, path))

    def reader(self, path: Path, reading: Reading) -> Reader:
        """What reads images that are bytes within the pickle: all of them are held in memory."""
        return Reader(path, reading, find, survives_fork=True)


class _Sink:
    """A file for torch, which crashes if writing fails: `check` raises the error afterwards."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._error: OSError | None = None

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        if self._error is None:
            try:
                self._file.write(data)
            except OSError as error:
                self._error = error
        return size

    def flush(self) -> None:
        pass

    def check(self) -> None:
        if self._error is not None:
            raise self._error


def _fill(path: Path, file: IO[bytes], contents: FileContents) -> Mapping[str, int]:
    import torch

    tensors: dict[str, Any] = {}
    for name, blob in contents.blobs.items():
        array: np.ndarray = np.zeros(0, np.uint8)
        if blob.size:  # mapped, so that it need not fit into memory
            access = mmap.ACCESS_COPY  # tensors want to be writable; nobody writes
            array = np.frombuffer(mmap.mmap(blob.descriptor, blob.size, access=access), "u1")
        if name == "data" and contents.pixels is not None:
            array = array.view(contents.pixels.dtype).reshape(contents.pixels.shape)
        tensors[name] = torch.from_numpy(array)
    for name, array in contents.arrays.items():
        tensors[name] = torch.from_numpy(np.array(array, array.dtype.newbyteorder("=")))
    tensors["packio"] = contents.text
    sink = _Sink(file)
    with _aligned():
        # A file object, for the name of a path would be in the archive.
        torch.save(tensors, sink)  # type: ignore[arg-type]  # it needs no more than these methods
    sink.check()
    file.flush()
    found = members(file.fileno(), path)
    return {name: found.get(f"data/{i}", (0, 0))[0] for i, name in enumerate(contents.blobs)}


@contextlib.contextmanager
def _aligned() -> Iterator[None]:
    """Have torch align storages, where it can."""
    try:
        from torch.utils.serialization import config

        before = config.save.storage_alignment
    except (ImportError, AttributeError):  # before torch 2.7
        yield
        return
    config.save.storage_alignment = _ALIGNMENT
    try:
        yield
    finally:
        config.save.storage_alignment = before


def find(path: Path, reading: Reading) -> FoundSamples:
    with open_archive(path) as archive:
        return foreign.load_images(archive.load(), archive, path, reading.image)


def _own(value: Mapping[str, Any], archive: TorchFile, path: Path) -> Iterator[Record[Place]]:
    def get(name: str) -> Tensor | None:
        tensor = value.get(name)
        if tensor is None or isinstance(tensor, Tensor):
            return tensor
        raise damage_error(path, f"{name} is no tensor")

    def range_of(tensor: Tensor, name: str) -> tuple[int, int]:
        if tensor.ndim > 1:
            archive.pixels(tensor, name)
        return archive.range_of(tensor, name)

    header = read_header(value["packio"], "pth", path)
    return find_in_file(path, header, get, archive.array, range_of)[1]


FORMAT = Pth()
