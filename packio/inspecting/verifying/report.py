"""The report of a verification."""

from __future__ import annotations

import dataclasses
from pathlib import Path


@dataclasses.dataclass(frozen=True, slots=True)
class Damage:
    """One damage.

    Attributes:
        file: Relative to the folder of the index.
        position: Of the sample in the pack; None if the damage is not in one sample.
        key: Of the sample; bytes that are not UTF-8 are surrogate-escaped.
        offset, length: Of the bytes in the file; None if they are not known.
        problem: One line.
        unreadable: The file is there, but the operating system cannot read it.
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
        format: Of the container; empty if the index cannot be read.
        samples: Number of samples in the pack.
        files: Number of files read, without the index.
        bytes: In these files.
        damages: All damages: of the index first, then by file and offset.
        warnings: Lines about what is no damage, but differs from the pack as it was written.
        seconds: Duration of the run.
        rebuilt: Whether a new index was made; the report is then about the new index.
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
