"""The workshop: a folder beside the output, in which a run builds the output, then publishes it.

The workshop of ``OUT`` is the folder ``OUT.packio-tmp/``. A run holds the lock in it while it
builds. If the run is cut short, the shards it finished stay, and the next run takes them over.

Publishing a directory makes all its files and folders durable, then renames it to OUT. Publishing
a pack of files moves them one by one: sidecars, OUT, then the index, without which OUT is no pack.
So at any moment OUT is absent, or what it was before, or complete. While a new pack takes the
place of an old one, the old one is in the workshop for a moment, and the next run puts it back.
As long as the workshop is there, packio refuses to open OUT.

A run clears the workshop of an earlier run, so it must not be deceived about whose folder that is.
It follows no link, wants the folder to belong to its own user, and to hold our marker.
"""

from __future__ import annotations

import errno
import itertools
import os
import tempfile
import time
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
from packio.storage.journal import Journal
from packio.system import files, interrupts, locks, memory

# What lies in a workshop.
LOCK = "lock"  # an empty file that the run has locked
_ATTEMPTS = 100  # to make a workshop that other runs remove at the same time
_HIDDEN = (".nfs", ".fuse_hidden")  # names of removed files that are open
_REMOVALS, _REMOVAL_SECONDS = 200, 0.05
MARKER = "packio-workshop"  # an empty file: packio made this folder and may clear it
SHARDS = "shards"  # the journal: finished shards, which the next run of the same plan takes over
BUILT = "pack"  # the output under construction
REPLACED = "replaced"  # what OUT was before --overwrite, until the new output is in place
NEW_FILES = "new-files"  # names of those files being published that replace no others
PUBLISHED = "published"  # an empty file: all files of a new pack are in place
_MENDABLE = (KeyboardInterrupt, OSError, MemoryError, BadImagesError)  # a later run may succeed


class Workshop:
    """A locked workshop."""

    def __init__(self, out: Path, folder: Path) -> None:
        self.out: Path = out
        self.folder: Path = folder
        self.built: Path = folder / BUILT
        self.shards: Path = folder / SHARDS  # the journal's folder
        self.keep: bool = True  # the journal stays for another run if this one fails
        self.is_complete: bool = False  # the journal stays, whatever error comes: all is built

    @staticmethod
    def locate(out: Path, suffix: str = UNFINISHED_SUFFIX) -> Workshop:
        """The workshop of an output, neither made nor locked yet."""
        return Workshop(out, out.with_name(out.name + suffix))

    def clear(self) -> None:
        """Remove what an interrupted run left.

        A pack that the run was replacing is put back. Finished shards stay, unless their pack was
        published.
        """
        published = self.is_published()
        if not published:
            self._put_back()
        kept = [LOCK, MARKER]
        if self.keep and not published and any(self.shards.glob(f"*{INDEX_SUFFIX}")):
            kept += [SHARDS, BUILT]
        left = [path for path in self.folder.iterdir() if path.name not in kept]
        # The last two say what the other files mean.
        for path in sorted(left, key=lambda p: (p.name == PUBLISHED, p.name == NEW_FILES)):
            if path.name == SHARDS:
                Journal(path).discard()
            else:
                files.remove(path)

    def is_published(self) -> bool:
        """Tell whether the interrupted run had put its output in place."""
        if (self.folder / PUBLISHED).exists():
            return True
        if (self.folder / NEW_FILES).exists():
            return False
        return not self.built.exists() and os.path.lexists(self.out)

    def _put_back(self) -> None:
        """Undo an interrupted publication: what was at OUT goes there again."""
        replaced, new = self.folder / REPLACED, self.folder / NEW_FILES
        if not new.exists():
            if os.path.lexists(replaced) and not os.path.lexists(self.out):
                replaced.rename(self.out)
        else:
            old = sorted(replaced.iterdir()) if replaced.exists() else []
            names = [os.path.basename(os.fsdecode(n)) for n in new.read_bytes().split(b"\0") if n]
            for name in [*names, *(path.name for path in old)]:
                moved, built = self.out.parent / name, self.built / name
                if os.path.lexists(moved) and not os.path.lexists(built):
                    moved.rename(built)  # the next run takes it over
            for path in old:
                path.replace(self.out.parent / path.name)

    def remove(self) -> None:
        """Remove the workshop, but for a journal that stays, or the lock of a run that follows."""
        self.clear()
        if set(os.listdir(self.folder)) <= {LOCK, MARKER}:
            (self.folder / MARKER).unlink(missing_ok=True)
        (self.folder / LOCK).unlink(missing_ok=True)
        try:
            self.folder.rmdir()
        except OSError as error:  # the journal, or the other run's lock, is in it
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise

    def publish(
        self, names: Sequence[str] | None = None, old: Sequence[str] = (), *, overwrite: bool
    ) -> None:
        """Make all files durable and move them into place; only `overwrite` replaces an output."""
        self.is_complete = True
        files.sync_tree(self.built)
        if not overwrite:
            with suppress(OSError):  # an empty folder may go
                self.out.rmdir()
            if os.path.lexists(self.out):
                raise OutputExistsError(
                    f"{self.out}: somebody made it while this run was at work; move it away, and "
                    "run again to go on"
                )
        if names is None:
            if overwrite and os.path.lexists(self.out):
                self.out.rename(self.folder / REPLACED)
            self.built.rename(self.out)
            for name in set(old) - {self.out.name}:  # sidecars of a file that a folder replaces
                files.remove(self.out.parent / name)
        else:
            self._publish_files(names, old, overwrite=overwrite)
        files.sync(self.out.parent)

    def _publish_files(self, names: Sequence[str], old: Sequence[str], *, overwrite: bool) -> None:
        """Put the files in place one by one; an interruption before the last is undone."""
        here = self.out.parent
        there = {n for n in (*names, *old) if os.path.lexists(here / n)}
        strangers = sorted(there - set(old))
        if strangers and not (overwrite and os.path.lexists(self.out)):  # else all are replaced
            raise OutputExistsError(
                f"{self.out}: {', '.join(strangers)} beside it exists and belongs to no pack; "
                "move it away, or choose another name"
            )
        fresh = [os.fsencode(n) for n in names if n not in there]
        with files.replacing(self.folder / NEW_FILES) as file:  # before anything is moved
            file.write(b"\0".join(fresh))
        (self.folder / REPLACED).mkdir()
        files.sync_tree(self.folder)
        for name in sorted(there, key=lambda n: n != names[-1]):  # the index goes first
            (here / name).rename(self.folder / REPLACED / name)
        files.sync(self.folder / REPLACED)
        for name in names:
            (self.built / name).rename(here / name)
        files.sync(here)
        (self.folder / PUBLISHED).touch()
        files.sync(self.folder)


@contextmanager
def open_workshop(
    out: Path, *, shared: bool = False, suffix: str = UNFINISHED_SUFFIX
) -> Iterator[Workshop]:
    """Make and lock the workshop of an output; remove it at the end.

    At the beginning, what an interrupted run left is cleared, except the journal of its finished
    shards. The journal also stays if this run ends with an error that another run may not meet.
    """
    files.check_length(out)
    shop = Workshop.locate(out, suffix)
    folder = shop.folder
    lock = -1
    try:
        with interrupts.DeferInterrupts():
            lock = _lock(out, folder, shared=shared)
        if not shared:
            shop.clear()
        yield shop
        if not shared:
            shop.remove()
            files.sync(out.parent)
    except BaseException as raised:
        error = MemoryError() if memory.ran_out(raised) else raised
        shop.keep = shop.is_complete or (
            isinstance(error, _MENDABLE)
            and not isinstance(error, OutputExistsError)
            # an output that is there already was not readable, or this run would not have begun
            and not (isinstance(error, BadImagesError) and os.path.lexists(out))
        )
        with suppress(OSError), interrupts.DeferInterrupts():
            if lock >= 0 and not shared:
                shop.remove()
        if isinstance(error, OSError) and not isinstance(error, PackioError):
            raise _as_output_error(error, out) from error
        if isinstance(error, MemoryError):
            raise OutputError(
                f"{out}: memory ran out; run it again with fewer --workers or less --memory"
            ) from raised
        raise
    finally:
        _close(lock)
        if lock >= 0 and not shared:
            _remove_emptied(folder)


def tidy(out: Path, *, keep: bool = True, suffix: str = UNFINISHED_SUFFIX) -> None:
    """Clear away what an interrupted run left: OUT is then what it was before, or complete."""
    if os.path.lexists(out.with_name(out.name + suffix)):
        with open_workshop(out, suffix=suffix) as shop:
            shop.keep = keep


def check_idle(out: Path) -> None:
    """Check that no process is packing into a place; change nothing."""
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        descriptor = os.open(Workshop.locate(out).folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
        try:
            if not locks.try_lock(descriptor):
                raise LockedError(_held(out))
        finally:
            os.close(descriptor)


def _held(out: Path) -> str:
    return f"{out}: another packio is packing into it; wait for it to end"


def _lock(out: Path, folder: Path, *, shared: bool = False) -> int:
    """Make the workshop if need be, lock it, and mark it; return the lock's descriptor."""
    for attempt in itertools.count():
        try:
            with suppress(FileExistsError):
                folder.mkdir()
            place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError as error:
            if os.path.isdir(out.parent) and attempt < _ATTEMPTS:
                continue  # another run removed the workshop just now
            if os.path.isdir(out.parent):
                raise CannotCreateError(f"{out}: nothing can be made in {out.parent}") from error
            files.check_folder_of(out)
            raise CannotCreateError(f"{out}: {error.strerror}") from error
        except OSError as error:
            if os.path.lexists(folder) and (folder.is_symlink() or not folder.is_dir()):
                raise CannotCreateError(_not_ours(out, folder, "is a file or a link")) from error
            raise CannotCreateError(f"{out}: {error.strerror} while making {folder}") from error
        try:
            descriptor = _lock_in(place, out, folder, shared=shared)
        finally:
            os.close(place)
        if descriptor is not None:
            return descriptor
    raise AssertionError  # count() has no end


def _lock_in(place: int, out: Path, folder: Path, *, shared: bool) -> int | None:
    """Lock an open workshop; None if another run that just ended has removed it meanwhile."""
    if not _is_mine(os.fstat(place).st_uid, folder):
        raise CannotCreateError(_not_ours(out, folder, "belongs to another user"))
    flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor, fresh = -1, False
    try:
        with suppress(FileExistsError):
            descriptor = os.open(LOCK, flags | os.O_EXCL, 0o644, dir_fd=place)
            fresh = True
        if not fresh:
            descriptor = os.open(LOCK, flags, 0o644, dir_fd=place)
        if not locks.try_lock(descriptor, shared=shared):
            _close(descriptor)
            raise LockedError(_held(out))
        if os.stat(LOCK, dir_fd=place).st_ino == os.fstat(descriptor).st_ino:
            _mark(place, out, folder)
            return descriptor
    except FileNotFoundError:  # removed meanwhile
        pass
    except LockedError:
        raise
    except BaseException as error:
        with suppress(OSError):
            if fresh:  # only this run has held this lock
                os.unlink(LOCK, dir_fd=place)
            folder.rmdir()
        _close(descriptor)
        if isinstance(error, OSError) and not isinstance(error, PackioError):
            raise CannotCreateError(
                f"{out}: {error.strerror} while locking {folder / LOCK}"
            ) from error
        raise
    _close(descriptor)
    return None


def _remove_emptied(folder: Path) -> None:
    """Remove a workshop that network file systems have kept for the lock, which is closed by now.

    NFS and FUSE give an open file that is removed another name, until the file is closed.
    """
    for _ in range(_REMOVALS):
        try:
            folder.rmdir()
        except OSError:
            with suppress(OSError):
                names = os.listdir(folder)
                if names and all(name.startswith(_HIDDEN) for name in names):
                    time.sleep(_REMOVAL_SECONDS)
                    continue
        return


def _close(descriptor: int) -> None:
    if descriptor >= 0:
        os.close(descriptor)


def _mark(place: int, out: Path, folder: Path) -> None:
    """Leave our marker in an empty workshop; refuse a folder that holds files but no marker."""
    names = set(os.listdir(place))
    if names - {LOCK} and not os.path.lexists(folder / MARKER):
        raise CannotCreateError(_not_ours(out, folder, "was not made by packio"))
    if MARKER not in names:
        os.close(os.open(folder / MARKER, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW, 0o644))


def _is_mine(owner: int, folder: Path) -> bool:
    """Tell whether a folder's owner is this user, by the number this file system gives the user."""
    if owner == os.geteuid():
        return True
    with tempfile.TemporaryFile(dir=folder.parent) as file:  # NFS: root may be nobody there
        return os.fstat(file.fileno()).st_uid == owner


def _not_ours(out: Path, folder: Path, found: str) -> str:
    return (
        f"{out}: {folder} {found}; packio builds the output there and would clear it; "
        "move it away, or choose another output"
    )


def _as_output_error(error: OSError, out: Path) -> OutputError:
    free = ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        with suppress(OSError):
            free = f"; {files.free_bytes(out.parent):,} bytes are free"
        free += "; make room and run it again"
    name = f" ({error.filename})" if error.filename else ""
    return OutputError(f"{out}: {error.strerror or error}{name}{free}")
