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
                                                 label: `packio.formats.lmdb.datum`
text recognition     ``image-%09d``, from 1      an encoded image; its text under ``label-%09d``;
                                                 their number under ``num-samples``
StyleGAN             ``SIZE-%05d`` (or 7)        an encoded image, in several sizes; ``length``
PySODToolBox, old    name                        pixels; shapes in ``meta_info.pkl`` or ``.txt``:
BasicSR                                          `packio.formats.lmdb.pixels`
===================  ==========================  ===================================================

In all layouts an image is one contiguous range of the file, and an entry points at the range. Masks
that others write are a database of their own; open it like any other. A value that the layout does
not fit is passed on whole: reading its image then says what is wrong. A pickle is refused together
with its database, unless the user trusts plain pickles.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from packio.errors import IntegrityError, NotAPackError, OptionError
from packio.formats import Reading, check_reading
from packio.formats.blobs.ranges import Input
from packio.formats.lmdb import datum, pixels
from packio.formats.lmdb.meta import opened
from packio.formats.lmdb.pages import Database, Entry, entries
from packio.formats.lmdb.values import FoundImage, msgpack, sample
from packio.formats.wire import Malformed, arrow_stream, pickles
from packio.images.encodings import is_image

_Parser = Callable[[bytes, str | None], FoundImage]  # is given a value, and `Reading.label`

_ABOUT = frozenset((b"__keys__", b"__len__", b"num-samples", b"length"))  # records of no sample
_LOOKED_AT = 8  # records, to recognise a layout
_TEXT_KEY = re.compile(rb"(image|label)-(\d{9,})")
_SIZE_KEY = re.compile(rb"(\d{1,5})-(\d{5,9})")
_MOST_DIGITS = 18  # of a key that is a number


def scan(path: Path, reading: Reading) -> Iterator[Entry]:
    """Yield an entry for every sample, by number if keys are numbers, else by key."""
    with opened(path) as whole:
        file = whole if reading.database is None else Database(whole, reading.database)
        first = list(itertools.islice(entries(file), _LOOKED_AT))
        names = [entry.name for entry in first if entry.name not in _ABOUT]
        if names and all(map(_TEXT_KEY.fullmatch, names)):
            if reading.label not in (None, "", "text"):
                raise OptionError(
                    f"{path}: label={reading.label!r} is in no metadata; there is text"
                )
            yield from _texts(file, are_labels=reading.label == "text")
        elif names and all(map(_SIZE_KEY.fullmatch, names)) and _has(file, b"length"):
            check_reading(path, reading, "database")
            yield from _largest(file)
        else:
            samples = [entry for entry in first if entry.name not in _ABOUT]
            listed = pixels.listed(path, trust=reading.trust_plain_pickle)
            if samples and all(pixels.facts(listed, entry) for entry in samples):
                check_reading(path, reading, "database")
                yield from _plain(file, listed, are_pixels=True)
                return
            parse = _parser(file, samples, path, reading)
            if parse is not None:
                yield from _parsed(file, path, parse, reading.label)
                return
            check_reading(path, reading, "database")
            yield from _plain(file, listed)


def are_values(path: Path) -> bool:
    """Tell whether each image is a value, or in a Datum, and images lie in the order of the keys.

    Only such images can be read through py-lmdb by their numbers. The first records decide.
    """
    with opened(path) as file:
        samples = [*_samples(itertools.islice(entries(file), _LOOKED_AT))]
        names = [entry.name for entry in samples]
        if any(all(map(key.fullmatch, names)) for key in (_TEXT_KEY, _SIZE_KEY)):
            return False
        values = [file.read(entry.length, entry.offset) for entry in samples]
    parsers = (_arrow, _msgpack, _datum)
    found = (_pickled if pickles.is_likely(value) else _fitting(value, path, parsers, "")
             for value in values if not is_image(value))  # fmt: skip
    parse = next(filter(None, found), None)
    in_order = any(not _is_number(name) or b"%d" % int(name) != name for name in names)
    return parse is None or (parse is _datum and in_order)


def own(path: Path) -> Iterator[Entry]:
    """Yield an entry for every record of a database that packio wrote, Datums or not."""
    with opened(path) as file:
        first = next(entries(file), None)
        values = b"" if first is None else file.read(first.length, first.offset)
        parse = _fitting(values, path, (_datum,), None)
        yield from entries(file) if parse is None else _parsed(file, path, parse, None)


def _has(file: Input, name: bytes) -> bool:
    return any(entry.name == name for entry in entries(file))


def _parser(file: Input, samples: list[Entry], path: Path, reading: Reading) -> _Parser | None:
    """The parser that fits the first value that some parser fits; None if the values are images."""
    trust = reading.trust_plain_pickle
    for entry in samples:
        data = file.read(entry.length, entry.offset)
        if is_image(data):
            return None
        parse = (
            _pickled if pickles.is_likely(data) else _fitting(data, path, _PARSERS, reading.label)
        )
        if parse is _pickled and not trust:
            raise NotAPackError(
                f"{path}: its values are pickles, as {entry.name!r}; {_asked(path)}"
            )
        if parse is not None:
            return parse
    if samples and not trust and (path / pixels.PICKLE_NAME).is_file():
        raise NotAPackError(
            f"{path}: its values are no images, but may be pixels, whose shapes are in the pickle "
            f"{pixels.PICKLE_NAME} (as of PySODToolBox and old BasicSR); {_asked(path)}"
        )
    return None


def _asked(path: Path) -> str:
    return (
        "packio reads plain data from pickles by a parser of its own, which runs nothing, if you "
        f"say so: packio pack {shlex.quote(str(path))} OUT.lmdb --trust-plain-pickle, or "
        f"packio.open({os.fspath(path)!r}, trust_plain_pickle=True), LmdbDataset(…, "
        "trust_plain_pickle=True)"
    )


def _fitting(
    data: bytes, path: Path, parsers: Sequence[_Parser], label: str | None
) -> _Parser | None:
    for parse in parsers:
        try:
            parse(data, label)
        except Malformed:
            continue
        except NotAPackError as error:
            raise NotAPackError(f"{path}: {error}") from error
        return parse
    return None


def _arrow(data: bytes, label: str | None) -> FoundImage:
    return sample(arrow_stream.read(data), data, label)


def _msgpack(data: bytes, label: str | None) -> FoundImage:
    return sample(msgpack(data), data, label)


def _pickled(data: bytes, label: str | None) -> FoundImage:
    return sample(pickles.read(data), data, label)


def _datum(data: bytes, label: str | None) -> FoundImage:
    found = datum.parse(data)
    if label:
        raise NotAPackError(f"label={label!r} is of no use: a Datum has one label, without a name")
    return found._replace(label=None) if label == "" else found


_PARSERS: tuple[_Parser, ...] = (_arrow, _datum, _msgpack)


def _plain(
    file: Input, listed: dict[bytes, pixels.Listed], *, are_pixels: bool = False
) -> Iterator[Entry]:
    """Yield every record as an image or pixels, named as BasicSR's ``meta_info.txt`` says."""
    for entry in entries(file):
        said = listed.get(entry.name)
        facts = pixels.facts(listed, entry) if are_pixels else None
        yield entry._replace(key=None if said is None else said.name, facts=facts)


def _parsed(file: Input, path: Path, parse: _Parser, label: str | None) -> Iterator[Entry]:
    names = _names_by_number(path)
    for entry in _numbered(file):
        data = file.read(entry.length, entry.offset)
        key = names.get(entry.name)
        try:
            found = parse(data, label)
        except pickles.RefusedError as error:
            raise NotAPackError(f"{path}: {entry.name!r}: {error}") from error
        except Malformed as error:
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
        for column, value in zip((numbers, offsets, lengths), (number, entry.offset, entry.length),
                                 strict=True):  # fmt: skip
            column.append(value)
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
    """Yield the images of the largest size, in the order of their numbers."""
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
    content = pixels.content(path.with_name(f"{path.stem}_images_idx.txt"))
    found = (line.rpartition(b" ") for line in content.splitlines())
    return {number.strip(): name for name, _, number in found if name and number.strip()}
