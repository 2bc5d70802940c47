"""Building in a folder beside the output, and putting it in place in one step.

Everything is built in ``OUT.packio-tmp/``, under a lock; shards that are finished stay there where
a run is cut short, and the next one goes on from them. Publishing a directory pack syncs all its
files and folders and renames it to OUT; the files of a file pack are moved one by one, sidecars,
OUT, then the index, without which OUT is no pack. Whatever happens in between, OUT is either
absent, or what it was, or complete; while an old pack makes way for a new one, it is in
``OUT.packio-tmp/`` for a moment, and the next run puts it back. While that folder is there, opening
OUT is refused.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from packio.errors import (
    BadImagesError,
    CannotCreateError,
    LockedError,
    OutputError,
    OutputExistsError,
    PackioError,
)
from packio.index.indexfile import INDEX_SUFFIX, UNFINISHED_SUFFIX
from packio.system import memory
from packio.system.pools import ThreadPool

LOCK = "lock"
SHARDS = "shards"  # the journal: finished shards, which the next run of the same plan takes over
BUILT = "pack"  # the pack under construction, within the workshop
REPLACED = "replaced"  # what OUT was before --overwrite, until the new one is in place
NEW_FILES = "new-files"  # those files of a file pack under way that replace no others
PUBLISHED = "published"  # marks that all files of a new file pack are in place
_MENDABLE = (KeyboardInterrupt, OSError, MemoryError, BadImagesError)  # by running it again, later


class Workshop:
    """``OUT.packio-tmp/``, locked, in which a pack is built.

    Attributes:
        out: Where the pack will be.
        folder: The workshop.
        built: Where the pack is built.
        shards: Where the journal is.
        keep: Whether what the journal has stays for another run where this one fails.
    """

    def __init__(self, out: Path, folder: Path) -> None:
        self.out, self.folder, self.built = out, folder, folder / BUILT
        self.shards, self.keep = folder / SHARDS, True

    def clear(self) -> None:
        """Remove what an earlier, interrupted run left, but never a pack it was replacing.

        Finished shards stay, unless the pack they are for was published.
        """
        published = self._published()
        self._put_back()
        kept = [LOCK]
        if self.keep and not published and has_records(self.shards):
            kept += [SHARDS, BUILT]
        for path in self.folder.iterdir():
            if path.name not in kept:
                remove(path)

    def _published(self) -> bool:
        """Tell whether the run got as far as publishing: of a folder, nothing is left here then."""
        if (self.folder / NEW_FILES).exists():
            return (self.folder / PUBLISHED).exists()
        return not self.built.exists() and os.path.lexists(self.out)

    def _put_back(self) -> None:
        """Undo a publication that was interrupted: what was at OUT goes there again."""
        replaced, new = self.folder / REPLACED, self.folder / NEW_FILES
        if not new.exists():
            if os.path.lexists(replaced) and not os.path.lexists(self.out):
                replaced.rename(self.out)
        elif not (self.folder / PUBLISHED).exists():
            for name in filter(None, new.read_bytes().split(b"\0")):
                moved = self.out.parent / os.fsdecode(name)
                if not os.path.lexists(self.built / moved.name) and os.path.lexists(moved):
                    moved.rename(self.built / moved.name)  # it got there; a rerun takes it over
            for path in sorted(replaced.iterdir()):  # over the new ones that got there
                path.replace(self.out.parent / path.name)

    def remove(self) -> None:
        """Remove the workshop, or hand it over to a run that has just locked it anew.

        What the journal has stays.
        """
        self.clear()
        (self.folder / LOCK).unlink(missing_ok=True)
        try:
            self.folder.rmdir()
        except OSError as error:  # the journal, or the other run's lock, is in it
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise

    def publish(self, files: Sequence[str] | None = None, old: Sequence[str] = ()) -> None:
        """Make all files durable and move the pack into place.

        Args:
            files: Names of a file pack's files, in the order in which they are put in place, the
                index last; None moves the folder as a whole.
            old: Names of the files of a file pack that is replaced.

        Raises:
            OutputError: the file system refuses.
        """
        sync_tree(self.built)
        if files is None:
            if os.path.lexists(self.out):
                self.out.rename(self.folder / REPLACED)
            self.built.rename(self.out)
        else:
            self._publish_files(files, old)
        sync(self.out.parent)

    def _publish_files(self, files: Sequence[str], old: Sequence[str]) -> None:
        """Put the files in place one by one; until the last is, an interruption is undone."""
        here = self.out.parent
        there = {n for n in (*files, *old) if os.path.lexists(here / n)}
        strangers = sorted(there - set(old))
        if strangers and not os.path.lexists(self.out):  # else all of it is to be replaced
            raise OutputExistsError(
                f"{self.out}: {', '.join(strangers)} beside it exists and is of no pack there; "
                "move it away, or choose another name"
            )
        fresh = [os.fsencode(n) for n in files if n not in there]
        (self.folder / REPLACED).mkdir()
        (self.folder / NEW_FILES).write_bytes(b"\0".join(fresh))
        sync_tree(self.folder)
        for name in sorted(there, key=lambda n: n != files[-1]):  # the index goes first
            (here / name).rename(self.folder / REPLACED / name)
        sync(self.folder / REPLACED)
        for name in files:
            (self.built / name).rename(here / name)
        sync(here)
        (self.folder / PUBLISHED).touch()
        sync(self.folder)


@contextmanager
def workshop(
    out: Path, *, shared: bool = False, suffix: str = UNFINISHED_SUFFIX
) -> Iterator[Workshop]:
    """Make and lock the workshop of an output; remove it at the end.

    What an earlier run left in it is cleared first, but for the journal of its finished shards.
    Those stay, too, where this one ends with an error that running it again may mend.

    Args:
        out: The output.
        shared: Others work on parts of the same pack at the same time: nothing is cleared.
        suffix: Of the workshop's name.

    Raises:
        LockedError: another process holds the lock.
        CannotCreateError: the folder cannot be made.
        OutputError: writing fails.
    """
    folder = out.with_name(out.name + suffix)
    shop = Workshop(out, folder)
    lock = -1
    try:
        lock = _lock(out, folder, shared=shared)
        if not shared:
            shop.clear()
        yield shop
        if not shared:
            shop.remove()
            sync(out.parent)
    except BaseException as raised:
        error = MemoryError() if memory.ran_out(raised) else raised
        in_the_way = isinstance(error, OutputExistsError)
        shop.keep = (
            isinstance(error, _MENDABLE)
            and not in_the_way
            and not (
                isinstance(error, BadImagesError)
                and os.path.lexists(out)  # which could not be opened
            )
        )
        with suppress(OSError):
            if lock < 0 and isinstance(error, KeyboardInterrupt):  # it came while locking
                lock = _lock(out, folder, shared=shared)
            if lock >= 0 and not shared:
                shop.remove()
        if isinstance(error, OSError) and not isinstance(error, PackioError):
            raise _as_output_error(error, out) from error
        if isinstance(error, MemoryError):
            raise OutputError(
                f"{out}: memory ran out; run it again with fewer --num-workers or less --memory"
            ) from raised
        raise
    finally:
        if lock >= 0:
            os.close(lock)


def tidy(out: Path, *, keep: bool = True, suffix: str = UNFINISHED_SUFFIX) -> None:
    """Clear away what an interrupted run left, so that OUT is what it was, or complete.

    Args:
        out: The output.
        keep: Keep finished shards, from which a run of the same plan can go on.
        suffix: Of the workshop's name.

    Raises:
        LockedError: the run is not interrupted but going on.
        OutputError: the file system refuses.
    """
    if os.path.lexists(out.with_name(out.name + suffix)):
        with workshop(out, suffix=suffix) as shop:
            shop.keep = keep


def _lock(out: Path, folder: Path, *, shared: bool = False) -> int:
    while True:
        try:
            folder.mkdir(exist_ok=True)
            descriptor = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        except FileNotFoundError as error:
            if os.path.isdir(out.parent):  # another run removed the workshop just now
                continue
            raise CannotCreateError(
                f"{out}: the folder {out.parent} does not exist; make it first: "
                f"mkdir -p {shlex.quote(str(out.parent))}"
            ) from error
        except OSError as error:
            with suppress(OSError):  # it is not empty if it is another's
                folder.rmdir()
            raise CannotCreateError(f"{out}: {error.strerror} while making {folder}") from error
        if _locked(descriptor, out, folder / LOCK, shared=shared):
            return descriptor


def _locked(descriptor: int, out: Path, lock: Path, *, shared: bool) -> bool:
    """Lock a file; False, and closed, where another run that just ended has removed it."""
    try:
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        if os.stat(lock).st_ino == os.fstat(descriptor).st_ino:
            return True
    except FileNotFoundError:
        pass
    except BaseException as error:
        os.close(descriptor)
        if not isinstance(error, OSError):
            raise
        if isinstance(error, BlockingIOError):
            raise LockedError(
                f"{out}: another packio is packing into it; wait for it to end"
            ) from error
        with suppress(OSError):  # where there are no locks, nobody holds one
            lock.unlink()
            lock.parent.rmdir()
        raise CannotCreateError(f"{out}: {error.strerror} while locking {lock}") from error
    os.close(descriptor)
    return False


def sync_tree(folder: Path) -> None:
    """Make every file and folder below a folder durable, several at a time."""
    paths = [folder]
    for root, folders, files in os.walk(folder):
        paths += [Path(root) / name for name in (*folders, *files)]
    with ThreadPool(4, "packio-sync") as pool:
        list(pool.map(sync, reversed(paths)))


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def has_records(shards: Path) -> bool:
    """Tell whether a journal's folder has a finished shard."""
    with suppress(OSError):
        return any(name.endswith(INDEX_SUFFIX) for name in os.listdir(shards))
    return False


def remove(path: Path) -> None:
    """Remove a file or a folder with all it holds, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _as_output_error(error: OSError, out: Path) -> OutputError:
    free = ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        with suppress(OSError):
            free = f"; {shutil.disk_usage(out.parent).free:,} bytes are free"
        free += "; make room and run it again"
    name = f" ({error.filename})" if error.filename else ""
    return OutputError(f"{out}: {error.strerror or error}{name}{free}")
