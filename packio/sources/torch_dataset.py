"""A dataset of Python's: anything with a length and items, or anything to iterate over.

torch's datasets and torchvision's, Hugging Face's, WebDataset's, lists and generators. An item is
an image, (image, label, …), or a mapping with image, label, mask, boxes, box_labels, key, meta, or
what these are usually called; `packio.sources._objects` says what is taken for an image. A mapping
within a tuple is taken as if its members were the item's. What else there is becomes meta. Labels
are ints, floats, names, or lists of them; names of classes come from ``classes``, or ``features``.

Every item is read once, in order, in one thread, and put aside in a temporary file, so that a
dataset needs neither be safe in threads nor give the same twice. An image that comes encoded, as
bytes or as a file's path, is stored so; pixels are stored without loss: raw, if all items of the
dataset are pixels of the same size and type, else as PNG (what PNG cannot hold, as float32, is raw
in any case).

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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packio.errors import PackioError, SourceError
from packio.sample.facts import Facts
from packio.sample.record import Field, Record
from packio.sources import Listing, ReadRecord, _objects
from packio.sources._spool import Spool
from packio.sources.tables import tables

PRIORITY = 2  # it takes nearly everything: the others are asked first
_is_object = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*").fullmatch


def recognise(path: str | Path) -> bool:
    """Tell whether this is ``module:object``, and no file."""
    return bool(_is_object(os.fspath(path))) and not os.path.lexists(path)


def accepts(source: object) -> bool:
    """Tell whether this is a dataset: has items by number, or can be iterated over."""
    if isinstance(source, (str, bytes, bytearray, os.PathLike, type)):
        return False
    return hasattr(source, "__iter__") or hasattr(source, "__getitem__")


def listing(
    path: str | Path,
    *,
    classes: Sequence[str] | None = None,
    allow_empty: bool = False,  # noqa: ARG001 (the signature of all sources; a class may be empty)
) -> Listing:
    """List the dataset that ``module:object`` is.

    Args:
        path: Module and object.
        classes: Names that give the labels; None takes the dataset's.
        allow_empty: Of no meaning here.

    Raises:
        SourceError: it cannot be imported, or is no dataset; or see `of`.
    """
    module, _, names = os.fspath(path).partition(":")
    with _current_folder_importable():
        try:
            found: Any = importlib.import_module(module)
            for name in names.split("."):
                found = getattr(found, name)
            if callable(found) and not accepts(found):
                found = found()
        except Exception as error:  # whatever the user's code does
            raise SourceError(f"{path}: {type(error).__name__}: {error}") from error
        if not accepts(found):
            raise SourceError(f"{path}: a {type(found).__name__}; expected a dataset")
        return of(found, classes=classes)


@contextlib.contextmanager
def _current_folder_importable() -> Iterator[None]:
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(here)


def of(
    source: Any,
    *,
    classes: Sequence[str] | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> Listing:
    """Read a dataset into a temporary file, and list that.

    Keys are those that items have; or the paths of the images, where all have one; or numbers.
    Items that cannot be read, or make no sense, are in `Listing.unlisted`.

    Args:
        source: The dataset.
        classes: Names that give the labels; None takes the dataset's.
        folder: For the temporary file; None takes the system's.

    Raises:
        SourceError: no items, none that makes sense, an iteration that fails, keys that repeat, or
            labels of several kinds.
        OutputError: the temporary file cannot be written, as on a full disk.
    """
    if isinstance(source, Mapping):
        raise SourceError(
            f"a mapping with {', '.join(map(repr, list(source)[:5]))}; expected one dataset: pack "
            "each of its values by itself"
        )
    pool = _Pool(type(source).__name__, Spool(folder))
    for position, sample in _samples(_undecoded(source)):
        pool.add(position, sample)
    return pool.listing(_class_names(source), classes)


def _samples(source: Any) -> Iterator[tuple[int, Any]]:
    """Yield position and item, or the exception that is there instead."""
    if hasattr(source, "__getitem__") and hasattr(source, "__len__") and not _is_iterable(source):
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


def _is_iterable(source: Any) -> bool:
    """Tell whether this is an IterableDataset of torch's, which has a __getitem__ that fails."""
    torch = sys.modules.get("torch.utils.data")
    return torch is not None and isinstance(source, torch.IterableDataset)


def _undecoded(source: Any) -> Any:
    """Have a dataset of Hugging Face's give its images as they are stored."""
    features = getattr(source, "features", None)
    if not isinstance(features, Mapping) or not hasattr(source, "cast_column"):
        return source
    if (getattr(source, "format", None) or {}).get("type") is not None:
        return source  # the user has it converted
    for name, feature in features.items():
        if type(feature).__name__ == "Image" and getattr(feature, "decode", False):
            source = source.cast_column(name, type(feature)(decode=False))
    return source


def _class_names(source: Any) -> list[str] | None:
    """Names of classes that a dataset has, or the one that it is a subset of."""
    features = getattr(source, "features", None)
    found: Any = getattr(source, "classes", None)
    if isinstance(features, Mapping):
        label = tables.guess(features, tables.LABEL_NAMES)
        found = getattr(features.get(label), "names", None)
    elif found is None and hasattr(source, "dataset"):
        return _class_names(source.dataset)
    if not isinstance(found, (list, tuple)):
        return None
    names = [", ".join(name) if isinstance(name, tuple) else name for name in found]  # ImageNet's
    good = all(isinstance(name, str) for name in names) and len(set(names)) == len(names)
    return names if names and good else None


class _Pool:
    """Items of a dataset, put aside.

    Args:
        what: The dataset, for messages.
        spool: Takes the items.
    """

    def __init__(self, what: str, spool: Spool) -> None:
        self._what, self._spool = what, spool
        self._positions, self._spans, self._sizes = array("q"), array("q"), array("q")
        self._labels = tables.Column()
        self._keys, self._paths = list["str | None"](), list["str | None"]()
        self._bad: list[tuple[bytes, str]] = []
        self._pixels: Counter[Facts | None] = Counter()
        self._has_meta = False

    def add(self, position: int, sample: Any) -> None:
        """Put an item aside, or take note of what is wrong with it."""
        try:
            if isinstance(sample, Exception):
                raise sample
            taken = _objects.taken(sample)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 (whatever the user's objects do)
            reason = str(error) if isinstance(error, PackioError) else _described(error)
            self._bad.append((b"%08d" % position, reason))
            return
        self._spans.extend(self._spool.add(taken.record))
        self._positions.append(position)
        self._sizes.append(len(taken.record.image.data))
        self._labels.extend([taken.label])
        self._keys.append(taken.key)
        self._paths.append(taken.path)
        self._pixels[taken.record.image.facts] += 1
        self._has_meta = self._has_meta or taken.record.meta is not None

    def listing(self, names: list[str] | None, classes: Sequence[str] | None) -> Listing:
        """List what was put aside."""
        if not self._positions:
            reason = f"; the first: {self._bad[0][1]}" if self._bad else ""
            raise SourceError(f"{self._what}: none of {len(self._bad)} items can be packed{reason}")
        values, warnings = self._labels.values, list[str]()
        if names and any(type(v) is int and not 0 <= v < len(names) for v in values):
            warnings.append(f"labels do not fit the {len(names)} classes of the dataset: no names")
            names = None
        labels, known = tables.labels(
            self._labels, values, self._place, classes=classes, names=names
        )
        decoded = self._pixels.total() - self._pixels[None]
        as_png = len(+self._pixels) > 1
        if decoded:
            warnings.append(
                f"{decoded:,} items are pixels, stored {'as PNG' if as_png else 'raw'}; a dataset "
                "that gives paths, or the bytes of files, keeps the files as they are"
            )
        rows: Any = np.array(self._spans).reshape(-1, 2)
        return Listing(
            "torch_dataset", None, self._unique_keys(), self._sizes.tolist(), labels, known,
            unlisted=self._bad, warnings=warnings, version=self._spool.finish(), rows=rows,
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


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def _opened(
    spool: Spool, as_png: bool, has_meta: bool, rows: Sequence[Any]
) -> Iterator[ReadRecord]:
    """Yield a function that reads what was put aside."""

    def read(position: int) -> Record[Field]:
        start, end = rows[position]
        record = spool.read(int(start), int(end))
        if has_meta and record.meta is None:
            record = dataclasses.replace(record, meta=b"{}")
        data, facts = record.image.data, record.image.facts
        if as_png and facts is not None and _objects.fits_png(facts):
            record = record.with_fields(image=Field("image", _objects.as_png(data, facts)))
        return record

    yield read
