"""LMDB databases that others wrote: which layout one has, and where the images lie in its values.

===================  ==========================  ===================================================
written by           keys                        values
===================  ==========================  ===================================================
LSUN, mmengine       any                         an encoded image, every one
BasicSR              name without extension      an encoded image; names in ``meta_info.txt``
folder2lmdb          ``0``, ``1``, … unpadded    `pyarrow.serialize`, msgpack or a pickle of (image,
                                                 label); also ``__keys__``, ``__len__``
Image2LMDB           the same                    `pyarrow.serialize` of the image; names in
                                                 ``NAME_images_idx.txt`` beside, ``name number``
tensorpack           ``%08d``                    msgpack, `pyarrow.serialize`, a pickle: by version
Caffe, DALI          any                         Datum, a protobuf message of image, or pixels, and
                                                 label: `packio.formats.lmdb.values`
text recognition     ``image-%09d``, from 1      an encoded image; its text under ``label-%09d``;
                                                 their number under ``num-samples``
StyleGAN             ``SIZE-%05d`` (or 7)        an encoded image, in several sizes; ``length``
PySODToolBox, old    name                        pixels; shapes in ``meta_info.pkl``, which the user
BasicSR                                          writes as lines of ``meta_info.txt`` first
===================  ==========================  ===================================================

In all layouts an image is one contiguous range of the file, and an entry points at the range. Masks
that others write are a database of their own; open it like any other. A value that the layout does
not fit is passed on whole: reading its image then says what is wrong. A pickle is refused together
with its database, unless the user trusts plain pickles.

``meta_info.txt`` has lines ``name (height,width,channels) level``; mostly the values are PNG files,
and the keys are the names without extension. Values that are no images but as long as that says are
pixels, (H, W, C) as OpenCV reads them: blue, green, red; uint8, or uint16 or float32 if a value has
two or four bytes for each number.

Sources: ForBigDataset/ImageFolder2LMDB.py (https://github.com/lartpang/PySODToolBox);
basicsr/utils/lmdb_util.py (https://github.com/XPixelGroup/BasicSR), and its create_lmdb.py of 2019.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
import shlex
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from packio.errors import IntegrityError, NotAPackError, OptionError
from packio.formats import Reading, check_reading
from packio.formats.blobs.ranges import Input
from packio.formats.lmdb.pages import Database, Entry, entries, open_data_file
from packio.formats.lmdb.values import FoundImage, arrow, msgpack, parse_datum, sample
from packio.formats.wire import MalformedError, pickles
from packio.images.encodings import is_image, raw_facts
from packio.sample.record import Facts
from packio.system import files

_Parser = Callable[[bytes, str | None], FoundImage]  # is given a value, and `Reading.label`

_ABOUT = frozenset((b"__keys__", b"__len__", b"num-samples", b"length"))  # records of no sample
_LOOKED_AT = 8  # records, to recognise a layout
_TEXT_KEY = re.compile(rb"(image|label)-(\d{9,})")
_SIZE_KEY = re.compile(rb"(\d{1,5})-(\d{5,9})")
_SHAPE = re.compile(rb"(.+?) \((\d{1,9}),(\d{1,9}),(\d{1,9})\)(?: \d+)?\s*")
_MOST_DIGITS = 18  # of a key that is a number


def scan(path: Path, reading: Reading) -> Iterator[Entry]:
    """Yield an entry for every sample, by number if keys are numbers, else by key."""
    with open_data_file(path) as whole:
        file = whole if reading.database is None else Database(whole, reading.database)
        samples = [*_samples(itertools.islice(entries(file), _LOOKED_AT))]
        names = [entry.name for entry in samples]
        if names and all(map(_TEXT_KEY.fullmatch, names)):
            if reading.label not in (None, "", "text"):
                raise OptionError(
                    f"{path}: label={reading.label!r} is in no metadata; there is text"
                )
            yield from _texts(file, are_labels=reading.label == "text")
            return
        by_size = names and all(map(_SIZE_KEY.fullmatch, names))
        if by_size and any(entry.name == b"length" for entry in entries(file)):
            check_reading(path, reading, "database")
            yield from _largest(file)
            return
        shapes = _read_shapes(path)
        are_pixels = bool(samples) and all(_pixel_facts(shapes, entry) for entry in samples)
        parse = None if are_pixels else _parser(file, samples, path, reading)
        if parse is not None:
            yield from _parsed(file, path, parse, reading.label)
            return
        check_reading(path, reading, "database")
        for entry in entries(file):
            said = shapes.get(entry.name)
            facts = _pixel_facts(shapes, entry) if are_pixels else None
            yield entry._replace(key=None if said is None else said.name, facts=facts)


def are_values(path: Path) -> bool:
    """Tell whether each image is a value, or in a Datum, and images lie in the order of the keys.

    Only such images can be read through py-lmdb by their numbers. The first records decide.
    """
    with open_data_file(path) as file:
        samples = [*_samples(itertools.islice(entries(file), _LOOKED_AT))]
        names = [entry.name for entry in samples]
        if any(all(map(key.fullmatch, names)) for key in (_TEXT_KEY, _SIZE_KEY)):
            return False
        values = [file.read(entry.length, entry.offset) for entry in samples]
    found = (_fitting(value, path, "") for value in values if not is_image(value))
    parse = next(filter(None, found), None)
    in_order = any(not _is_number(name) or b"%d" % int(name) != name for name in names)
    return parse is None or (parse is _datum and in_order)


def own(path: Path, *, datums: bool = True) -> Iterator[Entry]:
    """Yield an entry for every record of a database that packio wrote, perhaps of Datums."""
    with open_data_file(path) as file:
        first = next(entries(file), None)
        value = b"" if first is None else file.read(first.length, first.offset)
        parse = _fitting(value, path, None, (_datum,)) if datums else None
        yield from entries(file) if parse is None else _parsed(file, path, parse, None)


def _parser(file: Input, samples: list[Entry], path: Path, reading: Reading) -> _Parser | None:
    """Find the parser of the values by the first that one can read; None: they are images."""
    for entry in samples:
        data = file.read(entry.length, entry.offset)
        if is_image(data):
            return None
        parse = _fitting(data, path, reading.label)
        if parse is _pickled and not reading.trust_plain_pickle:
            raise NotAPackError(
                f"{path}: its values are pickles, as {entry.name!r}; packio reads plain data from "
                "pickles by a parser of its own, which runs nothing, if you say so: packio pack "
                f"{shlex.quote(str(path))} OUT.lmdb --trust-plain-pickle, or "
                f"packio.open({os.fspath(path)!r}, trust_plain_pickle=True), LmdbDataset(…, "
                "trust_plain_pickle=True)"
            )
        if parse is not None:
            return parse
    if samples and (path / "meta_info.pkl").is_file():
        raise NotAPackError(
            f"{path}: its values are no images, but may be pixels, whose shapes are in the pickle "
            "meta_info.pkl (as of PySODToolBox and old BasicSR); say the shapes in meta_info.txt "
            "beside it, as lines 'key (height,width,channels)'"
        )
    return None


def _fitting(
    data: bytes, path: Path, label: str | None, parsers: Sequence[_Parser] | None = None
) -> _Parser | None:
    """The parser that fits a value, of some parsers or of all; what looks like a pickle is one."""
    if parsers is None and pickles.is_likely(data):
        return _pickled
    for parse in parsers or _PARSERS:
        try:
            parse(data, label)
        except MalformedError:
            continue
        except NotAPackError as error:
            raise NotAPackError(f"{path}: {error}") from error
        return parse
    return None


def _sample(read: Callable[[bytes], object], data: bytes, label: str | None) -> FoundImage:
    return sample(read(data), data, label)


def _datum(data: bytes, label: str | None) -> FoundImage:
    found = parse_datum(data)
    if label:
        raise NotAPackError(f"label={label!r} is of no use: a Datum has one label, without a name")
    return found._replace(label=None) if label == "" else found


_pickled = functools.partial(_sample, pickles.read_pickle)
_PARSERS: tuple[_Parser, ...] = (
    functools.partial(_sample, arrow), _datum, functools.partial(_sample, msgpack),
)  # fmt: skip


def _parsed(file: Input, path: Path, parse: _Parser, label: str | None) -> Iterator[Entry]:
    names = _names_by_number(path)
    for entry in _numbered(file):
        data = file.read(entry.length, entry.offset)
        key = names.get(entry.name)
        try:
            found = parse(data, label)
        except MalformedError as error:
            if parse is _pickled:
                raise IntegrityError(f"{path}: {entry.name!r}: {error}") from error
            yield entry._replace(key=key)
        except NotAPackError as error:
            raise NotAPackError(f"{path}: {entry.name!r}: {error}") from error
        else:
            at, length = entry.offset + found.start, found.stop - found.start
            yield Entry(entry.name, entry.file, at, length, found.label, key, facts=found.facts)


def _numbered(file: Input) -> Iterator[Entry]:
    """Yield samples in the order of their numbers, if all keys are plain numbers."""
    numbers, offsets, lengths = array("q"), array("q"), array("q")
    name = ""
    for entry in _samples(entries(file)):
        number = int(entry.name) if _is_number(entry.name) else -1
        if b"%d" % number != entry.name:
            yield from _samples(entries(file))
            return
        name = entry.file
        numbers.append(number)
        offsets.append(entry.offset)
        lengths.append(entry.length)
    for i in sorted(range(len(numbers)), key=numbers.__getitem__):
        yield Entry(b"%d" % numbers[i], name, offsets[i], lengths[i])


def _is_number(name: bytes) -> bool:
    return name.isdigit() and len(name) <= _MOST_DIGITS


def _samples(entries: Iterable[Entry]) -> Iterator[Entry]:
    return (entry for entry in entries if entry.name not in _ABOUT)


def _texts(file: Input, *, are_labels: bool) -> Iterator[Entry]:
    """Yield images with their texts as metadata. Both lie in the order of their numbers."""
    texts = (e for e in entries(file) if e.name.startswith(b"label-"))
    text = next(texts, None)
    for entry in entries(file):
        if not entry.name.startswith(b"image-"):
            continue
        wanted = b"label-" + entry.name[6:]
        while text is not None and text.name < wanted:
            text = next(texts, None)
        found = None
        if text is not None and text.name == wanted:
            found = file.read(text.length, text.offset).decode("utf-8", "replace")
        meta = json.dumps({"text": found}, ensure_ascii=False).encode()
        yield entry._replace(meta=meta, label=found if are_labels else None)


def _largest(file: Input) -> Iterator[Entry]:
    matches = (_SIZE_KEY.fullmatch(entry.name) for entry in entries(file))
    size = max(int(match[1]) for match in matches if match)
    found = []
    for entry in entries(file):
        match = _SIZE_KEY.fullmatch(entry.name)
        if match and int(match[1]) == size:
            found.append((int(match[2]), entry))
    yield from (entry for _, entry in sorted(found))


def _names_by_number(path: Path) -> dict[bytes, bytes]:
    """Read the lines ``name key`` of a list beside a database; return name by key."""
    content = _content(path.with_name(f"{path.stem}_images_idx.txt"))
    found = (line.rpartition(b" ") for line in content.splitlines())
    return {number.strip(): name for name, _, number in found if name and number.strip()}


def _content(path: Path) -> bytes:
    """Read a whole file; b"" if the file cannot be read."""
    try:
        return files.content(path)
    except OSError:
        return b""


class _Shape(NamedTuple):
    name: bytes
    height: int
    width: int
    channels: int


def _read_shapes(path: Path) -> dict[bytes, _Shape]:
    """Read names and shapes of records, by their names with and without extension."""
    found = {}
    for match in map(_SHAPE.fullmatch, _content(path / "meta_info.txt").splitlines()):
        if match:
            shape = _Shape(match[1], int(match[2]), int(match[3]), int(match[4]))
            found[match[1].rpartition(b".")[0]] = found[match[1]] = shape
    return found


def _pixel_facts(shapes: dict[bytes, _Shape], entry: Entry) -> Facts | None:
    """Facts of a value whose length fits its shape; None if not, or if it has no shape."""
    said = shapes.get(entry.name)
    if said is None or not 0 < said.channels < 256:
        return None
    _, height, width, channels = said
    count = height * width * channels
    dtype = {count: "uint8", 2 * count: "uint16", 4 * count: "float32"}.get(entry.length)
    return None if dtype is None else raw_facts(height, width, channels, dtype, "raw_hwc_bgr")
