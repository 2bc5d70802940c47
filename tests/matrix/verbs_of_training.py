"""Verbs of training: steps replayed, batches of one aspect ratio, several crops of one image."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import crops
import torch
from torch.utils.data import DataLoader
from verbs import verb

import packio

if TYPE_CHECKING:
    from described import Sample
    from PIL import Image
    from trials import Trial

_USAGE = 2  # exit code
_BATCH, _PAIR = 5, 2
_SEED, _HFLIP, _VFLIP = 7, 0.5, 0.3
# One ratio twice; the middle between two ratios is the ratio of no image, so no image is a tie.
_SIZES = [(20, 12), (9, 9), (16, 16), (12, 20)]


# Replay


@verb()
def replay(t: Trial) -> None:
    """Steps of two epochs, told without a log: keys, labels, and the very crops."""
    out, source = t.sharded(t.samples)
    way = t.draw.choice([_loader, _loader, _dataloader])
    recorded, options = way(t, out)
    last = len(recorded[0]) - 1
    steps = ("--state", str(t.folder / "state.pt"), "--steps", f"0-{last}")
    told = [_told(t, out, *steps, *options, "--epoch", str(epoch)) for epoch in range(2)]
    for batches, run in zip(told, recorded, strict=True):
        _check_replay(t, batches, run, source.samples)
    t.run("convert", out, t.out("other", t.cell.other), "--shards", "2")
    again = _told(t, t.out("other", t.cell.other), *steps, *options, "--epoch", "1")
    if again != told[1]:
        t.fail("the converted pack replays other samples or crops")
    more = t.written([*t.samples, *t.dataset(16)[12:]], "source_pack")
    if len(more.samples) > len(source.samples):
        t.append(out, more)
        ran = t.run("replay", out, *steps, *options, "--json", code=_USAGE)
        if str(len(more.samples)) not in ran.said or str(len(source.samples)) not in ran.said:
            t.fail(f"a pack that has grown is refused without both numbers: {ran.said[-300:]}")


_Recorded = list[list[tuple[Any, list[str]]]]  # of each epoch the batches: images, keys


def _loader(t: Trial, out: str) -> tuple[_Recorded, list[str]]:
    """Two epochs of packio's Loader, whose state says everything."""
    crop = t.draw.choice([
        packio.RandomResizedCrop((9, 7)), packio.RandomCrop(14, padding=2),
        packio.ResizeCenterCrop(10), packio.CenterCrop((16, 11)),
    ])  # fmt: skip
    loader = packio.Loader(_dataset(out, crop=crop), _BATCH, shuffle=True)
    recorded: _Recorded = [list(loader), []]
    at = t.draw.randrange(2)
    for step, batch in enumerate(loader):
        recorded[1].append(batch)
        if step == at:
            torch.save({"model": {}, "loader": loader.state_dict()}, t.folder / "state.pt")
    return recorded, []


def _dataloader(t: Trial, out: str) -> tuple[_Recorded, list[str]]:
    """Two epochs of torch's DataLoader: the state of the sampler says the order alone."""
    data = _dataset(out, crop=packio.RandomResizedCrop(9))
    sampler = packio.ShuffleSampler(data, seed=3)
    loader: Any = DataLoader(data, _BATCH, sampler=sampler, collate_fn=packio.collate)
    recorded = [list(loader) for _ in range(2)]
    torch.save(sampler.state_dict(len(sampler)), t.folder / "state.pt")
    flips = ["--hflip", str(_HFLIP), "--vflip", str(_VFLIP)]
    size = ["--batch-size", str(_BATCH), "--crop", "9"]
    return recorded, ["--seed", str(_SEED), *size, *flips]


def _dataset(out: str, **options: Any) -> packio.PackDataset:
    how = {"hflip": _HFLIP, "vflip": _VFLIP, "seed": _SEED, "fields": ("image", "key")}
    return packio.PackDataset(out, **{**how, **options})


def _told(t: Trial, out: str, *options: str) -> list[dict[str, Any]]:
    """What `packio replay --json` prints of the batches."""
    printed = json.loads(t.run("replay", out, *options, "--json").printed)
    found: list[dict[str, Any]] = printed["batches"]
    return found


def _check_replay(
    t: Trial, batches: list[dict[str, Any]], recorded: list[tuple[Any, list[str]]],
    samples: list[Sample],
) -> None:  # fmt: skip
    """Compare the steps of an epoch with its recorded batches, and these with the source."""
    keys = [[sample["key"] for sample in batch["samples"]] for batch in batches]
    if keys != [list(seen) for _, seen in recorded]:
        t.fail(f"replay tells {keys}, the run had {[list(seen) for _, seen in recorded]}")
    by_key = {sample["key"]: sample for sample in samples}
    if (epoch := sorted(key for several in keys for key in several)) != sorted(by_key):
        t.fail(f"an epoch has {epoch}")
    for batch, (images, _) in zip(batches, recorded, strict=True):
        for slot, told in enumerate(batch["samples"]):
            sample = by_key[told["key"]]
            (crop,) = told["crops"]
            if found := crops.difference(crop, crops.upright(sample["image"]), images[slot]):
                t.fail(f"{told['key']}: {found}")
            label = sample.get("label", -1)
            if isinstance(label, str) and told["class"] != label:
                t.fail(f"{told['key']}: replay tells the class {told['class']!r}, not {label!r}")
            if isinstance(label, int) and label != -1 and told["label"] != label:
                t.fail(f"{told['key']}: replay tells the label {told['label']!r}, not {label}")


# Buckets


@verb()
def buckets(t: Trial) -> None:
    """Batches of one size each, of a pack, and after more was appended to it."""
    out, one = t.sharded(t.first)
    _check_buckets(t, out, one.samples)
    source = t.written(t.samples, "source_pack")
    t.append(out, source)
    _check_buckets(t, out, source.samples)


@verb()
def buckets_merged(t: Trial) -> None:
    """The same of two packs, merged into one."""
    one, a = t.sharded(t.first, "one")
    two, b = t.packed(t.second, "two")
    t.run("merge", one, two, "-o", t.out("all"))
    _check_buckets(t, t.out("all"), [*a.samples, *b.samples])


def _check_buckets(t: Trial, out: str, samples: list[Sample]) -> None:
    """Compare two epochs of batches by aspect ratio with plain arithmetic and Pillow."""
    position, small = t.draw.choice(["random", "center"]), t.draw.choice(["enlarge", "pad"])
    leftovers = t.draw.choice(["short", "carry", "drop"])
    data = _dataset(out, crop=packio.BucketCrop(position=position, small=small))
    sampler, same = (
        packio.BucketSampler(data, _SIZES, batch_size=_PAIR, seed=2, leftovers=leftovers)
        for _ in range(2)
    )
    images = {sample["key"]: crops.upright(sample["image"]) for sample in samples}
    fits = {key: crops.bucket_of((i.height, i.width), _SIZES) for key, i in images.items()}
    if (found := {b.size: b.images for b in sampler.buckets if b.images}) != Counter(fits.values()):
        t.fail(f"buckets are {found}, not {Counter(fits.values())}")
    loader = packio.Loader(data, batch_sampler=sampler)
    epochs: list[list[list[str]]] = []  # the keys of each batch
    for _ in range(2):
        epochs.append([])
        for (pixels, keys), drawn in zip(loader, same, strict=True):
            epochs[-1].append(list(keys))
            for seen, key, index in zip(pixels, keys, drawn, strict=True):
                crop, image = crops.told(data.draw_of(index)), images[key]
                wrong = _wrong_box(crop, image, fits[key], position, is_padded=small == "pad")
                if wrong := wrong or crops.difference(crop, image, seen):
                    t.fail(f"{key}: {wrong}")
    _check_epochs(t, leftovers, epochs, fits)


def _wrong_box(
    crop: crops.Crop, image: Image.Image, size: crops.Size, position: str, *, is_padded: bool
) -> str:
    """What is wrong with the box that is taken for a size; "" if nothing."""
    sides = (image.height, image.width)
    box, to, start = crops.box_of(sides, size), size, (crop["top"], crop["left"])
    room = [a - b for a, b in zip(sides, box, strict=True)]
    if is_padded and (sides[0] < size[0] or sides[1] < size[1]):
        box, to, start = sides, sides, (crop["out_top"], crop["out_left"])
        room = [a - b for a, b in zip(sides, size, strict=True)]
    if (crop["out_height"], crop["out_width"]) != size:
        return f"it gets the size of {crop}, but {size} fits {sides} best"
    found = (crop["height"], crop["width"]), (crop["to_height"], crop["to_width"])
    is_centered = all(abs(2 * a - b) <= 1 for a, b in zip(start, room, strict=True))
    if found != (box, to) or (position == "center" and not is_centered):
        return f"the box {crop} of {sides} for {size} is not {box}, {position}"
    return ""


def _check_epochs(
    t: Trial, leftovers: str, epochs: list[list[list[str]]], fits: dict[str, crops.Size]
) -> None:
    """Check that batches have their size, and that each sample comes as often as it should."""
    seen: Counter[str] = Counter()
    for number, batches in enumerate(epochs, 1):
        seen.update(key for keys in batches for key in keys)
        for size, count in Counter(fits.values()).items():
            lengths = sorted(len(keys) for keys in batches if fits[keys[0]] == size)
            total = number * count // _PAIR * _PAIR - (number - 1) * count // _PAIR * _PAIR
            each, rest = divmod(count if leftovers != "carry" else total, _PAIR)
            wanted = [*([rest] if rest and leftovers == "short" else []), *[_PAIR] * each]
            if lengths != wanted:
                t.fail(f"{leftovers}: epoch {number} has batches of {lengths} of {size}")
        least = {"short": number, "drop": 0, "carry": number - 1}[leftovers]
        if wrong := {key: seen[key] for key in fits if not least <= seen[key] <= number}:
            t.fail(f"{leftovers}: in {number} epochs samples came so often: {wrong}")


# Views


@verb()
def views(t: Trial) -> None:
    """Several crops of one read, with the masks and further images of each; also converted."""
    out, source = t.packed(t.samples)
    possible = [
        packio.RandomResizedCrop(9), packio.RandomResizedCrop((8, 12), scale=(0.05, 0.4)),
        packio.RandomCrop((12, 15), padding=2), packio.CenterCrop(10), packio.ResizeCenterCrop(8),
    ]  # fmt: skip
    chosen = t.draw.sample(possible, t.draw.choice([2, 3]))
    _check_views(t, out, source.samples, chosen)
    t.run("convert", out, t.out("other", t.cell.other))
    _check_views(t, t.out("other", t.cell.other), source.samples, chosen)


def _check_views(t: Trial, out: str, samples: list[Sample], chosen: list[Any]) -> None:
    """Compare each view of each sample with what Pillow makes of its draw."""
    fields = ["image", "key"]
    fields += ["mask"] if any("mask" in sample for sample in samples) else []
    fields += ["depth"] if any("depth" in s.get("fields", {}) for s in samples) else []
    data = _dataset(out, views=chosen, fields=tuple(fields))
    sampler, same = (packio.ShuffleSampler(data, seed=4) for _ in range(2))
    by_key = {sample["key"]: sample for sample in samples}
    pictures = {key: _pictures(sample) for key, sample in by_key.items()}
    drawn = list(same)
    seen: list[str] = []
    for batch in packio.Loader(data, _BATCH, sampler=sampler):
        made = dict(zip(fields, batch, strict=True))
        for slot, key in enumerate(made["key"]):
            placements: Any = data.draw_of(drawn[len(seen)])
            seen.append(key)
            for name in {*fields} - {"key"}:
                of_views = zip(placements, made[name], strict=True)
                for number, (placement, view) in enumerate(of_views):
                    image = pictures[key].get(name)
                    if wrong := _wrong_view(placement, name, image, view[slot]):
                        t.fail(f"{key}: {name} of view {number}: {wrong}")
    if sorted(seen) != sorted(by_key):
        t.fail(f"an epoch has {sorted(seen)}")


def _wrong_view(placement: Any, name: str, image: Image.Image | None, seen: Any) -> str:
    """What is wrong with a view of a field; "" if nothing."""
    if image is not None:
        return crops.difference(crops.told(placement), image, seen)
    is_nothing = seen is None if name != "mask" else bool((seen == crops.IGNORED).all())
    return "" if is_nothing else "it is there, and was not packed"


def _pictures(sample: Sample) -> dict[str, Image.Image]:
    """The image, the mask and the depth of a sample, upright; what it lacks is not there."""
    found = {"image": crops.upright(sample["image"])}
    if "mask" in sample:
        found["mask"] = crops.upright_beside(sample["mask"], sample["image"])
    if "depth" in sample.get("fields", {}):
        found["depth"] = crops.upright_beside(
            sample["fields"]["depth"][1], sample["image"]
        ).convert("RGB")
    return found
