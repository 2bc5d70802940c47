"""What N5 and Zarr do alike, and the arrays of pixels that others write in them.

Where blocks are cut only between images and not compressed, an image is one range of one file.
Other images are put together by a reader, which decodes a row of blocks at a time.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from packio.errors import IntegrityError, NotAPackError, OptionError, PackioError
from packio.formats import Format, Reading, unknown_error
from packio.formats.blobs import by_library, pixels
from packio.formats.blobs.by_library import FoundSamples, RowCache
from packio.formats.chunks import scanning
from packio.formats.chunks.layout import Array, ChunkLayout, ForeignArray, Load, Writer, blocks
from packio.sample.record import Place, Record

if TYPE_CHECKING:
    import numpy as np

# Arrays, or why they are not read, by their paths.
_There = Mapping[str, ForeignArray | PackioError]

# Blocks that may be left out; metadata may claim any number of blocks.
_FEW_LEFT_OUT, _MANY_LEFT_OUT = 1000, 100_000
_LEFT_OUT_EACH = 100  # for each block that is there


class ChunkedFormat(Format):
    marks: ClassVar[frozenset[bytes]]  # names of files by which a directory is recognised

    def layout(self, path: Path) -> ChunkLayout:
        """How a container at a path, which may not exist yet, is written."""
        raise NotImplementedError

    def recognise(self, head: bytes, name: str) -> bool:
        files = {line.rpartition(b"/")[2] for line in head.split(b"\n")}
        return not files.isdisjoint(self.marks) or super().recognise(head, name)

    def scan(self, path: Path, reading: Reading) -> Iterator[Record[Place]]:
        """Yield every sample: of what packio writes, and of what others write.

        Others' samples are found in the arrays ``data`` and ``offsets``, not compressed, if no
        sample lies in two blocks; or in an array of pixels (`packio.formats.blobs.pixels`), however
        the array is cut, raw or compressed. Labels are an array of a usual name beside it.
        """
        layout = self.layout(path)
        found = _found(path, layout, reading)
        yield from scanning.scan(path, layout) if found is None else found.records

    def writer(self, path: Path, *, classes: Sequence[str], **_: Any) -> Writer:
        return Writer(self.layout(path), path, classes)

    def reader(self, path: Path, reading: Reading) -> by_library.Reader:
        return by_library.Reader(path, reading, self.find)

    def find(self, path: Path, reading: Reading) -> FoundSamples:
        """Find the images, without a look at their blocks."""
        found = _found(path, self.layout(path), reading, check=False)
        if found is None:
            raise OptionError(f"{path}/: holds no pixels; read it with access='range'")
        return found


def _found(
    path: Path, layout: ChunkLayout, reading: Reading, *, check: bool = True
) -> FoundSamples | None:
    order, image, label = pixels.order_of(reading.layout), reading.image, reading.label
    if image is None and scanning.is_blob(path, layout):
        there: _There = {}
    else:
        there = _arrays(path, layout)
    many = {
        name: _described(name, stored) for name, stored in there.items()
        if isinstance(stored, ForeignArray)
        and pixels.holds_many(stored.array.shape, stored.array.dtype)
    }  # fmt: skip
    names = pixels.only(many, path) if image is None else [image.strip("/")]
    if names:
        pixels.refuse_others(there, names[0][: names[0].rfind("/") + 1], image, path)
        return _images(path, layout, there, names[0], label, order, check=check)
    for error in there.values():
        if isinstance(error, PackioError):  # it may have been the images
            raise error
    if label:
        raise OptionError(f"{path}/: label={label!r} goes with an array of pixels; there is none")
    return None


def _arrays(path: Path, layout: ChunkLayout) -> _There:
    """All arrays in a directory; it may be one itself, by the name of ""."""
    found: dict[str, ForeignArray | PackioError] = {}
    for folder, inner, _ in os.walk(path):
        inner.sort()
        metadata = scanning.read_json(Path(folder, layout.metadata))
        if metadata is None or not layout.is_array(metadata):
            continue
        inner.clear()  # what is in an array is its blocks
        name = os.path.relpath(folder, path)
        try:
            stored: ForeignArray | PackioError = layout.parse_array(metadata, folder)
        except NotAPackError as error:
            stored = error
        found["" if name == "." else name] = stored
    return found


def _described(name: str, stored: ForeignArray | PackioError) -> str:
    if isinstance(stored, PackioError):
        return f"{name} (not read)"
    return f"{name or '.'} {stored.array.shape} {stored.array.dtype}"


def _named(option: str, name: str, there: _There, path: Path) -> ForeignArray:
    stored = there.get(name)
    if stored is None:
        raise unknown_error(option, name, [_described(*item) for item in there.items()], path)
    if isinstance(stored, PackioError):
        raise stored
    return stored


def _images(
    path: Path, layout: ChunkLayout, there: _There, name: str, label: str | None,
    order: pixels.Order, *, check: bool,
) -> FoundSamples:  # fmt: skip
    stored, folder = _named("image", name, there, path), path / name
    array = stored.array
    facts = pixels.facts_of(array.shape[1:], array.dtype, order, str(folder))
    count, size = array.shape[0], pixels.size_of(facts)
    if check:
        _check(stored, folder)
    labels = _labels(path, there, name, label, count)
    whole = array.block[1:] == array.shape[1:]
    ranged = not stored.otherwise and whole and pixels.is_as_stored(array.dtype)

    def found() -> Iterator[Record[Place]]:
        zeros, rows = (0,) * (len(array.shape) - 1), array.block[0]
        file, is_there = os.path.join(name, layout.metadata), False
        for i in range(count):
            if ranged and i % rows == 0:
                file = os.path.join(name, array.block_name(i // rows, *zeros))
                is_there = not scanning.is_left_out(path / file, array)
                file = file if is_there else os.path.join(name, layout.metadata)
            offset = array.header_bytes + i % rows * size if ranged and is_there else -1
            yield pixels.image_at(b"%08d" % i, file, offset, size, facts)

    records = pixels.attach_labels(found(), labels)
    return FoundSamples(count, records, RowCache(_loader(stored, folder), stored.chunk[0], size))


def _labels(
    path: Path, there: _There, name: str, label: str | None, count: int
) -> list[pixels.Label] | None:
    label = pixels.label_beside(there, name[: name.rfind("/") + 1], label, path)
    if label is None:
        return None
    folder, stored = path / label, _named("label", label, there, path)
    array = stored.array
    pixels.check_labels(array.shape, array.dtype, count, str(folder))
    _check(stored, folder)
    return pixels.labels_of(_loader(stored, folder)(0, count), str(folder))


def _check(stored: ForeignArray, folder: Path) -> None:
    """Check that all blocks are there, and can be what the array claims."""
    array = stored.array
    size = math.prod(array.shape[1:]) * array.dtype.itemsize
    _check_left_out(array, folder)
    total = 0
    for numbers in blocks(array):
        if scanning.is_left_out(folder / array.block_name(*numbers), array):
            continue
        if not stored.otherwise:
            shape = scanning.block_shape(folder, array, numbers)
            total += math.prod(shape) * array.dtype.itemsize
            continue
        with scanning.open_block(folder / array.block_name(*numbers)) as file:
            total += os.fstat(file.fileno()).st_size
    chunk = math.prod(stored.chunk) * array.dtype.itemsize
    pixels.check_claim(array.shape[0], size, chunk, total, str(folder))


def _check_left_out(array: Array, folder: Path) -> None:
    """Refuse an array that claims far more blocks than there are files, before a look at each."""
    claimed = math.prod(array.grid()) if math.prod(array.shape) else 0
    if array.fill is None or claimed <= _FEW_LEFT_OUT:
        return
    there = sum(len(names) for _, _, names in os.walk(folder))
    most = max(_FEW_LEFT_OUT, min(_LEFT_OUT_EACH * there, max(_MANY_LEFT_OUT, there)))
    if claimed - there > most:
        raise IntegrityError(
            f"{folder}: claims {claimed} blocks, and has {there} files; over {most} blocks are not "
            "there: restore or repack it"
        )


def _loader(stored: ForeignArray, folder: Path) -> Load:
    array = stored.array
    opened: list[Load] = []  # by the library, when first used

    def by_its_library(first: int, stop: int) -> np.ndarray:
        with scanning.library_errors(folder):
            if not opened and stored.library is not None:
                opened.append(stored.library(folder))
            return opened[0](first, min(stop, array.shape[0]))

    def by_blocks(first: int, stop: int) -> np.ndarray:
        return scanning.read_rows(folder, array, first, stop, stored.decode)

    return by_blocks if stored.library is None else by_its_library
