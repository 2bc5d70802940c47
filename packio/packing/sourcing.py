"""From what a user says to a listing: whose option each is, the classes, the source's samples."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from packio import registry
from packio.errors import OptionError, ReadError
from packio.index import indexfile
from packio.packing.images.encode import Encoding
from packio.packing.plan import plan as planning
from packio.packing.plan import preflight
from packio.packing.plan.choosing import Choice
from packio.packs import packs
from packio.sample.recipe import Recipe
from packio.sources import Listing
from packio.storage import urls

_ENCODING = {field.name for field in dataclasses.fields(Encoding)}
_CHOICE = {field.name for field in dataclasses.fields(Choice)}
_PLACES = ("root", "labels", "list")  # options that name files of this machine


def located(source: Any, out: Path) -> Any:
    """The source as a path if it is one; refuse an output within it.

    Raises:
        OptionError: the output lies within the source, or the other way round.
    """
    if isinstance(source, os.PathLike) or (isinstance(source, str) and os.path.lexists(source)):
        source = urls.place(source)
        if not isinstance(out, urls.Url):
            preflight.refuse_nesting(source, out)
    return source


def listed(
    source: Any, out: Path, source_kind: str | None, format_name: str, classes_from: Any,
    options: Mapping[str, Any], *, skip: bool,
) -> tuple[Listing, Recipe]:  # fmt: skip
    """List a source, and sort out what the options say.

    Args:
        source: As `located` returns it; or a listing.
        out: The pack to make.
        source_kind: Name of the source, if the path does not say it.
        format_name: Of the container.
        classes_from: As `packio.pack` takes it.
        options: Of encoding, choice, source and writer.
        skip: Whether bad samples, and classes without samples, may be left out.

    Returns:
        The samples chosen, and the recipe so far: without check, seekable and stats.
    """
    given = isinstance(source, Listing)
    reader = planning.source_of(source, source_kind) if not given else (
        registry.load("sources", source.kind))  # fmt: skip
    container = registry.load("formats", format_name)
    taken = _sorted_out(options, reader, container, format_name)
    if not given:
        more = taken["source"] | _scratch(reader, source, out)
        source = listing_of(reader, source, classes_from, more, skip=skip)
    choice = Choice.made(taken["choice"])
    reading = {n: v for n, v in taken["source"].items()
               if n not in _PLACES and not os.path.isabs(str(v))}  # fmt: skip
    recipe = Recipe(
        source.kind, reading, choice.as_options(), Encoding(**taken["encoding"]).as_options(),
        writing=taken["writer"],
    )  # fmt: skip
    return choice.of(source), recipe


def _sorted_out(
    options: Mapping[str, Any], reader: Any, container: Any, format_name: str
) -> dict[str, dict[str, Any]]:
    """Whose option each is."""
    takers = {
        "encoding": _ENCODING, "choice": _CHOICE, "source": set(getattr(reader, "OPTIONS", ())),
        "writer": set(container.caps.options),
    }  # fmt: skip
    result: dict[str, dict[str, Any]] = {taker: {} for taker in takers}
    for name, value in options.items():
        taker = next((t for t, names in takers.items() if name in names), None)
        if taker is None:
            known = sorted(set().union(*takers.values()))
            close = difflib.get_close_matches(name, known, 1)
            kind = reader.__name__.rpartition(".")[2]
            raise OptionError(
                f"{name}={value!r}: no option of packing from {kind} to {format_name}"
                + (f"; did you mean {close[0]}?" if close else "")
            )
        result[taker][name] = value
    return result


def _scratch(reader: Any, source: Any, out: Any) -> dict[str, Any]:
    """For sources that have to be written down first: a folder with room, where OUT has one."""
    taking = reader.listing if isinstance(source, (str, Path)) else reader.of
    takes = "folder" in inspect.signature(taking).parameters
    if takes and isinstance(out, Path) and not isinstance(out, urls.Url):
        return {"folder": out.parent}
    return {}


def listing_of(
    reader: Any, source: Any, classes_from: Any, options: dict[str, Any], *, skip: bool
) -> Listing:
    """List a source with the options that it takes; ``skip``: classes may be empty."""
    classes = class_names(classes_from)
    if isinstance(source, (str, Path)):
        found: Listing = reader.listing(source, classes=classes, allow_empty=skip, **options)
    else:
        found = reader.of(source, classes=classes, **options)
    return found


def class_names(given: str | os.PathLike[str] | Sequence[str] | None) -> list[str] | None:
    """Class names that a pack, a text file or a list gives.

    Raises:
        OptionError: no names, or a name twice.
        ReadError: the file cannot be read.
    """
    if given is None:
        return None
    if not isinstance(given, (str, os.PathLike)):
        names = list(given)
    elif os.path.isfile(given) and not os.path.exists(f"{given}{indexfile.INDEX_SUFFIX}"):
        names = _listed_classes(Path(given))
    else:
        with packs.open(given) as other:
            names = other.classes
    if not names or len(set(names)) != len(names) or not all(isinstance(n, str) for n in names):
        raise OptionError(f"classes_from={given!r}: expected class names, each once")
    return names


def _listed_classes(path: Path) -> list[str]:
    try:
        text = path.read_text("utf-8-sig", "surrogateescape")
    except OSError as error:
        raise ReadError(f"{path}: {error.strerror}; a file of class names was expected") from error
    return [line.rstrip("\r") for line in text.split("\n") if line.strip()]
