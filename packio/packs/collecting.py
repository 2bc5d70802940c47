"""The samples of a container, collected record by record, and the columns of its index."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packio import __version__
from packio.errors import DecodeError, IntegrityError, NotAPackError, OptionError
from packio.formats import Format, Reader, Reading
from packio.images import encodings, native
from packio.index import columns as made
from packio.index import indexfile
from packio.index.building import IndexBuilder, Ranges
from packio.sample.labelling import Distinct, Labels, is_missing, labels
from packio.sample.record import IMAGE, Facts, Field, Place, Record
from packio.sample.relabelling import NO_CLASS
from packio.storage.local import LocalStore
from packio.system.locks import cached_property


def check_label(label: int, offset: int, where: object) -> None:
    """Refuse an offset that makes a label negative, or takes it out of 64 bits."""
    moved = label + offset
    if not -(1 << 63) <= moved < 1 << 63:
        raise OptionError(f"label {label} with label_offset={offset}: does not fit 64 bits")
    if moved < 0 <= label:
        raise OptionError(
            f"{where}: label {label} with label_offset={offset} would be {moved}; labels count "
            "from 0"
        )


def name_by_folders(columns: Mapping[str, np.ndarray]) -> list[str]:
    """Names of int labels: the folders in the keys, if each label has a folder of its own."""
    label, names = columns.get("label"), dict[int, str]()
    if label is None or label.ndim > 1:
        return []
    keys = made.split_values(columns["key_data"], columns["key_offsets"])
    for number, key in zip(label.tolist(), keys, strict=True):
        if number == NO_CLASS:
            continue
        folder, slash, _ = os.fsdecode(key).partition("/")
        if not slash or names.setdefault(number, folder) != folder:
            return []
    are_all = sorted(names) == list(range(len(names))) and len({*names.values()}) == len(names)
    return [names[i] for i in range(len(names))] if are_all else []


def join_fields(each: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Kind of each named field of several indexes."""
    found: dict[str, str] = {}
    for name, kind in (item for fields in each for item in fields.items()):
        if found.setdefault(name, kind) != kind:
            raise OptionError(f"field {name!r} is of kind {found[name]}, elsewhere of kind {kind}")
    return found


NO_LABEL = "no label, though others have one"
_MOST_LISTED = 1000
_ABSENT = (0, -1, 0, False)  # the place of a value that is not there
_Read = Callable[[int, int, int], bytes]  # number of a file, offset, length


class LeftOut:
    """Records that are not in an index: how many, and key and reason of the first ones."""

    def __init__(self) -> None:
        self.count = 0
        self.listed: list[list[str]] = []

    def add(self, count: int, listed: Sequence[Sequence[str]], shard: str = "") -> None:
        """Note records, of one of several shards."""
        self.count += count
        where = f" (in {shard})" if shard else ""
        for key, reason in listed[: _MOST_LISTED - len(self.listed)]:
            self.listed.append([key, f"{reason}{where}"])

    def metadata(self, packed: int) -> dict[str, Any]:
        """What the metadata of an index say of them."""
        counts = {"found": packed + self.count, "packed": packed, "skipped": self.count}
        return {"counts": counts, "left_out": self.listed}

    def no_images(self, path: Path, container: str) -> NotAPackError:
        """The error for a container of which nothing is left."""
        first = "; the first record: {!a}: {}".format(*self.listed[0]) if self.listed else ""
        return NotAPackError(f"{path}: no images in this {container} container{first}")


def index_metadata(
    form: str, reading: Reading, shards: Sequence[tuple[str, int]], left_out: LeftOut,
    least_label: int | None, columns: Mapping[str, np.ndarray], **more: Any,
) -> dict[str, Any]:  # fmt: skip
    """The metadata of an index that was made of a container alone."""
    metadata: dict[str, Any] = {
        "version": indexfile.VERSION, "format": form,
        **left_out.metadata(sum(count for _, count in shards)),
        "source": {"kind": "reindex"}, "options": reading.names(),
        "shards": [{"name": name, "samples": count} for name, count in shards],
        "versions": {"packio": __version__},
    }  # fmt: skip
    label = columns.get("label")
    if least_label is not None and label is not None and label.ndim == 1:
        metadata["labels"] = {"min": least_label, "offset": reading.label_offset}
    return metadata | {name: value for name, value in more.items() if value is not None}


def remarks_of(metadata: Mapping[str, Any]) -> list[str]:
    """What an index of a container of others says at each opening, one sentence each."""
    remarks = list(metadata.get("remarks", ()))
    if listed := metadata.get("left_out"):
        counts = metadata["counts"]
        remarks.append(
            f"{counts['skipped']} of {counts['found']} records are left out; the first: "
            "{!a}: {}".format(*listed[0])
        )
    return remarks


class SampleCollector:
    """Collects the samples of a container: reads each, takes its header and its checksum."""

    def __init__(
        self, root: Path, names: Sequence[str], form: Format, label_offset: int,
        *, seek_points: bool = False, read: _Read | None = None, only_labelled: bool = False,
    ) -> None:  # fmt: skip
        self._root, self._names, self._format = root, names, form
        self._label_offset = label_offset
        self._seek_points, self._only_labelled = seek_points, only_labelled
        self._numbers = {name: i for i, name in enumerate(names)}
        self._read = (
            read or LocalStore(root, names, [(root / name).stat().st_size for name in names]).read
        )
        self._builder = IndexBuilder()
        self._places: dict[str, array[int]] = {}  # file, offset, length, split of each value
        self._records = array("q")  # number of each in its shard
        self._ints = array("q")  # labels as found, until one is no int
        self._scalars: Distinct | None = None  # from then on: labels that are no vectors
        self.left_out = LeftOut()
        self.classes: list[str] = []  # known once `columns` has made the columns
        self.least_label: int | None = None  # the smallest label that is an int, as it was found
        # Whether some samples are no byte ranges; then the column ``offset`` has the record numbers
        # of all, for the format's Reader.
        self.by_library = False

    def __len__(self) -> int:
        return len(self._records)

    @property
    def lacks_labels(self) -> bool:
        """Whether some samples have a label and others have none: collect the labelled ones."""
        return self._builder.labels.are_missing

    def add_shard(self, shard: str, records: Iterable[Record[Place]], reader: Reader | None) -> int:
        """Collect one shard; return how many samples it has."""
        before = len(self)
        folder = Path(shard) if (self._root / shard).is_dir() else Path(shard).parent
        prefix = "" if folder == Path() else f"{folder}/"  # of the names of the shard's files
        for number, record in enumerate(records):
            try:
                self._add(record, number, prefix, reader)
            except DecodeError as error:
                where = shard if len(self._names) > 1 and shard != "." else ""
                self.left_out.add(1, [(os.fsdecode(record.key), str(error))], where)
        self._builder.raw.end_shard()
        return len(self) - before

    def _add(self, record: Record[Place], number: int, prefix: str, reader: Reader | None) -> None:
        if IMAGE not in record.fields:
            raise DecodeError("a label, but no image with the same name beside it")
        if self._only_labelled and _plain(record.label) is None:
            raise DecodeError(NO_LABEL)
        fields: dict[str, Field] = {}
        places: dict[str, tuple[int, int, int, bool]] = {}
        for name, place in record.fields.items():
            file = self._numbers[prefix + place.file]
            data, facts = self._value(name, place, file, reader, number)
            length = len(data) if place.offset < 0 else place.length
            points = b""
            if self._seek_points and name == IMAGE and facts and facts.encoding == "jpeg":
                points = native.seek_points(data)
            fields[name] = Field(place.kind, data, facts, points)
            places[name] = file, place.offset, length, place.split
        label = self._label(_plain(record.label))
        self._builder.add(Record(
            record.key, fields, label, record.split, record.boxes, record.box_columns, record.meta
        ))  # fmt: skip
        for name in places.keys() - self._places.keys():
            self._places[name] = array("q", _ABSENT * len(self))
        for name, numbers in self._places.items():
            numbers.extend(places.get(name, _ABSENT))
        self._records.append(number)

    def _value(
        self, name: str, place: Place, file: int, reader: Reader | None, number: int
    ) -> tuple[bytes, Facts | None]:
        """The bytes of a field, and the facts of an image."""
        if place.offset < 0:
            if reader is None or name != IMAGE:
                raise IntegrityError(
                    f"{self._root}: record {number}: {name!r} is no range of bytes; only an image "
                    "may be none, and only where the format has a reader"
                )
            self.by_library = True
            data = reader.get(number)
        else:
            data = self._read(file, place.offset, place.length)
        if place.split:
            data = self._format.unsplit(data)
        facts = place.facts
        if name == IMAGE:
            facts = facts or encodings.read_facts(data)
            if place.facts is not None:
                encodings.check_raw(facts, len(data))
        return data, facts

    def _label(self, label: Any) -> int | np.ndarray | None:
        """What the index takes of a label for now: an int, a vector, or nothing."""
        if label is None or isinstance(label, np.ndarray):
            return label
        if self._scalars is None and type(label) is int:
            self._ints.append(label)
            self.least_label = label if self.least_label is None else min(label, self.least_label)
            check_label(label, self._label_offset, self._root)
            return label + self._label_offset
        if self._scalars is None:
            self._scalars = Distinct()
            self._scalars.extend(self._ints)
        self._scalars.extend([label])
        return 0

    @cached_property
    def _labels(self) -> Labels:
        """The labels that are no vectors, if some are no ints."""
        if self._scalars is None:
            return Labels()
        found = labels(self._scalars, self._scalars.values, self._place)
        if isinstance(found.values, list) and not found.classes:
            self.least_label = min(found.values)
            for label in {self.least_label, max(found.values)}:
                check_label(label, self._label_offset, self._root)
            return found._replace(values=[n + self._label_offset for n in found.values])
        return found

    def _place(self, number: int | None) -> str:
        return f"{self._root}" + ("" if number is None else f": record {number}")

    @property
    def names(self) -> list[str]:
        """Names of the classes, if labels are texts."""
        return list(self._labels.classes)

    def columns(self, files: dict[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
        """The columns of the index."""
        if not len(self):
            self._places[IMAGE] = array("q")
        places = {name: _ranges(numbers) for name, numbers in self._places.items()}
        if self.by_library:
            places[IMAGE] = places[IMAGE]._replace(offset=np.array(self._records, np.int64))
        columns = self._builder.columns(places)
        if self._labels.values is not None and "label" in columns:
            columns["label"] = np.asarray(self._labels.values)
        self.classes = name_by_folders(columns) if self._scalars is None else self.names
        if not self._builder.keys_differ:  # the position makes them so
            columns |= made.numbered_key_columns(columns["key_data"], columns["key_offsets"])
        return columns | (files or made.file_columns(self._root, self._names))

    def remarks(self) -> list[str]:
        """What is unusual about the samples of the index, one sentence each."""
        remark = self._builder.labels.remark()
        return [f"labels are left out, as they are {remark}"] if remark else []

    @property
    def fields(self) -> dict[str, str]:
        """Kind of each named field."""
        return dict(self._builder.fields)


def _plain(label: Any) -> Any:
    """A label as a vector or a value of Python; None if it is missing."""
    if isinstance(label, np.ndarray):
        label = label.item() if label.size == 1 else label
    if isinstance(label, np.ndarray):
        return None if label.dtype.kind == "f" and np.isnan(label).any() else label
    return None if is_missing(label) else label


def _ranges(numbers: array[int]) -> Ranges:
    file, offset, length, split = np.array(numbers, np.int64).reshape(-1, 4).T
    return Ranges(
        file.astype(np.uint32), offset.copy(), length.copy(),
        split.astype(bool) if split.any() else None,
    )  # fmt: skip
