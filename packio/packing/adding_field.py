"""`add_field` and `drop_field`: a named field joins a pack, or leaves it; other files stay.

The values are made in parts, which lie in the workshop ``PACK.packio-add`` and outlive a run that
is cut short. Then they are written into containers of the pack's own format, one for each shard,
beside the shards. At last a new index takes the place of the old index in one step. Until then
nothing changes for readers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from packio.errors import CannotCreateError, OptionError
from packio.packing import sourcing
from packio.packing.fields import publishing
from packio.packing.fields.job import SUFFIX, AddReport, Job, check_none_left
from packio.packing.run.shards import RunOptions
from packio.packs import opening
from packio.sample import fields, levels
from packio.sample.record import IMAGE
from packio.storage import urls, workshop
from packio.storage.workshop import Workshop
from packio.system import locks
from packio.system.files import absolute, beyond_link
from packio.system.progress import ProgressCallback

_MOST_ERRORS = 100  # a function that fails that often fails for all


@dataclasses.dataclass(frozen=True, slots=True)
class DropReport:
    """What dropping a field did."""

    out: Path  # the pack
    name: str  # of the field
    removed: tuple[str, ...]  # files that held nothing else, and are gone
    freed: int  # bytes of these files
    remaining: int  # bytes of values that stay in files that hold other fields, too
    digest: str  # hexadecimal SHA-256 of the new index


def add_field(
    path: str | os.PathLike[str], name: str,
    values: str | os.PathLike[str] | Mapping[Any, Any] | Callable[[Any], Any], *,
    kind: str | None = None, batch_size: int | None = None, workers: int = 0,
    missing: bool = False, only_new: bool = False, overwrite: bool = False, resume: bool = True,
    on_error: str = "raise", max_errors: int | None = None,
    progress: ProgressCallback | None = None,
) -> AddReport:  # fmt: skip
    """Add a named field to all samples of a pack, as captions or cached latents.

    The files of the pack stay as they are. The values go into new files of the pack's format beside
    each shard, which other programs read as they read the shards. The pack's readers see the field
    when all is there. A run that is cut short leaves ``path.packio-add``; the next run with the
    same values takes over what is in it, and changes nothing if all of them are in the pack.

    Args:
        path: A pack on a disk of this machine that packio made, or that has been reindexed.
        name: Of the field.
        values: Where its values come from:

            * a folder with files named by the key of the sample, with another ending or one more:
              the latent of ``cats/7.jpg`` is ``cats/7.npy`` or ``cats/7.jpg.npy``;
            * a mapping from keys to arrays, text or bytes;
            * a table (.csv, .tsv, .jsonl, .parquet) with a column ``key`` and one called ``name``;
            * a callable that takes a `Sample`, whose image is decoded when it is asked for, and
              returns an array, a tensor, text, bytes, or None for no value.
        kind: "image", "mask", "array", "text" or "bytes"; None: by the values, or the endings of
            files.
        batch_size: Give the callable lists of so many samples, as a model on a GPU wants. It
            returns a list, an array or a tensor of one value a sample. The last list is shorter,
            as are those that a run that goes on begins with. If it fails for a list, it is called
            for each sample of the list alone.
        workers: Processes that call the callable, which is then sent by its name; 0: it is called
            in this process, by one thread, as a model on a GPU wants.
        missing: Allow samples without a value.
        only_new: Add values to the samples of those shards in which no sample has the field, as
            the shards that `append` has written since; leave all others as they are. A pack
            without the field gets it for all samples.
        overwrite: Replace a field of this name. It leaves the pack once all new values are made,
            then the new field joins the pack.
        resume: Take over what an earlier run with the same values has made. Of a callable only the
            name is compared, not what it does; False begins anew.
        on_error: "raise": list all bad values in one error, and add nothing; the good values stay
            for the next run. "skip": the samples of bad values have none; the report lists them.
        max_errors: Stop if more values than this are bad. None: 100, and no limit with
            ``on_error="skip"``.
        progress: Called with a `Progress` about ten times a second, and at the end.

    Raises:
        OptionError: the name is taken or reserved, the pack is remote, a selection, or in a
            container that packio does not write; a callable that has no name is to go to workers.
        SourceError: some samples have no value, and ``missing`` is not set.
        BadImagesError: values are bad, or the callable fails for them: ``skipped`` has each key and
            reason. Or the callable does not return a value for each sample.
        OutputExistsError: an earlier run, which was cut short, has left values of another field or
            of a callable, which this run would discard; ``resume=False`` allows it.
        CannotCreateError, OutputError: the pack cannot be written to.
        LockedError: another process changes the pack.
    """
    began = time.monotonic()
    if only_new and overwrite:
        raise OptionError("only_new leaves values as they are, overwrite replaces them: say one")
    if on_error not in ("raise", "skip"):
        raise OptionError(f"on_error={on_error!r}: expected 'raise' or 'skip'")
    if kind is not None:
        fields.check_kind(kind)
    if name == IMAGE:
        raise OptionError(
            "'image' cannot be added: every sample has its image; choose another name"
        )
    fields.check_name(name)
    sourcing.check_positive(workers=workers or None, batch_size=batch_size)
    _check_can_be_sent(values, workers)
    if max_errors is None and on_error == "raise":
        max_errors = _MOST_ERRORS
    options = RunOptions(
        skip=on_error == "skip", workers=workers, max_errors=max_errors, progress=progress,
        began=began,
    )  # fmt: skip
    with _changing(path) as (shop, pack):
        job = Job(
            shop, pack, name, kind, options, missing=missing, only_new=only_new,
            batch_size=batch_size,
        )  # fmt: skip
        if name in pack.fields and not (overwrite or only_new):
            if (done := job.report_if_unchanged(values)) is not None:
                return done
            raise OptionError(
                f"{pack.path}: has a field {name!r} already; choose another name, say --overwrite, "
                "or --only-new for samples that came later, "
                f"or drop it first: packio drop-field "
                f"{shlex.quote(str(pack.path))} {name}"
            )
        shop.is_complete = True  # what is made stays, whatever the user's function raises
        report = job.run(values, resume=resume)
        shop.keep &= report.digest == pack.digest  # nothing was new, nor made
        return report


def drop_field(path: str | os.PathLike[str], name: str) -> DropReport:
    """Take a named field out of a pack. Files that hold nothing else are removed.

    The index without the field takes the place of the old index in one step; then the files are
    removed. Values that lie among those of other fields stay there, unseen.

    Args:
        path: The pack.
        name: Of the field; the image, and levels of it, cannot be dropped.

    Raises:
        OptionError: there is no such field, or it cannot be dropped; or as of `add_field`.
        OutputExistsError: `add_field` was cut short, and what a callable made would be lost.
        CannotCreateError, OutputError: the pack cannot be written to.
        LockedError: another process changes the pack.
    """
    with _changing(path) as (shop, pack):
        if name == IMAGE:
            raise OptionError(f"{name!r} cannot be dropped: a sample is nothing without its image")
        if levels.divisor_of(name):
            raise OptionError(
                f"{name!r} cannot be dropped: it is a level of the image; make a pack without "
                f"levels: packio convert {shlex.quote(str(pack.path))} NEW.tar --levels 0"
            )
        if name not in pack.fields:
            others = ", ".join(n for n in pack.fields if n != IMAGE) or "none besides the image"
            raise OptionError(f"{pack.path}: has no field {name!r}; it has {others}")
        check_none_left(shop.out, "dropping a field")
        sizes = {file: size for file, size, _ in pack.index_file.files()}
        digest, removed, remaining = publishing.drop(pack, name, shop)
        freed = sum(sizes[file] for file in removed)
        return DropReport(pack.path, name, tuple(removed), freed, remaining, digest)


def _check_can_be_sent(given: Any, workers: int) -> None:
    """Refuse a callable that workers cannot import."""
    if not callable(given) or workers < 1:
        return
    name = getattr(given, "__qualname__", "<")
    if "<" in name or getattr(given, "__module__", "__main__") == "__main__":
        raise OptionError(
            f"{getattr(given, '__qualname__', given)}: workers import a function by its name; "
            "define it at the top of a module that can be imported, or say workers=0"
        )


@contextlib.contextmanager
def _changing(path: str | os.PathLike[str]) -> Iterator[tuple[Workshop, opening.Pack]]:
    """Open a pack that is about to be changed, locked.

    The journal of a run that was cut short stays, so that it can go on, unless a field is added.
    """
    if (url := urls.parse(path)) is not None:
        raise OptionError(
            f"{url}: a pack at a URL is not changed; copy it to a disk, change it there, "
            f"and upload it; to copy it: packio convert {shlex.quote(str(url))} here.tar"
        )
    out = absolute(path)
    with sourcing.open_to_change(out) as pack:  # say what is wrong before a workshop is made
        _check_changeable(pack)
        root = pack.index_file.path
    with workshop.open_workshop(beyond_link(out), suffix=SUFFIX) as shop:
        shop.built.mkdir(exist_ok=True)  # without it the workshop counts as published
        with locks.changing(root), sourcing.open_to_change(out) as pack:
            shop.keep = shop.is_complete = not publishing.undo_killed(pack, shop)
            yield shop, pack


def _check_changeable(pack: opening.Pack) -> None:
    if chosen := pack.metadata.get("selection"):
        raise OptionError(f"{pack.path}: a selection; change its pack, {chosen['pack']}")
    caps, root = pack.format.caps, pack.index_file.path.parent
    names = [name for name, _, _ in pack.index_file.files()]
    if caps.whole_files or not caps.writes:
        raise OptionError(
            f"{pack.path}: packio does not write containers of this format; make a pack of it "
            f"first: packio convert {shlex.quote(str(pack.path))} NEW.tar"
        )
    if not names or not os.path.lexists(root / names[0]):
        raise OptionError(
            f"{pack.path}: has no index beside it, which would tell of the field; make one first: "
            f"packio reindex {shlex.quote(str(pack.path))}"
        )
    if pack.index_file.metadata.get("access", "range") != "range":
        raise OptionError(
            f"{pack.path}: its samples are no ranges of bytes; make a pack of it first: packio "
            f"convert {pack.path} NEW{pack.path.suffix}"
        )
    for place in (root, pack.index_file.path):
        if not os.access(place, os.W_OK):
            raise CannotCreateError(
                f"{place}: may not be written to by this user; ask for the right, or change a copy"
            )
