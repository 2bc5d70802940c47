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
line ends with. Credentials in URLs are left out of every message, and characters that control a
terminal are escaped: messages quote names out of files that others made.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_CONTROLS = re.compile(  # but line feed and tab; and what changes the direction of text
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)
# "user:password@" of any URL, also after pathlib joined its slashes; the query of HTTP, which may
# be a signature or a token.
_USER = re.compile(r"(\b[A-Za-z][A-Za-z0-9+.-]*:/{1,3})[^\s/?#'\"]*@")
_QUERY = re.compile(r"(\bhttps?:/{1,3}[^\s?#'\"]*)[?#][^\s'\")\]]*")


def without_credentials(text: str) -> str:
    """Leave out of the URLs in a text who asks, and the queries of HTTP.

    >>> without_credentials("https://me:secret@host/a.tar?token=1: no such object")
    'https://host/a.tar: no such object'
    """
    if ":/" not in text:
        return text
    return _QUERY.sub(_without_query, _USER.sub(r"\1", text))


def _without_query(match: re.Match[str]) -> str:
    """Keep what punctuates the sentence behind the URL."""
    said = match[0]
    return match[1] + said[len(said.rstrip(":;,.")) :]


def printable(text: str) -> str:
    r"""Escape what could control a terminal, as ``\x1b``; lines and tabs stay."""
    return _CONTROLS.sub(lambda match: as_bytes(match[0]), text)


def as_bytes(character: str) -> str:
    r"""Show a character by its bytes of UTF-8, or the byte that it stands for, as ``\xNN``."""
    try:
        data = character.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half of a pair of UTF-16, which no file's name has
        return character.encode("ascii", "backslashreplace").decode()
    return "".join(f"\\x{byte:02x}" for byte in data)


class PackioError(Exception):
    """Base of all errors that packio raises on purpose."""

    exit_code = 65

    def __init__(self, *said: object) -> None:
        shown = (printable(without_credentials(s)) if isinstance(s, str) else s for s in said)
        super().__init__(*shown)


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


class Decoding:
    """Makes a DecodeError of whatever a library raises about a sample's bytes.

    Libraries raise what their parsers meet: TypeError, struct.error, MemoryError, … packio's own
    errors pass, as do those of the system, which have an errno (too many open files, say), and
    KeyboardInterrupt and SystemExit.

    Args:
        where: Begins the message, as "Pillow: ".
    """

    __slots__ = ("_where",)

    def __init__(self, where: str = "") -> None:
        self._where = where

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.tell(error)

    def tell(self, error: BaseException) -> None:
        """Raise a DecodeError if the error is about a sample's bytes."""
        if isinstance(error, PackioError) or not isinstance(error, Exception):
            return
        if not isinstance(error, OSError) or error.errno is None:
            raise DecodeError(f"{self._where}{type(error).__name__}: {error}") from error


class Naming(Decoding):
    """Puts the name of an image before what is wrong with it; ``where`` tells the name."""

    __slots__ = ("_name",)

    def __init__(self, where: Callable[[], str]) -> None:
        super().__init__()
        self._name = where

    def tell(self, error: BaseException) -> None:
        """Raise the error with the name of the image, if it is about the image's bytes."""
        try:
            super().tell(error)
        except DecodeError as other:
            error = other
        if isinstance(error, DecodeError):
            kind = type(error) if type(error) in (LimitError, ModeError) else DecodeError
            raise kind(f"{self._name()}: {error}") from (error.__cause__ or error)


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
