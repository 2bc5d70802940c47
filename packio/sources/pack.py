"""A pack, to be packed again: into another format, with other classes. Nothing is decoded."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from packio.errors import DecodeError, IntegrityError, OptionError, SourceError
from packio.images import encodings
from packio.packs import locating, packs
from packio.sample.record import Field, Record, image_record
from packio.sample.relabelling import check_named
from packio.sample.sample import Sample
from packio.sources import Listing, ReadRecord, _packs

PRIORITY = 0.5  # an archive of images is asked first, an image folder last


def recognise(path: str | Path) -> bool:
    """Tell whether the path is a pack, or a container that others wrote."""
    return locating.has_index(Path(path)) or locating.is_container(Path(path))


def accepts(source: object) -> bool:
    """Tell whether an object is a sequence of `Sample`, as a pack is."""
    if isinstance(source, packs.Pack):
        return True
    return isinstance(source, Sequence) and (not len(source) or isinstance(source[0], Sample))


def listing(
    path: Path,
    *,
    classes: Sequence[str] | None = None,
    allow_empty: bool = False,  # noqa: ARG001 (the signature of all sources; a class may be empty)
) -> Listing:
    """List a pack.

    Args:
        path: Of the pack.
        classes: Names that give the labels; None takes the pack's.
        allow_empty: Of no meaning here: classes without samples stay as they are.

    Raises:
        PackioError: see `packio.open`.
        SourceError: a class of the pack is unknown to `classes`.
    """
    return of(packs.open(path), classes=classes)


def of(samples: Sequence[Sample], *, classes: Sequence[str] | None = None) -> Listing:
    """List samples: a pack, or any sequence of `Sample`.

    Raises:
        OptionError: two samples have the same key, or only some have a label.
        SourceError: none at all, or a class is unknown to `classes`.
    """
    if not len(samples):
        raise SourceError("no samples; expected at least one")
    if isinstance(samples, packs.Pack):
        return _packs.listing([samples], classes)
    keys, sizes, labels, version = _described(samples)
    if len(set(keys)) != len(keys):
        raise OptionError("several samples have the same key; expected each key once")
    if labels is not None and classes is not None:
        check_named(labels, classes, "samples")
    return Listing(
        "pack", None, keys, sizes,
        labels.tolist() if labels is not None and labels.ndim == 1 else labels,
        list(classes or []), version=version,
        rows=range(len(samples)), open=functools.partial(_opened, samples),
    )  # fmt: skip


def _described(
    samples: Sequence[Sample],
) -> tuple[list[bytes], list[int], np.ndarray | None, str]:
    keys, sizes, digest = [], [], hashlib.sha256()
    found = []
    for sample in samples:
        keys.append(sample.key.encode("utf-8", "surrogateescape"))
        sizes.append(len(sample.data))
        found.append(sample.label)
        digest.update(hashlib.sha256(sample.data).digest())
        digest.update(repr((sample.mask, sample.meta, sample.boxes, sample.box_labels)).encode())
    missing = sum(label is None for label in found)
    if missing not in (0, len(found)):
        raise OptionError(f"{missing} of {len(found)} samples have no label; expected all or none")
    if missing:
        return keys, sizes, None, digest.hexdigest()
    ints = all(isinstance(label, (int, np.integer)) for label in found)
    labels = np.array(found, np.int64 if ints else np.float32)
    return keys, sizes, labels, digest.hexdigest()


@contextlib.contextmanager
def _opened(samples: Sequence[Sample], rows: Sequence[int]) -> Iterator[ReadRecord]:
    def read(position: int) -> Record[Field]:
        try:
            sample = samples[rows[position]]
        except IntegrityError as error:
            raise DecodeError(str(error)) from error
        meta = None if sample.meta is None else _json(sample.meta)
        facts = None
        if sample.encoding in encodings.RAW:
            facts = encodings.raw_facts(
                sample.height, sample.width, sample.channels, sample.dtype, sample.encoding
            )._replace(orientation=sample.orientation)
        record = image_record(
            sample.data, facts=facts, mask=sample.mask, boxes=sample.boxes,
            box_labels=sample.box_labels, meta=meta,
        )  # fmt: skip
        columns = {**record.box_columns, **sample.box_columns}
        return dataclasses.replace(record.with_fields(**sample.fields), box_columns=columns)

    yield read


def _json(meta: dict[str, object]) -> bytes:
    text = json.dumps(meta, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")
