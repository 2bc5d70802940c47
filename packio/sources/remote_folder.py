"""A folder of class folders of images at a URL, as ``s3://bucket/train``.

Classes and order are as of `packio.sources.image_folder`: classes are the first parts of the names
below the URL, sorted; samples are all objects below them whose names end as images' do, ordered by
class, folder and name. What tells the versions of the objects (ETag, or time) is part of the plan.
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
from packio.sources import Listing, ReadRecord, _classes, _files
from packio.storage import urls

PACKAGE = "fsspec"
PRIORITY = 1  # asked last: a URL may be a pack's

_LAYOUT = "a folder of class folders of images, as cats/1.jpg, dogs/2.jpg"


def recognise(path: str | Path) -> bool:
    """Tell whether the path is a URL."""
    return isinstance(urls.place(path), urls.Url)


def listing(
    path: str | Path, *, classes: Sequence[str] | None = None, allow_empty: bool = False
) -> Listing:
    """List an image folder at a URL.

    Args:
        path: The URL of the folder that holds the class folders.
        classes: Names that give the labels; None takes the folders found, sorted.
        allow_empty: Accept classes without images, with a warning.

    Raises:
        SourceError: no class folders, splits instead of classes, a class unknown to `classes`, or a
            class without images (unless `allow_empty`).
        ReadError: the service does not answer.
    """
    url = urls.place(path)
    with urls.errors_as(ReadError, url):
        found = urls.below(url)
    names = _class_names(url, found, classes)
    labels = {name: label for label, name in enumerate(names)}
    keys = sorted((key for key in found if _is_image(key)), key=lambda key: _order(key, labels))
    sizes = [found[key].get("size") for key in keys]
    versions = "".join(f"{urls.version(found[key])}\n" for key in keys)
    result = Listing(
        "remote_folder", None, list(map(os.fsencode, keys)),
        [-1 if size is None else size for size in sizes], [labels[_class(key)] for key in keys],
        names, version=hashlib.sha256(versions.encode()).hexdigest(),
        others=Counter(os.path.splitext(key)[1].lower() for key in found if _is_other(key)),
        rows=list(zip(keys, sizes, strict=True)), open=functools.partial(_opened, url),
    )  # fmt: skip
    _tell_empty(url, result, sorted({_class(key) for key in found} - {""}), allow_empty=allow_empty)
    _files.tell_others(result)
    return result


def _class(key: str) -> str:
    """The folder at the top; "" of what is beside the folders."""
    return key.partition("/")[0] if "/" in key else ""


def _is_image(key: str) -> bool:
    return "/" in key and key.lower().endswith(_files.EXTENSIONS)


def _is_other(key: str) -> bool:
    """Whether an object is to be told of: no image, no place holder of a folder, not hidden."""
    return not (_is_image(key) or key.endswith("/") or os.path.basename(key).startswith("."))


def _order(key: str, labels: dict[str, int]) -> tuple[int, str, str]:
    """As torchvision's: by class, folder and name."""
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
def _opened(url: Path, rows: Sequence[tuple[str, int | None]]) -> Iterator[ReadRecord]:
    """Yield a function that reads an object whole, as long as it was when it was listed."""
    fs, folder = urls.filesystem(url)

    def read(position: int) -> Record[Field]:
        key, size = rows[position]
        path = f"{folder.rstrip('/')}/{key}"
        if size is not None and size > _files.MAX_BYTES:
            raise DecodeError(f"{size} bytes; the limit is {_files.MAX_BYTES:,}")
        try:
            return image_record(urls.read(fs, path, 0, size, is_end=True))
        except urls.LengthError as error:
            raise DecodeError(f"changed after it was listed: {error}") from error
        except (FileNotFoundError, PermissionError):
            raise  # this object's own trouble
        except Exception as error:
            # An error of the network is none of this image's: nothing is left out for it.
            raise BadImagesError(
                f"{url / key}: cannot be read: {str(error) or type(error).__name__}; "
                "run it again to go on"
            ) from error

    yield read
