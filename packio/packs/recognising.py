"""Recognising a container without an index: its format, and the shards it consists of.

The first bytes of a file tell the format, or the names in a folder; where they do not, the name of
the file or folder does. A folder, or a path with braces, can hold several containers as shards.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import itertools
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path

from packio import registry
from packio.errors import NotAPackError, OptionError
from packio.formats import Format, is_added_shard
from packio.index.indexfile import INDEX_NAME, INDEX_SUFFIX
from packio.sample.fields import KINDS
from packio.system.files import is_hidden

_HEAD = 512  # bytes of a file that tell its format
# Names of shards without a suffix, as TensorFlow's: train-00000-of-00004.
_NUMBERED = re.compile(r"-\d+-of-\d+$")
_MOST_INNER = 16, 1000  # folders in a folder, and names in each, that tell its format
_BRACES = re.compile(r"\{([^{}]*)\}")
_SPAN = re.compile(r"([0-9]{1,18})\.\.([0-9]{1,18})")
_MOST = 100_000  # paths of one pattern


@dataclasses.dataclass(frozen=True)
class Container:
    """A container found at a path."""

    format: str
    root: Path  # folder that all paths are relative to
    shards: tuple[str, ...]  # names relative to the root; "." where the root is the one shard


def find(path: Path) -> Container | None:
    """Recognise a container by its first bytes, or by its name; None if it is none.

    Several may be named by braces (`expand_braces`): they are the shards of one.
    """
    if path.is_dir():
        return _find_directory(path)
    each = [os.fspath(path)] if os.path.lexists(path) else expand_braces(os.fspath(path))
    if each != [os.fspath(path)]:
        return _find_several(path, [Path(one) for one in each])
    name = _format_of_file(path)
    return None if name is None else Container(name, path.parent, (path.name,))


def format_of_directory(path: Path) -> str | None:
    """Format of a folder that is one container by itself, and does not just hold containers."""
    return _recognise(_names_in(path), "", is_directory=True)


def _find_several(pattern: Path, paths: Sequence[Path]) -> Container:
    """Find the containers at some paths, as one container whose shards they are; of one format."""
    found = []
    for path in paths:
        if not path.exists():
            raise NotAPackError(f"{path}: does not exist; {pattern} stands for it, among others")
        if (path / INDEX_NAME).is_file() or path.with_name(path.name + INDEX_SUFFIX).is_file():
            raise OptionError(
                f"{path}: has an index of its own; open it, and put all of {pattern} together by "
                "packio.ConcatPacks or packio merge"
            )
        container = find(path)
        if container is None:
            raise NotAPackError(f"{path}: no container that packio knows")
        found.append(container)
    formats = sorted({container.format for container in found})
    if len(formats) > 1:
        raise OptionError(f"{pattern}: {' and '.join(formats)}; expected containers of one format")
    root = os.path.commonpath([container.root for container in found])
    shards = [os.path.relpath(c.root / name, root) for c in found for name in c.shards]
    return Container(formats[0], Path(root), tuple(shards))


def _find_directory(path: Path) -> Container | None:
    head = _names_in(path)
    if name := _recognise(head, "", is_directory=True):
        return Container(name, path, (".",))
    if shards := _shards_in(path, head):
        advice = f"name a file, or several as {path}/{{a,b}}.tar"
        form, names = require_one_format(shards, f"{path}/", advice)
        return Container(form, path, tuple(names))
    name = _recognise(head + _names_within(path, head), "", is_directory=True)
    name = name or _recognise(head, path.name, is_directory=True)
    return None if name is None else Container(name, path, (".",))


def _names_in(folder: Path) -> bytes:
    return b"".join(name + b"\n" for name in sorted(os.listdir(os.fsencode(folder))))


def _names_within(folder: Path, head: bytes) -> bytes:
    """Names in some of the folders in a folder: an N5 or Zarr group may have no file of its own."""
    most_folders, most_names = _MOST_INNER
    folders = (name for name in head.split(b"\n") if name and (folder / os.fsdecode(name)).is_dir())
    found = []
    for name in itertools.islice(folders, most_folders):
        with os.scandir(os.path.join(os.fsencode(folder), name)) as entries:
            found += [name + b"/" + e.name + b"\n" for e in itertools.islice(entries, most_names)]
    return b"".join(sorted(found))


def _shards_in(folder: Path, head: bytes) -> dict[str, list[str]]:
    """Format → names of the containers in a folder."""
    formats: dict[str, Format] = registry.load_all("formats")
    suffixes = tuple(s for form in formats.values() for s in form.caps.suffixes)
    found: dict[str, list[str]] = {}
    for name in map(os.fsdecode, head.split(b"\n")):
        if is_hidden(name):
            continue
        path = folder / name
        if not name.lower().endswith(suffixes):
            if _NUMBERED.search(name) and path.is_file() and (form := _format_of_file(path)):
                found.setdefault(form, []).append(name)
            continue
        is_directory = path.is_dir()
        of_kind = {n: f for n, f in formats.items() if f.caps.is_directory == is_directory}
        form = next((n for n, f in of_kind.items() if f.recognise(b"", name)), None)
        if form is not None:
            found.setdefault(form, []).append(name)
    for form, names in found.items():
        siblings = {p.name for name in names for p in formats[form].siblings(folder / name)}
        beside = set(names)
        found[form] = [
            name for name in names if name not in siblings and not is_added_shard(name, beside)
        ]
    return found


def require_one_format(
    found: dict[str, list[str]], where: str, advice: str
) -> tuple[str, list[str]]:
    """The format and the names of the containers in a folder, where all are of one format."""
    if len(found) > 1:
        shown = ", ".join(f"{names[0]} ({form})" for form, names in sorted(found.items()))
        raise OptionError(
            f"{where}: holds containers of several formats: {shown}; expected one format; {advice}"
        )
    ((form, names),) = found.items()
    return form, names


def _format_of_file(path: Path) -> str | None:
    head = b""
    if path.is_file():
        with contextlib.suppress(OSError), path.open("rb") as file:  # scanning it tells the error
            head = file.read(_HEAD)
    return format_of(head, path.name)


def format_of(head: bytes, name: str) -> str | None:
    """Name of the format of a file, by its first 512 bytes and its name; None if none knows it."""
    return _recognise(head, "") or _recognise(head, name, is_directory=False)


def _recognise(head: bytes, name: str, *, is_directory: bool | None = None) -> str | None:
    """The first format, of files or directories or both, that says a container is its own."""
    for known, form in registry.load_all("formats").items():
        if is_directory in (None, form.caps.is_directory) and form.recognise(head, name):
            return known
    return None


def files_of(container: Container) -> list[tuple[str, Path]]:
    """All files of a container's shards: names relative to the root, and paths, sorted."""
    form: Format = registry.load("formats", container.format)
    found = []
    for shard in container.shards:
        top = container.root / shard
        if top.is_dir():
            paths = [p for p in top.rglob("*") if p.is_file()]
        else:
            paths = [top, *form.siblings(top)]
        found += [(os.path.relpath(p, container.root), p) for p in paths]
    return sorted(f for f in found if not f[0].endswith((INDEX_NAME, INDEX_SUFFIX)))


def list_added_containers(container: Container) -> list[str]:
    """Containers of fields that were added to a pack later, and that scanning does not find."""
    form: Format = registry.load("formats", container.format)
    if form.caps.fields_apart:
        return []
    found = list[str]()
    for shard in container.shards:
        top = container.root / shard
        if top.is_dir():
            names = [p.name for p in top.iterdir() if p.is_dir()]
            names = [n for n in names if n.rpartition(".")[0] and n.rpartition(".")[2] in KINDS]
            found += [os.path.normpath(os.path.join(shard, name)) for name in names]
        else:
            beside = {p.name for p in top.parent.glob(f"{glob.escape(top.stem)}.*{top.suffix}")}
            folder = os.path.dirname(shard)
            found += [os.path.join(folder, n) for n in beside if is_added_shard(n, {top.name})]
    return sorted(found)


def expand_braces(pattern: str) -> list[str]:
    """Expand braces, ``{000..127}`` or ``{train,extra}``: the texts in a shell's order, each once.

    Nested braces, and braces without a choice, stay.
    """
    texts = _BRACES.split(pattern)  # outside, inside, outside, …
    choices = [_choices(text) if i % 2 else [text] for i, text in enumerate(texts)]
    if math.prod(map(len, choices)) > _MOST:
        raise OptionError(f"{pattern}: its braces name more than {_MOST:,} files")
    return list(dict.fromkeys(map("".join, itertools.product(*choices))))


def _choices(inside: str) -> Sequence[str]:
    span = _SPAN.fullmatch(inside)
    if span is None:
        return inside.split(",") if "," in inside else [f"{{{inside}}}"]
    first, last = int(span[1]), int(span[2])
    padded = any(len(end) > 1 and end.startswith("0") for end in span.groups())
    width = max(map(len, span.groups())) if padded else 1
    step = 1 if first <= last else -1
    numbers = range(first, last + step, step)[: _MOST + 1]  # to be refused, if it is cut short
    return [f"{number:0{width}d}" for number in numbers]
