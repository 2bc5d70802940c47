"""The samples of a tar archive: members that belong together; see `packio.formats.tar`."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from packio.errors import IntegrityError, NotAPackError
from packio.formats import Entry
from packio.formats.blobs.append_only import Input, opened
from packio.formats.tar.members import Member, members
from packio.index.indexfile import canonical_json

_IMAGES = frozenset(
    b"jpg jpeg jpe jfif png webp bmp gif tif tiff ppm pgm pbm pnm jp2 j2k avif img".split()
)
_COMPANIONS = frozenset((b"cls", b"json", b"txt"))
_OURS = {"key", "key_base64", "label", "boxes", "box_labels", "meta"}
_MOST_JSON = 16 << 20  # bytes
_MOST_LABEL = 32  # bytes


class _Part(NamedTuple):
    """A member, its name taken apart."""

    stem: bytes
    suffix: bytes  # in lower case, without the first dot
    member: Member


def scan(path: Path) -> Iterator[Entry]:
    """Yield an entry for every image, in order.

    Members in a row whose names are alike up to the first dot after the last slash are a sample, as
    in WebDataset, if one of them is a label, a description or a mask, or if one of them alone has
    nothing but an image's suffix. Otherwise each image is a sample, its name is its key. Hidden
    files and those named ``__so__`` are no samples.

    Args:
        path: Of the archive.

    Raises:
        NotAPackError: not a tar archive, compressed, with links in it, or with samples that have
            several images or a label and no image.
        IntegrityError: the archive is damaged or cut off; a member is there twice; a label or
            description does not parse.
        ReadError: the file cannot be read.
    """
    with opened(path) as file:
        parts = (part for member in members(file) if (part := _taken_apart(member)) is not None)
        for stem, group in itertools.groupby(parts, key=lambda part: part.stem):
            yield from _samples(file, stem, list(group))


def _taken_apart(member: Member) -> _Part | None:
    folder, slash, base = member.name.rpartition(b"/")
    stem, dot, suffix = base.partition(b".")
    if not stem or not dot or (base.startswith(b"__") and base.endswith(b"__")):
        return None
    return _Part(folder + slash + stem, suffix.lower(), member)


def _is_mask(suffix: bytes) -> bool:
    first, dot, last = suffix.rpartition(b".")
    return bool(dot) and first == b"mask" and last in _IMAGES


def _samples(file: Input, stem: bytes, group: list[_Part]) -> Iterator[Entry]:
    parts = {part.suffix: part.member for part in group}
    if len(parts) < len(group):
        twice = next(p.member for p in group if parts[p.suffix] is not p.member)
        raise IntegrityError(
            f"{file.path}: {twice.name!r} at {twice.offset} is there twice; tar the files again"
        )
    bare = [suffix for suffix in parts if suffix in _IMAGES]
    dotted = [s for s in parts if s.rpartition(b".")[2] in _IMAGES and not _is_mask(s)]
    images = bare or dotted
    masks = [suffix for suffix in parts if _is_mask(suffix)]
    if masks or not _COMPANIONS.isdisjoint(parts):
        yield from _sample(file, stem, parts, images, masks)
    elif len(bare) == 1 and len(parts) > 1:
        yield _entry(file, stem, parts[bare[0]])
    else:
        for suffix in (s for s in parts if s in bare or s in dotted):
            yield _entry(file, parts[suffix].name, parts[suffix], key=parts[suffix].name)


def _entry(file: Input, name: bytes, image: Member, **more: Any) -> Entry:
    return Entry(name, file.path.name, image.offset, image.size, **more)


def _sample(
    file: Input, stem: bytes, parts: dict[bytes, Member], images: list[bytes], masks: list[bytes]
) -> Iterator[Entry]:
    if not images and not masks and b"cls" not in parts:
        return  # a text that lies about
    if len(images) != 1 or len(masks) > 1:
        raise NotAPackError(
            f"{file.path}: the sample {stem!r} has {len(images)} images and {len(masks)} masks "
            f"(its suffixes: {b' '.join(parts).decode(errors='replace')}); packio takes samples of "
            "one image, and of one mask if there is any"
        )
    described: dict[str, Any] = {}
    if b"json" in parts:
        described = _described(file, parts[b"json"])
    if b"cls" in parts:
        described["label"] = _label(file, parts[b"cls"])
    if masks:
        mask = parts[masks[0]]
        described["mask"] = (file.path.name, mask.offset, mask.size)
    yield _entry(file, stem, parts[images[0]], **described)


def _label(file: Input, member: Member) -> int:
    text = file.read(min(member.size, _MOST_LABEL), member.offset).strip()
    digits = text.removeprefix(b"-")
    if member.size > _MOST_LABEL or not digits.isdigit() or not -(1 << 63) <= int(text) < 1 << 63:
        raise IntegrityError(
            f"{file.path}: the label {member.name!r} at {member.offset} is {text!r}, an int of 64 "
            "bits is expected"
        )
    return int(text)


def _described(file: Input, member: Member) -> dict[str, Any]:
    """Fields of an entry, from a sample's ``.json``."""
    where = f"{file.path}: {member.name!r} at {member.offset}"
    if member.size > _MOST_JSON:
        raise NotAPackError(f"{where} has {member.size} bytes, the limit is {_MOST_JSON}")
    content = file.read(member.size, member.offset)
    try:
        found = json.loads(content.decode())
        if not isinstance(found, dict):
            return {}
        if found.keys() <= _OURS and not found.keys().isdisjoint(("key", "key_base64")):
            return _fields(found, content.decode())
        key = found.get("key")
        return {"meta": content, "key": key.encode() if isinstance(key, str) else None}
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        raise IntegrityError(f"{where} does not parse ({error}); restore or pack again") from error


def _fields(found: dict[str, Any], text: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if "key" in found:
        fields["key"] = found["key"].encode() if isinstance(found["key"], str) else None
    else:
        fields["key"] = base64.b64decode(found["key_base64"], validate=True)
    if "label" in found:
        fields["label"] = _floats(found["label"])
    if "boxes" in found:
        fields["boxes"] = tuple(map(_box, found["boxes"]))
    if "box_labels" in found:
        fields["box_labels"] = tuple(map(_int, found["box_labels"]))
    if "meta" in found:
        fields["meta"] = _meta(found["meta"], text)
    return fields


def _floats(values: Any) -> tuple[float, ...]:
    if not isinstance(values, list) or not {type(v) for v in values} <= {int, float}:
        raise ValueError(f"{str(values)[:80]}: a list of numbers is expected")
    return tuple(map(float, values))


def _box(values: Any) -> tuple[float, ...]:
    box = _floats(values)
    if len(box) != 4 or not all(map(math.isfinite, box)):
        raise ValueError(f"{box}: a box has four numbers")
    return box


def _int(value: Any) -> int:
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{str(value)[:80]}: an int of 64 bits is expected")
    return value


def _meta(meta: Any, text: str) -> bytes:
    """The meta as it is written, if it comes last, as packio has it; else in canonical form."""
    if not isinstance(meta, dict):
        raise TypeError("meta is no object")
    start = text.find(',"meta":') + 8  # no such text within what comes before, see the writer
    if start >= 8:
        with contextlib.suppress(ValueError):
            found, end = json.JSONDecoder().raw_decode(text, start)
            if found == meta and end == len(text) - 1:
                return text[start:end].encode()
    return canonical_json(meta).encode()
