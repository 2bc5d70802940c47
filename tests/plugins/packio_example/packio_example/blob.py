"""One file: `MAGIC`; then of each sample a JSON line, field → [kind, bytes], and the values."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from packio.errors import IntegrityError, NotAPackError
from packio.formats import Caps, Format, Reading, Written, check_reading
from packio.formats.blobs import append_only
from packio.sample.record import Field, Place, Record

MAGIC = b"blob, version 1\n"


class BlobWriter(append_only.Writer):
    """Write one file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        (self._output,) = self._outputs
        self._output.append(MAGIC)

    def add(self, records: Sequence[Record[Field]]) -> None:
        """Append records."""
        for record in records:
            head = {name: [field.kind, len(field.data)] for name, field in record.fields.items()}
            self._output.append(json.dumps(head).encode(), b"\n")
            for name, field in record.fields.items():
                self._note(name, self._output.size, len(field.data))
                self._output.append(field.data)
            self._count += 1

    def close(self) -> Written:
        """Finish the file, and tell where the values lie."""
        return self._close([self._path.name], sidecars=[])


class Blob(Format):
    """Values end to end in one file."""

    caps = Caps(suffixes=(".blob",), magic=(MAGIC,))

    def scan(self, path: Path, reading: Reading) -> Iterator[Record[Place]]:
        """Yield every record, in order."""
        check_reading(path, reading)  # refuses names: there is nothing to choose from
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise NotAPackError(f"{path}: begins otherwise than a file of blobs")
            for number, line in enumerate(iter(file.readline, b"")):
                fields = dict[str, Place]()
                try:
                    for name, (kind, length) in json.loads(line).items():
                        fields[name] = Place(kind, path.name, file.tell(), length)
                        if not 0 <= length <= path.stat().st_size - file.tell():
                            raise ValueError(f"{length} bytes at {file.tell()}")
                        file.seek(length, 1)
                except (ValueError, TypeError, AttributeError) as error:
                    raise IntegrityError(f"{path}: sample {number} is damaged: {error}") from error
                yield Record(b"%d" % number, fields)

    def writer(
        self, path: Path, *, count: int, size: int, classes: Sequence[str], **options: Any
    ) -> BlobWriter:
        """Begin a file."""
        return BlobWriter(path)


FORMAT = Blob()
