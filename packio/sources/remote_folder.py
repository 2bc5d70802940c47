"""A folder of class folders of images at a URL, as ``s3://bucket/train``.

Classes and order are as in `packio.sources.image_folder`. Classes are the first parts of the names
below the URL, sorted. Samples are all objects below a class whose names end as images' do, ordered
by class, folder and name. The digest of the rows covers the version of each object: its ETag, or
the time of its last change.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
from pathlib import Path
from typing import Any

from packio.errors import DecodeError, IntegrityError, ReadError, SourceError
from packio.sample.record import Field, Record, image_record
from packio.sources import Context, Listing, Rows, Source, _files, _folders, command
from packio.sources._rows import each
from packio.storage import stores, urls
from packio.storage.store import Facts


class RemoteFolder(Source):
    priority = 1  # the last: a URL may be a pack's
    package = "fsspec"
    options = _files.OPTIONS

    def recognise(self, path: Path) -> bool:
        return urls.parse(path) is not None

    def listing(self, source: Any, context: Context) -> Listing:
        url, is_image = urls.place(source), _files.image_test(context)
        with urls.errors_as(ReadError, url):
            found = stores.open_store(url).list()
        result = Listing(self.name, None)
        images = [
            os.fsencode(key) for key in found  # no place holders of folders
            if key[-1] != "/" and _files.is_taken(key, result, context, is_wanted=is_image(key))
        ]  # fmt: skip
        tops = {key.partition("/")[0] for key in found if "/" in key}
        folders = {name for name in tops if _files.is_taken(f"{name}/", result, context)}

        def command_of(name: str) -> str:
            return command(f"{url}/{name}", name)

        names = _folders.find_classes(f"{url}/", folders, context, command_of)
        if not any(b"/" in key for key in images):
            what = f"{len(found)} objects, no images in class folders" if found else "nothing there"
            raise SourceError(f"{url}/: {what}; expected {_folders.LAYOUT}; {_files.EXPECTED}")
        keys, labels = _folders.sort_keys(images, names)
        objects = [found[os.fsdecode(key)] for key in keys]
        sizes = [max(facts.size, -1) for facts in objects]  # -1: the store does not say
        versions = "".join(f"{facts.version}\n" for facts in objects).encode()
        result = dataclasses.replace(
            result, keys=keys, sizes=sizes, labels=labels, classes=names,
            rows=Rows({"key": keys, "size": sizes}, hashlib.sha256(versions).hexdigest()),
            open=functools.partial(each, _read, url),
        )  # fmt: skip
        beside = [key for key in images if b"/" not in key]
        _folders.warn_of_folders(str(url), result, folders, beside, context, command_of)
        _files.tell_others(result)
        return result


SOURCE = RemoteFolder()


def _read(url: urls.Url, rows: Rows, position: int) -> Record[Field]:
    """Read an object; the object must be as long as it was when it was listed."""
    key, size = os.fsdecode(rows.columns["key"][position]), rows.columns["size"][position]
    if size > _files.MAX_BYTES:
        raise DecodeError(f"{size} bytes; the limit is {_files.MAX_BYTES:,}")
    try:
        return image_record(stores.open_url(url).whole(key, Facts(size)))
    except (urls.LengthError, IntegrityError) as error:
        raise DecodeError(f"changed after it was listed: {error}") from error
    except (FileNotFoundError, PermissionError):
        raise  # this object's own trouble
    except Exception as error:
        # An error of the network is not the image's fault: no image is left out for it.
        raise ReadError(
            f"{url / key}: cannot be read: {str(error) or type(error).__name__}; "
            "run it again to go on"
        ) from error
