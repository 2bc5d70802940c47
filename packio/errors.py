"""The errors packio raises, one class per kind.

::

    PackioError
    ├── NotAPackError        (ValueError)         no index, or not an index of packio's
    ├── UnfinishedPackError  (ValueError)         packing into this place has not finished
    ├── VersionError         (ValueError)         written by a newer packio
    ├── IntegrityError       (ValueError)         the bytes are not those that were packed
    ├── KeyNotFoundError     (KeyError)           no sample has this key
    ├── SourceError          (ValueError)         nothing to pack, or a layout that makes no sense
    │   └── BadImagesError                        some images are bad; ``.skipped`` lists them
    ├── DecodeError          (ValueError)         the bytes are no image that can be decoded
    │   ├── LimitError                            more pixels than allowed
    │   └── ModeError                             the pixels do not fit the mode asked for
    ├── OptionError          (ValueError)         an argument that cannot be meant
    ├── StateError           (ValueError)         no state of a loader in a checkpoint
    ├── OutputExistsError    (FileExistsError)    the output is there already, packed otherwise
    ├── OutputError          (OSError)            the output cannot be written
    │   └── CannotCreateError                     the output cannot be created where it should be
    ├── LockedError          (BlockingIOError)    another packer works on the same output
    ├── ReadError            (OSError)            a file of a pack cannot be read
    ├── TransformError       (RuntimeError)       a transform of the user's failed
    ├── DiagnosisError       (RuntimeError)       a loader or step under diagnosis failed
    ├── PluginError          (ImportError)        another distribution's plugin cannot be loaded
    └── MissingPackageError  (ImportError)        an optional package is not installed

Each also subclasses the built-in exception that fits, so ``except ValueError`` works for those who
do not know packio. Every message says where, what was found, what was expected and what to do.
All take one string, so they travel between processes unharmed. ``exit_code`` is what the command
line ends with.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class PackioError(Exception):
    """Base of all errors that packio raises on purpose."""

    exit_code = 65


class NotAPackError(PackioError, ValueError):
    """The path holds no packio index, or something else in its place."""


class NoSuchPackError(NotAPackError, FileNotFoundError):
    """Nothing is at the path given."""


class UnfinishedPackError(PackioError, ValueError):
    """Packing into this path was interrupted, or is still going on."""


class VersionError(PackioError, ValueError):
    """The index was written by a newer packio; update packio to read it."""


class IntegrityError(PackioError, ValueError):
    """Bytes on disk are not the bytes that were packed; restore or repack the file named."""


class KeyNotFoundError(PackioError, KeyError):
    """No sample has the key asked for."""

    __str__ = Exception.__str__  # KeyError shows the repr of its argument


class SourceError(PackioError, ValueError):
    """The source holds nothing to pack, or its layout makes no sense."""


class BadImagesError(SourceError):
    """Some images cannot be packed; ``skipped`` holds the first of them as (key, reason)."""

    skipped: tuple[tuple[str, str], ...] = ()


class DecodeError(PackioError, ValueError):
    """A sample's bytes are not an image that can be decoded."""


class LimitError(DecodeError):
    """An image has more pixels than the limit allows."""


class ModeError(DecodeError):
    """An image's pixels do not fit the mode asked for, as 16 bits do not fit RGB."""


@contextlib.contextmanager
def decoding(where: str = "") -> Iterator[None]:
    """Make a DecodeError of whatever a library raises about a sample's bytes.

    Libraries raise what their parsers meet: TypeError, struct.error, MemoryError, … packio's own
    errors pass, as do those of the system, which have an errno (too many open files, say), and
    KeyboardInterrupt and SystemExit.

    Args:
        where: Begins the message, as "Pillow: ".
    """
    try:
        yield
    except PackioError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise DecodeError(f"{where}{type(error).__name__}: {error}") from error


class OptionError(PackioError, ValueError):
    """An argument has a value that cannot be meant."""

    exit_code = 2


class StateError(PackioError, ValueError):
    """There is no state of a loader in a checkpoint, or not one that packio can read."""


class OutputExistsError(PackioError, FileExistsError):
    """The output exists and is not the result of the same plan."""

    exit_code = 73


class OutputError(PackioError, OSError):
    """Writing the output failed: disk full, I/O error, no permission."""

    exit_code = 74


class CannotCreateError(OutputError):
    """The output cannot be created where it should be."""

    exit_code = 73


class LockedError(PackioError, BlockingIOError):
    """Another process is packing into the same output."""

    exit_code = 75


class WorkerDiedError(PackioError, ChildProcessError):
    """A process that writes shards died, again after it was tried anew."""

    exit_code = 74


class ReadError(PackioError, OSError):
    """A file of a pack cannot be opened or read."""

    exit_code = 74


class SharedMemoryError(PackioError, MemoryError):
    """There is no room in shared memory for a batch that a DataLoader's worker makes."""

    exit_code = 74


class TransformError(PackioError, RuntimeError):
    """A transform of the user's raised an exception; it is the cause of this one."""


class DiagnosisError(PackioError, RuntimeError):
    """A loader or a step of the user's that `packio.doctor` ran failed; its cause says how."""


class PluginError(PackioError, ImportError):
    """A plugin of another distribution fails when it is loaded, or breaks its contract."""

    exit_code = 2


class MissingPackageError(PackioError, ImportError):
    """An optional package that this feature needs is not installed."""

    exit_code = 2
