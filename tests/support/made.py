"""What several test files make or try in the same way."""

from __future__ import annotations

import dataclasses
import io
import os
import pathlib
import random
import struct
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from PIL import Image

import packio
from packio import registry
from packio.errors import PackioError
from packio.formats import Reading
from packio.sample.record import UNKNOWN, Facts, Field, Place, Record
from packio.sources import Context, Listing, list_samples

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from packio.formats import Format, Writer, Written

# Where another process finds the modules of tests that it imports.
_HERE = pathlib.Path(__file__).parents[1]
FOLDERS = [str(path) for path in _HERE.glob("*/") if path.is_dir()]


class Made(Record[Field]):
    """A record of tests, with names for what they look at most."""

    @property
    def data(self) -> bytes:
        """Bytes of the image."""
        return self.image.data

    @property
    def mask_data(self) -> bytes | None:
        """Bytes of the mask."""
        return self.mask.data if self.mask else None

    def replaced(self, **values: Any) -> Made:
        """The same record with some arguments of `record` changed."""
        facts, columns = self.facts, self.box_columns
        mine = {
            "data": self.data, "label": self.label, "key": self.key, "encoding": facts.encoding,
            "height": facts.height, "width": facts.width, "channels": facts.channels,
            "mask": self.mask_data, "meta": self.meta, "boxes": self.boxes,
            "mask_encoding": self.mask.encoding if self.mask else "unknown",
            "box_labels": columns.get("labels"),
        }  # fmt: skip
        return record(**{**mine, **values})


def record(
    data: bytes, label: Any = None, key: bytes = b"k", encoding: str = "unknown", height: int = 0,
    width: int = 0, channels: int = 0, *, mask: bytes | None = None, mask_encoding: str = "unknown",
    meta: bytes | None = None, boxes: np.ndarray | None = None,
    box_labels: np.ndarray | None = None, fields: dict[str, Field] | None = None,
) -> Made:  # fmt: skip
    """A record as packing hands it to a format's writer: the facts of its pixels are known."""
    facts = Facts(encoding, height, width, channels, "uint8", 1, progressive=False)
    found = {"image": Field("image", data, facts)}
    if mask is not None:
        found["mask"] = Field("mask", mask, UNKNOWN._replace(encoding=mask_encoding))
    columns = {} if box_labels is None else {"labels": box_labels}
    return Made(key, {**found, **(fields or {})}, label, None, boxes, columns, meta)


def of(record: Record[Field]) -> Made:
    """A record as a source reads it, with the names of `Made`."""
    r = record
    return Made(r.key, r.fields, r.label, r.split, r.boxes, r.box_columns, r.meta)


def read(listing: Listing) -> list[Made]:
    """All records of a listing."""
    with listing.open_records() as reading:
        return [of(reading(i)) for i in range(len(listing.keys))]


def png(width: int = 4, height: int = 3, padding: int = 0) -> bytes:
    """A black image, written byte by byte: of any size, and with random bytes behind it."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        whole = kind + body
        return struct.pack(">I", len(body)) + whole + struct.pack(">I", zlib.crc32(whole))

    rows = bytes((width + 1) * height) if width * height < 1 << 20 else b""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"") + os.urandom(padding)
    )  # fmt: skip


def labels(pack: Any) -> list[Any]:
    """The labels of a pack that has some."""
    assert pack.labels is not None
    return pack.labels.tolist()  # type: ignore[no-any-return]  # of an array


def tree(root: pathlib.Path, files: Mapping[str, bytes]) -> pathlib.Path:
    """Write files below a folder."""
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


Members: TypeAlias = "Mapping[str, bytes] | Iterable[tuple[str, bytes]]"  # of an archive


def _pairs(members: Members) -> Iterable[tuple[str, bytes]]:
    return members.items() if isinstance(members, Mapping) else members


def tar(
    path: pathlib.Path, members: Members, mode: str = "w", form: int = tarfile.PAX_FORMAT
) -> pathlib.Path:  # fmt: skip
    """Write a tar by Python's tarfile."""
    with tarfile.open(path, mode, format=form, errors="surrogateescape") as archive:  # type: ignore[call-overload]  # any mode
        for name, data in _pairs(members):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def zipped(path: pathlib.Path, members: Members, method: int = zipfile.ZIP_STORED) -> pathlib.Path:
    """Write a zip by Python's zipfile."""
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in _pairs(members):
            archive.writestr(name, data)
    return path


def saved(image: Image.Image | np.ndarray, kind: str = "PNG", **options: Any) -> bytes:
    """An image file, as Pillow writes it."""
    file = io.BytesIO()
    opened = image if isinstance(image, Image.Image) else Image.fromarray(image)
    opened.save(file, kind, **options)
    return file.getvalue()


def image_tree(
    root: pathlib.Path, count: int, classes: int, *, most: int, seed: int
) -> pathlib.Path:
    """An image folder of files that are quickly packed, of up to ``most`` bytes more than a PNG."""
    draw = random.Random(seed)
    for i in range(count):
        path = root / f"class {i % classes}" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(1 + i % 9, 1 + i % 5) + draw.randbytes(draw.randrange(most)))
    return root


def files_below(folder: pathlib.Path) -> dict[str, bytes]:
    """Path and bytes of all files below a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


class Found(NamedTuple):
    """A record of a scan, laid out flat, with plain values that tests compare."""

    key: bytes
    file: str  # of the image, as are the two that follow
    offset: int
    length: int
    label: int | tuple[float, ...] | None
    mask: tuple[str, int, int] | None
    meta: bytes | None
    boxes: tuple[tuple[float, ...], ...] | None
    box_labels: tuple[int, ...] | None
    split: bool
    facts: Facts | None
    fields: Mapping[str, Place]


def scanned(form: Format, path: pathlib.Path, **reading: Any) -> Iterator[Found]:
    """The samples of a container; records without an image are left out."""
    for r in (r for r in form.scan(path, Reading(**reading)) if r.fields):
        label = tuple(r.label.tolist()) if isinstance(r.label, np.ndarray) else r.label
        yield Found(
            r.key, r.image.file, r.image.offset, r.image.length, label,
            None if r.mask is None else r.mask[1:4], r.meta,
            None if r.boxes is None else tuple(map(tuple, r.boxes.tolist())),
            None if r.box_labels is None else tuple(r.box_labels.tolist()),
            r.image.split, r.image.facts, r.fields,
        )  # fmt: skip


def writer(form: Format, path: pathlib.Path, count: int = 1, **options: Any) -> Writer:
    """A writer for so many samples."""
    return form.writer(path, **{"count": count, "size": 0, "classes": (), **options})


def write(
    form: Format, path: pathlib.Path, records: Sequence[Record[Field]], step: int = 64, **more: Any
) -> Written:
    """Write a container, some records at a time."""
    size = sum(len(record.image.data) for record in records)
    made = writer(form, path, **{"count": len(records), "size": size, **more})
    try:
        for i in range(0, len(records), step):
            made.add(records[i : i + step])
        return made.close()
    finally:
        made.abort()


def random_records(sizes: Iterable[int], seed: int = 0, **more: Any) -> list[Made]:
    """Records of random bytes, of these sizes."""
    draw = random.Random(seed)
    return [
        record(draw.randbytes(n), i % 7, b"class/%d.jpg" % i, **more) for i, n in enumerate(sizes)
    ]


def survives(form: Format, path: pathlib.Path, content: bytes) -> list[Found] | None:
    """Samples of a damaged container, which lie within it; None where it is refused by name."""
    path.write_bytes(content)
    try:
        found = list(scanned(form, path))
    except PackioError as error:
        assert str(path) in str(error)  # noqa: PT017 (either is right)
        return None
    places = [place for record in found for place in record.fields.values()]
    assert all(
        p.offset == -1 or 0 <= p.offset <= p.offset + p.length <= len(content) for p in places
    )
    return found


def in_a_process(code: str, *arguments: object, **environment: str) -> str:
    """What a program prints."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, check=True,
        env={**os.environ, **environment},
    )  # fmt: skip
    return done.stdout


class Asked:
    """A source that tests ask by keywords: options, and attributes of `Context`."""

    def __init__(self, name: str) -> None:
        self.source = registry.load("sources", name)
        self.recognise, self.accepts = self.source.recognise, self.source.accepts

    def listing(self, what: Any, **options: Any) -> Listing:
        """List a path or an object."""
        names = [field.name for field in dataclasses.fields(Context)]
        own = {n: options.pop(n) for n in names if n != "options" and n in options}
        return list_samples(self.source, what, Context(**own, options=options))


def damage(pack: pathlib.Path, position: int, name: str = "image") -> None:
    """Flip a bit in the middle of a value of a pack."""
    with packio.open(pack) as opened:
        row = opened.row(position, name)
        file = opened.index_file.files()[row.file][0]
    with ((pack if pack.is_dir() else pack.parent) / file).open("r+b") as changed:
        changed.seek(row.offset + row.length // 2)
        byte = changed.read(1)[0]
        changed.seek(-1, os.SEEK_CUR)
        changed.write(bytes([byte ^ 0x10]))


def tar_bytes(members: Iterable[tuple[str, bytes]], mode: Any = "w") -> bytes:
    """A tar of files, written in a mode of tarfile."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()
