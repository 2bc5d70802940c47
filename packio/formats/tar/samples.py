"""The samples of a tar archive: which members belong together. See `packio.formats.tar`.

Members that follow each other form a group, if their names are equal up to the first dot after the
last slash. A group is one sample, as in WebDataset, if a member is a label, a description, a mask,
text or an array, or if exactly one image of it has no longer name than the others, as ``7.jpg``
beside ``7.depth.png``. Hidden files, and files with names like ``__so__``, belong to no sample.

Where the images of a group have several stems, as ``22.05.jpg`` and ``22.06.jpg``, a member that is
called image, img or rgb is the image, as ``.rgb.png``, and the group is one sample. Else each stem
is a sample, with the stem as its key, and takes the members whose names begin with the stem. A
member of no stem, as ``a.cls`` beside ``a.left.jpg`` and ``a.right.jpg``, is an error. If there is
no label and so on, each image is a sample, and its name is its key.

All other members of a sample become fields. A field is named by the suffix without the ending:
``.depth.png`` is the field depth. A member that has only an ending is named by the ending: ``.txt``
is the field txt. The ending tells the kind: endings of images ``image``, ``npy`` ``array``, ``txt``
``text``, other endings ``bytes``.

A label of no image is a record without fields, so that it is counted as a bad sample.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import re
from collections.abc import Container, Iterator
from typing import Any, NamedTuple

import numpy as np

from packio.errors import IntegrityError, NotAPackError
from packio.formats.blobs.ranges import Input
from packio.formats.wire.tar import TarMember, members
from packio.index.indexfile import canonical_json
from packio.sample import labelling
from packio.sample.fields import KINDS, RESERVED, kind_of_file
from packio.sample.record import IMAGE, MASK, Place, Record

ENDINGS = {"array": "npy", "text": "txt", "bytes": "bin"}  # kind of a field → ending of its member

_IMAGES = frozenset((
    "jpg", "jpeg", "jpe", "jfif", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "pgm", "pbm",
    "pnm", "jp2", "j2k", "avif", "dct", "img",
))  # fmt: skip
_COMPANIONS = frozenset(("cls", "json", "txt", "npy"))
_MAIN = ("image", "img", "rgb")  # the image of several that have longer suffixes
_MASKS = (MASK, "seg", "segmentation")  # fields called so are masks
_OURS = {"key", "key_base64", "label", "boxes", "box_labels", "box_columns", "kinds", "meta"}
_MOST_JSON = 16 << 20  # bytes
_MOST_LABEL = 1024  # bytes
_SHOWN = 5  # names in a message
_is_int = re.compile(r"-?\d+", re.ASCII).fullmatch


class _Part(NamedTuple):
    """A member and the parts of its name: ``folder/stem.name.ending``."""

    stem: bytes  # with the folder
    name: str  # empty where nothing stands before the ending
    ending: str  # in lower case
    member: TarMember

    @property
    def is_mask(self) -> bool:
        return self.ending in _IMAGES and infer_kind(self.name.rpartition(".")[2]) == "mask"

    @property
    def is_image(self) -> bool:
        return self.ending in _IMAGES and not self.is_mask

    def strip_stem(self, name: str) -> _Part:
        """The member, named from behind the stem of a sample."""
        if self.name != name and not self.name.startswith(f"{name}."):
            return self
        return self._replace(name=self.name[len(name) + 1 :])


def infer_kind(name: str) -> str:
    """Kind of a field with an image's ending, by its name."""
    return "mask" if name in _MASKS else "image"


def samples(file: Input) -> Iterator[Record[Place]]:
    parts = (part for member in members(file) if (part := _taken_apart(member)) is not None)
    for _, group in itertools.groupby(parts, key=lambda part: part.stem):
        yield from _of_group(file, list(group))


def _taken_apart(member: TarMember) -> _Part | None:
    folder, slash, base = member.name.rpartition(b"/")
    stem, dot, suffix = base.partition(b".")
    if not stem or not dot or (base.startswith(b"__") and base.endswith(b"__")):
        return None
    name, _, ending = suffix.decode("utf-8", "replace").rpartition(".")
    return _Part(folder + slash + stem, name, ending.lower(), member)


def _of_group(file: Input, group: list[_Part]) -> Iterator[Record[Place]]:
    names = [part.member.name for part in group]
    if len(set(names)) < len(names):
        twice = next(p.member for i, p in enumerate(group) if p.member.name in names[:i])
        raise IntegrityError(
            f"{file.path}: {twice.name!r} at {twice.offset} is there twice; tar the files again"
        )
    stems = _stems(group)
    if not stems and any(_is_label(file, part) for part in group):
        yield Record(group[0].stem, {})
        return
    if len(stems) == 1:
        group = [part.strip_stem(stems[0]) for part in group]
    companions = stems and any(
        part.is_mask or (part.ending in _COMPANIONS and part.name in ("", *stems)) for part in group
    )
    bare = [part for part in group if part.is_image and not part.name]
    named = [p for name in _MAIN for p in group if p.is_image and p.name == name]
    if companions and len(stems) > 1 and not named:
        for stem, parts in _apart(file, group, stems).items():
            image = next(part for part in parts if part.is_image and not part.name)
            key = group[0].stem + b"." + stem.encode("utf-8", "surrogateescape")
            yield _sample(file, parts, image, key)
    elif companions or (len(bare) == 1 and len(group) > 1):
        yield _sample(file, group, (bare or named)[0], group[0].stem)
    else:
        for part in group:
            if part.ending in _IMAGES:
                yield Record(part.member.name, {IMAGE: _place(file, "image", part.member)})


def _stems(group: list[_Part]) -> list[str]:
    """The names of images that no shorter one begins: ``22.05`` and ``22.06``, or ""."""
    names = dict.fromkeys(part.name for part in group if part.is_image)
    return [n for n in names if not n or _stem_of(n.rpartition(".")[0], names) is None]


def _stem_of(name: str, stems: Container[str]) -> str | None:
    """The longest beginning of a name, up to a dot or its end, that is a stem."""
    while name not in stems:
        if not name:
            return None
        name = name.rpartition(".")[0]
    return name


def _apart(file: Input, group: list[_Part], stems: list[str]) -> dict[str, list[_Part]]:
    found: dict[str, list[_Part]] = {stem: [] for stem in stems}
    for part in group:
        stem = _stem_of(part.name, found)
        if stem is None:
            images = [p.member.name for p in group if p.is_image]
            raise NotAPackError(
                f"{file.path}: {part.member.name!r} belongs to no single image: there are "
                f"{', '.join(map(repr, images[:_SHOWN]))}; give each image and its files one stem, "
                "or name the main image .jpg, .png … or .image.png alone"
            )
        found[stem].append(part.strip_stem(stem))
    return found


def _is_label(file: Input, part: _Part) -> bool:
    """Whether a member without an image tells of one that should be there."""
    if part.ending == "json" and part.member.size <= _MOST_JSON:
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(file.read(part.member.size, part.member.offset).decode())
            return isinstance(found, dict) and "label" in found
    return part.ending == "cls" or (part.ending in _IMAGES and part.name == MASK)


def _place(file: Input, kind: str, member: TarMember) -> Place:
    return Place(kind, file.path.name, member.offset, member.size)


def _sample(file: Input, group: list[_Part], image: _Part, key: bytes) -> Record[Place]:
    described: dict[str, Any] = {}
    fields = {IMAGE: _place(file, "image", image.member)}
    kinds: dict[str, str] = {}
    label = None
    for part in group:
        if (part.name, part.ending) == ("", "json"):
            described = _described(file, part.member)
            kinds = described.pop("kinds", {})
        elif (part.name, part.ending) == ("", "cls"):
            label = _label(file, part.member)
    for part in group:
        if part is image or (not part.name and part.ending in ("json", "cls")):
            continue
        name = _field_name(part, fields)
        kind = kinds.get(name) or (
            infer_kind(name) if part.ending in _IMAGES else kind_of_file(f"x.{part.ending}")
        )
        fields[name] = _place(file, kind or "bytes", part.member)
    if label is not None:
        described["label"] = label
    return Record(described.pop("key", key), fields, **described)


def _field_name(part: _Part, taken: dict[str, Place]) -> str:
    name = re.sub(r"[^A-Za-z0-9_-]", "_", part.name or part.ending)
    if not name or not (name[0].isalpha() or name[0] == "_") or name in RESERVED:
        name = f"_{name}"
    while name in taken:
        name = f"{name}_{part.ending}" if name == part.name else f"_{name}"
    return name


def _label(file: Input, member: TarMember) -> Any:
    """A number, NaN, or the name of a class. WebDataset reads 007 as 7."""
    content = file.read(min(member.size, _MOST_LABEL), member.offset)
    text = content.decode(errors="replace").strip()
    label = int(text) if _is_int(text) else labelling.number(text)
    is_long = isinstance(label, int) and not -(1 << 63) <= label < 1 << 63
    if member.size > _MOST_LABEL or is_long or "\ufffd" in text or not text.isprintable():
        raise IntegrityError(
            f"{file.path}: the label {member.name!r} at {member.offset} is {content[:60]!r}; "
            "expected a number of 64 bits, or the name of a class, in one line of UTF-8"
        )
    return text if label is None else label


def _described(file: Input, member: TarMember) -> dict[str, Any]:
    """Read the ``.json`` of a sample: arguments of `Record`, and "kinds"."""
    where = f"{file.path}: {member.name!r} at {member.offset}"
    if member.size > _MOST_JSON:
        raise NotAPackError(f"{where} has {member.size} bytes, the limit is {_MOST_JSON}")
    content = file.read(member.size, member.offset)
    try:
        found = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{where} does not parse ({error}); restore or pack again") from error
    if not isinstance(found, dict):  # others wrote it
        return {"meta": canonical_json({"json": found}).encode()}
    if member.is_ours and found.keys() <= _OURS:
        with contextlib.suppress(LookupError, ValueError, TypeError, OverflowError):
            return _arguments(found, content.decode())
    return {"meta": content}  # others wrote it


def _arguments(found: dict[str, Any], text: str) -> dict[str, Any]:
    is_text = "key" in found
    key = found["key"].encode() if is_text else base64.b64decode(found["key_base64"], validate=True)
    arguments: dict[str, Any] = {"key": key}
    if "label" in found:
        arguments["label"] = _column(found["label"])
    if "boxes" in found:
        corners = _column([corner for box in found["boxes"] for corner in box])
        if {len(box) for box in found["boxes"]} - {4} or not np.isfinite(corners).all():
            raise ValueError("a box has four numbers")
        arguments["boxes"] = corners.astype(np.float32).reshape(-1, 4)
    columns = {name: _column(values) for name, values in found.get("box_columns", {}).items()}
    if "box_labels" in found:
        columns["labels"] = _column(found["box_labels"])
        if columns["labels"].dtype != np.int64:
            raise ValueError("labels of boxes are ints")
    if columns:
        arguments["box_columns"] = columns
    if "kinds" in found:
        arguments["kinds"] = {str(n): k for n, k in found["kinds"].items() if k in KINDS}
    if "meta" in found:
        arguments["meta"] = _meta(found["meta"], text)
    return arguments


def _column(values: Any) -> np.ndarray:
    kinds = {type(value) for value in values}
    if not isinstance(values, list) or not kinds <= {int, float}:
        raise ValueError(f"{str(values)[:80]}: a list of numbers is expected")
    return np.array(values, np.float32 if float in kinds else np.int64)


def _meta(meta: Any, text: str) -> bytes:
    """The metadata as they are in the file, if they come last; else canonical JSON."""
    if not isinstance(meta, dict):
        raise TypeError("meta is no object")
    start = text.find(',"meta":') + 8  # no such text within what comes before, see the writer
    if start >= 8:
        with contextlib.suppress(ValueError):
            found, end = json.JSONDecoder().raw_decode(text, start)
            if found == meta and end == len(text) - 1:
                return text[start:end].encode()
    return canonical_json(meta).encode()
