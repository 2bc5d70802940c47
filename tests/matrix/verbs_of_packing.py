"""Verbs that make one pack of a source."""

from __future__ import annotations

import fnmatch
import io
import pathlib
from typing import TYPE_CHECKING

import described
import looking
from PIL import Image
from verbs import EXISTS, RESIZED, resized, twin, verb

if TYPE_CHECKING:
    from trials import Trial


@verb()
def pack(t: Trial) -> None:
    """Pack; pack again: up to date."""
    out, source = t.packed(t.samples)
    t.check(out, source.samples, ordered=True)
    t.run("verify", out)
    t.run("pack", *source.arguments, out)


@verb()
def shards(t: Trial) -> None:
    """Pack into shards."""
    out, source = t.packed(t.samples, "pack", "--shards", "3")
    t.check(out, source.samples, ordered=True)
    t.run("verify", out)


@verb()
def limit(t: Trial) -> None:
    """The first samples."""
    number = t.draw.randrange(1, described.COUNT // 2)
    out, source = t.packed(t.samples, "pack", "--limit", str(number))
    t.check(out, source.samples[:number], ordered=True)


@verb()
def shuffle(t: Trial) -> None:
    """Another order, the same each time."""
    out, source = t.packed(t.samples, "pack", "--shuffle", "3")
    t.check(out, source.samples)
    order = [s["key"] for s in looking.seen(pathlib.Path(out))]
    if order == [s["key"] for s in source.samples]:
        t.fail("--shuffle 3 keeps the order")
    t.run("pack", *source.arguments, t.out("again"), "--shuffle", "3")
    if order != [s["key"] for s in looking.seen(pathlib.Path(t.out("again")))]:
        t.fail("--shuffle 3 gives two orders")


@verb()
def include(t: Trial) -> None:
    """Samples whose keys match one pattern, and do not match another one."""
    out, source = t.packed(t.samples, "pack", "--include", "*[02468]*", "--exclude", "*06*")
    keys = fnmatch.filter([s["key"] for s in source.samples], "*[02468]*")
    keys = [key for key in keys if not fnmatch.fnmatchcase(key, "*06*")]
    t.check(out, [s for s in source.samples if s["key"] in keys], ordered=True)


@verb()
def dedupe(t: Trial) -> None:
    """Of samples with the same bytes the first one, or all."""
    out, source = t.packed([*t.samples, twin(t.samples[3])], "pack", "--dedupe", "drop")
    t.check(out, [s for s in source.samples if "89" not in s["key"]], ordered=True)
    t.run("pack", *source.arguments, t.out("all"), "--dedupe", "report")
    t.check(t.out("all"), source.samples, ordered=True)


@verb("split=all", only=())
def split(t: Trial) -> None:
    """Splits that are drawn: shares of all samples, the same each time."""
    share = ("--split", "train=0.75,val=0.25")
    out, source = t.packed(t.samples, "pack", *share)
    drawn = {s["key"]: s.get("split") for s in looking.seen(pathlib.Path(out))}
    number = sum(name == "val" for name in drawn.values())
    if set(drawn.values()) != {"train", "val"} or not 1 <= number <= described.COUNT // 2:
        t.fail(f"splits are {drawn}")
    wanted = [s | {"split": drawn[s["key"]]} for s in source.samples]
    t.check(out, wanted, ordered=True)
    t.run("pack", *source.arguments, t.out("again"), *share)
    t.check(t.out("again"), wanted, ordered=True)


@verb(*RESIZED)
def resize(t: Trial) -> None:
    """All images of another size; nothing else changes."""
    out, source = t.packed(t.samples, "pack", "--resize", "exact=8x8")
    t.check(out, [resized(s) for s in source.samples], ordered=True)


@verb()
def encode(t: Trial) -> None:
    """Pixels in another encoding without loss, then in another format; or open coefficients."""
    encoding = t.draw.choice(["raw", "png", "bmp", "dct"])
    t.samples = t.dataset(same_size=True)
    out, source = t.packed(t.samples, "pack", "--encode", encoding)
    wanted = [] if encoding != "dct" else source.samples  # the same JPEGs come back
    for sample in source.samples if encoding != "dct" else ():
        with Image.open(io.BytesIO(sample["image"])) as image:
            pixels = looking.pixels_of(image)
        wanted.append({**sample, "pixels": pixels, "unknown": ("image",)})
    t.check(out, wanted, ordered=True)
    t.run("convert", out, t.out("other", t.cell.other))
    t.check(t.out("other", t.cell.other), wanted, ordered=True)


@verb()
def overwrite(t: Trial) -> None:
    """A pack in the place of another one; refused without the option."""
    out, _ = t.packed(t.first)
    source = t.written(t.samples, "other")
    t.run("pack", *source.arguments, out, code=EXISTS)
    t.run("pack", *source.arguments, out, "--overwrite")
    t.check(out, source.samples, ordered=True)


@verb()
def same_times(t: Trial) -> None:
    """Files were replaced by others of the same sizes and times: this is another source."""
    other = [described.changed(s, "image", i) for i, s in enumerate(t.samples)]
    replace = t.replaced(other, "source_pack")
    out, _ = t.packed(t.samples)
    source = replace()
    ran = t.run("pack", *source.arguments, out, code=(0, EXISTS))
    if ran.code == 0:
        t.check(out, source.samples, ordered=True)
        t.fail("it replaces a pack without --overwrite")
    t.run("pack", *source.arguments, out, "--overwrite")
    t.check(out, source.samples, ordered=True)


@verb()
def parts(t: Trial) -> None:
    """Two parts, put together; a command that forgets an option spoils nothing."""
    source, out = t.written(t.samples), t.out("pack")
    told = ["pack", *source.arguments, out, "--shards", "4", "--exclude", "*07*"]
    for part in ("1/2", "2/2"):
        t.run(*told, "--part", part)
    t.run(*told[:-2], "--finish", code=(2, 65, EXISTS, 74))
    t.run(*told, "--finish")
    t.check(out, [s for s in source.samples if "07" not in s["key"]], ordered=True)


@verb("label=number", "label=vector", "generator",
      only=("label=class", "label=many", "boxes"))  # fmt: skip
def classes_from(t: Trial) -> None:
    """Labels that are counted as a list says: in another order, with a class more."""
    out, source = t.packed(t.samples)
    names = looking.classes(pathlib.Path(out))
    file = t.folder / "names.txt"
    file.write_text("".join(f"{name}\n" for name in ["zebra", *sorted(names)]), "utf-8")
    t.run("pack", out, t.out("named"), "--classes-from", str(file))
    t.check(t.out("named"), source.samples, ordered=True)
