"""Labels for images that lie in no class folders: from a list, or from the names of the images.

A list is text in UTF-8. There are two kinds of lists:

* a label on each line, a line for each image in sorted order, as ImageNet's
  ``ILSVRC2012_validation_ground_truth.txt``;
* a path and a label on each line, with a tab or white space between them, as Caffe's ``val.txt``.
  The order of lines does not matter. A list is of this kind if any line begins with the path of an
  image.

Labels are names of classes, or whole numbers. If all labels are whole numbers, they are numbers,
unless all of them are names of the classes that the user gives.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packio.errors import OptionError, SourceError
from packio.sample.labelling import Distinct, labels, of_texts
from packio.sources import Context, Listing, _files

OPTIONS = {
    "labels": "text file with a label for each image in sorted order, or lines of path and label",
    "label_offset": "added to labels that are numbers: -1 makes those from 1 begin at 0",
}

# Of a name as beagle_12.jpg: beagle.
_BEGINNING = r"([^/]+?)[ ._-]*\d+\.\w+$"
_IMAGES = tuple(ending.encode() for ending in (*_files.EXTENSIONS, ".gif"))


def labelled(found: Listing, context: Context) -> Listing:
    """Give images the labels of the list that the options name, if any."""
    if context.option("labels") is None:
        is_named = found.labels is not None or context.option("label_regex") is not None
        return found if is_named else _with_hint(found)
    file, given = Path(context.option("labels")), context.option("label_offset", 0)
    try:
        offset = int(given)
    except ValueError as error:
        raise OptionError(f"label_offset={given!r}: expected a whole number") from error
    texts = _texts(file, found)
    kept = found.take([i for i, key in enumerate(found.keys) if key in texts])
    column = Distinct()
    column.extend(os.fsdecode(texts[key]) for key in kept.keys)

    def place(position: int | None) -> str:
        return str(file) if position is None else f"{file}: {os.fsdecode(kept.keys[position])!a}"

    most = len(context.classes or ()) - 1 if context.classes else (1 << 63) - 1
    values = [
        _moved(value, offset, most, file) for value in of_texts(column, place, context.classes)
    ]
    return kept.labelled(labels(column, values, place, classes=context.classes))


def _with_hint(found: Listing) -> Listing:
    """Images without labels, with a warning if their names seem to begin with the class."""
    matches = [re.search(_BEGINNING, os.fsdecode(key)) for key in found.keys]
    names = [match[1] for match in matches if match]
    distinct = sorted({*names})
    if len(names) == len(found.keys) and 2 <= len(distinct) <= len(names) // 2:
        found.warnings.append(
            f"no labels; the names of the images begin with {len(distinct):,} words, as "
            f"{', '.join(map(ascii, distinct[:3]))}: if these are the classes, "
            f"--label-regex {shlex.quote(_BEGINNING)}"
        )
    return found


def _texts(file: Path, result: Listing) -> dict[bytes, bytes]:
    """Key → its label as written. Lines without an image, and the reverse, become unlisted."""
    lines, keys = _files.lines_of(file), result.keys
    known = set(keys)
    pairs = [next((p for p in _splits(line) if p[0] in known), None) for line in lines]
    if not any(pairs):
        _refuse_unfit(file, lines, keys)
        return dict(zip(keys, lines, strict=True))
    texts: dict[bytes, bytes] = {}
    for line, pair in zip(lines, pairs, strict=True):
        if pair is None:
            name = next(_splits(line), (line,))[0]
            result.unlisted.append((name, f"in {file.name}, and no image"))
        elif texts.setdefault(*pair) != pair[1]:
            raise SourceError(f"{file}: two labels for {pair[0]!a}; expected one")
    result.unlisted.extend((key, f"no label in {file.name}") for key in keys if key not in texts)
    return texts


def _refuse_unfit(file: Path, lines: list[bytes], keys: list[bytes]) -> None:
    """Refuse a list that names no image of the source and has no label for each image."""
    paths = [next(_splits(line), (b"",))[0] for line in lines]
    named = [path for path in paths if path.lower().endswith(_IMAGES)]
    if named:
        raise SourceError(
            f"{file}: {len(named)} lines name images, as {named[0]!a}, and none is an image of the "
            f"source, as {keys[0]!a}; expected paths relative to the source"
        )
    several = all(len(re.split(rb"[\s,;]+", line, maxsplit=1)) == 2 for line in lines)
    if several and len(lines) > 1 and len(set(lines)) == len(lines):
        raise SourceError(
            f"{file}: {len(lines)} lines of several words, no two alike, as {lines[0]!a}: each "
            f"would be a class; expected a label a line, or paths of the source, as {keys[0]!a}"
        )
    if len(lines) != len(keys):
        raise SourceError(
            f"{file}: {len(lines)} labels for {len(keys)} images; expected a line for each "
            "image in sorted order, or lines of path and label"
        )
    as_counted = sorted(keys, key=lambda key: [int(n or -1) for n in re.split(rb"\D+", key)])
    alike = len({re.sub(rb"\d+", b"", key) for key in keys}) == 1
    if alike and as_counted != keys and len({*lines}) > 1:
        at = next(i for i, key in enumerate(keys) if key != as_counted[i])
        raise SourceError(
            f"{file}: a label a line, and names whose order as text is not that of their numbers: "
            f"line {at + 1} may be of {os.fsdecode(keys[at])!a} or of "
            f"{os.fsdecode(as_counted[at])!a}; expected lines of path and label"
        )


def _splits(line: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The ways to split a line into path and label. Paths and labels may have spaces in them."""
    if b"\t" in line:
        path, _, label = line.rpartition(b"\t")
        yield path, label
    elif len(line.split(None, 1)) == 2:
        path, label = line.rsplit(None, 1)
        yield path, label
        path, label = line.split(None, 1)
        yield path, label


def _moved(value: Any, offset: int, most: int, file: Path) -> Any:
    if type(value) is not int or 0 <= value + offset <= most:
        return value + offset if type(value) is int else value
    raise SourceError(
        f"{file}: the label {value}, with label_offset={offset}, is {value + offset}; expected "
        f"0..{most}"
    )
