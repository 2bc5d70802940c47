"""A Python dataset: an object with a length and items, or an object to iterate over.

These are torch's datasets and torchvision's, Hugging Face's, WebDataset's, lists and generators. An
item is an image, a tuple (image, label, …), or a mapping with image, label, mask, boxes,
box_labels, key, meta, or their usual other names. A mapping within a tuple counts as part of the
item. `packio.sources._objects` says what becomes a named field and what becomes metadata. Labels
are ints, floats, names, or lists of them. Names of classes come from ``classes``, or ``features``.

Each item is read once, in order, in one thread, and put into a temporary file. So the dataset need
not be safe in threads, and need not give the same item twice. An image that comes encoded, as bytes
or as the path of a file, is stored as it is. Pixels are stored without loss: raw if all items of
the dataset are pixels of the same size and type, else as PNG. Pixels that PNG cannot hold, as
float32, are raw in any case. An `ImageFolder` of torchvision without transforms, or a subset of
one, is packed from its files.

On the command line a dataset is ``module:object``, as ``mydata:train``; a function or a class is
called without arguments. The current folder is searched for the module, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import os
import re
import sys
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packio.errors import PackioError, SourceError
from packio.sample.facts import Facts
from packio.sample.record import Field, Record
from packio.sources import Context, Listing, ReadRecord, Source, _classes, _files, _objects, _values
from packio.sources._rows import Columns
from packio.sources._spool import Spool
from packio.sources.tables import tables

_is_object = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*").fullmatch


class TorchDataset(Source):
    """A Python dataset."""

    priority = 2  # the last of all: it takes nearly every object
    takes_fields = True

    def recognise(self, path: Path) -> bool:
        """Tell whether the text is ``module:object``, and no file."""
        return bool(_is_object(os.fspath(path))) and not os.path.lexists(path)

    def accepts(self, obj: object) -> bool:
        """Tell whether an object has items by number, or can be iterated over."""
        if isinstance(obj, (str, bytes, bytearray, os.PathLike, type)):
            return False
        return isinstance(obj, Iterable) or _has_items(obj)

    def listing(self, source: Any, context: Context) -> Listing:
        """Read a dataset into a temporary file, and list the items there.

        Keys are the items' own keys; or the paths of the images, if every image has one; or
        numbers. Items that cannot be read, or make no sense, are in `Listing.unlisted`.

        Raises:
            SourceError: ``module:object`` cannot be imported or is no dataset; there are no items
                that make sense; the iteration fails; keys repeat; or labels are of several kinds.
            OutputError: the temporary file cannot be written, as on a full disk.
        """
        if isinstance(source, (str, os.PathLike)):
            with _current_folder_importable():
                return self._listed(self._imported(os.fspath(source)), context)
        return self._listed(source, context)

    def _imported(self, text: str) -> Any:
        module, _, names = text.partition(":")
        try:
            found: Any = importlib.import_module(module)
            for name in names.split("."):
                found = getattr(found, name)
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
        if not context.fields and (found := _of_files(source, context)) is not None:
            return found
        pool = _Pool(type(source).__name__, Spool(context.scratch), context)
        for position, sample in _samples(_undecoded(source)):
            pool.add(position, sample)
        return pool.listing(_class_names(source))


SOURCE = TorchDataset()


@contextlib.contextmanager
def _current_folder_importable() -> Iterator[None]:
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
    """List the files of an ImageFolder of torchvision's, or of a subset; None for other datasets.

    A folder with transforms, or with a loader of the user's, is no such folder.
    """
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
    names = _classes.names("ImageFolder", source.classes, context.classes)
    labels = [names.index(name) for name in source.classes]
    root, keys = tables.relative([path for path, _ in source.samples], source.root)
    with _files.folder_opened(root) as folder:
        sizes = _files.sizes(folder, keys)
    return Listing(
        SOURCE.name, root, keys, sizes, [labels[label] for _, label in source.samples], names
    )


def _samples(source: Any) -> Iterator[tuple[int, Any]]:
    """Yield position and item, or position and the exception that reading the item raised."""
    if _has_items(source) and callable(getattr(source, "__len__", None)) and not _iterates(source):
        for i in range(len(source)):
            try:
                sample = source[i]
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001 (whatever the dataset does)
                sample = error
            yield i, sample
        return
    i = -1
    try:
        for i, sample in enumerate(source):
            yield i, sample
    except PackioError:
        raise
    except Exception as error:
        raise SourceError(
            f"{type(source).__name__}: {type(error).__name__} after item {i}: {error}"
        ) from error


def _iterates(source: Any) -> bool:
    """Tell whether this is an IterableDataset of torch's, which has a __getitem__ that fails."""
    torch = sys.modules.get("torch.utils.data")
    return torch is not None and isinstance(source, torch.IterableDataset)


def _undecoded(source: Any) -> Any:
    """Make a dataset of Hugging Face's give its images as they are stored."""
    features, cast = getattr(source, "features", None), getattr(source, "cast_column", None)
    if not isinstance(features, Mapping) or cast is None:
        return source
    if (getattr(source, "format", None) or {}).get("type") is not None:
        return source  # the user asked for converted items
    for name, feature in features.items():
        if type(feature).__name__ == "Image" and getattr(feature, "decode", False):
            source = source.cast_column(name, type(feature)(decode=False))
    return source


def _class_names(source: Any) -> list[str] | None:
    """Names of the classes of a dataset, or of the dataset that it is a subset of."""
    features = getattr(source, "features", None)
    found: Any = getattr(source, "classes", None)
    if isinstance(features, Mapping):
        label = tables.guess(features, tables.LABEL_NAMES)
        found = getattr(features.get(label), "names", None)
    elif found is None and (whole := getattr(source, "dataset", None)) is not None:
        return _class_names(whole)
    if not isinstance(found, (list, tuple)):
        return None
    names = [", ".join(name) if isinstance(name, tuple) else name for name in found]  # ImageNet's
    good = all(isinstance(name, str) for name in names) and len(set(names)) == len(names)
    return names if names and good else None


class _Pool:
    """Items of a dataset, in a temporary file.

    Args:
        what: Name of the dataset, for messages.
        spool: Takes the items.
        context: What the source is told.
    """

    def __init__(self, what: str, spool: Spool, context: Context) -> None:
        self._what, self._spool, self._context = what, spool, context
        self._positions, self._spans, self._sizes = array("q"), array("q"), array("q")
        self._labels = tables.Column()
        self._keys, self._paths = list["str | None"](), list["str | None"]()
        self._bad: list[tuple[bytes, str]] = []
        self._pixels: Counter[Facts | None] = Counter()
        self._has_meta = False

    def add(self, position: int, sample: Any) -> None:
        """Put an item aside, or keep the reason why that is impossible."""
        try:
            if isinstance(sample, Exception):
                raise sample
            taken = _objects.taken(sample, self._context.fields)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 (whatever the user's objects do)
            self._bad.append((b"%08d" % position, _values.described(error)))
            return
        self._spans.extend(self._spool.add(taken.record))
        self._positions.append(position)
        self._sizes.append(len(taken.record.image.data))
        self._labels.extend([taken.label])
        self._keys.append(taken.key)
        self._paths.append(taken.path)
        self._pixels[taken.record.image.facts] += 1
        self._has_meta = self._has_meta or taken.record.meta is not None

    def listing(self, names: list[str] | None) -> Listing:
        """List the items in the file."""
        if not self._positions:
            reason = f"; the first: {self._bad[0][1]}" if self._bad else ""
            raise SourceError(f"{self._what}: none of {len(self._bad)} items can be packed{reason}")
        values, warnings = self._labels.values, list[str]()
        if names and any(type(v) is int and not 0 <= v < len(names) for v in values):
            warnings.append(f"labels do not fit the {len(names)} classes of the dataset: no names")
            names = None
        labels, known = tables.labels(
            self._labels, values, self._place, classes=self._context.classes, names=names
        )
        decoded = self._pixels.total() - self._pixels[None]
        as_png = len(+self._pixels) > 1
        if decoded:
            warnings.append(
                f"{decoded:,} items are pixels, stored {'as PNG' if as_png else 'raw'}; a dataset "
                "that gives paths, or the bytes of files, keeps the files as they are"
            )
        rows = Columns({"span": np.array(self._spans).reshape(-1, 2)}, self._spool.finish())
        return Listing(
            SOURCE.name, None, self._unique_keys(), self._sizes.tolist(), labels, known,
            unlisted=self._bad, warnings=warnings, rows=rows,
            open=functools.partial(_opened, self._spool, as_png, self._has_meta),
        )  # fmt: skip

    def _place(self, position: int | None) -> str:
        where = "" if position is None else f": item {self._positions[position]}"
        return f"{self._what}{where}"

    def _unique_keys(self) -> list[bytes]:
        paths = [path and os.path.abspath(path) for path in self._paths]
        if not any(self._keys) and (found := tables.keys_of(paths)) is not None:
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


@contextlib.contextmanager
def _opened(spool: Spool, as_png: bool, has_meta: bool, rows: Columns) -> Iterator[ReadRecord]:
    """Yield a function that reads an item from the temporary file."""
    spans: Sequence[Any] = rows.columns["span"]

    def read(position: int) -> Record[Field]:
        start, end = spans[position].tolist()
        record = spool.read(start, end)
        if has_meta and record.meta is None:
            record = dataclasses.replace(record, meta=b"{}")
        data, facts = record.image.data, record.image.facts
        if as_png and facts is not None and _values.fits_png(facts):
            record = record.with_fields(image=Field("image", _values.as_png(data, facts)))
        return record

    yield read
