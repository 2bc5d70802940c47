"""A list of labels for images that lie in no class folders.

A list is text in UTF-8, of one of two kinds:

* a label on each line, a line for each image in sorted order, as ImageNet's
  ``ILSVRC2012_validation_ground_truth.txt``;
* a path and a label on each line, with a tab or white space between them, as Caffe's ``val.txt``.
  The order of lines does not matter. A list is of this kind if any line begins with the path of an
  image.

Labels are names of classes, or whole numbers. They are taken as numbers if all of them are numbers
and not all of them are names of the classes that are given.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from packio.errors import OptionError, SourceError
from packio.sources import Context, Listing, _classes, _files

OPTIONS = {
    "labels": "text file with a label for each image in sorted order, or lines of path and label",
    "label_offset": "added to labels that are numbers: -1 makes those from 1 begin at 0",
}

_IMAGES = tuple(ending.encode() for ending in (*_files.EXTENSIONS, ".gif"))
_is_number = re.compile(rb"[+-]?[0-9]{1,18}").fullmatch


def labelled(found: Listing, context: Context) -> Listing:
    """Give images the labels of the list that the options name; images without one are unlisted.

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
    labels, names = _numbers(file, [texts[key] for key in kept.keys], context.classes, offset)
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
    """Refuse a list that has no path of an image, and is no list of labels alone."""
    paths = [next(_splits(line), (b"",))[0] for line in lines]
    named = [path for path in paths if path.lower().endswith(_IMAGES)]
    if named:
        raise SourceError(
            f"{file}: {len(named)} lines name images, as {named[0]!a}, and none is an image of the "
            f"source, as {keys[0]!a}; expected paths relative to the source"
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
    """The ways to split a line into path and label: either may have spaces in it."""
    if b"\t" in line:
        path, _, label = line.rpartition(b"\t")
        yield path, label
    elif len(line.split(None, 1)) == 2:
        path, label = line.rsplit(None, 1)
        yield path, label
        path, label = line.split(None, 1)
        yield path, label


def _numbers(
    file: Path, texts: list[bytes], classes: Sequence[str] | None, offset: int
) -> tuple[list[int], list[str]]:
    """Labels as numbers, and the names of the classes."""
    decoded = [text.decode("utf-8", "surrogateescape") for text in texts]
    if set(decoded) <= set(classes or ()) or not all(map(_is_number, texts)):
        names = _classes.names(str(file), decoded, classes)
        position = {name: i for i, name in enumerate(names)}
        return [position[text] for text in decoded], names
    numbers = [int(text) + offset for text in texts]
    most = len(classes) - 1 if classes is not None else (1 << 63) - 1
    wrong = next((n for n in numbers if not 0 <= n <= most), None)
    if wrong is not None:
        raise SourceError(
            f"{file}: the label {wrong - offset}, with label_offset={offset}, is {wrong}; expected "
            f"0..{most}"
        )
    return numbers, list(classes or [])
