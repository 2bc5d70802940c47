"""A list of labels for images that have none otherwise.

A list is text, UTF-8, with one of

* a label a line, a line for each image in sorted order, as ImageNet's
  ``ILSVRC2012_validation_ground_truth.txt``;
* path and label, tab or white space between them, as Caffe's ``val.txt``: a list is this where any
  line begins with the path of an image. The order of lines does not matter.

Labels are names of classes; or whole numbers, taken as they are, if all of them are numbers and not
all of them names of the classes that are given.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from packio.errors import OptionError, SourceError
from packio.sources import Listing, _classes

OPTIONS = {
    "labels": "text file with a label for each image in sorted order, or lines of path and label",
    "label_offset": "added to labels that are numbers: -1 makes those from 1 begin at 0",
}

_is_number = re.compile(rb"[+-]?[0-9]{1,18}").fullmatch


def labelled(
    found: Listing, file: Path, classes: Sequence[str] | None, label_offset: int
) -> Listing:
    """The listing of those images that have a label; the others are unlisted.

    Args:
        found: Images without labels, sorted.
        file: The list.
        classes: Names that give the labels; None takes those in the list, sorted.
        label_offset: Added to labels that are numbers.

    Raises:
        SourceError: the list cannot be read or does not fit the images, or has a class unknown to
            `classes`.
        OptionError: an offset that is no whole number.
    """
    texts = _texts(file, found)
    offset = _offset(label_offset)
    kept = found.take([i for i, key in enumerate(found.keys) if key in texts])
    labels, names = _numbers(file, [texts[key] for key in kept.keys], classes, offset)
    return dataclasses.replace(kept, labels=labels, classes=names)


def _offset(given: int | str) -> int:
    try:
        return int(given)
    except ValueError as error:
        raise OptionError(f"label_offset={given!r}: expected a whole number") from error


def _texts(file: Path, result: Listing) -> dict[bytes, bytes]:
    """Key → its label as it is written; what has no partner is noted as unlisted."""
    lines, keys = _lines(file), result.keys
    known = set(keys)
    pairs = [next((p for p in _splits(line) if p[0] in known), None) for line in lines]
    if not any(pairs):
        if len(lines) != len(keys):
            raise SourceError(
                f"{file}: {len(lines)} labels for {len(keys)} images; expected a line for each "
                "image in sorted order, or lines of path and label"
            )
        return dict(zip(keys, lines, strict=True))
    texts: dict[bytes, bytes] = {}
    for line, pair in zip(lines, pairs, strict=True):
        if pair is None:
            name = next(_splits(line), (line,))[0]
            result.unlisted.append((name, f"in {file.name}, and no image"))
        elif texts.setdefault(*pair) != pair[1]:
            raise SourceError(f"{file}: two labels for {pair[0]!r}; expected one")
    result.unlisted.extend((key, f"no label in {file.name}") for key in keys if key not in texts)
    return texts


def _lines(file: Path) -> list[bytes]:
    """Lines of a text file that are not blank."""
    try:
        text = file.read_bytes().removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        raise SourceError(f"{file}: {error.strerror}; expected a list of labels") from error
    return [stripped for line in text.split(b"\n") if (stripped := line.strip())]


def _splits(line: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The ways to see path and label in a line: either may have spaces in it."""
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
