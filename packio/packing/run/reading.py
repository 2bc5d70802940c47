"""Samples are read ahead in threads, checked, and encoded anew in the same threads if asked for."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from packio.errors import DecodeError, Decoding, OptionError, OutputError
from packio.images import dct, native
from packio.images.decoders import MAX_PIXELS, Decoder
from packio.images.encodings import RAW, check_class_ids, check_raw, read_facts
from packio.packing.images.encode import Encoding
from packio.packing.images.levels import Levels
from packio.packing.images.resizing import has_pixels, image_sizes, place_annotations
from packio.sample import levels
from packio.sample.fields import PIXELS, decode
from packio.sample.recipe import Recipe
from packio.sample.record import IMAGE, UNKNOWN, Field, Record, check_mask, image_record
from packio.sources import Listing, ReadRecord
from packio.sources.pack import DamagedLevel
from packio.system import processors
from packio.system.files import check_of_file
from packio.system.pools import ThreadPool

CHECKS = ("header", "decode")
_NOTHING = image_record(b"")
_NO_NAME = (  # a key that no file can have as name, or the folder of another bad key
    errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ, errno.EEXIST, errno.ENOTDIR, errno.EISDIR,
)  # fmt: skip
_CHUNK_FILES, _CHUNK_BYTES = 32, 4 << 20  # one task of a thread
_PIXEL_FILES, _PIXEL_BYTES = 8, 1 << 20  # where it holds pixels, too


class ReadSample(NamedTuple):
    """A sample as it goes into the pack, or the reason why it cannot be packed."""

    position: int  # in the listing
    record: Record[Field]  # with the facts of its image
    problem: str | None
    size: int = 0  # source bytes
    counts: Mapping[str, int] = MappingProxyType({})  # see `assembly.list_remarks`


@dataclasses.dataclass(frozen=True)
class Treatment:
    """What is done to each sample between the source and the container."""

    encoding: Encoding = dataclasses.field(default_factory=Encoding)
    check: str = "header"  # "decode" decodes each image whole
    seek_points: bool = True  # find where the decoding of a JPEG may begin
    levels: Levels | None = None  # None: levels of an image that stays as it is stay, too

    def __post_init__(self) -> None:
        if self.encoding.encode == "dct":
            native.require("encode='dct'")
        if self.check not in CHECKS:
            raise OptionError(f"check={self.check!r}: expected one of {', '.join(CHECKS)}")

    @staticmethod
    def from_recipe(recipe: Recipe) -> Treatment:
        return Treatment(
            Encoding(**recipe.encoding), recipe.check, recipe.seek_points,
            Levels.from_options(recipe.levels),
        )  # fmt: skip

    @property
    def decodes(self) -> bool:
        makes = self.encoding != Encoding() or self.levels is not None
        return makes or self.check == "decode" or (self.seek_points and not native.why_not())

    def __call__(self, record: Record[Field]) -> Record[Field]:
        """Make the sample that goes into the pack."""
        if self.check == "decode":
            for name, field in record.fields.items():
                _decode(name, field)
        bare = levels.drop_levels(record)
        encoded = self.encoding(bare)
        if encoded.image is bare.image:
            encoded = record
        made = encoded if self.levels is None else self.levels(encoded)
        encode, was = self.encoding.encode, record.facts.encoding
        if encode == "dct" or (encode == "keep" and was == "dct" and not native.why_not()):
            made = _with_open_coefficients(made)
        return self._with_points(made)

    def _with_points(self, record: Record[Field]) -> Record[Field]:
        image, facts, points = record.image, record.facts, b""
        if self.seek_points and facts.encoding == "jpeg" and not facts.progressive:
            points = image.points or native.seek_points(image.data)
        if points == image.points:
            return record
        return record.with_fields(image=image._replace(points=points))

    @property
    def threads(self) -> int:
        """Number of threads that keep one process busy. More threads only wait for the disk."""
        count = processors.usable()
        return count if self.decodes else min(16, 4 * count)


def _with_open_coefficients(record: Record[Field]) -> Record[Field]:
    image, facts = record.image, record.facts
    data = dct.open_jpeg(image.data) if facts.encoding == "jpeg" and not facts.progressive else None
    if data is None:
        return record
    return record.with_fields(image=Field(IMAGE, data, facts._replace(encoding="dct")))


def _decode(name: str, field: Field) -> None:
    """Decode all pixels of an image or a mask, to see that they are sound."""
    if field.kind in PIXELS:
        with _named(name):
            Decoder(mode="UNCHANGED")(field.data, field.facts or read_facts(field.data))


@contextlib.contextmanager
def _named(name: str) -> Iterator[None]:
    """Put the name of a field before the message of an error, unless the field is the image."""
    try:
        yield
    except DecodeError as error:
        raise error if name == IMAGE else type(error)(f"{name}: {error}") from error


KEEP = Treatment()


def read_ahead(
    listing: Listing, positions: range, *, threads: int, treatment: Treatment = KEEP,
    memory: int | None = None, skip: bool = False, stopped: Callable[[], bool] = lambda: False,
) -> Iterator[list[ReadSample]]:  # fmt: skip
    """Read and check some samples of a listing, in order, chunk by chunk.

    At most ``threads + 2`` chunks are in memory: each has 4 MiB of files, or one larger file.
    """
    files, size = _CHUNK_FILES, _CHUNK_BYTES
    if treatment.decodes:
        files, size = _PIXEL_FILES, _PIXEL_BYTES
    if memory is not None:
        size = max(1, min(size, memory // (threads + 2)))
    chunks = _chunks(listing.sizes, positions, files, size)
    read = functools.partial(_read_chunk, listing, treatment, skip, stopped)
    with ThreadPool(threads, "packio-read") as pool:
        yield from pool.map_ahead(read, chunks, threads + 2)


def _chunks(sizes: list[int], positions: range, files: int, size: int) -> Iterator[range]:
    start, total = positions.start, 0
    for i in positions:
        total += max(sizes[i], 0)
        if i + 1 - start == files or total >= size:
            yield range(start, i + 1)
            start, total = i + 1, 0
    if start < positions.stop:
        yield range(start, positions.stop)


def _read_chunk(
    listing: Listing, treatment: Treatment, skip: bool, stopped: Callable[[], bool], chunk: range
) -> list[ReadSample]:
    reads = []
    with listing.open_records() as read:
        for i in chunk:
            if stopped():
                break
            reads.append(read_one(listing, read, i, treatment, skip=skip))
    return reads


def read_one(
    listing: Listing, read: ReadRecord, position: int, treatment: Treatment = KEEP, *,
    skip: bool = False,
) -> ReadSample:  # fmt: skip
    """Read and check one sample. If it is bad, its record is as far as it was read."""
    size = damaged = 0
    record: Record[Field] = _NOTHING
    try:
        record = listing.describe(read(position), position)
        size = len(record.image.data)
        if bad := _damaged_levels(record, decodes=treatment.check == "decode"):
            if not skip:
                raise DecodeError(next(iter(bad.values())))
            kept = {name: field for name, field in record.fields.items() if name not in bad}
            record, damaged = record.replace_fields(kept), len(bad)
        record = _with_facts(record)
        facts = record.facts
        if facts.height * facts.width > MAX_PIXELS:
            raise DecodeError(
                f"{facts.width}x{facts.height} pixels; the limit is {MAX_PIXELS:,} in all"
            )
        masks = [field.facts for field in record.fields.values() if field.kind == "mask"]
        lossy = any(mask is not None and mask.encoding == "jpeg" for mask in masks)
        record, counts = place_annotations(record)
        _check_masks(record)
        for name, field in record.fields.items():
            with _named(name):
                decode(field)  # text is UTF-8, an array is a .npy file
        meta = record.meta
        with Decoding():
            record = _with_facts(treatment(record))
        is_resized = image_sizes(facts)[1] != image_sizes(record.facts)[1]
        if is_resized and record.meta is meta and has_pixels(meta):
            counts["other_pixels"] = 1
        if treatment.encoding.encode == "dct" and record.facts.encoding != "dct":
            counts["not_open" if record.facts.encoding == "jpeg" else "no_jpeg"] = 1
    except OSError as error:
        check_of_file(error, os.fsdecode(listing.keys[position]))
        problem = f"cannot be read: {error.strerror or error}"
        return ReadSample(position, record, problem, size)
    except DecodeError as error:
        return ReadSample(position, record, str(error), size)
    return ReadSample(
        position, record, None, size, counts | Counter(damaged_levels=damaged, lossy_masks=lossy)
    )


def keep_copy(listing: Listing, read: ReadSample, folder: Path) -> bool:
    """Copy a bad sample into a folder, under its key; tell whether anything could be copied.

    The files of a sample, such as an image and a mask, are copied as they are, also if a file is no
    image. Of a sample without files of its own, as in an archive, the image is copied.
    """
    key = listing.keys[read.position]
    own = () if listing.files is None else listing.files[read.position]
    copies = {} if read.record is _NOTHING else {key: read.record.image.data}
    if listing.root is not None and key in own:
        root = os.fsencode(listing.root)
        with contextlib.suppress(OSError):  # bad because it cannot be read
            copies = {name: Path(os.fsdecode(os.path.join(root, name))).read_bytes()
                      for name in own}  # fmt: skip
    copied = False
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in copies.items():
            target = Path(os.path.normpath(folder / os.fsdecode(name).lstrip("/")))
            if folder in target.parents and b"\0" not in name:  # a key may lead out of the folder
                copied |= _write_copy(target, data)
    except OSError as error:
        raise OutputError(
            f"{folder}: a bad image cannot be copied to it: {error.strerror or error}"
        ) from error
    return copied


def _write_copy(target: Path, data: bytes) -> bool:
    """Write a file; tell whether it can have this name."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    except OSError as error:
        if error.errno not in _NO_NAME:
            raise
        return False
    return True


def _damaged_levels(record: Record[Field], *, decodes: bool) -> dict[str, str]:
    """Name of each damaged level of a record → the reason."""
    found = dict[str, str]()
    for name, field in record.fields.items():
        if isinstance(field, DamagedLevel):
            found[name] = field.data.decode("utf-8", "surrogateescape")
        elif levels.divisor_of(name) is not None and field.kind == "image":
            try:
                facts = field.facts or read_facts(field.data)
                if decodes:
                    _decode(name, field._replace(facts=facts))
            except DecodeError as error:
                found[name] = str(error) if decodes else f"{name}: {error}"
    return found


def _with_facts(record: Record[Field]) -> Record[Field]:
    """The record with the facts of all its images and masks."""
    missing = {}
    for name, field in record.fields.items():
        if field.kind in PIXELS and field.facts is None:
            with _named(name):
                is_none = not field.data and field.kind == "mask"
                missing[name] = field._replace(facts=UNKNOWN if is_none else read_facts(field.data))
    for field in record.fields.values():
        if field.facts is not None and field.encoding in RAW:
            check_raw(field.facts, len(field.data))
    return record.with_fields(**missing) if missing else record


def _check_masks(record: Record[Field]) -> None:
    """Refuse a mask of colours, or whose stored size is not that of its stored image."""
    for name, field in record.fields.items():
        if field.kind == "mask" and field.data:
            with _named(name):
                check_class_ids(field.data, field.facts)
            if field.facts is not None:
                check_mask(name, field.facts, record.facts.height, record.facts.width)
