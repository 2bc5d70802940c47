"""One file: for each sample a JSON line, field → [kind, bytes], then the values of the fields."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from packio.errors import IntegrityError
from packio.formats import Caps, Format, Places, Reading, Written, check_reading
from packio.sample.record import Field, Place, Record


class BlobWriter:
    """Write one file."""

    def __init__(self, path: Path) -> None:
        self._path, self._count, self._places = path, 0, dict[str, Places]()
        self._file = path.open("xb")
        self.abort = self._file.close

    def add(self, records: Sequence[Record[Field]]) -> None:
        """Append records."""
        for number, record in enumerate(records, self._count):
            head = {name: [field.kind, len(field.data)] for name, field in record.fields.items()}
            self._file.write(json.dumps(head).encode() + b"\n")
            for name, field in record.fields.items():
                places = self._places.setdefault(name, Places())
                places.add(number, self._file.tell(), len(field.data))
                self._file.write(field.data)
        self._count += len(records)

    def close(self) -> Written:
        """Finish the file, and tell where the values lie."""
        self._file.close()
        places = {name: found.ranges(self._count) for name, found in self._places.items()}
        return Written((self._path.name,), places, sidecars=(), info={})


class Blob(Format):
    """Values end to end in one file."""

    caps = Caps(suffixes=(".blob",))

    def scan(self, path: Path, reading: Reading) -> Iterator[Record[Place]]:
        """Yield every record, in order."""
        check_reading(path, reading)  # refuses names: there is nothing to choose from
        with path.open("rb") as file:
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
