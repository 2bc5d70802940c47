"""Verbs of fields beside those of the source: levels, and fields added later; and selections."""

from __future__ import annotations

import io
import json
import pathlib
from typing import TYPE_CHECKING

import described
import looking
import numpy as np
import pytest
from commands import KILLED
from PIL import Image
from verbs import verb

import packio

if TYPE_CHECKING:
    from described import Sample
    from trials import Trial

_LEVELS = ("--levels", "1", "--levels-crop", "4")  # so every image has one level
_SIMILAR = 0.5  # correlation of a level (of noise, as a JPEG) with what Pillow makes; else about 0


# Fields that come later


def _later(
    t: Trial, samples: list[Sample], name: str = "later", kind: str | None = None
) -> tuple[str, list[Sample]]:
    """Write texts for samples; what `packio add` is told, and the samples that then must be."""
    ways = [("texts.jsonl", "text"), ("texts", "text"), ("arrays", "array")]
    told, kind = t.draw.choice([way for way in ways if kind in (None, way[1])])
    file, found = t.folder / told, []
    for i, sample in enumerate(samples):
        value = f"„{name}“ {i}".encode() if kind == "text" else described.array(t.draw)
        found.append(sample | {"fields": {**sample.get("fields", {}), name: (kind, value)}})
        if told != "texts.jsonl":
            path = file / f"{sample['key']}.{'txt' if kind == 'text' else 'npy'}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(value)
    if told == "texts.jsonl":
        rows = [{"key": s["key"], name: s["fields"][name][1].decode()} for s in found]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return f"{name}={file}", found


def _files(out: str) -> dict[str, tuple[bytes, int]]:
    """Bytes and time of change of the files of a pack, but for indexes."""
    path = pathlib.Path(out)
    files = [p for p in path.rglob("*") if p.is_file()] if path.is_dir() else [path]
    return {str(p): (p.read_bytes(), p.stat().st_mtime_ns) for p in files if p.suffix != ".packio"}


@verb()
def add_field(t: Trial) -> None:
    """A field comes later, goes along, and goes away; the files of before stay as they are."""
    out, one = t.sharded(t.first)
    before = _files(out)
    told, wanted = _later(t, one.samples)
    t.run("add", out, "--field", told)
    t.check(out, wanted, ordered=True)
    after = _files(out)
    if changed := [path for path, file in before.items() if after.get(path) != file]:
        t.fail(f"adding a field changes {changed}")
    t.run("verify", out)
    t.same_again(out, one)
    t.run("convert", out, t.out("other", t.cell.other))
    t.check(t.out("other", t.cell.other), wanted, ordered=True)
    more = t.written(t.second, "source_more")
    t.append(out, more)
    t.check(out, [*wanted, *more.samples])
    if more.samples:
        told, new = _later(t, more.samples, kind=wanted[0]["fields"]["later"][0])
        t.run("add", out, "--field", told, "--only-new")
        t.check(out, [*wanted, *new])
    t.run("verify", out)
    t.run("drop-field", out, "later")
    t.check(out, [*one.samples, *more.samples])
    t.run("verify", out)
    t.same_again(out, one)


@verb()
def add_and_merge(t: Trial) -> None:
    """Two packs, one with a field that came later, merged into one."""
    one, a = t.sharded(t.first, "one")
    two, b = t.packed(t.second, "two")
    told, wanted = _later(t, a.samples)
    t.run("add", one, "--field", told)
    t.run("merge", one, two, "-o", t.out("all"))
    t.check(t.out("all"), [*wanted, *b.samples], ordered=True)
    t.run("verify", t.out("all"))


@verb()
def kill_add(t: Trial) -> None:
    """Adding that is killed leaves the pack as it was, and goes on; dropping likewise."""
    out, one = t.sharded(t.samples)
    count, _ = t.sharded(t.samples, "count")
    told, wanted = _later(t, one.samples)
    changes = t.run("add", count, "--field", told).changes
    kill_at = t.draw.randrange(1, changes + 1)
    killed = t.run("add", out, "--field", told, code=(0, KILLED), kill_at=kill_at)
    if "field later" not in looking.seen(pathlib.Path(out))[0]:
        found = looking.difference(one.samples, pathlib.Path(out), ordered=True)
        if found or killed.code == 0:
            t.fail(f"killed, and neither old nor new: {found}")
        t.run("add", out, "--field", told)
    elif (pathlib.Path(f"{out}.packio-add")).exists():
        t.run("add", out, "--field", told)  # it is there; what the killed run left goes
    t.check(out, wanted, ordered=True)
    changes = t.run("drop-field", count, "later").changes
    t.run("drop-field", out, "later", code=(0, KILLED), kill_at=t.draw.randrange(1, changes + 1))
    t.run("drop-field", out, "later", code=(0, 2))
    t.check(out, one.samples, ordered=True)
    t.run("verify", out)


# Selections


@verb()
def select(t: Trial) -> None:
    """Samples that a condition is true of, with a field that came later: read and converted."""
    pytest.importorskip("duckdb")
    out, one = t.sharded(t.samples)
    told, wanted = _later(t, one.samples)
    t.run("add", out, "--field", told)
    condition, chosen = '"index" % 2 = 0', wanted[::2]
    places = [sample.get("meta", {}).get("place") for sample in wanted]
    if place := next(filter(None, reversed(places)), None):
        condition = f"place = '{place}' AND n >= 0"
        chosen = [s for s, other in zip(wanted, places, strict=True) if other == place]
    t.run("select", out, condition, "-o", t.out("chosen", ".selection"))
    t.check(t.out("chosen", ".selection"), chosen, ordered=True)
    t.run("verify", t.out("chosen", ".selection"))
    t.run("convert", t.out("chosen", ".selection"), t.out("other", t.cell.other))
    t.check(t.out("other", t.cell.other), chosen, ordered=True)


# Levels


def _check_levels(t: Trial, out: str, *, each: int = 1) -> None:
    """Compare the levels of a pack with its images, which Pillow makes smaller."""
    with packio.open(out) as pack:
        for i in range(len(pack)):
            sample, found = pack[i], 0
            for divisor, name in pack.levels.items():
                data = pack.read_field(name, i)
                if data is None:
                    continue
                found += 1
                with Image.open(io.BytesIO(sample.data)) as image:
                    smaller = image.convert("L").reduce(divisor)
                with Image.open(io.BytesIO(bytes(data))) as level:
                    if level.size != smaller.size:
                        t.fail(f"{sample.key}: {name} is {level.size}, not {smaller.size}")
                    seen = np.asarray(level.convert("L"), float).ravel()
                wanted = np.asarray(smaller, float).ravel()
                if np.corrcoef(seen, wanted)[0, 1] < _SIMILAR:
                    t.fail(f"{sample.key}: {name} is of another image")
            if found != each:
                t.fail(f"{sample.key}: {found} levels, expected {each}")


@verb()
def levels(t: Trial) -> None:
    """Levels of all images: they change nothing else, and are kept or left out as asked."""
    out, one = t.sharded(t.first, "pack", *_LEVELS)
    t.check(out, one.samples, ordered=True)
    _check_levels(t, out)
    t.run("verify", out)
    t.run("convert", out, t.out("other", t.cell.other))
    t.check(t.out("other", t.cell.other), one.samples, ordered=True)
    _check_levels(t, t.out("other", t.cell.other))
    t.run("convert", out, t.out("none"), "--levels", "0")
    t.check(t.out("none"), one.samples, ordered=True)
    _check_levels(t, t.out("none"), each=0)
    more = t.written(t.second, "source_more")
    t.append(out, more)
    t.check(out, [*one.samples, *more.samples])
    _check_levels(t, out)


@verb()
def levels_merged(t: Trial) -> None:
    """Two packs with levels, merged into one."""
    one, a = t.sharded(t.first, "one", *_LEVELS)
    two, b = t.packed(t.second, "two", *_LEVELS)
    t.run("merge", one, two, "-o", t.out("all"))
    t.check(t.out("all"), [*a.samples, *b.samples], ordered=True)
    _check_levels(t, t.out("all"))
    t.run("verify", t.out("all"))
