"""Verbs that change packs, make others of them, or are killed, or run at once."""

from __future__ import annotations

import fnmatch
import json
import pathlib
from typing import TYPE_CHECKING

import described
import looking
from commands import KILLED, Command
from source_kinds import KINDS, put
from verbs import LOCKED, RESIZED, USAGE, resized, twin, verb

if TYPE_CHECKING:
    from collections.abc import Iterable

    from described import Sample
    from trials import Trial


@verb()
def append(t: Trial) -> None:
    """The second half of a dataset behind the first half; once more adds nothing."""
    out, _ = t.sharded(t.first)
    source = t.written(t.samples, "source_pack")
    t.append(out, source)
    t.check(out, source.samples)
    t.same_again(out, source)
    t.check(out, source.samples)
    t.run("verify", out)


@verb()
def append_other(t: Trial) -> None:
    """Another dataset behind a pack: its classes are counted in another order."""
    out, one = t.sharded(t.first)
    two = t.written(t.second, "source_other")
    t.append(out, two)
    t.check(out, [*one.samples, *two.samples])


@verb()
def append_changed(t: Trial) -> None:
    """A changed sample is told, and stays as the pack has it."""
    wanted: list[str] = [
        "image",
        *(n for n in ("meta", "mask", "boxes", "fields") if n in t.annotations),
    ]
    if t.annotations.get("label") == "class" and not KINDS[t.cell.source].class_folders:
        wanted.append("label")
    what = t.draw.choice(wanted)
    out, source = t.sharded(t.samples)
    fit = [i for i, s in enumerate(t.samples) if s.get(what)]
    if t.cell.source == "suffixes":
        fit = [i for i in fit if t.samples[i]["key"].endswith("jpg")]
    i = t.draw.choice(fit)
    other = [*t.samples]
    other[i] = described.changed(t.samples[i], what, t.cell.seed)
    changed = t.written(other, "source_pack")
    key = [s["key"] for s in t.written(other, "source_pack").samples if s not in source.samples]
    said = json.loads(t.append(out, changed, "--compare", "--json").printed)
    if said["changed"] != key:
        t.fail(f"{what} of {key} has changed; told: {said['changed']}")
    said = json.loads(t.append(out, changed, "--json").printed)
    if said["added"]:
        t.fail(f"{what} of {key} has changed; added: {said['added']}")
    t.check(out, source.samples)


@verb(only=("csv", "jsonl"))
def append_elsewhere(t: Trial) -> None:
    """A list with one image more, of another folder: refused; a list of this image adds it."""
    out, one = t.sharded(t.first)
    source = t.written(t.first, "source_pack")
    file, last = pathlib.Path(source.arguments[0]), t.first[-1]
    line = file.read_text("utf-8").splitlines()[-1]
    with file.open("a", encoding="utf-8") as added:
        added.write(line.replace(last["key"], "../elsewhere/new.png") + "\n")
    new = described.changed(last, "image", t.cell.seed)["image"]
    put(file.parent.parent / "elsewhere" / "new.png", new)
    t.append(out, source, code=USAGE)
    t.check(out, one.samples)
    lines = file.read_text("utf-8").splitlines(keepends=True)
    file.write_text("".join(lines[:1] * (t.cell.source == "csv") + lines[-1:]), "utf-8")
    said = json.loads(t.append(out, source, "--json").printed)
    if said["added"] != 1:
        t.fail(f"one image more: {said['added']} added")
    keys = {s["key"] for s in looking.seen(pathlib.Path(out))} - {s["key"] for s in one.samples}
    t.check(out, [*one.samples, *({**one.samples[-1], "key": key, "image": new} for key in keys)])


@verb()
def append_choice(t: Trial) -> None:
    """What a pack leaves out does not come with what is appended."""
    choice = t.draw.choice([("--exclude", "*0[27]*"), ("--limit", "5"), ("--dedupe", "drop")])
    first, whole = t.first, t.samples
    if choice[0] == "--dedupe":
        first, whole = [*first, twin(first[3])], [*whole, twin(first[3])]
    out, one = t.sharded(first, "pack", *choice)
    source = t.written(whole, "source_pack")
    t.append(out, source)
    wanted = {
        "--exclude": [s for s in source.samples if not fnmatch.fnmatchcase(s["key"], "*0[27]*")],
        "--limit": one.samples[:5],
        "--dedupe": [s for s in source.samples if "89" not in s["key"]],
    }[choice[0]]
    t.check(out, wanted)


@verb(*RESIZED)
def append_converted(t: Trial) -> None:
    """What is appended is made as the pack was made, also after it was converted or merged."""
    one, a = t.sharded(t.first, "one", "--resize", "exact=8x8")
    out = t.out("converted", t.cell.other)
    t.run("convert", one, out, "--shard-size", str(5 * described.SIZE))
    b = t.written(t.second, "source_more")
    t.append(out, b)
    t.check(out, [resized(s) for s in [*a.samples, *b.samples]])


@verb("split=all")
def append_splits(t: Trial) -> None:
    """Samples that are appended one by one go to all splits; those that are there stay."""
    out, _ = t.sharded(t.first, "pack", "--split", "train=0.5,val=0.5")
    before = {s["key"]: s["split"] for s in looking.seen(pathlib.Path(out))}
    several = t.dataset(14)
    for last in range(len(t.first) + 1, len(several)):
        source = t.written([*t.first, *several[len(t.first) : last]], "source_pack")
        t.append(out, source)
    after = {s["key"]: s["split"] for s in looking.seen(pathlib.Path(out))}
    if moved := [key for key in before if after[key] != before[key]]:
        t.fail(f"appending moves {moved} to another split")
    drawn = [name for key, name in after.items() if key not in before]
    if drawn and not {"train", "val"} <= set(drawn):
        t.fail(f"{len(drawn)} samples appended one by one are all in {set(drawn)}")
    t.check(out, [s | {"split": after[s["key"]]} for s in source.samples])


@verb("split=all")
def grown_splits(t: Trial) -> None:
    """A dataset that has grown, packed anew: the shares are exact in each class, before and after.

    So some samples move to another split, all of a class in the same direction.
    """
    share = ("--split", "train=0.5,val=0.5")
    many = t.dataset(40)
    one, _ = t.packed(many[:12] + many[20:32], "one", *share)
    two, _ = t.packed(many, "two", *share)
    before, after = ({s["key"]: s for s in looking.seen(pathlib.Path(p))} for p in (one, two))
    for seen in (before, after):
        for label, splits in _by_class(t, seen.values()).items():
            if abs(splits.count("train") - splits.count("val")) > 1:
                t.fail(f"of {label}: {splits.count('train')} train, {splits.count('val')} val")
    moved: dict[object, set[str]] = {}
    for key, sample in before.items():
        if after[key]["split"] != sample["split"]:
            moved.setdefault(_class(t, sample), set()).add(after[key]["split"])
    if both := [label for label, into in moved.items() if len(into) > 1]:
        t.fail(f"samples of {both} move to train, others of them to val")


def _by_class(t: Trial, seen: Iterable[Sample]) -> dict[object, list[str]]:
    """The splits of all samples of each class; of all samples, if they have no single class."""
    found: dict[object, list[str]] = {}
    for sample in seen:
        found.setdefault(_class(t, sample), []).append(sample["split"])
    return found


def _class(t: Trial, sample: Sample) -> object:
    ways = ("class", "number")
    return sample.get("label") if t.annotations.get("label") in ways else None


# Several packs


@verb()
def merge(t: Trial) -> None:
    """Two packs of other class orders and formats, merged into one."""
    one, a = t.packed(t.first, "one")
    source = t.written(t.second, "source_two")
    two = t.out("two", t.cell.other)
    t.run("pack", *source.arguments, two, "--shards", "2")
    t.run("merge", one, two, "-o", t.out("all"))
    t.check(t.out("all"), [*a.samples, *source.samples], ordered=True)
    t.run("verify", t.out("all"))


@verb()
def merge_on(t: Trial) -> None:
    """Two packs of other class orders, merged into one; then converted, and appended to."""
    one, a = t.sharded(t.first, "one")
    two, b = t.sharded(t.second[:-2], "two")
    out = t.out("all")
    t.run("merge", one, two, "-o", out, "--shards", "2")
    t.check(out, [*a.samples, *b.samples], ordered=True)
    t.run("verify", out)
    t.run("convert", out, t.out("other", t.cell.other))
    t.check(t.out("other", t.cell.other), [*a.samples, *b.samples], ordered=True)
    more = t.written(t.second[-2:], "source_more")
    t.append(out, more)
    t.check(out, [*a.samples, *b.samples, *more.samples])


@verb()
def convert(t: Trial) -> None:
    """Another format, and back."""
    out, source = t.packed(t.samples)
    t.run("convert", out, t.out("other", t.cell.other), "--shards", "2")
    t.check(t.out("other", t.cell.other), source.samples, ordered=True)
    t.run("convert", t.out("other", t.cell.other), t.out("back"))
    t.check(t.out("back"), source.samples, ordered=True)


@verb("split=all")
def convert_splits(t: Trial) -> None:
    """Splits that packing drew are there after a conversion."""
    out, source = t.packed(t.samples, "pack", "--split", "a=0.5,b=0.5")
    drawn = {s["key"]: s["split"] for s in looking.seen(pathlib.Path(out))}
    t.run("convert", out, t.out("other", t.cell.other))
    wanted = [s | {"split": drawn[s["key"]]} for s in source.samples]
    t.check(t.out("other", t.cell.other), wanted, ordered=True)


@verb()
def extract(t: Trial) -> None:
    """Into a folder, and from the folder into a pack."""
    out, source = t.packed(t.samples)
    folder = str(t.folder / "extracted")
    t.run("extract", out, folder)
    t.run("pack", folder, t.out("again", t.cell.other))
    t.check(t.out("again", t.cell.other), source.samples)


# Killed, and at once


@verb()
def kill_and_change(t: Trial) -> None:
    """Packing that is killed, and goes on from a source that has changed: nothing is mixed."""
    other = [described.changed(s, "image", i) for i, s in enumerate(t.samples)]
    replace = t.replaced(other, "source_pack")
    source, out = t.written(t.samples, "source_pack"), t.out("pack")
    changes = t.run("pack", *source.arguments, t.out("count"), "--shards", "4").changes
    kill_at = t.draw.randrange(changes // 2, changes + 1)
    ran = t.run("pack", *source.arguments, out, "--shards", "4", code=(0, KILLED), kill_at=kill_at)
    source = replace()
    is_there = ["--overwrite"] if ran.code == 0 or pathlib.Path(out).exists() else []
    t.run("pack", *source.arguments, out, "--shards", "4", *is_there)
    t.check(out, source.samples, ordered=True)


@verb()
def two_packs(t: Trial) -> None:
    """Two that pack into one place: one does it, the other is done, too, or is locked out."""
    source, out = t.written(t.samples), t.out("pack")
    told = ["pack", *source.arguments, out]
    stop_at = t.draw.randrange(1, 20)
    both = [Command(told, stop_at=stop_at), Command(told)]
    codes = sorted(r.code for r in t.run_all(both, (0, LOCKED)))
    if codes[0]:
        t.fail("both are locked out")
    t.check(out, source.samples, ordered=True)


@verb()
def two_appends(t: Trial) -> None:
    """Two that append to one pack: the samples of each that ends well are there."""
    out, one = t.sharded(t.samples[:4])
    parts = [t.written(t.samples[4:8], "b"), t.written(t.samples[8:], "c")]
    # The first one is stopped early, goes on when the second one has ended, and must see that.
    stops = (t.draw.choice([1, 2, 2, 4, 8, 16]), None)
    commands = [
        Command(["append", out, *part.arguments, "--workers", "1"], stop_at=stop)
        for part, stop in zip(parts, stops, strict=True)
    ]
    ran = t.run_all(commands, (0, LOCKED))
    wanted = [*one.samples]
    for part, result in zip(parts, ran, strict=True):
        wanted += part.samples if result.code == 0 else []
    t.check(out, wanted)
    for part, result in zip(parts, ran, strict=True):
        if result.code:
            t.append(out, part)
    t.check(out, [*one.samples, *parts[0].samples, *parts[1].samples])


@verb()
def append_and_overwrite(t: Trial) -> None:
    """One appends while another replaces the pack: both whole, or one is locked out."""
    out, one = t.sharded(t.samples[:4])
    b, c = t.written(t.samples[4:8], "b"), t.written(t.samples[8:], "c")
    shard = ["--shard-size", str(5 * described.SIZE), "--overwrite"]
    commands = [
        Command(["append", out, *b.arguments], stop_at=t.draw.choice([1, 1, 2, 4, 8, 16])),
        Command(["pack", *c.arguments, out, *shard]),
    ]
    ran = t.run_all(commands, (0, LOCKED))
    number = len(looking.seen(pathlib.Path(out)))
    possible = {
        (0, 0): [[*c.samples], [*c.samples, *b.samples]], (LOCKED, 0): [c.samples],
        (0, LOCKED): [[*one.samples, *b.samples]], (LOCKED, LOCKED): [one.samples],
    }[ran[0].code, ran[1].code]  # fmt: skip
    wanted = next((p for p in possible if len(p) == number), possible[0])
    t.check(out, wanted)
    t.run("verify", out)
