"""List a source: give each option to its taker, read the class names, choose the samples."""

from __future__ import annotations

import dataclasses
import difflib
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from packio import registry
from packio.errors import OptionError, ReadError
from packio.formats import Format
from packio.index import indexfile
from packio.packing.images.encode import Encoding
from packio.packing.plan import planning, preflight
from packio.packing.plan.choosing import Choice
from packio.packs import opening
from packio.sample.recipe import Recipe
from packio.sources import FRAMES, Context, Listing, Source, _beside, framed, wanted_fields
from packio.sources import listed as listed_by
from packio.storage import urls
from packio.system import sizes
from packio.system.files import absolute

_ENCODING = {field.name for field in dataclasses.fields(Encoding)}
_CHOICE = {field.name for field in dataclasses.fields(Choice)}
_PLACES = ("root", "labels", "list")  # options that name files of this machine


def byte_count(name: str, value: int | str | None) -> int | None:
    """Turn "256MB", "1.5GiB" or "1000" into a number of bytes; numbers stay as they are."""
    if not isinstance(value, str):
        return value
    try:
        return sizes.byte_count(value)
    except OptionError as error:
        raise OptionError(f"{name}={error}") from None


def check_positive(**values: int | None) -> None:
    """Check arguments that are None or an int, at least 1."""
    for name, value in values.items():
        if value is None:
            continue
        try:
            count = operator.index(value)
        except TypeError:
            raise OptionError(f"{name}={value!r}: expected an int") from None
        if count < 1:
            raise OptionError(f"{name}={value}: expected at least 1")


def located(source: Any, out: Path, *, whole: bool = False) -> Any:
    """The source, as a path if the user named a path; refuse an output within the source.

    Args:
        source: As `packio.pack` takes it.
        out: The pack to make.
        whole: Make a path absolute, for machines that have another working folder.
    """
    if isinstance(source, os.PathLike) or (isinstance(source, str) and os.path.lexists(source)):
        source = urls.place(source)
        if not isinstance(out, urls.Url):
            preflight.refuse_nesting(source, out)
        if whole and not isinstance(source, urls.Url):
            source = absolute(source)
    return source


def listed(
    source: Any, out: Path, source_kind: str | None, format_name: str, classes_from: Any,
    options: Mapping[str, Any], *, skip: bool, fields: Mapping[str, Any] | None = None,
    found: Callable[[int], None] = lambda _: None,
) -> tuple[Listing, Recipe]:  # fmt: skip
    """List a source, choose its samples, and note the options in a recipe.

    Args:
        source: As `located` returns it; or a listing.
        out: The pack to make.
        source_kind: Name of the source, if the path does not say it.
        format_name: Name of the container's format.
        classes_from: As `packio.pack` takes it.
        options: Options of the encoding, the choice, the source and the writer.
        skip: Whether bad samples, and classes without samples, may be left out.
        fields: Named fields to take, as `packio.pack` takes them.
        found: Called with the number of files found since the last call.

    Returns:
        The samples chosen, and the recipe without check, seekable and stats.
    """
    given = isinstance(source, Listing)
    reader: Source = (
        registry.load("sources", source.kind) if given
        else planning.source_of(source, source_kind)
    )  # fmt: skip
    container = registry.load("formats", format_name)
    taken = _sorted_out(options, reader, container, format_name)
    if given:
        source = framed(source, taken["source"])
    else:
        source = listed_by(reader, source, Context(
            class_names(classes_from), skip, scratch(out), found, wanted_fields(fields),
            taken["source"],
        ))  # fmt: skip
    choice = Choice.made(taken["choice"])
    reading = {n: v for n, v in taken["source"].items()
               if n not in _PLACES and not os.path.isabs(str(v))}  # fmt: skip
    if fields:
        reading["fields"] = wanted_fields(fields)
    recipe = Recipe(
        source.kind, reading, choice.as_options(), Encoding(**taken["encoding"]).as_options(),
        writing=taken["writer"],
    )  # fmt: skip
    chosen = choice.of(source)
    chosen.warnings.extend(_beside.told_masks(chosen))
    return chosen, recipe


def _sorted_out(
    options: Mapping[str, Any], reader: Source, container: Format, format_name: str
) -> dict[str, dict[str, Any]]:
    """Sort options by the part of packing that takes them."""
    takers = {
        "encoding": _ENCODING, "choice": _CHOICE, "source": {*reader.options, *FRAMES},
        "writer": set(container.caps.options),
    }  # fmt: skip
    result: dict[str, dict[str, Any]] = {taker: {} for taker in takers}
    for name, value in options.items():
        taker = next((t for t, names in takers.items() if name in names), None)
        if taker is None:
            what = f"packing from {reader.name} to {format_name}"
            raise _no_option(name, value, what, set().union(*takers.values()))
        result[taker][name] = value
    return result


def check_options(options: Mapping[str, Any], reader: Source) -> None:
    """Check that a source takes all options, where there is nobody else to take them."""
    for name, value in options.items():
        if name not in {*reader.options, *FRAMES}:
            raise _no_option(name, value, f"appending from {reader.name}", set(reader.options))


def _no_option(name: str, value: Any, what: str, known: set[str]) -> OptionError:
    """The error for an option that nobody takes here: it says whose it is, or a name near to it."""
    message = f"{name}={value!r}: no option of {what}"
    sources = [n for n, s in registry.load_all("sources").items() if name in s.options]
    writers = [n for n, f in registry.load_all("formats").items() if name in f.caps.options]
    if sources:
        kind = f"{sources[0]!r}" if len(sources) == 1 else " as well"
        message += f"; it is an option of {', '.join(sources)}: say source_kind={kind}"
    elif writers:
        message += f"; it is an option of writing {', '.join(writers)}"
    elif close := difflib.get_close_matches(name, sorted(known), 1):
        message += f"; did you mean {close[0]}?"
    return OptionError(message)


def scratch(out: Path) -> Path | None:
    """Folder for temporary files of the listing: the output's folder; None if that is at a URL."""
    return None if isinstance(out, urls.Url) else out.parent


def class_names(given: str | os.PathLike[str] | Sequence[str] | None) -> list[str] | None:
    """Class names of a pack, a text file or a list."""
    if given is None:
        return None
    if not isinstance(given, (str, os.PathLike)):
        names = list(given)
    elif os.path.isfile(given) and not os.path.exists(f"{given}{indexfile.INDEX_SUFFIX}"):
        names = _listed_classes(Path(given))
    else:
        with opening.open(given) as other:
            names = other.classes
        if not names:
            return []  # as of pairs; any class that the source has is then unknown
    if not names or len(set(names)) != len(names) or not all(isinstance(n, str) for n in names):
        raise OptionError(f"classes_from={given!r}: expected class names, each once")
    return names


def _listed_classes(path: Path) -> list[str]:
    try:
        text = path.read_text("utf-8-sig", "surrogateescape")
    except OSError as error:
        raise ReadError(f"{path}: {error.strerror}; a file of class names was expected") from error
    return [line.rstrip("\r") for line in text.split("\n") if line.strip()]
