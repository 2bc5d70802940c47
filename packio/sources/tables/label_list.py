"""A list of labels for images that lie in no class folders.

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

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from packio.errors import OptionError, SourceError
from packio.sources import Context, Listing, _class_folders, _files
from packio.sources.tables.labels import Distinct, is_whole, names_of

OPTIONS = {
    "labels": "text file with a label for each image in sorted order, or lines of path and label",
    "label_offset": "added to labels that are numbers: -1 makes those from 1 begin at 0",
}

_IMAGES = tuple(ending.encode() for ending in (*_files.EXTENSIONS, ".gif"))


def labelled(found: Listing, context: Context) -> Listing:
    """Give images the labels of the list that the options name.

    Images without a label become unlisted.

    Args:
        found: Images without labels, sorted; returned as they are if there is no list.
        context: Has the options ``labels`` and ``label_offset``, and the names of classes.

    Raises:
        SourceError: the list cannot be read, does not fit the images, or has a class unknown to
            `Context.classes`.
        OptionError: the offset is no whole number.
    """
    if context.option("labels") is None:
        return found
    file, offset = Path(context.option("labels")), _offset(context.option("label_offset", 0))
    texts = _texts(file, found)
    kept = found.take([i for i, key in enumerate(found.keys) if key in texts])
    labels, names = _labels(file, [texts[key] for key in kept.keys], context.classes, offset)
    return dataclasses.replace(kept, labels=labels, classes=names)


def _offset(given: int | str) -> int:
    try:
        return int(given)
    except ValueError as error:
        raise OptionError(f"label_offset={given!r}: expected a whole number") from error


def _texts(file: Path, result: Listing) -> dict[bytes, bytes]:
    """Key → its label as written. Lines without an image, and the reverse, become unlisted."""
    lines, keys = _lines(file), result.keys
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
    several = all(len(line.split(None, 1)) == 2 for line in lines)
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


def _lines(file: Path) -> list[bytes]:
    """Lines of a text file that are not blank."""
    try:
        text = file.read_bytes().removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        raise SourceError(f"{file}: {error.strerror}; expected a list of labels") from error
    return [stripped for line in text.split(b"\n") if (stripped := line.strip())]


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


def _labels(
    file: Path, texts: list[bytes], classes: Sequence[str] | None, offset: int
) -> tuple[list[int], list[str]]:
    """Labels as numbers, and the names of the classes."""
    column = Distinct()
    column.extend(text.decode("utf-8", "surrogateescape") for text in texts)
    if {*column.values} <= {*(classes or ())} or not all(map(is_whole, column.values)):
        names = names_of(column, lambda _: str(file), classes)
        known = _class_folders.class_names(str(file), names, classes)
        order = {name: i for i, name in enumerate(known)}
        values = [order[name] for name in names]
        return [values[code] for code in column.codes], known
    values = [int(text) + offset for text in column.values]
    most = len(classes) - 1 if classes is not None else (1 << 63) - 1
    wrong = next((value for value in values if not 0 <= value <= most), None)
    if wrong is not None:
        raise SourceError(
            f"{file}: the label {wrong - offset}, with label_offset={offset}, is {wrong}; expected "
            f"0..{most}"
        )
    return [values[code] for code in column.codes], list(classes or [])
