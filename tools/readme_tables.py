"""Fill the tables of docs/ from what the benchmarks wrote to benchmarks/results.

A table stands on one page, between ``<!-- name:begin -->`` and ``<!-- name:end -->``, and is made
of ``benchmarks/results/<its file>``; without that file it stays as it is. Figures are copied and
rounded, never typed.

    packio bench-decode --json > benchmarks/results/decode.json
    python tools/readme_tables.py            # write the pages
    python tools/readme_tables.py --check    # exit with 1 where a page is stale
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import sys
from typing import TYPE_CHECKING, Any

import at_scale_tables
import dct_tables

if TYPE_CHECKING:
    from collections.abc import Callable

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
RESULTS = REPOSITORY / "benchmarks" / "results"

Json = dict[str, Any]


def decoders(result: Json) -> str:
    """Make the table of decoders from what ``packio bench-decode --json`` wrote."""
    lines = [_conditions(result)]
    for encoding in dict.fromkeys(row["encoding"] for row in result["rows"]):
        rows = [r for r in result["rows"] if r["encoding"] == encoding and _is_in_process(r)]
        lines += ["", *_decoder_table(encoding, rows, result["versions"])]
    return "\n".join(lines)


def faults(card: Json) -> str:
    """Make the table of the crash campaign: passed of tried, a row a format."""
    kinds = list(dict.fromkeys(k for row in card["formats"].values() for k in row))
    lines = [
        f"| | {' | '.join(kinds)} | lost, doubled, wrong | worst redo, shards |",
        "|---|" + "---:|" * (len(kinds) + 2),
    ]
    for suffix, row in card["formats"].items():
        cells = [f"{row[k]['passed']:,}/{row[k]['trials']:,}" if k in row else "" for k in kinds]
        sums = [str(sum(r[n] for r in row.values())) for n in ("lost", "duplicated", "wrong")]
        redo = str(max(r["worst_redo"] for r in row.values()))
        lines.append(f"| {' | '.join([suffix, *cells, ', '.join(sums), redo])} |")
    return "\n".join(lines)


def parity(result: Json) -> str:
    """Make the table of fidelities from what ``packio bench-decode --parity --json`` wrote."""
    rows, size = result["rows"], result["size"]
    pillow = max(r["pillow"]["maximum"] for r in rows if r["fidelity"] == "exact")
    title = (
        f"{rows[0]['crops']:,} RandomResizedCrops of {result['images']:,} JPEGs "
        f"({result['origin']}), to {size} x {size}, {result['interpolation']}, against "
        f"torchvision v2's of tensors ({result['reference']}). Exact differs from Pillow's by "
        f"{pillow} at most."
    )
    lines = [
        title,
        "",
        "| decoder, fidelity | max, grey levels | mean | PSNR mean, dB | PSNR min | off by > 1 |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        found = row["torchvision"]
        same = "identical" if not found["maximum"] else f"{found['psnr']:.1f}"
        low = f"{found['lowest_psnr']:.1f}" if found["maximum"] else ""
        first = f"{row['decoder']} {result['versions'][row['decoder']]}, {row['fidelity']}"
        cells = [str(found["maximum"]), f"{found['mean']:.2f}", same, low, f"{found['off']:.1%}"]
        lines.append(f"| {' | '.join([first, *cells])} |")
    return "\n".join(lines)


def _conditions(result: Json) -> str:
    """Say what was measured on what."""
    origin = result["origin"]
    if pathlib.PurePath(origin).is_absolute():
        sys.exit(f"{origin}: a path of one machine; measure images named by a relative path")
    images, rounds = result["images"], result["rounds"]
    return (
        f"{images:,} images ({origin}; {result['pixels'] / images / 1e6:.2f} megapixels and "
        f"{result['bytes'] / images / 1e3:.0f} kB on average), {result['cpu']}, "
        f"{result['cpus']} CPUs. Images decoded whole, to RGB, per second: "
        f"median of {rounds} rounds (slowest to fastest)."
    )


def _is_in_process(row: Json) -> bool:
    return bool(row["stage"] == "decode" and not row["workers"])


def _decoder_table(encoding: str, rows: list[Json], versions: Json) -> list[str]:
    threads = sorted({row["threads"] for row in rows})
    speed = {(row["decoder"], row["threads"]): row for row in rows}
    order = sorted(
        {row["decoder"] for row in rows},
        key=lambda name: -speed[name, threads[0]]["images_per_second"],
    )
    titles = [f"{n} thread{'s' * (n > 1)}" for n in threads]
    lines = [
        f"| {encoding} | {' | '.join(titles)} | ms an image, median | pixels against Pillow's |",
        "|---|" + "---:|" * len(threads) + "---:|---|",
    ]
    for name in order:
        first = speed[name, threads[0]]
        rates = [_rate(speed[name, n]) for n in threads]
        cells = [f"{name} {versions[name]}", *rates, f"{first['ms_p50']:.2f}", _parity(first)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _rate(row: Json) -> str:
    return f"{row['images_per_second']:,.0f} ({row['slowest']:,.0f} to {row['fastest']:,.0f})"


def _parity(row: Json) -> str:
    refused, difference = row["refused"], row["difference"]
    if difference is None:
        return "refused all; Pillow decoded them"
    if difference["maximum"] == 0:
        words = "identical"
    else:
        words = f"differ by up to {difference['maximum']} in {difference['share']:.2%} of them"
    return words + (f"; {refused} of {row['images']} left to Pillow" if refused else "")


def peers(result: Json) -> str:
    """Make the tables of peers from what ``benchmarks/peers/run.py`` wrote, one a work."""
    machine = result["machine"]
    conditions = (
        f"{machine['cpu']}, {machine['cores']} cores, images in the page cache. Each peer by its "
        "fastest way; packio in LMDB, other formats in a row of their own. The last column: how "
        "many times as many images packio's fastest way made in the same round. Medians (lowest "
        "to highest)."
    )
    lines = [conditions]
    for work in result["works"].values():
        own = _fastest(work, "packio", True)
        over = work["packio_over"][own.removeprefix("packio, ")]
        lines += [
            "",
            f"| {work['says']}{_size(work)} | images/s | ms of a core | {own} |",
            "|---|---:|---:|---:|",
        ]
        lines += [_peer_row(result, work, name, over.get(name)) for name in _shown(work)]
        others = [rate for rate in _others(work) if rate]
        if others:
            lines.append(
                f"| packio, in other formats | {min(others):,.0f} to {max(others):,.0f} | | |"
            )
    return "\n".join(lines)


_CORE = {
    "simplejpeg": "simplejpeg, as they are", "core, no seek points": "native, as they are",
    "core, seek points": "native, seek points",
    "progressive, simplejpeg": "simplejpeg, progressive",
    "progressive, core": "native, progressive",
}  # fmt: skip


def core(result: Json) -> str:
    """Make the table of the native core from what ``benchmarks/native.py`` wrote."""
    bytes_ = result["packs"]["as they are"]["bytes"]
    works = result["works"].values()
    declined = max(row["declined"] for work in works for row in work.values())
    conditions = (
        f"One thread, µs an image: medians of {result['rounds']} rounds (times as fast as "
        f"simplejpeg in the same round); {result['machine']['cpu']}. The JPEGs "
        f"({result['images']}) take {bytes_ / 1e6:.1f} MB; the core leaves {declined} of them to a "
        "library."
    )
    lines = [conditions, "", f"| | {' | '.join(_CORE)} |", "|---|" + "---:|" * len(_CORE)]
    for name, work in result["works"].items():
        rows = [work[f"{way}, 1 thread"] for way in _CORE.values()]
        cells = [f"{row['us']['median']:,}" for row in rows]
        cells = [
            cell if "simplejpeg" in way else f"{cell} ({row['times_as_fast']['median']:.2f})"
            for way, cell, row in zip(_CORE, cells, rows, strict=True)
        ]
        lines.append(f"| {' | '.join([name, *cells])} |")
    return "\n".join(lines)


_STAGES = {
    "Python": ("Python", ""), "read": ("read", ""), "CRC32C": ("check", ""),
    "plan": ("plan", ""),
    "copy bytes": ("copy", ""), "entropy decoding": ("entropy", "decoded"),
    "inverse DCT": ("IDCT", "needed"), "upsampling, colour": ("colour", ""),
    "resize across": ("across", ""), "resize down": ("down", ""),
}  # fmt: skip


def stages(result: Json) -> str:
    """Make the table of the core's stages from what ``benchmarks/stages.py`` wrote."""
    works = result["works"]
    conditions = (
        f"One thread, JPEGs with seek points ({result['images']}), µs an image (ns a block): "
        f"medians of {result['rounds']} rounds; {result['machine']['cpu']}."
    )
    lines = [
        conditions,
        "",
        f"| | {' | '.join(works)} |",
        "|---|" + "---:|" * len(works),
    ]
    for title, (name, of) in _STAGES.items():
        cells = []
        for work in works.values():
            blocks, micros = work["blocks"], work["us"][name]["median"]
            count = blocks["decoded"] if of == "decoded" else _needed(blocks)
            cells.append(f"{micros:.1f}" + (f" ({1e3 * micros / count:.1f})" if of else ""))
        lines.append(f"| {' | '.join([title, *cells])} |")
    whole = [f"{work['us']['whole, without clocks']['median']:.0f}" for work in works.values()]
    found = [
        f"{work['blocks']['decoded']:,} ({_needed(work['blocks']):,})" for work in works.values()
    ]
    lines.append(f"| whole, without clocks | {' | '.join(whole)} |")
    lines.append(f"| blocks decoded (needed) | {' | '.join(found)} |")
    return "\n".join(lines)


def _needed(blocks: Json) -> int:
    return int(sum(count for name, count in blocks.items() if name != "decoded"))


def memory_format(result: Json) -> str:
    """Make the tables of layouts from what ``packio bench-memory-format --json`` wrote."""
    machine, rows = result["machine"], result["rows"]
    on = machine["cpu"] if machine["device"] == "cpu" else machine["device"]
    size = f"{result['size']} x {result['size']}"
    conditions = (
        f"Batches of {result['batch_size']} images of {size}; {on}, {machine['threads']} threads, "
        f"torch {machine['torch']}. Milliseconds, and times as long as contiguous ones in the same "
        f"round: medians of {result['rounds']} rounds (lowest to highest)."
    )
    lines = [conditions]
    for first, is_data in (("images, model", False), ("uint8 images", True)):
        chosen = [r for r in rows if (r["part"] == "data") == is_data]
        columns = list(dict.fromkeys((r["part"], r["stage"], r["dtype"]) for r in chosen))
        titles = [
            stage if is_data else f"{part} {stage}, {dtype}" for part, stage, dtype in columns
        ]
        lines += ["", f"| {first} | {' | '.join(titles)} |", "|---|" + "---:|" * len(columns)]
        for layout in dict.fromkeys((r["images"], r["model"]) for r in chosen):
            here = [r for r in chosen if (r["images"], r["model"]) == layout]
            cells = {(r["part"], r["stage"], r["dtype"]): _times(r) for r in here}
            name = ", ".join(filter(None, layout))
            lines.append(f"| {name} | {' | '.join(cells[column] for column in columns)} |")
    return "\n".join(lines)


def _times(row: Json) -> str:
    spread = f"{row['ratio']:.2f} ({row['lowest']:.2f} to {row['highest']:.2f})"
    return f"{row['milliseconds']:.3g} ms, {spread}"


_PEERS = ["wall", "torchvision", "ffcv", "dali", "webdataset", "litdata", "streaming", "spdl",
          "turboloader"]  # fmt: skip


def _shown(work: Json) -> list[str]:
    """All of packio's ways in LMDB, and the fastest of each peer, contiguous or not; by rate."""
    rows = work["candidates"]
    own = [name for name, row in rows.items() if row["peer"] == "packio" and "lmdb" in name]
    theirs = [_fastest(work, peer, c) for peer in _PEERS for c in (True, False)]
    return sorted(filter(None, own + theirs), key=lambda name: -_median(rows[name]))


def _size(work: Json) -> str:
    """How large the image files are, if that is known."""
    size = work.get("kilobytes_per_image")
    return f", files of {size:.0f} kB" if size else ""


def _others(work: Json) -> list[float]:
    """Rates of packio's ways in other formats."""
    rows = work["candidates"].items()
    return [_median(row) for n, row in rows if row["peer"] == "packio" and "lmdb" not in n]


def _median(row: Json) -> float:
    return float(row["images_per_second"]["median"])


def _peer_row(result: Json, work: Json, name: str, over: Json | None) -> str:
    row = work["candidates"][name]
    way = "JPEGs decoded whole and nothing else" if row["peer"] == "wall" else row["way"]
    shown = name if row["peer"] == "packio" else f"{_package(result, row['peer'])}, {way}"
    strong = "**" if row["peer"] == "packio" else ""
    view = "" if row["contiguous"] else " (not contiguous)"
    rate, core = _spread(row["images_per_second"], ",.0f"), row["cpu_ms_per_image"]["median"]
    return f"| {strong}{shown}{strong}{view} | {rate} | {core:.3g} | {_spread(over, '.2f')} |"


def _package(result: Json, peer: str) -> str:
    """Package and version; the first that a peer names is its own."""
    package, version = next(iter(result["versions"][peer].items()))
    return f"{package} {version}"


def _fastest(work: Json, peer: str, contiguous: bool) -> str:
    kind = {"peer": peer, "contiguous": contiguous}
    ways = {name: row for name, row in work["candidates"].items() if kind.items() <= row.items()}
    return max(ways, key=lambda name: _median(ways[name]), default="")


def _spread(values: Json | None, form: str) -> str:
    if values is None:
        return ""
    return f"{values['median']:{form}} ({values['min']:{form}} to {values['max']:{form}})"


def gpu(result: Json) -> str:
    """Make the tables of what ``benchmarks/gpu.py`` measured."""
    machine, data = result["machine"], result["data"]
    conditions = (
        f"{machine['device']}, {machine['cores']} cores ({machine['cpu']}), torch "
        f"{machine['torch']}, JPEGs of {data['bytes'] / 1000:.0f} kB and 500 x 375 pixels, "
        "RandomResizedCrop(224), hflip. Images a second: medians (lowest to highest)."
    )
    lines = [conditions]

    def table(title: str, rows: Json) -> None:
        lines.extend(["", f"| {title} | images/s | |", "|---|---:|---:|"])
        for name, row in rows.items():
            if "images_per_second" in row:
                rate, ratio = row["images_per_second"], row["ratio"]["median"]
                lines.append(f"| {name} | {_spread(rate, ',.0f')} | {ratio:.2f} |")

    table("batches of normalised bfloat16 on the device", result["loaders"])
    table("the same, beside DALI", result["dali"])
    network = result["training"]["resnet50"]
    table("training of ResNet-50, bfloat16, channels_last", network)
    counts = result["scaling"]
    names = list(next(iter(counts.values())))
    lines += ["", f"| threads or workers, uint8 batches of 64 | {' | '.join(names)} |"]
    lines.append("|---|" + "---:|" * len(names))
    for count, rows in counts.items():
        cells = [_spread(rows[name]["images_per_second"], ",.0f") for name in names]
        lines.append(f"| {count} | {' | '.join(cells)} |")
    return "\n".join(lines)


def floats(result: Json) -> str:
    """Make a row for uint8 and each kind of floats: time of a processor, threads and workers."""
    lines = ["| images | `Loader`, threads | `DataLoader`, two workers |", "|---|---:|---:|"]
    names = {kind: kind for kind in ("uint8", "bfloat16", "float32")}
    for kind, name in {**names, "transform": "float32 by a `transform=` in Python"}.items():
        rows = [result["microseconds"].get(f"packio: {kind} {place}", {})
                for place in ("threads", "workers")]  # fmt: skip
        cells = [_spread(row.get("processor"), ",.0f") for row in rows]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def recipes(result: Json) -> str:
    """Make a row for each recipe: packio's time, that of decoding alone, and the others'."""
    machine = result["machine"]
    size = f"JPEGs of {machine['bytes_an_image'] / 1000:.0f} kB (CIFAR: raw pixels)"
    conditions = (
        f"{machine['cpu']}, {size}, µs of a processor an image, one thread: medians (lowest to "
        "highest); x is the median of the rounds' ratios to packio."
    )
    others = {"torchvision or timm": ("torchvision", "timm"), "torchvision's v2": ("v2",),
              "albumentations": ("albumentations",), "Kornia": ("kornia",)}  # fmt: skip
    heads = "recipe", "packio", "its decoding, crop, floats", *others
    lines = [conditions, "", f"| {' | '.join(heads)} |", "|---|" + "---:|" * (len(heads) - 1)]
    rows = result["microseconds"]
    for recipe in dict.fromkeys(name.partition(":")[0] for name in rows):
        cells = [_spread(rows[f"{recipe}: {name}"], ",.0f") for name in ("packio", "crop")]
        for names in others.values():
            name = next((n for n in names if f"{recipe}: {n}" in rows), None)
            row, ratio = (result[k].get(f"{recipe}: {name}") for k in ("microseconds", "ratio"))
            cells.append(f"{_spread(row, ',.0f')}: {ratio['median']:.1f} x" if row else "")
        lines.append(f"| {_RECIPES[recipe]} | {' | '.join(cells)} |")
    return "\n".join(lines)


_RECIPES = {
    "timm": "timm: crop, flip, RandAugment m9 mstd0.5 inc1 mmax9, normalise, erasing 0.25",
    "reference": "torchvision's reference: crop, flip, TrivialAugmentWide, normalise, erasing 0.1",
    "simclr": "SimCLR: two views with jitter, gray, blur of 23 pixels",
    "dino": "DINO: two views of 224, eight of 96, with jitter, gray, Pillow's blur, solarize",
    "mae": "MAE: bicubic crop, flip, normalise",
    "cifar": "CIFAR: pad and crop, flip, AutoAugment, 32 x 32",
    "segmentation": "segmentation: crop, flip, rotation and shift of image and mask, jitter",
    "detection": "detection: 320 x 320, flip, rotation and shift of image and boxes, jitter",
}


def ops_parity(result: Json) -> str:
    """Make a row for each operation: its reference, values compared, and how many differ."""
    heads = ("operation", "reference", "values compared", "differ", "by at most",
             "torchvision on tensors differs", "by at most")  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", "|---|---|" + "---:|" * 5]
    for name, row in result["operations"].items():
        counts = f"{row['values']:,} | {row['differing']:,} | {row['most']}"
        other = row.get("on_tensors")
        share = (
            f"{100 * other['differing'] / other['values']:.2g} % | {other['most']}"
            if other
            else " | "
        )
        lines.append(f"| {name} | {row['reference']} | {counts} | {share} |")
    return "\n".join(lines)


TABLES: dict[str, tuple[str, Callable[[Json], str]]] = {
    "floats": ("floats.json", floats),
    "recipes": ("recipes.json", recipes),
    "ops-parity": ("ops_parity.json", ops_parity),
    "decoders": ("decode.json", decoders),
    "faults": ("faults.json", faults),
    "core": ("native.json", core),
    "stages": ("stages.json", stages),
    "memory-format": ("memory_format.json", memory_format),
    "gpu": ("gpu.json", gpu),
    "parity": ("parity.json", parity),
    "peers": ("peers.json", peers),
    "peers-large": ("peers_100kb.json", peers),
    **at_scale_tables.TABLES,
    **dct_tables.TABLES,
}


def page_of(name: str) -> pathlib.Path:
    """Find the page that a table stands on."""
    found = [page for page in PAGES if f"<!-- {name}:begin -->" in page.read_text()]
    if len(found) != 1:
        sys.exit(f"docs/: <!-- {name}:begin --> is on {len(found)} pages; expected one")
    return found[0]


def filled(text: str, name: str) -> str:
    """Return a page's text with a table made anew, if its results are there."""
    file, table = TABLES[name]
    path = RESULTS / file
    if not path.exists():
        return text
    pattern = re.compile(rf"(?<=<!-- {name}:begin -->\n).*?(?=<!-- {name}:end -->)", re.DOTALL)
    if not pattern.search(text):
        sys.exit(f"docs/: no <!-- {name}:end --> after <!-- {name}:begin -->")
    made = table(json.loads(path.read_text())) + "\n"
    return pattern.sub(lambda _: made, text)


def main() -> None:
    """Write the pages, or check them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only tell what is stale")
    check = parser.parse_args().check
    for name in TABLES:
        page = page_of(name)
        text = page.read_text()
        new = filled(text, name)
        if check and new != text:
            sys.exit(f"{page.name}: {name} is stale; run: python tools/readme_tables.py")
        if not check:
            page.write_text(new)


if __name__ == "__main__":
    main()
