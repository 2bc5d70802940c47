"""Container formats: a file or a folder each, which implements `Format` and ends in ``FORMAT = …``.

A format says how samples lie in its containers, writes them, and finds them again. Packs are read
by byte range, so a format only writes, and scans a container once to index it. What several formats
share lies in ``blobs/``, ``chunks/`` and ``wire/``.

Functions within this room raise the errors that `Format.scan` and `Writer` name: their docstrings
list only what is special. The text of each error says what the user can do.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from packio.errors import IntegrityError, OptionError
from packio.index.building import Ranges as Ranges
from packio.sample.fields import KINDS
from packio.sample.record import Field, Place, Record


@dataclasses.dataclass(frozen=True)
class Caps:
    """What a format is and can do."""

    suffixes: tuple[str, ...]  # endings of its file names, the preferred one first
    is_directory: bool = False  # one shard is a directory
    package: str | None = None  # importable name of what writes it; None: packio alone does
    extra: str | None = None  # packio's extra that installs the package; None: a core dependency
    writes: bool = True  # packio can write it
    # Its library crashes on some damaged files: without an index, a process of its own scans them.
    dies_of_damage: bool = False
    # A sample is a whole file named by its key, as in a folder: the index has no table of files.
    whole_files: bool = False
    reads_by_library: bool = False  # `Format.reader` reads what is no range of bytes
    # What a container holds beside the fields; the rest is in the index alone.
    keeps: frozenset[str] = frozenset()  # of "key", "label", "meta" and "boxes"
    # What `Format.writer` takes by keyword, as text: name → one line of help.
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # The writer puts all samples aside in a temporary file first, and needs room for them twice.
    spooled: bool = False
    # `scan` opens its path by `packio.formats.blobs.ranges.open_input` alone: it takes an open URL.
    at_urls: bool = False
    # The values of a named field are a container of their own, which holds them as another holds
    # images. `Format.scan` then finds those that were added later, too.
    fields_apart: bool = False
    leaves: tuple[str, ...] = ()  # files without content that readers leave in it, as locks
    magic: tuple[bytes, ...] = ()  # what its files begin with


@dataclasses.dataclass(frozen=True)
class Reading:
    """How to take what a foreign container says; None: find out. See `check_reading`."""

    label_offset: int = 0  # added to labels that are ints
    trust_plain_pickle: bool = False  # read pickles of plain data; nothing in them is run
    # Names within the container. Where a record has metadata, the label is a member of these.
    image: str | None = None
    label: str | None = None  # "": take none
    layout: str | None = None  # of pixels: "HWC" or "CHW", "RGB" or "BGR", or as "HWC,BGR"
    database: str | None = None  # within an LMDB; "": the one without a name

    def names(self) -> dict[str, str]:
        """The names and the order of pixels that the user gave."""
        said = {n: getattr(self, n) for n in ("image", "label", "layout", "database")}
        return {name: value for name, value in said.items() if value is not None}


def check_reading(path: Path, reading: Reading, *takes: str) -> None:
    """Refuse what the user said; ``check_reading(path, reading, "image", "label")`` takes these."""
    for name, value in reading.names().items():
        if name not in takes and (name, value) != ("label", ""):  # "": no labels
            raise OptionError(
                f"{path}: {name}={value!r} is of no use: containers of this format have nothing "
                "to choose from"
            )


def damage_error(where: object, what: str) -> IntegrityError:
    """An error for a container that contradicts itself."""
    return IntegrityError(f"{where}: {what}; restore or repack it")


def unknown_error(option: str, name: str, there: Iterable[str], where: object) -> OptionError:
    """An error for a name that is not in a container; ``there`` describes the names that are."""
    shown = list(there)
    more = f", … ({len(shown)} in all)" if len(shown) > 20 else ""
    return OptionError(
        f"{where}: {option}={name!r} is not in it; there are: {', '.join(shown[:20])}{more}"
    )


class Writer(Protocol):
    """Writes one shard. The same records give the same bytes, however they are grouped."""

    def add(self, records: Sequence[Record[Field]]) -> None:
        """Add some samples, the facts of their images and masks read.

        A named field may be missing in some samples; the image never is, except in a container
        that holds only a field that was added to a pack later.

        Raises:
            OutputError: the shard cannot be written, as on a full disk.
        """

    def close(self) -> Written:
        """Write what is left, and tell where everything lies; the files are not synced yet."""
        ...

    def abort(self) -> None:
        """Let go of everything. May be called at any time, also after `close`."""


class Reader(Protocol):
    """Reads records that are no ranges of bytes. Safe in threads and forks; pickles."""

    def get(self, number: int) -> bytes:
        """Bytes of the record with this number, counted over the whole shard."""
        ...


class Format(Protocol):
    """What a module in this folder provides, as ``FORMAT``. Subclass it: the rest has defaults."""

    caps: Caps

    def recognise(self, head: bytes, name: str) -> bool:
        """Tell whether a container is of this format, by its content or by its name.

        packio asks twice: first with an empty name, so that only the content counts; then, if no
        format has said yes, with the name. The default looks at the magic and at the suffix.

        Args:
            head: The first 512 bytes of a file. Of a directory: the names in it, sorted, one a
                line; and where none of them tells, the names in its folders too, as ``a/b``.
            name: Name of the file or directory, without its folder; or empty.
        """
        return head.startswith(self.caps.magic) or name.lower().endswith(self.caps.suffixes)

    def siblings(self, path: Path) -> list[Path]:
        """Files beside a shard that hold fields of its samples, as ``train.mask.rec``."""
        return []

    def shards(self, names: Sequence[str], content: Callable[[str], bytes | None]) -> Sequence[str]:
        """Of the containers in a folder at a URL, those that are shards, in their order.

        Args:
            names: Names of the containers of this format in the folder, sorted.
            content: Name of any file in the folder → its bytes; None: no such file.

        Raises:
            IntegrityError: a shard is missing.
        """
        return names

    def scan(self, path: Path, reading: Reading) -> Iterator[Record[Place]]:
        """Yield every sample of a shard, in order: of what packio writes, and what others write.

        No value in the file is believed before it is checked, and nothing is allocated by a size
        that the file claims. Where a container has no keys, the key of a record is its number.

        Raises:
            IntegrityError, NotAPackError: the file is damaged, or no such container.
            OptionError: a name of `reading` is not in the container; the message lists what is.
        """
        ...

    def writer(
        self, path: Path, *, count: int, size: int, classes: Sequence[str], **options: Any
    ) -> Writer:
        """Begin one shard.

        Args:
            path: The shard, which does not exist yet; its folder does.
            count: Largest number of samples that will come.
            size: Bytes of all samples together, about.
            classes: Names of the labels, where labels are ints.
            options: The options that `Caps.options` lists.

        Raises:
            MissingPackageError: the format's package is not installed.
        """
        raise OptionError(f"{type(self).__name__}: packio reads this format, and does not write it")

    def reader(self, path: Path, reading: Reading) -> Reader | None:
        """Make the reader of records that are no ranges of bytes; None: all records are ranges.

        If the library crashes on some damaged files, the reader has it read in another process:
        `packio.formats.blobs.by_library.ReaderApart`.
        """
        return None

    def identity(self, path: Path) -> Any:
        """A JSON value that changes when the format's library changes a shard in place, or None."""
        return None

    def unsplit(self, raw: bytes) -> bytes:
        """Join a value that lies in several parts; IntegrityError: they do not fit together."""
        return raw

    def finish(self, folder: Path, shards: Mapping[str, Path]) -> list[str]:
        """Write into a folder what belongs to a whole pack of shards; return the files' names.

        `shards` has the path of each shard, by its name in the pack.
        """
        return []


class Written(NamedTuple):
    """What a Writer has written, in the order in which the records were added."""

    files: tuple[str, ...]  # relative to the shard if it is a directory, else to its folder
    places: dict[str, Ranges]  # name of each field → where its values lie
    sidecars: tuple[str, ...]  # further files, digested in the index but not read from
    info: dict[str, Any]  # goes into the index's metadata; of an array of pixels: "raw"


class Places:
    """Where the values of one field lie in one file of a shard, while a writer writes them."""

    def __init__(self, file: int = 0) -> None:
        self._file = file
        self._values = array("q")  # number of the record, offset, length, split of each

    def add(self, number: int, offset: int, length: int, *, split: bool = False) -> None:
        """Add the place of record ``number``; records that are not added have no value."""
        self._values.extend((number, offset, length, split))

    def ranges(self, count: int) -> Ranges:
        number, *values = np.array(self._values, np.int64).reshape(-1, 4).T
        file, split = np.zeros(count, np.uint32), np.zeros(count, bool)
        offset, length = np.full(count, -1, np.int64), np.zeros(count, np.int64)
        file[number] = self._file
        offset[number], length[number], split[number] = values
        return Ranges(file, offset, length, split if split.any() else None)


class ApartField:
    """A field whose values lie apart from the samples, in their order, each with its sample."""

    def __init__(self, name: str, values: Iterator[tuple[Any, Place]]) -> None:
        self.name, self._values, self.taken = name, values, 0
        self.left = next(values, None)  # the sample and the value that come next

    def find_place(self, sample: Any) -> Place | None:
        """The value of a sample; ask in the order of the samples."""
        if self.left is None or self.left[0] != sample:
            return None
        place = self.left[1]
        self.left, self.taken = next(self._values, None), self.taken + 1
        return place


def name_added_shard(form: Format, shard: str, name: str, kind: str) -> str:
    """Name of the container that holds a field that was added to the samples of a shard later.

    It lies beside a shard that is a file, as ``train-00000.latent.array.tar`` beside
    ``train-00000.tar``, and within a shard that is a folder, as ``train.lmdb/latent.array``. Names
    of shards are relative to the pack's index; "." if the pack is the shard.
    """
    is_mask = form.caps.fields_apart and (name, kind) == ("mask", "mask")
    added = "mask" if is_mask else f"{name}.{kind}"
    if form.caps.is_directory:
        return added if shard == "." else f"{shard}/{added}"
    folder, slash, last = shard.rpartition("/")
    stem, _, suffix = last.rpartition(".")
    if not stem:
        stem, suffix = last, form.caps.suffixes[0].removeprefix(".")
    return f"{folder}{slash}{stem}.{added}.{suffix}"


def is_added_shard(shard: str, names: Container[str]) -> bool:
    """Tell whether a file holds a field that was added to another of the files beside it."""
    stem, _, suffix = shard.rpartition(".")
    stem, _, kind = stem.rpartition(".")
    stem, _, name = stem.rpartition(".")
    return bool(stem and name) and kind in KINDS and f"{stem}.{suffix}" in names
