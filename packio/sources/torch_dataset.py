"""A Python dataset: an object with a length and items, or an object to iterate over.

These are torch's datasets and torchvision's, Hugging Face's, WebDataset's, lists and generators. An
item is an image, a tuple (image, label, …), or a mapping; `tables.records` takes it apart.
Names of classes come from ``classes``, or ``features``; labels of boxes are positions in them, too.
If there are ``classes``, lists of numbers have one number for each class in all labels, as
``[0, 1, 0]`` of three classes, or else positions, as ``[1]``.

Each item is read once, in order, in one thread, and put into a temporary file: the dataset need not
be safe in threads, nor give the same item twice. Encoded images are stored unchanged. Pixels are
stored raw if all items are pixels of the same size and type, else as PNG where PNG can hold them.
An `ImageFolder` of torchvision without transforms, or a subset of it, is packed from its files.

On the command line a dataset is ``module:object``, as ``mydata:train``; a function or a class is
called without arguments. The current folder is searched for the module, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import os
import pkgutil
import re
import sys
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio.errors import OptionError, PackioError, ReadError, SourceError
from packio.sample.labelling import Distinct, Labels, class_names, labels
from packio.sample.record import Facts, Field, Record
from packio.sources import Context, Listing, Rows, Source, _files
from packio.sources._rows import ScratchFile, each_of
from packio.sources.tables import columns, field_values, records
from packio.system.files import check_of_file, read_at

_OPTIONS = {
    "label_col": "member of the items, or of their metadata, that is the label",
    **columns.OBJECT_OPTIONS,
}
_is_object = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*").fullmatch


class TorchDataset(Source):
    priority = 2  # the last of all: this source takes nearly every object
    options = _OPTIONS
    takes_fields = True

    def recognise(self, path: Path) -> bool:
        return bool(_is_object(os.fspath(path))) and not os.path.lexists(path)

    def accepts(self, obj: object) -> bool:
        if isinstance(obj, (str, bytes, bytearray, os.PathLike, type)):
            return False
        return isinstance(obj, Iterable) or _has_items(obj)

    def listing(self, source: Any, context: Context) -> Listing:
        if isinstance(source, (str, os.PathLike)):
            with current_folder_importable():
                return self._listed(self._imported(os.fspath(source)), context)
        return self._listed(source, context)

    def _imported(self, text: str) -> Any:
        try:
            found = pkgutil.resolve_name(text)
            if callable(found) and not self.accepts(found):
                found = found()
        except Exception as error:  # whatever the user's code does
            raise SourceError(f"{text}: {type(error).__name__}: {error}") from error
        if not self.accepts(found):
            raise SourceError(f"{text}: a {type(found).__name__}; expected a dataset")
        return found

    def _listed(self, source: Any, context: Context) -> Listing:
        if isinstance(source, Mapping):
            raise SourceError(
                f"a mapping with {', '.join(map(repr, list(source)[:5]))}; expected one dataset: "
                "pack each of its values by itself"
            )
        is_plain = not context.fields and context.option("label_col") is None
        if is_plain and (found := _of_files(source, context)) is not None:
            return found
        pool = _ItemsAside(type(source).__name__, context)
        for position, item in _items(_undecoded(source)):
            pool.add(position, item)
        return pool.listing(_classes(source, context.option("label_col")))


SOURCE = TorchDataset()


@contextlib.contextmanager
def current_folder_importable() -> Iterator[None]:
    """Find modules in the current folder, too, as ``python -m`` does."""
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(here)


def _has_items(source: object) -> bool:
    return callable(getattr(type(source), "__getitem__", None))


def _of_files(source: Any, context: Context) -> Listing | None:
    """List the files of an ImageFolder of torchvision's, or of a subset; None: it is another."""
    folders, data = sys.modules.get("torchvision.datasets"), sys.modules.get("torch.utils.data")
    if folders is None or data is None:
        return None
    if type(source) is data.Subset:
        whole, indices = _of_files(source.dataset, context), [int(i) for i in source.indices]
        if whole is None or len(set(indices)) < len(indices):  # a file twice has no key of its own
            return None
        return whole.take(indices)
    if type(source) is not folders.ImageFolder or source.transforms is not None:
        return None
    if source.loader is not folders.folder.default_loader:
        return None
    names = class_names("ImageFolder", source.classes, context.classes)
    label_of = [names.index(name) for name in source.classes]
    root, keys = columns.relative([path for path, _ in source.samples], source.root)
    labels = [label_of[label] for _, label in source.samples]
    return Listing(SOURCE.name, root, keys, _files.sizes(root, keys), labels, names)


def _items(source: Any) -> Iterator[tuple[int, Any]]:
    """Yield position and item, or position and the exception that reading the item raised."""
    torch = sys.modules.get("torch.utils.data")
    iterates = torch is not None and isinstance(source, torch.IterableDataset)
    if _has_items(source) and callable(getattr(source, "__len__", None)) and not iterates:
        for i in range(len(source)):
            try:
                item = source[i]
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001 (whatever the dataset does)
                item = error
            yield i, item
        return
    i = -1
    try:
        for i, item in enumerate(source):
            yield i, item
    except PackioError:
        raise
    except Exception as error:
        check_of_file(error, f"the item after item {i}")
        raise SourceError(
            f"{type(source).__name__}: {type(error).__name__} after item {i}: {error}"
        ) from error


def _undecoded(source: Any) -> Any:
    features, cast = getattr(source, "features", None), getattr(source, "cast_column", None)
    if not isinstance(features, Mapping) or cast is None:
        return source
    if (getattr(source, "format", None) or {}).get("type") is not None:
        return source  # the user asked for converted items
    for name, feature in features.items():
        if type(feature).__name__ == "Image" and getattr(feature, "decode", False):
            source = source.cast_column(name, type(feature)(decode=False))
    return source


class _Classes(NamedTuple):
    names: list[str] | None = None
    hot: bool = False  # lists of numbers as labels may have a number for each name


def _classes(source: Any, label_col: str | None) -> _Classes:
    features: Any = getattr(source, "features", None)
    found: Any = getattr(source, "classes", None)
    of_features = isinstance(features, Mapping)
    if of_features:
        usual = (*columns.LABEL_NAMES, *columns.OBJECT_NAMES)
        found = columns.category_names(features.get(label_col or columns.guess(features, usual)))
    elif found is None and (whole := getattr(source, "dataset", None)) is not None:
        return _classes(whole, label_col)
    is_other = label_col is not None and label_col not in columns.LABEL_NAMES and not of_features
    if not isinstance(found, (list, tuple)) or is_other:
        return _Classes()
    names = [", ".join(name) if isinstance(name, tuple) else name for name in found]  # ImageNet's
    good = all(isinstance(name, str) for name in names) and len(set(names)) == len(names)
    return _Classes(names if names and good else None, not of_features)


class _ItemsAside:
    def __init__(self, what: str, context: Context) -> None:
        self._what, self._context, self._fields = what, context, context.fields
        self._label_col = context.option("label_col")
        self._box_format = context.option("box_format")
        self._scratch = ScratchFile(context.scratch, "samples were put aside")
        self._digest = hashlib.sha256()
        self._positions, self._ends, self._sizes = array("q"), array("q", [0]), array("q")
        self._labels = Distinct()
        self._keys, self._paths = list["str | None"](), list["str | None"]()
        self._bad: list[tuple[bytes, str]] = []
        self._pixels: Counter[Facts | None] = Counter()
        self._box_labels: tuple[int, int] | None = None  # the least and the greatest
        self._absent = {*context.fields}
        self._has_meta = False

    def add(self, position: int, value: Any) -> None:
        try:
            if isinstance(value, Exception):
                raise value
            self._fields = records.resolve_kinds_by(self._fields, value)
            item = records.item_of(value, self._fields, self._label_col, self._box_format)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 (whatever the user's objects do)
            check_of_file(error, f"item {position}")
            is_plain = isinstance(error, PackioError)
            reason = str(error) if is_plain else f"{type(error).__name__}: {error}"
            self._bad.append((b"%08d" % position, reason))
            return
        self._absent -= item.record.fields.keys()
        data = records.to_bytes(item.record)
        self._digest.update(data)
        self._scratch.write(data)
        self._ends.append(self._scratch.size)
        self._positions.append(position)
        self._sizes.append(len(item.record.image.data))
        self._labels.extend([item.label])
        self._keys.append(item.key)
        self._paths.append(item.path)
        self._pixels[item.record.image.facts] += 1
        self._has_meta = self._has_meta or item.record.meta is not None
        ids = item.record.box_columns.get("labels")
        if ids is not None and ids.size:
            seen = self._box_labels or (int(ids[0]), int(ids[0]))
            self._box_labels = min(seen[0], int(ids.min())), max(seen[1], int(ids.max()))

    def listing(self, classes: _Classes) -> Listing:
        if not self._positions:
            reason = f"; the first: {self._bad[0][1]}" if self._bad else ""
            raise SourceError(f"{self._what}: none of {len(self._bad)} items can be packed{reason}")
        for name in sorted(self._absent):
            column = self._context.fields[name][0]
            raise OptionError(f"{self._what}: field {name!r}: no item has {column!r}")
        self._scratch.finish()
        warnings = list[str]()
        found, order = self._labelled(classes, warnings)
        decoded = self._pixels.total() - self._pixels[None]
        as_png = len(+self._pixels) > 1
        if decoded:
            warnings.append(
                f"{decoded:,} items are pixels, stored {'as PNG' if as_png else 'raw'}; a dataset "
                "that gives paths, or the bytes of files, keeps the files as they are"
            )
        ends = np.array(self._ends, np.int64)
        spans = np.stack([ends[:-1], ends[1:]], axis=1)
        rows = Rows({"span": spans}, self._digest.hexdigest())
        return Listing(
            SOURCE.name, None, self._unique_keys(), self._sizes.tolist(), None, [],
            unlisted=self._bad, warnings=warnings, rows=rows,
            open=functools.partial(each_of, self._scratch, _read, as_png, self._has_meta, order),
        ).with_labels(found)  # fmt: skip

    def _labelled(self, classes: _Classes, warnings: list[str]) -> tuple[Labels, np.ndarray | None]:
        values, names, asked = self._labels.values, classes.names, self._context.classes
        is_bare, ids = {*values} <= {None}, self._box_labels
        if is_bare and self._label_col:
            raise OptionError(f"{self._what}: no item has a label {self._label_col!r}")
        fits = all(type(v) is not int or -1 <= v < len(names or ()) for v in values)
        boxes_fit = ids is None or (ids[0] >= 0 and ids[1] < len(names or ()))
        if names and not (fits and (boxes_fit or not is_bare)):
            warnings.append(f"labels do not fit the {len(names)} classes of the dataset: no names")
            names = None
        found = Labels()
        if not is_bare:
            found = labels(
                self._labels, values, self._place, classes=asked, names=names, hot=classes.hot
            )
        if not names or ids is None:
            return found, None
        if is_bare:
            known = names if asked is None else class_names(self._place(None), names, asked)
            found = Labels(classes=known)
        if list(found.classes) == names or not boxes_fit:
            return found, None
        return found, np.array([list(found.classes).index(name) for name in names], np.int64)

    def _place(self, position: int | None) -> str:
        where = "" if position is None else f": item {self._positions[position]}"
        return f"{self._what}{where}"

    def _unique_keys(self) -> list[bytes]:
        paths = [path and os.path.abspath(path) for path in self._paths]
        if not any(self._keys) and (found := columns.keys_of(paths)) is not None:
            return found
        named = [k or f"{i:08d}" for k, i in zip(self._keys, self._positions, strict=True)]
        keys = [key.encode("utf-8", "surrogateescape") for key in named]
        first: dict[bytes, int] = {}
        for i, key in enumerate(keys):
            if first.setdefault(key, i) != i:
                raise SourceError(
                    f"{self._place(i)} has the key {named[i]!a}, as item "
                    f"{self._positions[first[key]]} has; expected each key once"
                )
        return keys


def _read(
    descriptor: int, as_png: bool, has_meta: bool, order: np.ndarray | None, rows: Rows,
    position: int,
) -> Record[Field]:  # fmt: skip
    """Read an item from the scratch file; `order` is the new label of each label of boxes."""
    start, end = rows.columns["span"][position].tolist()
    data = read_at(descriptor, end - start, start)
    if len(data) != end - start:
        raise ReadError(f"the scratch file ends at byte {start + len(data)}; run again")
    record = records.from_bytes(data)
    if has_meta and record.meta is None:
        record = dataclasses.replace(record, meta=b"{}")
    if order is not None and "labels" in record.box_columns:
        boxes = {**record.box_columns, "labels": order[record.box_columns["labels"]]}
        record = dataclasses.replace(record, box_columns=boxes)
    pixels, facts = record.image.data, record.image.facts
    if as_png and facts is not None and field_values.fits_png(facts):
        record = record.with_fields(image=Field("image", field_values.as_png(pixels, facts)))
    return record
