"""What a verification says."""

from __future__ import annotations

import dataclasses
from pathlib import Path


@dataclasses.dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is wrong.

    Attributes:
        file: Relative to the folder of the index.
        position: Of the sample in the pack; None where no one sample is concerned.
        key: Of the sample; bytes that are not UTF-8 are surrogate-escaped.
        offset, length: Of the bytes in the file; None where it is not known.
        problem: One line.
        unreadable: The operating system does not give the bytes out, though the file is there.
    """

    file: str
    position: int | None
    key: str | None
    offset: int | None
    length: int | None
    problem: str
    unreadable: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a verification found.

    Attributes:
        path: Of the pack.
        format: Of the container; empty where the index does not tell.
        samples: How many the pack has.
        files: How many files were read, the index not counted.
        bytes: In them.
        damages: All that is wrong: the index first, then by file and offset.
        warnings: One line each; what is not wrong but not as packed either.
        seconds: The whole run took.
        rebuilt: The index was made anew; all else is of the new one.
    """

    path: Path
    format: str
    samples: int
    files: int
    bytes: int
    damages: tuple[Damage, ...]
    warnings: tuple[str, ...]
    seconds: float
    rebuilt: bool = False

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged."""
        return not self.damages


def of_file(name: str, problem: str, *, unreadable: bool = False) -> Damage:
    """A damage of a whole file."""
    return Damage(name, None, None, None, None, problem, unreadable)


def without(error: Exception, path: Path) -> str:
    """The message of an error in one line, without the path that it begins with."""
    lines = (str(error) or type(error).__name__).splitlines()
    return lines[0].removeprefix(str(path)).lstrip(":, ")
