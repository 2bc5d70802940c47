"""Making a new index in place of a missing or damaged one, if the container is sound."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from packio import registry
from packio.errors import IntegrityError, NotAPackError, PackioError, VersionError
from packio.formats import Format, Reader, Reading
from packio.images.decoders import Decoder
from packio.index.indexfile import INDEX_SUFFIX, Index
from packio.inspecting.verifying.decoding import ERRORS, decode_value
from packio.inspecting.verifying.findings import (
    Damage,
    Findings,
    Meter,
    of_file,
    reading_of,
    without,
)
from packio.inspecting.verifying.index import check_bytes, opened
from packio.packs import indexing, recognising
from packio.sample.record import Place, Record
from packio.storage.local import LocalFiles
from packio.system import isolation
from packio.system.pools import ThreadPool

_CHUNK = 256  # samples that are decoded at once
_OPTIONAL = {
    "label": "labels",
    "mask/offset": "masks",
    "boxes": "boxes",
    "boxes/labels": "labels of boxes",
    "meta_data": "metadata",
}  # a column that only some packs have → what it holds


@dataclasses.dataclass(frozen=True)
class Rebuilt:
    """Result of `rebuild`.

    Attributes:
        done: Whether there is a new index.
        damages: Of the old index and of the container; the reasons why there is no new index.
        warnings: Lines about what the new index lacks.
    """

    done: bool = False
    damages: tuple[Damage, ...] = ()
    warnings: tuple[str, ...] = ()


def rebuild(path: Path, index_path: Path, threads: int, meter: Meter) -> Rebuilt:
    """Make a new index if the index is missing or damaged and the container is sound."""
    old, damages = _examined(path, index_path, meter)
    if not damages:
        return Rebuilt()
    container = recognising.find(path)
    if container is None:
        return Rebuilt(damages=damages)
    reading = Reading() if old is None else reading_of(old)
    meter.begin("decoding", 0)
    with ThreadPool(threads, "packio-verify") as pool:
        walk = _Walk(container, reading, meter)
        within = tuple(walk.damages(pool))
    if within:
        why = "the container is damaged, too; `packio reindex` takes of it what can be read"
        return Rebuilt(False, damages + within, (f"{index_path.name}: not made anew: {why}",))
    losses = ["keys"] if walk.keyless else []
    before = [f"{d.file}: was damaged: {d.problem}" for d in damages]
    before = before if index_path.exists() else [f"{index_path.name}: was missing"]
    made = _made(container, path, index_path, old, reading, losses)
    return Rebuilt(done=True, warnings=(*before, *made))


def _examined(
    path: Path, index_path: Path, meter: Meter
) -> tuple[Index | None, tuple[Damage, ...]]:
    """The index, if it opens, and its damages; no damages if a newer packio wrote the index."""
    try:
        index = opened(index_path)
    except VersionError:
        return None, ()
    except (NotAPackError, IntegrityError) as error:
        return None, (of_file(index_path.name, without(error, index_path)),)
    found = Findings(index, path, meter)
    check_bytes(found)
    return index, tuple(found.damages)


def _made(
    container: recognising.Container, path: Path, index_path: Path, old: Index | None,
    reading: Reading, losses: list[str],
) -> Iterator[str]:  # fmt: skip
    """Make the new index; say where the old index is, and what is lost with it."""
    name = index_path.name
    if index_path.exists():
        aside = index_path.with_name(name.removesuffix(INDEX_SUFFIX) + ".damaged" + INDEX_SUFFIX)
        shutil.copyfile(index_path, aside)
        yield f"{aside.name}: the damaged index; delete it when it is of no more use"
    indexing.make(path, container, reading, index_path)
    yield f"{name}: made anew; checksums are of the bytes as they are now"
    if old is None or old.metadata.get("source", {}).get("kind") != "reindex":
        losses += _lost(old, Index(index_path))
        doubt = ", if there were any" if old is None else ""
        yield f"{name}: not in the container, so not restored{doubt}: {', '.join(losses)}"


def _lost(old: Index | None, new: Index) -> Iterator[str]:
    """Name what the old index had, or may have had, and the new index lacks."""
    for column, words in _OPTIONAL.items():
        if column not in new and (old is None or column in old):
            yield words
    if old is not None:
        yield from (f"field {n}" for n in old.fields if n not in {*new.fields, "mask"})
    if not new.metadata["classes"] and (old is None or old.metadata.get("classes")):
        yield "names of classes"
    yield "source, plan and options of the packing run"


class _Walk:
    """A container, walked without an index: what its format checks, and every image decoded."""

    def __init__(self, container: recognising.Container, reading: Reading, meter: Meter) -> None:
        self._root, self._shards, self._meter = container.root, container.shards, meter
        self._format, self._reading = container.format, reading
        self._form: Format = registry.load("formats", container.format)
        self._decoder = Decoder("auto", "UNCHANGED")
        self.keyless = "key" not in self._form.caps.keeps

    def damages(self, pool: ThreadPool) -> Iterator[Damage]:
        """All that is wrong with it."""
        for shard in self._shards:
            path = self._root / shard
            prefix = f"{shard}/" if path.is_dir() and shard != "." else ""
            try:
                if self._form.caps.dies_of_damage:
                    isolation.run(
                        f"{__name__}:walk_once", str(path), self._format,
                        dataclasses.asdict(self._reading), where=path, seconds=_seconds(path),
                    )  # fmt: skip
                reader = self._form.reader(path, self._reading)
                work = functools.partial(self._of_record, prefix, reader)
                records = enumerate(self._form.scan(path, self._reading))
                while chunk := list(itertools.islice(records, _CHUNK)):
                    for found in pool.map(work, chunk):
                        yield from found
            except (PackioError, OSError) as error:
                yield of_file(shard, without(error, path))

    def _of_record(
        self, prefix: str, reader: Reader | None, numbered: tuple[int, Record[Place]]
    ) -> list[Damage]:
        number, record = numbered
        found = []
        for place in record.fields.values():
            if reader is not None and place.offset < 0:
                found.append(self._of_value(record, place, prefix, lambda *_: reader.get(number)))
            else:
                found.append(self._of_value(record, place, prefix, self._read))
        self._meter.step(1, sum(place.length for place in record.fields.values()), 0)
        return [damage for damage in found if damage is not None]

    def _of_value(
        self, record: Record[Place], place: Place, prefix: str,
        get: Callable[[str, int, int], bytes],
    ) -> Damage | None:  # fmt: skip
        where = prefix + place.file, place.offset, place.length
        try:
            data = get(*where)
            data = self._form.unsplit(data) if place.split else data
            decode_value(self._decoder, place.kind, data, place.facts)
        except ERRORS as error:
            key = os.fsdecode(record.key)
            return Damage(where[0], None, key, *where[1:], f"does not decode: {error}")
        return None

    def _read(self, name: str, offset: int, length: int) -> bytes:
        path = self._root / name
        return LocalFiles(path.parent, [path.name], [path.stat().st_size]).read(0, offset, length)


def walk_once(path: str, container: str, reading: dict[str, Any]) -> None:
    """Find all samples of a container with its library, which may crash over it."""
    for _ in registry.load("formats", container).scan(Path(path), Reading(**reading)):
        pass


def _seconds(path: Path) -> float:
    """Seconds after which a library is considered to hang."""
    return 120 + path.stat().st_size / 1e6
