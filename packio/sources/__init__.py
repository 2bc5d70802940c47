"""Sources of samples: a file each, which implements `Source` and ends in ``SOURCE = …``.

A source makes a `Listing`: the samples that can be packed, in their order. Packing then reads the
samples of a listing in several threads and processes, in any order. For example,
``image_folder.py`` lists a folder of class folders, and ``parquet.py`` lists the rows of Parquet
files. Modules that several sources share begin with an underscore, or lie in ``tables/``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import os
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

import numpy as np

from packio.errors import OptionError, SourceError
from packio.sample.fields import check_kind, check_name
from packio.sample.labelling import Labels, labels_of_keys
from packio.sample.record import IMAGE, MASK, Field, Frame, Record

_NOTHING: Mapping[str, Any] = MappingProxyType({})
_SHOWN = 5  # names in a message
_LOOKED_AT = 16  # images whose names are looked at
_MASK_NAME = re.compile(rb"_(mask|gt|seg|segmentation|labelIds)\.[^./]+$")


class Flag(str):
    """The line of help of an option that is on or off, and takes no value."""

    __slots__ = ()


# Name of a field → (the column, file ending or folder that its values come from, kind or None).
FieldOrigins = Mapping[str, tuple[str, "str | None"]]

FRAMES = ("boxes_frame", "rescale_boxes")  # options of all sources; see `set_frames`

# Position in the listing → the sample. `Listing.describe` adds its key, its label and its split.
# Raises OSError or DecodeError if the sample cannot be read.
ReadRecord = Callable[[int], Record[Field]]
L = TypeVar("L", bound="Listing")


@dataclasses.dataclass(frozen=True)
class Context:
    """What the user says beside the path or the object to list."""

    classes: Sequence[str] | None = None  # names of the labels; None: those that the source finds
    allow_empty: bool = False  # classes without images are accepted, with a warning
    scratch: str | os.PathLike[str] | None = None  # folder with room; None: the system's (TMPDIR)
    # Called with the number of files found since the last call, during a long listing.
    found: Callable[[int], None] = lambda _: None
    fields: FieldOrigins = dataclasses.field(default_factory=dict)  # that the user asks for
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of `Source.options`

    def option(self, name: str, default: Any = None) -> Any:
        """Value of an option, or the default if the user did not give it."""
        value = self.options.get(name)
        return default if value is None else value


@dataclasses.dataclass(frozen=True)
class Rows:
    """What `Listing.open` needs to read each sample, as columns of equal length. Rows pickle.

    `version` is a digest of contents that the rows only point to.
    """

    columns: Mapping[str, Any]
    version: str = ""

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, part: slice) -> Rows:
        return Rows({n: values[part] for n, values in self.columns.items()}, self.version)

    def take(self, positions: Sequence[int]) -> Rows:
        taken = {n: _taken_of(values, positions) for n, values in self.columns.items()}
        return Rows(taken, self.version)

    def digest(self) -> str:
        """Digest of the rows. Rows of other contents have another digest, and so another plan."""
        digest = hashlib.sha256(self.version.encode())
        for name, values in self.columns.items():
            digest.update(f"{name}\n".encode())
            _add_to(digest, values)
        return digest.hexdigest()


@dataclasses.dataclass(frozen=True)
class Listing:
    """The samples of a source, in order."""

    kind: str  # name of the source
    # Folder of the files that `files` or the keys name; None if the samples are no files.
    root: str | os.PathLike[str] | None
    keys: list[bytes] = dataclasses.field(default_factory=list)  # relative paths, each once
    sizes: list[int] = dataclasses.field(default_factory=list)  # bytes of each sample; -1: unknown
    labels: list[int] | np.ndarray | None = None  # in `classes`; or (N, k) float32 or int64
    classes: list[str] = dataclasses.field(default_factory=list)
    # (key, reason) of files and folders that cannot be packed, as a folder that may not be read.
    unlisted: list[tuple[bytes, str]] = dataclasses.field(default_factory=list)
    # (key, reason) of samples left out on purpose, as duplicates.
    dropped: list[tuple[bytes, str]] = dataclasses.field(default_factory=list)
    hidden: set[str] = dataclasses.field(default_factory=set)  # left out; folders end in a slash
    others: Counter[str] = dataclasses.field(default_factory=Counter)  # endings not taken → files
    warnings: list[str] = dataclasses.field(default_factory=list)  # lines for the user
    splits: Sequence[int] | np.ndarray | None = None  # positions in `split_names`
    split_names: list[str] = dataclasses.field(default_factory=list)  # as "train", "val"
    # Paths below `root` of the files that each sample is read from; None: its key.
    files: Sequence[Sequence[bytes]] | None = None
    rows: Rows | None = None  # what `open` needs to read each sample; None: its key is enough
    # Makes a context from some of `rows`, in which these samples can be read by position. None
    # reads files below `root`. Several processes write shards if `open` and `rows` pickle: `open`
    # should be a `functools.partial` of a module's function.
    open: Callable[[Any], AbstractContextManager[ReadRecord]] | None = None

    @property
    def version(self) -> str:
        """Digest of what keys, sizes and labels leave out: the contents, and boxes."""
        return "" if self.rows is None else self.rows.digest()

    def open_records(self) -> AbstractContextManager[ReadRecord]:
        if self.open is not None:
            return self.open(self.keys if self.rows is None else self.rows)
        from packio.sources import _files

        assert self.root is not None  # noqa: S101 (a listing has a root or `open`)
        return _files.open_files(self.root, self.keys)

    def part(self, positions: range) -> Listing:
        """The listing of consecutive samples, without `unlisted`, `dropped` and `warnings`."""
        nothing: dict[str, Any] = {"unlisted": [], "dropped": [], "warnings": [], "hidden": set()}
        return dataclasses.replace(self.take(positions), **nothing)

    def take(self: L, positions: Sequence[int]) -> L:
        names = ("keys", "sizes", "labels", "splits", "files")  # they have an entry a sample
        taken = {n: _taken_of(v, positions) for n in names if (v := getattr(self, n)) is not None}
        rows = None if self.rows is None else self.rows.take(positions)
        return dataclasses.replace(self, **taken, rows=rows)

    def with_labels(self: L, found: Labels) -> L:
        """The listing with labels. Samples that lack one beside others become unlisted."""
        kept = self
        if found.missing:
            kept = self.take([i for i in range(len(self.keys)) if i not in found.missing])
        bad = [(self.keys[i], reason) for i, reason in found.missing.items()]
        return dataclasses.replace(
            kept, labels=found.values, classes=list(found.classes),
            unlisted=[*self.unlisted, *bad],
            warnings=[*self.warnings, *filter(None, [found.remark])],
        )  # fmt: skip

    def map_records(self: L, change: Callable[[Record[Field]], Record[Field]]) -> L:
        """The listing, whose records a function changes when they are read.

        Samples that are files below `root` stay as they are: their records are an image, no more.
        `change` pickles, as a `functools.partial` of a module's function does.
        """
        if self.open is None:
            return self
        return dataclasses.replace(self, open=functools.partial(_changed, self.open, change))

    def describe(self, record: Record[Field], position: int) -> Record[Field]:
        """A record with the key, the label and the split that the listing has for the sample."""
        split = None if self.splits is None else int(self.splits[position])
        return dataclasses.replace(
            record, key=self.keys[position], label=self.label(position), split=split
        )

    def label(self, position: int) -> int | np.ndarray | None:
        if self.labels is None:
            return None
        label: int | np.ndarray = self.labels[position]
        return label


@contextlib.contextmanager
def _changed(
    opened: Callable[[Any], AbstractContextManager[ReadRecord]],
    change: Callable[[Record[Field]], Record[Field]], rows: Any,
) -> Iterator[ReadRecord]:  # fmt: skip
    with opened(rows) as read:
        yield lambda position: change(read(position))


def _add_to(digest: Any, value: Any) -> None:
    if isinstance(value, np.ndarray):
        digest.update(f"{value.dtype.str}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).data)
    elif isinstance(value, (list, tuple)):
        digest.update(b"%d[" % len(value))
        for inner in value:
            _add_to(digest, inner)
    elif isinstance(value, Mapping):
        _add_to(digest, list(value.items()))
    elif isinstance(value, Record):
        _add_to(digest, [value.fields, value.meta, value.boxes, value.box_columns])
    elif isinstance(value, bytes):
        digest.update(b"%d:%b" % (len(value), value))
    else:
        digest.update(f"{value!r};".encode("utf-8", "surrogatepass"))


def _taken_of(values: Any, positions: Sequence[int]) -> Any:
    if isinstance(values, np.ndarray):
        return values[np.asarray(positions, np.int64)]
    return [values[i] for i in positions]


class Source(Protocol):
    """A kind of source. A module in this folder ends in ``SOURCE = MySource()``.

    A subclass overrides `listing`, and at least one of `recognise` and `accepts`.
    """

    priority: float = 0  # of several that recognise a path, the source with the least gets it
    package: str | None = None  # importable name of what the source needs
    # Name of each option → one line of help. The command line offers an option as ``--name`` and
    # passes text, or True if the help is a `Flag`. The source checks the values.
    options: Mapping[str, str] = _NOTHING
    takes_fields: bool = False  # it gives the named fields that `Context.fields` asks for

    @property
    def name(self) -> str:
        """Name of the source's module, as ``"image_folder"``."""
        return type(self).__module__.rpartition(".")[2]

    def recognise(self, path: Path) -> bool:
        """Tell whether a path, a URL or a text names something that this source lists."""
        return False

    def accepts(self, obj: object) -> bool:
        """Tell whether this source lists such a Python object, as a dataset."""
        return False

    def listing(self, source: Any, context: Context) -> Listing:
        """List all samples in their final order. Nothing is left out silently.

        `source` is a path that `recognise` recognises, or an object that `accepts` accepts.

        Raises:
            SourceError: there is nothing to pack, or the layout makes no sense.
            OptionError: the value of an option or of a field makes no sense.
        """
        ...


CONTRACT = Source


def list_samples(source: Source, what: Any, context: Context) -> Listing:
    """List a path or an object, after a check of the names of options and of fields."""
    if unknown := sorted(set(context.options) - {*source.options, *FRAMES}):
        raise OptionError(f"{', '.join(unknown)}: no option of {source.name}")
    if context.fields and not source.takes_fields:
        raise OptionError(
            f"fields={sorted(context.fields)}: the source {source.name} gives no named fields; "
            "pack a table (.csv, .jsonl) with a column of paths and a column for each field; "
            "or a folder or a tar of images with files beside them, as 1.jpg and 1.txt: --field "
            "caption=txt"
        )
    if isinstance(what, (str, Path)) and "\0" in str(what):
        raise SourceError(f"{str(what)!a}: a NUL byte is in it, which no path has")
    pattern = context.option("label_regex")
    if pattern is not None and (clashing := {"labels", "label_col"} & context.options.keys()):
        raise OptionError(f"label_regex and {clashing.pop()}: both say what the labels are")
    own = context if pattern is None else dataclasses.replace(context, classes=None)
    found = set_frames(_tell_hidden(source.listing(what, own)), context.options)
    if pattern is None:
        return found
    return found.with_labels(labels_of_keys(found.keys, pattern, context.classes))


def check_choice(name: str, value: Any, *known: str) -> Any:
    if value not in (None, *known):
        expected = " or ".join([", ".join(map(repr, known[:-1])), repr(known[-1])])
        raise OptionError(f"{name}={value!r}: expected {expected}")
    return value


def count_names(what: str, names: Sequence[Any]) -> str:
    texts = [os.fsdecode(n) if isinstance(n, bytes) else str(n) for n in dict.fromkeys(names)]
    first = ", ".join(ascii(text)[1:-1] for text in texts[:3])
    return f"{len(names)} {what} ({first}{', …' if len(texts) > 3 else ''})"


def command(source: object, name: str, *options: str) -> str:
    """The command that packs a source by itself, for a message."""
    words = (shlex.quote(str(source)), f"{shlex.quote(name)}.lmdb", *map(shlex.quote, options))
    return f"packio pack {' '.join(words)}"


def _tell_hidden(found: Listing) -> Listing:
    if names := sorted(found.hidden):
        folders = sum(name.endswith("/") for name in names)
        counts = [
            f"{n} {what}{'s' * (n != 1)}" for n, what in
            ((folders, "hidden or system folder"), (len(names) - folders, "hidden file")) if n
        ]  # fmt: skip
        shown = ", ".join(ascii(n)[1:-1] for n in names[:_SHOWN]) + ", …" * (len(names) > _SHOWN)
        found.warnings.append(
            f"left out: {' and '.join(counts)} ({shown}); to take them, say --include-hidden"
        )
    return found


def remark_on_masks(found: Listing) -> Iterator[str]:
    """Say how to pack pairs, if one of the first files is named as the mask of another."""
    keys = [] if found.root is None or found.files is not None else found.keys[:_LOOKED_AT]
    images = {os.path.splitext(key)[0]: key for key in keys}
    for key in keys:
        if (end := _MASK_NAME.search(key)) and (image := images.get(key[: end.start()])):
            name, of, ending = (ascii(os.fsdecode(part))[1:-1] for part in (key, image, end[0]))
            suffix = os.path.splitext(of)[1]
            yield (
                f"{name} is named as the mask of {of}, and is packed as an image; to pack pairs, "
                f"say --source pairs --images . --masks . --image-suffix {suffix} --mask-suffix "
                f"{ending}"
            )
            return


def set_frames(listing: L, options: Mapping[str, Any]) -> L:
    """Note where boxes and masks lie, as the options of all sources ``FRAMES`` say."""
    said = check_choice("boxes_frame", options.get("boxes_frame"), "upright", "stored")
    rescales = bool(options.get("rescale_boxes"))
    if said is None and not rescales:
        return listing
    is_upright = None if said is None else said == "upright"
    return listing.map_records(functools.partial(_framed, is_upright, rescales))


def _framed(is_upright: bool | None, rescales: bool, record: Record[Field]) -> Record[Field]:
    if record.frame is None and not is_upright:  # of a pack
        return record
    frame = (record.frame or Frame())._replace(is_upright=is_upright, rescales=rescales)
    return dataclasses.replace(record, frame=frame)


def parse_fields(given: Mapping[str, Any] | None) -> dict[str, tuple[str, str | None]]:
    found: dict[str, tuple[str, str | None]] = {}
    for name, value in (given or {}).items():
        origin, kind = (value, None) if isinstance(value, str) else value
        if not isinstance(origin, str) or not origin:
            raise OptionError(f"fields={{{name!r}: {value!r}}}: expected a column, or column, kind")
        if name == IMAGE or (name == MASK and kind not in (None, "mask")):
            raise OptionError(f"fields={{{name!r}: {value!r}}}: expected another name of the field")
        kind = "mask" if name == MASK else kind
        found[check_name(name)] = (origin, None if kind is None else check_kind(kind))
    return found
