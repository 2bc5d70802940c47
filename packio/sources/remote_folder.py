"""A folder of class folders of images at a URL, as ``s3://bucket/train``.

Classes and order are those of `packio.sources.image_folder`. Classes are the first parts of the
names below the URL, sorted. Samples are all objects below a class whose names end as images' do,
ordered by class, folder and name. The digest of the rows has the version of each object: its ETag,
or the time of its last change.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from packio.errors import BadImagesError, DecodeError, ReadError, SourceError
from packio.sample.record import Field, Record, image_record
from packio.sources import Context, Listing, ReadRecord, Source, _classes, _files
from packio.sources._rows import Columns
from packio.storage import urls

_LAYOUT = "a folder of class folders of images, as cats/1.jpg, dogs/2.jpg"


class RemoteFolder(Source):
    """A folder of class folders of images at a URL."""

    priority = 1  # the last: a URL may be a pack's
    package = "fsspec"

    def recognise(self, path: Path) -> bool:
        """Tell whether the path is a URL."""
        return isinstance(urls.place(path), urls.Url)

    def listing(self, source: Any, context: Context) -> Listing:
        """List an image folder at a URL.

        Raises:
            SourceError: there are no class folders, the folders are splits, a class is unknown to
                `Context.classes`, or a class has no images (unless `Context.allow_empty`).
            ReadError: the service does not answer.
        """
        url = urls.place(source)
        with urls.errors_as(ReadError, url):
            found = urls.below(url)
        names = _class_names(url, found, context.classes)
        labels = {name: label for label, name in enumerate(names)}
        keys = sorted((key for key in found if _is_image(key)), key=lambda key: _order(key, labels))
        sizes = [found[key].get("size") for key in keys]
        versions = "".join(f"{urls.version(found[key])}\n" for key in keys)
        result = Listing(
            self.name, None, list(map(os.fsencode, keys)),
            [-1 if size is None else size for size in sizes], [labels[_class(key)] for key in keys],
            names, others=Counter(os.path.splitext(k)[1].lower() for k in found if _is_other(k)),
            rows=Columns({"key": keys, "size": sizes}, _digest(versions)),
            open=functools.partial(_opened, url),
        )  # fmt: skip
        folders = sorted({_class(key) for key in found} - {""})
        _tell_empty(url, result, folders, allow_empty=context.allow_empty)
        _files.tell_others(result)
        return result


SOURCE = RemoteFolder()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _class(key: str) -> str:
    """The folder at the top; "" for an object beside the folders."""
    return key.partition("/")[0] if "/" in key else ""


def _is_image(key: str) -> bool:
    return "/" in key and key.lower().endswith(_files.EXTENSIONS)


def _is_other(key: str) -> bool:
    """Tell whether an object is no image, no place holder of a folder, and not hidden."""
    return not (_is_image(key) or key.endswith("/") or os.path.basename(key).startswith("."))


def _order(key: str, labels: dict[str, int]) -> tuple[int, str, str]:
    """By class, folder and name, as torchvision orders samples."""
    folder, _, name = key.rpartition("/")
    return labels[_class(key)], folder, name


def _class_names(
    url: Path, found: dict[str, dict[str, Any]], given: Sequence[str] | None
) -> list[str]:
    folders = {_class(key) for key in found} - {""}
    if _classes.are_splits(folders):
        raise SourceError(
            f"{url}/: its folders are splits ({', '.join(sorted(folders))}), not classes; "
            "pack each by itself, the others with classes_from the first"
        )
    if not any(map(_is_image, found)):
        what = f"{len(found)} objects, but no images in class folders" if found else "nothing there"
        raise SourceError(f"{url}/: {what}; expected {_LAYOUT}; {_files.EXPECTED}")
    return _classes.names(f"{url}/", folders, given)


def _tell_empty(url: Path, result: Listing, folders: list[str], *, allow_empty: bool) -> None:
    full = {result.classes[label] for label in set(result.labels or ())}
    for name in folders:
        if name in full:
            continue
        if not allow_empty:
            raise SourceError(
                f"{url / name}/: a class folder that has no images; {_files.EXPECTED}; "
                "remove it, or keep it as an empty class with --on-error skip"
            )
        result.warnings.append(f"class {name!a} has no images; kept as an empty class")


@contextlib.contextmanager
def _opened(url: Path, rows: Columns) -> Iterator[ReadRecord]:
    """Yield a function that reads an object; the object must be as long as it was when listed."""
    fs, folder = urls.filesystem(url)
    keys, sizes = rows.columns["key"], rows.columns["size"]

    def read(position: int) -> Record[Field]:
        key, size = keys[position], sizes[position]
        if size is not None and size > _files.MAX_BYTES:
            raise DecodeError(f"{size} bytes; the limit is {_files.MAX_BYTES:,}")
        try:
            return image_record(urls.read(fs, f"{folder.rstrip('/')}/{key}", 0, size, is_end=True))
        except urls.LengthError as error:
            raise DecodeError(f"changed after it was listed: {error}") from error
        except (FileNotFoundError, PermissionError):
            raise  # this object's own trouble
        except Exception as error:
            # An error of the network is not the image's fault: no image is left out for it.
            raise BadImagesError(
                f"{url / key}: cannot be read: {str(error) or type(error).__name__}; "
                "run it again to go on"
            ) from error

    yield read
