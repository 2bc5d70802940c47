"""List a source: give each option to its taker, read the class names, choose the samples."""

from __future__ import annotations

import dataclasses
import difflib
import operator
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from packio import registry
from packio.errors import OptionError, ReadError, SourceError, UnfinishedPackError
from packio.index import indexfile
from packio.packing.choosing import Choice
from packio.packing.images.encode import Encoding
from packio.packs import opening
from packio.sample.recipe import Recipe
from packio.sources import (
    FRAMES,
    Context,
    Listing,
    Source,
    list_samples,
    parse_fields,
    remark_on_masks,
    set_frames,
)
from packio.storage import urls, workshop
from packio.system import files

_ENCODING = {field.name for field in dataclasses.fields(Encoding)}
_CHOICE = {field.name for field in dataclasses.fields(Choice)}
_PLACES = ("root", "labels", "list")  # options that name files of this machine


def byte_count(name: str, value: int | str | None) -> int | None:
    """Turn "256MB", "1.5GiB" or "1000" into a number of bytes; numbers stay as they are."""
    if not isinstance(value, str):
        return value
    try:
        return files.byte_count(value)
    except OptionError as error:
        raise OptionError(f"{name}={error}") from None


def check_positive(**values: int | None) -> None:
    """Check arguments that are None or an int, at least 1."""
    for name, value in values.items():
        try:
            is_good = value is None or operator.index(value) >= 1
        except TypeError:
            raise OptionError(f"{name}={value!r}: expected an int") from None
        if not is_good:
            raise OptionError(f"{name}={value}: expected at least 1")


def locate_source(
    source: Any, out: Path, quarantine: str | os.PathLike[str] | None = None, *,
    whole: bool = False,
) -> Any:  # fmt: skip
    """The source, as a path if the user named a path; refuse outputs within the source.

    `whole` makes a path absolute, for machines that have another working folder.
    """
    if not isinstance(source, os.PathLike) and not (
        isinstance(source, str) and os.path.lexists(source)
    ):
        return source
    source = urls.place(source)
    if urls.parse(source) is not None:
        return source
    if urls.parse(out) is None:
        refuse_nesting(out, source, f"{out}: lies within the source {source}")
        refuse_nesting(source, out, f"{out}: the source {source} lies within it")
    if quarantine is not None:  # the next run would find the copies as samples
        what = f"quarantine={os.fspath(quarantine)!r}"
        refuse_nesting(quarantine, source, f"{what}: lies within the source {source}")
    return Path(os.path.abspath(source)) if whole else source


def refuse_nesting(
    inner: str | os.PathLike[str], outer: str | os.PathLike[str], message: str
) -> None:
    """Refuse a place that is another place, or lies within it."""
    place, other = (Path(os.path.realpath(one)) for one in (inner, outer))
    if other in (place, *place.parents):
        raise OptionError(f"{message}; choose another place")


def find_source(source: Any, name: str | None = None) -> Source:
    """Find the source that lists a path or an object, by its name or by asking each source."""
    if name is not None:
        named: Source = registry.load("sources", name)
        return named
    every: list[Source] = sorted(
        registry.load_all("sources").values(), key=lambda found: found.priority
    )
    if not isinstance(source, (str, Path)):
        for found in every:
            if found.accepts(source):
                return found
        raise SourceError(
            f"a {type(source).__name__}: expected a path, samples, or a dataset with a length"
        )
    for found in every:
        if found.recognise(Path(source)):
            return found
    try:
        Path(source).stat()
        what = "not a folder"
    except (OSError, ValueError) as error:  # ValueError: NUL in the path
        what = getattr(error, "strerror", None) or str(error)
    raise SourceError(
        f"{source}: {what}; expected a folder of class folders of images, as cats/1.jpg, "
        "dogs/2.jpg, a list of images (.csv, .jsonl), a COCO file (.json with images and "
        "annotations), an archive or a pack"
    )


def find_format(out: Path, name: str | None) -> str:
    """Name of the format of an output: the name given, or by the output's suffix."""
    if name is not None:
        registry.load("formats", name)
        return name
    modules = registry.load_all("formats")
    suffixes = {s: n for n, m in modules.items() for s in m.caps.suffixes if m.caps.writes}
    try:
        return suffixes[out.suffix.lower()]
    except KeyError:
        raise OptionError(
            f"{out}: the suffix {out.suffix!r} names no format; use one of "
            f"{', '.join(sorted(suffixes))}, or say --format"
        ) from None


def list_source(
    source: Any, out: Path, source_kind: str | None, format_name: str, classes_from: Any,
    options: Mapping[str, Any], *, skip: bool, fields: Mapping[str, Any] | None = None,
    found: Callable[[int], None] = lambda _: None,
) -> tuple[Listing, Recipe]:  # fmt: skip
    """List a source, or take a listing; choose samples, and note the options in a recipe."""
    reader = None if isinstance(source, Listing) else find_source(source, source_kind)
    name, known = (source.kind, {}) if reader is None else (reader.name, reader.options)
    taken = _sort_options(options, name, {*known, *FRAMES}, format_name)
    if reader is None:
        listing = set_frames(source, taken["source"])
    else:
        scratch = out.parent if urls.parse(out) is None else None
        listing = list_samples(reader, source, Context(
            read_class_names(classes_from), skip, scratch, found, parse_fields(fields),
            taken["source"],
        ))  # fmt: skip
    choice = Choice.from_options(taken["choice"])
    reading = {n: v for n, v in taken["source"].items()
               if n not in _PLACES and not os.path.isabs(str(v))}  # fmt: skip
    if fields:
        reading["fields"] = parse_fields(fields)
    recipe = Recipe(
        listing.kind, reading, choice.as_options(), Encoding(**taken["encoding"]).as_options(),
        writing=taken["writer"],
    )  # fmt: skip
    chosen = choice.choose(listing)
    chosen.warnings.extend(remark_on_masks(chosen))
    return chosen, recipe


def _sort_options(
    options: Mapping[str, Any], source: str, of_source: Collection[str], format_name: str
) -> dict[str, dict[str, Any]]:
    """Sort options by the part of packing that takes them."""
    takers = {
        "encoding": _ENCODING, "choice": _CHOICE, "source": {*of_source},
        "writer": {*registry.load("formats", format_name).caps.options},
    }  # fmt: skip
    result: dict[str, dict[str, Any]] = {taker: {} for taker in takers}
    for name, value in options.items():
        taker = next((t for t, names in takers.items() if name in names), None)
        if taker is None:
            what = f"packing from {source} to {format_name}"
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
    if sources and not what.startswith("packing from pack "):
        kind = f"{sources[0]!r}" if len(sources) == 1 else " as well"
        message += f"; it is an option of {', '.join(sources)}: say source_kind={kind}"
    elif writers:
        message += f"; it is an option of writing {', '.join(writers)}"
    elif close := difflib.get_close_matches(name, sorted(known), 1):
        message += f"; did you mean {close[0]}?"
    return OptionError(message)


def open_to_change(out: Path) -> opening.Pack:
    """Open a pack; an error tells whether another process works on it."""
    try:
        return opening.open(out)
    except UnfinishedPackError:
        workshop.check_idle(out)
        raise


def read_class_names(given: str | os.PathLike[str] | Sequence[str] | None) -> list[str] | None:
    """Class names of a pack, a text file or a list."""
    if given is None:
        return None
    if not isinstance(given, (str, os.PathLike)):
        names = list(given)
    elif os.path.isfile(given) and not os.path.exists(f"{given}{indexfile.INDEX_SUFFIX}"):
        try:
            text = Path(given).read_text("utf-8-sig", "surrogateescape")
        except OSError as error:
            why = f"{error.strerror}; a file of class names was expected"
            raise ReadError(f"{given}: {why}") from error
        names = [line.rstrip("\r") for line in text.split("\n") if line.strip()]
    else:
        with opening.open(given) as other:
            names = other.classes
        if not names:
            return []  # as of pairs; any class that the source has is then unknown
    if not names or len(set(names)) != len(names) or not all(isinstance(n, str) for n in names):
        raise OptionError(f"classes_from={given!r}: expected class names, each once")
    return names
