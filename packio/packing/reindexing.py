"""Reindexing: `packio.reindex`, for containers on a disk and at URLs, here or on a cluster."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from pathlib import Path

from packio.errors import OptionError
from packio.formats import Reading
from packio.packing.run import cluster, executors
from packio.packs import indexing, remote_indexing
from packio.packs.remote_indexing import Work
from packio.storage import urls
from packio.system.files import absolute


def reindex(
    path: str | os.PathLike[str], *, label_offset: int = 0, trust_plain_pickle: bool = False,
    image: str | None = None, label: str | None = None, label_col: str | None = None,
    layout: str | None = None, database: str | None = None, seek_points: bool | None = None,
    index: str | os.PathLike[str] | None = None, num_workers: int = 8,
    engine: str | Executor = "local", progress: Callable[[int, int], object] | None = None,
) -> Path:  # fmt: skip
    """Index a container anew, and write the index beside it, as `packio.pack` does.

    The container holds images and labels, but not all that packing knew. Class names, splits, keys,
    metadata, the recipe and the counts of skipped images are taken from the old index, if packing
    made that index and the files are still those that it describes. Otherwise a warning says so.

    Args:
        path: A container: a pack whose index is lost or damaged, or one that others wrote. Or a URL
            of WebDataset tars, TFRecords or MDS shards: of an object, of a folder, or of several
            objects by braces, as ``s3://bucket/train-{000..127}.tar``. What is found of each object
            is kept in the user's cache: a run that was cut short goes on.
        label_offset: Added to labels that are ints: -1 makes labels from 1 begin at 0. The smallest
            label found is in the index's metadata, as ``labels.min``. Refused for labels that have
            class names, as every label would get the name of another class.
        trust_plain_pickle: Read an LMDB database whose values are pickles of plain data (bytes,
            text, numbers, tuples, lists, dicts). Nothing in them is run; all else is refused.
        image: Where the images are, if not under a usual name: the path of a dataset in an HDF5
            file or of an array in N5 and Zarr, the key or position in what ``torch.save`` saved, a
            feature of TFRecords.
        label, label_col: The same of the labels, by either name: also a column of MDS and of FFCV,
            and a member of the metadata, as of a WebDataset's ``.json``; "" takes none. All labels
            are then read as those of a table: text names a class.
        layout: Order of pixels that are not encoded: "HWC" or "CHW", "RGB" or "BGR", or one of each
            with a comma between; RGB, and by the shape, if nothing is said.
        database: Name of a database within an LMDB that holds several; "": the one without a name.
        seek_points: Keep in the index where the decoding of a JPEG may begin; see `packio.pack`.
            None: for files.
        index: Where the index goes, a path or a URL; None: beside the container. Open the container
            with the same ``index=``.
        num_workers: Objects at URLs that are read at a time; another engine than "local" decides
            this by itself.
        engine: Where objects at URLs are read: "local", in threads; "ray", "ray:ADDRESS", or any
            `concurrent.futures.Executor` whose workers reach the same URLs. See
            ``docs/cluster.md``.
        progress: Called with the bytes of the objects that are done, and of all, after each object
            at a URL.

    Returns:
        Path or URL of the index.

    Raises:
        NotAPackError: no container that packio knows, or without images.
        IntegrityError: the container is damaged.
        OptionError: a name is not in the container; the message lists what is. Labels that have
            class names are to be moved.
        ReadError: a service does not answer, or sends no byte ranges.
        CannotCreateError: the index of a URL cannot be written there; say where with `index`. Or
            the folder of `index` does not exist.
        OSError: the index cannot be written.
        WorkerDiedError: workers of the engine died again and again.
    """
    if label is not None and label_col is not None:
        raise OptionError("label and label_col are one option: give one of them")
    label = label_col if label is None else label
    reading = Reading(label_offset, trust_plain_pickle, image, label, layout, database)
    place = None if index is None else urls.absolute(index)
    if (url := urls.parse(path)) is not None:
        return remote_indexing.reindex(
            url, place, reading, seek_points=bool(seek_points),
            num_workers=num_workers, told=progress,
            started=None if engine == "local" else functools.partial(_started, engine),
        )  # fmt: skip
    if (place is not None and urls.parse(place) is not None) or engine != "local":
        raise OptionError(f"{path}: engine=, and an index at a URL, are for containers there")
    return indexing.reindex(absolute(path), place, reading, seek_points=seek_points is not False)


@contextlib.contextmanager
def _started(engine: str | Executor, work: Work) -> Iterator[Executor]:
    """Start an engine whose nodes see what this process sees."""
    with executors.start_engine(engine, 1) as found:
        if isinstance(found, cluster.Cluster):
            name, facts = next(iter(work.bucket.facts.items()))
            url = urls.child(work.bucket.root, name)
            found.show(cluster.check_object(url, facts, seek_points=work.seek_points))
        yield found
