"""A tar or zip archive of images: in class folders as an image folder has them, or flat.

The folder that all images have in common is the top. If there are folders of images below the top,
they are the classes: keys, labels and order are those of `packio.sources.image_folder` for the
unpacked archive. If there are none, or a list of labels is given, images are sorted by path as in
`packio.sources.flat_folder`, and have the labels of the list, or none. Tar archives in an
uncompressed tar archive are taken as folders of their names, as ImageNet's
``ILSVRC2012_img_train.tar`` has them.

Members beside an image with the same stem are named fields: ``1.txt`` is the text ``txt`` of
``1.jpg``, ``1.npy`` is the array ``npy``, and ``1.depth.png``, ``1.caption.txt`` and
``1.latent.npy`` are ``depth``, ``caption`` and ``latent``; ``1.mask.png`` is the mask. A field that
the user asks for names the ending, as ``txt`` or ``depth.png``.

Samples are read where they lie; nothing is unpacked, and nothing is written under any name.
Compressed tar archives can only be read from their beginning. They are unpacked once, into a file
without a name in the scratch folder; the file needs as much room, and is gone with the process.
Members of zip archives are stored or deflated.

A member that cannot be read is listed with its reason: a link, a sparse or encrypted member, a name
that leads out of the archive, all but the last member of a name, and what comes after damage.

A tar archive in which images have labels or metadata beside them (``1.jpg``, ``1.cls``) is a
WebDataset, a container that `packio.open` reads. This source does not take it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packio.errors import DecodeError, OptionError, SourceError
from packio.sample import fields
from packio.sample.record import Field, Record
from packio.sources import (
    Context,
    Listing,
    ReadRecord,
    Source,
    _classes,
    _files,
    _members,
    _unpacking,
    _values,
)
from packio.sources._rows import Columns
from packio.sources.tables import label_list

SUFFIXES = (
    ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz", ".tbz2", ".tar.xz", ".txz", ".zip",
)  # fmt: skip

_OPTIONS = {
    "folder": "folder in an archive to take as the top, as data/train; '.' is the archive",
    **label_list.OPTIONS,
}
_IMAGES = tuple(map(os.fsencode, _files.EXTENSIONS))
_FIELDS = (b".txt", b".npy")  # endings of companions that are fields, beside NAME.png
_PARTS = (  # further endings of WebDataset's companions
    ".cls", ".cls2", ".json", ".jsn", ".index", ".id", ".pyd", ".pickle", ".pkl", ".pth", ".npz",
    ".cbor", ".mp", ".msg", ".ten", ".tb",
)  # fmt: skip
_ZIP = (b"PK\3\4", b"PK\5\6")  # the second: an empty one
_PEEK = 256  # members that show what a tar archive is
_SHOWN = 5  # names in a message

_is_odd = re.compile(rb"(^|/)(\.{0,2}(/|$))|\0").search


class Archive(Source):
    """A tar or zip archive of images."""

    options = _OPTIONS
    takes_fields = True

    def recognise(self, path: Path) -> bool:
        """Tell whether the path is an archive by its suffix, and neither pack nor WebDataset."""
        name = os.fspath(path)
        if not name.lower().endswith(SUFFIXES) or not os.path.isfile(name):
            return False
        if os.path.exists(f"{name}.packio"):
            return False
        try:
            with open(name, "rb") as file:
                parts, in_folders = _companions(file.fileno())
        except OSError:  # listing it will say why
            return True
        return not parts or (in_folders and not _is_webdataset(parts))

    def listing(self, source: Any, context: Context) -> Listing:
        """List the images in an archive.

        Raises:
            SourceError: this is no archive, the archive is damaged or cannot be unpacked, it has no
                images, its folders are splits, a class is unknown to `Context.classes`, a list of
                labels does not fit, or this is a WebDataset.
            OptionError: there is no such folder in the archive, or ``label_offset`` is no whole
                number.
        """
        path, top_folder = Path(source), context.option("folder")
        has_list = context.option("labels") is not None
        archive, advice = _unpacking.readable(path, context.scratch)
        result = Listing(self.name, None, [], [], None, [*(context.classes or ())])
        with archive.opened() as descriptor:
            if _is_webdataset(_companions(descriptor)[0]):
                raise SourceError(
                    f"{path}: a WebDataset, with samples of several files; {advice}"
                    "packio convert takes it as it is"
                )
            endings = {os.fsencode(f".{o.lstrip('.')}").lower(): (name, kind)
                       for name, (o, kind) in context.fields.items()}  # fmt: skip
            found, beside, kinds = _found(path, descriptor, endings, result)
        if not found and len(result.unlisted) < 2:
            why = "".join(f" ({reason})" for _, reason in result.unlisted)
            raise SourceError(f"{path}: no images in it{why}; {_files.EXPECTED}")
        _files.tell_others(result)
        top = _common_folder(found) if top_folder is None else _given(path, top_folder, found)
        inner = [name[len(top) :] for name in found if name.startswith(top)]
        keys, folders = (sorted(inner), []) if has_list else _arranged(path, inner, top, result)
        if not folders and not has_list and top and top_folder is None:
            result.warnings.append(
                f"all images are in the folder {os.fsdecode(top)!a}: packed without labels; if its "
                "name is their class, name the folder above it by --folder, or '.'"
            )
        columns = {"image": [found[top + key] for key in keys]}
        for name in beside:
            columns[name] = [beside[name].get(top + key, _members.NOWHERE) for key in keys]
        rows = {n: np.array(v, np.int64).reshape(-1, 5) for n, v in columns.items()}
        for name, (origin, _) in context.fields.items():
            if name not in beside:
                raise OptionError(f"{path}: field {name!r}: no image has a .{origin} beside it")
        result = dataclasses.replace(
            result, root=path.parent, files=[(os.fsencode(path.name),)] * len(keys), keys=keys,
            sizes=[place.size for place in columns["image"]], rows=Columns(rows),
            open=functools.partial(_opened, archive, kinds),
        )  # fmt: skip
        if has_list:
            return label_list.labelled(result, context)
        return _with_classes(path, result, folders, context.classes) if folders else result


SOURCE = Archive()


def _with_classes(
    path: Path, found: Listing, folders: list[str], classes: Sequence[str] | None
) -> Listing:
    names = _classes.names(str(path), folders, classes)
    position = {os.fsencode(name): i for i, name in enumerate(names)}
    labels = [position[key.partition(b"/")[0]] for key in found.keys]
    return dataclasses.replace(found, labels=labels, classes=names)


def _is_zip(descriptor: int) -> bool:
    return os.pread(descriptor, 4, 0) in _ZIP


def _companions(descriptor: int) -> tuple[set[str], bool]:
    """Endings of the members that share their stem with an image, among a tar's first members.

    Stems end at the first dot after the last slash. Source: WebDataset format specification,
    "File Format".

    Returns:
        The endings, in lower case, and whether the images with companions are in folders.
    """
    names = []
    with contextlib.suppress(DecodeError):  # damaged, or no tar archive: listing it says so
        if not _is_zip(descriptor):
            members = _members.of_tar(descriptor, 0, os.fstat(descriptor).st_size)
            names = [member.name.lower() for member in itertools.islice(members, _PEEK)]
    found, in_folders = set[str](), False
    for stem, group in itertools.groupby(names, _stem):
        suffixes = [name[len(stem) :].decode(errors="replace") for name in group]
        images = [suffix for suffix in suffixes if suffix.endswith(_files.EXTENSIONS)]
        further = [s for s in suffixes if s not in images or s.count(".") > 1]
        if images and len(further) < len(suffixes) and stem.rpartition(b"/")[2]:
            found.update(s for s in further if s.endswith((*_PARTS, ".txt", ".npy", ".png")))
            in_folders = in_folders or b"/" in stem.removeprefix(b"./")
    return found, in_folders


def _is_webdataset(endings: Iterable[str]) -> bool:
    """Tell whether companions have labels or metadata, which an archive of images has not."""
    return any(ending.endswith(_PARTS) for ending in endings)


def _stem(name: bytes) -> bytes:
    folder, slash, base = name.rpartition(b"/")
    return folder + slash + base.partition(b".")[0]


_Places = dict[bytes, _members.Place]


def _found(
    path: Path, descriptor: int, endings: Mapping[bytes, tuple[str, str | None]], result: Listing
) -> tuple[_Places, dict[str, _Places], dict[str, str]]:
    """Images that can be read, and the fields beside them.

    Args:
        path: Of the archive.
        descriptor: Of its file.
        endings: Ending of the companions that the user asks for → (name of the field, kind).
        result: Receives what is neither, and what cannot be read.

    Returns:
        Inner path → place of the images; name of a field → path of the image → place; and name of
        a field → its kind.
    """
    there: _Places = {}
    for member in _all_members(path, descriptor, result):
        base = os.fsdecode(member.name.rpartition(b"/")[2])
        twin = base.startswith("._")  # macOS keeps a file's attributes in it
        if twin or not base.lower().encode(errors="replace").endswith(
            (*_IMAGES, *_FIELDS, *endings)
        ):
            if twin or not base.startswith("."):
                result.others["._*" if twin else os.path.splitext(base)[1].lower()] += 1
            continue
        name = _inner_name(member.name)
        problem = member.problem or ("" if name else "its name leads out of the archive")
        if problem or name in there:
            result.unlisted.append((member.name, problem or "there twice; the last one counts"))
        if not problem:
            there[name] = member.place
    images = {name for name in there if name.lower().endswith(_IMAGES)}
    stems: dict[bytes, bytes] = {}
    for name in images:
        stems.setdefault(name.rpartition(b".")[0], name)
    beside: dict[str, _Places] = {}
    kinds = {"image": "image"}
    for name in there:
        image, field, ending = _partner(name, stems, endings)
        if field:
            beside.setdefault(field, {})[image] = there[name]
            kinds.setdefault(field, _kind(field, ending, endings.get(ending, ("", None))[1]))
            images.discard(name)
        elif name not in images:
            result.others[os.fsdecode(os.path.splitext(name)[1]).lower()] += 1
    return {name: there[name] for name in there if name in images}, beside, kinds


def _partner(
    name: bytes, stems: Mapping[bytes, bytes], endings: Mapping[bytes, Any]
) -> tuple[bytes, str, bytes]:
    """The image that a member belongs to, the name of the field, and the ending.

    The name is "" if the member belongs to no image.
    """
    start = name.rpartition(b"/")[0]
    dots = [i for i in range(len(start) + 1, len(name)) if name[i : i + 1] == b"."]
    for dot in dots:
        image, ending = stems.get(name[:dot], name), name[dot:].lower()
        if image == name:
            continue
        if ending in endings:
            return image, endings[ending][0], ending
        inner, last = os.path.splitext(ending)
        if last in (*_FIELDS, b".png") and inner.count(b".") <= 1 and (inner or last != b".png"):
            field = os.fsdecode((inner or last)[1:])
            return image, field if field == "mask" else _values.field_name(field), ending
    return b"", "", b""


def _kind(name: str, ending: bytes, asked: str | None) -> str:
    """Kind of a field, as the user says or as the ending of its members says."""
    if asked or name == "mask":
        return asked or "mask"
    return "image" if ending.endswith(_IMAGES) else fields.kind_of_file(b"x" + ending) or "bytes"


def _all_members(path: Path, descriptor: int, result: Listing) -> Iterator[_members.Member]:
    """Yield the members of an archive, and of tar archives in a tar archive."""
    members: Iterator[_members.Member]
    if _is_zip(descriptor):
        members = map(_with_slashes, _members.of_zip(descriptor))
    else:
        members = _members.of_tar(descriptor, 0, os.fstat(descriptor).st_size)
    for member in _until_damage(members, os.fsencode(path.name), result):
        place, inner = member.place, member.name.lower().endswith(b".tar")
        if not inner or member.problem or place.method != _members.TAR:
            yield member
            continue
        folder = member.name[: -len(b".tar")]
        below = _members.of_tar(descriptor, place.offset, place.size)
        for found in _until_damage(below, member.name, result):
            yield found._replace(name=folder + b"/" + found.name)


def _until_damage(
    members: Iterator[_members.Member], name: bytes, result: Listing
) -> Iterator[_members.Member]:
    try:
        yield from members
    except DecodeError as error:
        result.unlisted.append((name, str(error)))


def _with_slashes(member: _members.Member) -> _members.Member:
    """A zip member whose name has slashes, also if a program of Windows wrote backslashes."""
    if b"\\" not in member.name or b"/" in member.name:
        return member
    return member._replace(name=member.name.replace(b"\\", b"/"))


def _inner_name(name: bytes) -> bytes:
    """The path of a member without odd parts; empty if the path leads out of the archive."""
    if not _is_odd(name):
        return name
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    leads_out = name.startswith(b"/") or b".." in parts or b"\0" in name
    return b"" if leads_out else b"/".join(parts)


def _common_folder(names: Iterable[bytes]) -> bytes:
    """The folder that all names have in common, with a slash at its end; empty if none."""
    common = os.path.commonpath({name.rpartition(b"/")[0] for name in names} or {b""})
    return common and common + b"/"


def _given(path: Path, folder: str, names: Iterable[bytes]) -> bytes:
    top = os.fsencode("" if folder == "." else folder.strip("/") + "/")
    names = list(names)
    if not any(name.startswith(top) for name in names):
        tops = sorted({os.fsdecode(name.partition(b"/")[0]) for name in names if b"/" in name})
        raise OptionError(
            f"folder={folder!r}: no images in such a folder of {path}; at its top are "
            f"{', '.join(ascii(top)[1:-1] for top in tops[:_SHOWN]) or 'no folders'}"
        )
    return top


def _arranged(
    path: Path, names: list[bytes], top: bytes, result: Listing
) -> tuple[list[bytes], list[str]]:
    """Keys in their order, and the names of the class folders, if there are any."""
    folders = sorted({os.fsdecode(name.partition(b"/")[0]) for name in names if b"/" in name})
    if not folders:
        return sorted(names), []
    if _classes.are_splits(folders):
        _refuse_splits(path, os.fsdecode(top), folders)
    keys = sorted((name for name in names if b"/" in name), key=_place_in_order)
    if beside := len(names) - len(keys):
        result.warnings.append(f"{beside} images beside the class folders belong to no class")
    return keys, folders


def _place_in_order(key: bytes) -> tuple[str, str, str]:
    """By class, folder and name, as text: the order of an image folder."""
    folder, _, name = os.fsdecode(key).rpartition("/")
    return folder.partition("/")[0], folder, name


def _refuse_splits(path: Path, top: str, folders: list[str]) -> None:
    train = next((f for f in folders if f.lower().startswith("train")), folders[0])
    commands = [
        f"packio pack {shlex.quote(str(path))} {name}.lmdb --folder {shlex.quote(top + name)}"
        + ("" if name == train else f" --classes-from {train}.lmdb")
        for name in sorted(folders, key=lambda name: name != train)
    ]
    raise SourceError(
        f"{path}: its folders are splits ({', '.join(folders)}), not classes; "
        f"pack each by itself: {'; '.join(commands)}"
    )


@contextlib.contextmanager
def _opened(
    archive: _unpacking.File | _unpacking.Unpacked, kinds: Mapping[str, str], rows: Columns
) -> Iterator[ReadRecord]:
    with archive.opened() as descriptor:

        def read(position: int) -> Record[Field]:
            found: dict[str, Field] = {}
            for name, column in rows.columns.items():
                place = _members.Place(*column[position].tolist())
                if place != _members.NOWHERE:
                    found[name] = Field(kinds[name], _members.read(descriptor, place))
            return Record(b"", found)

        yield read
