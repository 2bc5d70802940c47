"""A tar or zip archive of images: in class folders as an image folder has them, or flat.

The folder that all images have in common is the top. If there are folders of images below the top,
they are the classes, as in `packio.sources.image_folder`. If there are none, or a list of labels is
given, images are sorted by path as in `packio.sources.flat_folder`. Tar archives in an uncompressed
tar archive are folders of their names, as in ImageNet's ``ILSVRC2012_img_train.tar``.

Members beside an image with the same stem are named fields: ``1.txt`` is the text ``txt`` of
``1.jpg``, ``1.npy`` is the array ``npy``, and ``1.depth.png``, ``1.caption.txt`` and
``1.latent.npy`` are ``depth``, ``caption`` and ``latent``; ``1.mask.png`` is the mask. A field that
the user asks for names the ending, as ``txt`` or ``depth.png``.

No member is unpacked into a folder. A compressed tar archive, which can only be read from its
beginning, is unpacked once, into a file without a name. If several members have one name, the last
one counts. A tar archive in which images have labels or metadata beside them
(``1.jpg``, ``1.cls``) is a WebDataset, a container that `packio.open` reads, and not taken here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from packio import sources
from packio.errors import DecodeError, OptionError, SourceError
from packio.sample import fields
from packio.sample.record import Field, Frame, Record
from packio.sources import Context, Listing, Rows, Source, _files, _folders, _members
from packio.sources._rows import each_of
from packio.sources.tables import field_values, lines

_OPTIONS = {
    "folder": "folder in an archive to take as the top, as data/train; '.' is the archive",
    **lines.LABEL_OPTIONS,
    **_files.OPTIONS,
}
_FIELDS = (b".txt", b".npy")  # endings of companions that are fields, beside NAME.png
_PARTS = (  # further endings of WebDataset's companions
    ".cls", ".cls2", ".json", ".jsn", ".index", ".id", ".pyd", ".pickle", ".pkl", ".pth", ".npz",
    ".cbor", ".mp", ".msg", ".ten", ".tb",
)  # fmt: skip
_ZIP = (b"PK\3\4", b"PK\5\6")  # the second begins an empty archive
_PEEK = 256  # members that show what a tar archive is
_SHOWN = 5  # names in a message
_LABEL = "a label without an image beside it; tar the files sorted by name: tar --sort=name"

_is_odd = re.compile(rb"(^|/)(\.{0,2}(/|$))|\0").search


class ArchiveSource(Source):
    options = _OPTIONS
    takes_fields = True

    def recognise(self, path: Path) -> bool:
        name = os.fspath(path)
        if not name.lower().endswith(_files.ARCHIVES) or not os.path.isfile(name):
            return False
        if os.path.exists(f"{name}.packio"):
            return False
        try:
            with open(name, "rb") as file:
                parts, in_folders = _companions(file.fileno())
        except OSError:  # `listing` says why
            return True
        return not parts or (in_folders and not _is_webdataset(parts))

    def listing(self, source: Any, context: Context) -> Listing:
        path, top_folder = Path(source), context.option("folder")
        has_list = context.option("labels") is not None
        archive, advice = _members.readable(path, context.scratch)
        result = Listing(self.name, None, classes=[*(context.classes or ())])
        with archive.open() as descriptor:
            if _is_webdataset(_companions(descriptor)[0]):
                raise SourceError(
                    f"{path}: a WebDataset, with samples of several files; {advice}"
                    "packio convert takes it as it is"
                )
            found, named, kinds = _found(path, descriptor, context, result)
        if not found and len(result.unlisted) < 2:
            why = "".join(f" ({reason})" for _, reason in result.unlisted)
            raise SourceError(f"{path}: no images in it{why}; {_files.EXPECTED}")
        for name, (origin, _) in context.fields.items():
            if name not in named:
                raise OptionError(f"{path}: field {name!r}: no image has a .{origin} beside it")
        _files.tell_others(result)
        top = _top(path, top_folder, list(found))
        keys = sorted(name[len(top) :] for name in found if name.startswith(top))
        folders = set() if has_list else {k.partition(b"/")[0] for k in keys if b"/" in k}
        if folders:
            command_of = functools.partial(_command, path, os.fsdecode(top))
            classes = sorted(map(os.fsdecode, folders))
            names = _folders.find_classes(str(path), classes, context, command_of)
            beside = [key for key in keys if b"/" not in key]
            keys, labels = _folders.sort_keys(keys, names)
            result = dataclasses.replace(result, keys=keys, labels=labels, classes=names)
            _folders.warn_of_folders(str(path), result, classes, beside, context, command_of)
            if top_folder is None:
                with archive.open() as descriptor:
                    masks = _folders.masks_among(
                        keys, lambda key: _members.read_member(descriptor, found[top + key])
                    )
                if masks:
                    raise SourceError(
                        f"{path}: {masks.told}; to pack pairs, unpack it and pack the folder; to "
                        f"pack two classes: {command_of('')}"
                    )
        elif not (has_list or context.option("label_regex")) and top and top_folder is None:
            result.warnings.append(
                f"all images are in the folder {os.fsdecode(top)!a}: packed without labels; if its "
                "name is their class, name the folder above it by --folder, or '.'"
            )
        columns = {"image": [found[top + key] for key in keys]}
        for name, there in named.items():
            columns[name] = [there.get(top + key, _members.NOWHERE) for key in keys]
        rows = {n: np.array(v, np.int64).reshape(-1, 5) for n, v in columns.items()}
        result = dataclasses.replace(
            result, root=path.parent, files=[(os.fsencode(path.name),)] * len(keys), keys=keys,
            sizes=[extent.size for extent in columns["image"]], rows=Rows(rows),
            open=functools.partial(each_of, archive, _read, kinds),
        )  # fmt: skip
        return lines.label_images(result, context)


SOURCE = ArchiveSource()


def _command(path: Path, top: str, folder: str) -> str:
    """The command that packs one folder of an archive; "": the top itself."""
    inner = (top + folder).rstrip("/") or "."
    return sources.command(path, folder or path.name.partition(".")[0], "--folder", inner)


def _is_zip(descriptor: int) -> bool:
    return os.pread(descriptor, 4, 0) in _ZIP


def _companions(descriptor: int) -> tuple[set[str], bool]:
    """Endings beside images among a tar's first members, and whether these lie in folders.

    Stems end at the first dot after the last slash. Source: WebDataset format specification,
    "File Format".
    """
    names = []
    with contextlib.suppress(DecodeError):  # damaged, or no tar archive: `listing` says so
        if not _is_zip(descriptor):
            members = _members.list_tar(descriptor)
            names = [member.name.lower() for member in itertools.islice(members, _PEEK)]
    found, in_folders = set[str](), False
    for stem, group in itertools.groupby(names, _stem):
        suffixes = [name[len(stem) :].decode(errors="replace") for name in group]
        images = [suffix for suffix in suffixes if suffix.endswith(_files.EXTENSIONS)]
        further = [s for s in suffixes if s not in images or s.count(".") > 1]
        is_sample = len(further) < len(suffixes) or _is_webdataset(further)
        if images and is_sample and stem.rpartition(b"/")[2]:
            found.update(s for s in further if s.endswith((*_PARTS, ".txt", ".npy", ".png")))
            in_folders = in_folders or b"/" in stem.removeprefix(b"./")
    return found, in_folders


def _is_webdataset(endings: Iterable[str]) -> bool:
    """Tell whether companions have labels or metadata, which an archive of images has not."""
    return any(ending.endswith(_PARTS) for ending in endings)


def _stem(name: bytes) -> bytes:
    folder, slash, base = name.rpartition(b"/")
    return folder + slash + base.partition(b".")[0]


_Extents = dict[bytes, _members.Extent]


def _found(
    path: Path, descriptor: int, context: Context, result: Listing
) -> tuple[_Extents, dict[str, _Extents], dict[str, str]]:
    """The place of each image, and of each field of images; the kind of each field."""
    is_image = _files.image_test(context)
    endings = {os.fsencode(f".{origin.lstrip('.')}").lower(): (name, kind)
               for name, (origin, kind) in context.fields.items()}  # fmt: skip
    is_field = _files.ends_in(*map(os.fsdecode, (*_FIELDS, *endings)))
    there: _Extents = {}
    for member in _all_members(path, descriptor, result):
        base = os.fsdecode(member.name.rpartition(b"/")[2])
        inside, is_wanted = os.fsdecode(member.name), is_image(base) or is_field(base)
        is_label = base.lower().endswith(".cls") and not is_wanted
        if not _files.is_taken(inside, result, context, is_wanted=is_wanted or is_label):
            continue
        if is_label:
            result.unlisted.append((member.name, _LABEL))
            continue
        name = _inner_name(member.name)
        problem = member.problem or ("" if name else "its name leads out of the archive")
        if problem or name in there:
            result.unlisted.append((member.name, problem or "there twice; the last one counts"))
        if not problem:
            there[name] = member.extent
    images = {name for name in there if is_image(os.fsdecode(name))}
    # of two images with one stem, the first in the archive has the fields
    stems = {n.rpartition(b".")[0] or n: n for n in reversed(list(there)) if n in images}
    named: dict[str, _Extents] = {}
    kinds = {"image": "image"}
    for name in there:
        image, field, ending = _partner(name, stems, endings)
        if field and (ending in endings or field not in context.fields):
            named.setdefault(field, {})[image] = there[name]
            kinds.setdefault(field, _kind(field, ending, endings.get(ending, ("", None))[1]))
            images.discard(name)
        elif name not in images:
            result.others[os.fsdecode(os.path.splitext(name)[1]).lower()] += 1
    return {name: there[name] for name in there if name in images}, named, kinds


def _partner(
    name: bytes, stems: Mapping[bytes, bytes], endings: Mapping[bytes, Any]
) -> tuple[bytes, str, bytes]:
    """The image that a member belongs to, the name of the field ("": none), and the ending."""
    start = name.rpartition(b"/")[0]
    dots = [i for i in range(len(start) + 1, len(name)) if name[i : i + 1] == b"."]
    for dot in dots:
        image, ending = stems.get(name[:dot], name), name[dot:].lower()
        if image == name:
            continue
        if ending in endings:
            return image, endings[ending][0], ending
        inner, _, last = ending.rpartition(b".")  # .caption.txt: .caption, txt
        is_field = b"." + last in _FIELDS or (last == b"png" and inner)
        if is_field and inner.count(b".") <= 1 and inner != b".":
            field = os.fsdecode(inner[1:] or last)
            return image, field if field == "mask" else field_values.field_name(field), ending
    return b"", "", b""


def _kind(name: str, ending: bytes, asked: str | None) -> str:
    if asked or name == "mask":
        return asked or "mask"
    if _files.is_image(os.fsdecode(ending)):
        return "image"
    return fields.kind_of_file(b"x" + ending) or "bytes"


def _all_members(path: Path, descriptor: int, result: Listing) -> Iterator[_members.Entry]:
    members: Iterator[_members.Entry]
    if _is_zip(descriptor):
        members = (
            m._replace(name=m.name.replace(b"\\", b"/")) if b"/" not in m.name else m
            for m in _members.list_zip(descriptor)
        )
    else:
        members = _members.list_tar(descriptor)
    for member in _until_damage(members, os.fsencode(path.name), result):
        extent, inner = member.extent, member.name.lower().endswith(b".tar")
        if not inner or member.problem or extent.method != _members.TAR:
            yield member
            continue
        folder = member.name[: -len(b".tar")]
        below = _members.list_tar(descriptor, extent.offset, extent.size)
        for found in _until_damage(below, member.name, result):
            yield found._replace(name=folder + b"/" + found.name)


def _until_damage(
    members: Iterator[_members.Entry], name: bytes, result: Listing
) -> Iterator[_members.Entry]:
    try:
        yield from members
    except DecodeError as error:
        result.unlisted.append((name, str(error)))


def _inner_name(name: bytes) -> bytes:
    """The path of a member without odd parts; empty if the path leads out of the archive."""
    if not _is_odd(name):
        return name
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    leads_out = name.startswith(b"/") or b".." in parts or b"\0" in name
    return b"" if leads_out else b"/".join(parts)


def _top(path: Path, folder: str | None, names: list[bytes]) -> bytes:
    """The folder that the user names or all names have in common, with a slash at its end."""
    if folder is None:
        common = os.path.commonpath({name.rpartition(b"/")[0] for name in names} or {b""})
        return common and common + b"/"
    top = os.fsencode("" if folder == "." else folder.strip("/") + "/")
    if not any(name.startswith(top) for name in names):
        tops = sorted({os.fsdecode(name.partition(b"/")[0]) for name in names if b"/" in name})
        raise OptionError(
            f"folder={folder!r}: no images in such a folder of {path}; at its top are "
            f"{', '.join(ascii(top)[1:-1] for top in tops[:_SHOWN]) or 'no folders'}"
        )
    return top


def _read(descriptor: int, kinds: Mapping[str, str], rows: Rows, position: int) -> Record[Field]:
    found: dict[str, Field] = {}
    for name, column in rows.columns.items():
        extent = _members.Extent(*column[position].tolist())
        if extent != _members.NOWHERE:
            is_image = kinds[name] in ("image", "mask")
            found[name] = Field(
                kinds[name], _members.read_member(descriptor, extent, is_image=is_image)
            )
    return Record(b"", found, frame=Frame())
