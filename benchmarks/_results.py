"""What the benchmarks have in common: their arguments, what they ran on, and results as JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import packio

_MAKER = Path(__file__).parent.parent / "tools" / "make_sample_images.py"
FOLDER = Path(__file__).with_name("results")


def parser(description: str | None, *, rounds: int | None = None) -> argparse.ArgumentParser:
    """Arguments that benchmarks take: ``--save``, and ``--rounds`` where there are any.

    Args:
        description: The benchmark's docstring.
        rounds: Their number where none is given; None: it has none.
    """
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    if rounds is not None:
        made.add_argument("--rounds", type=int, default=rounds)
    made.add_argument("--save", action="store_true", help="write the JSON to benchmarks/results")
    return made


def photographs(given: Path | None, folder: Path, count: int) -> Path:
    """The folder of images that was given; or else one of photographs that are made.

    Args:
        given: A folder of class folders of images, or None.
        folder: Where they are made.
        count: Of images that are made.
    """
    if given is not None:
        return given
    command = [sys.executable, _MAKER, folder, "--n", str(count), "--classes", "4"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder


def machine(*packages: str, **more: Any) -> dict[str, Any]:
    """What a benchmark ran on.

    Args:
        packages: Whose versions matter; those that are not installed are left out.
        more: What else matters.
    """
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        **more,
        "python": platform.python_version(),
        "packio": packio.__version__,
        **versions(*packages),
    }


def versions(*packages: str) -> dict[str, str]:
    """Versions of packages, of those that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def memory(pid: int) -> dict[str, int]:
    """Bytes of a process: "Rss", "Pss", "Pss_Anon", and so on. Source: proc_pid_smaps(5)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}


def summary(values: list[float], digits: int, *, quartiles: bool = False) -> dict[str, float]:
    """Median, quartiles if asked for, minimum and maximum, rounded; to integers with no digits."""
    found = {"median": statistics.median(values)}
    if quartiles:
        found["q1"], _, found["q3"] = statistics.quantiles(values, n=4)
    found |= {"min": min(values), "max": max(values)}
    return {name: round(value, digits or None) for name, value in found.items()}


def ratios(values: list[float], others: list[float]) -> list[float]:
    """Round by round."""
    return [a / b for a, b in zip(values, others, strict=True)]


def text(result: dict[str, Any]) -> str:
    """A result as JSON."""
    return json.dumps(result, indent=2)


def save(name: str, result: dict[str, Any]) -> None:
    """Write a result to ``benchmarks/results/NAME.json``."""
    FOLDER.joinpath(f"{name}.json").write_text(text(result) + "\n")


def finish(name: str, result: dict[str, Any], *, keep: bool) -> None:
    """Print a result, and save it where it is to be kept."""
    print(text(result))
    if keep:
        save(name, result)


def load(name: str) -> dict[str, Any]:
    """What was saved under a name; nothing if nothing was."""
    path = FOLDER / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def bars(
    picture: Path, spans: dict[str, tuple[float, float, float]], unit: str,
    machine: dict[str, Any], *, others: str,
) -> None:  # fmt: skip
    """Draw one bar a candidate into an SVG file.

    Args:
        picture: The file.
        spans: Candidate → least, median and largest value.
        unit: What the values are.
        machine: Of the results.
        others: Candidates with this in their names have another colour.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "packio"  # the same bytes for the same results
    mpl.rcParams["svg.fonttype"] = "none"
    names = list(spans)[::-1]
    least, middle, largest = zip(*(spans[name] for name in names), strict=True)
    spread = [[m - a for a, m in zip(least, middle, strict=True)],
              [b - m for m, b in zip(middle, largest, strict=True)]]  # fmt: skip
    figure = Figure(figsize=(8, 0.4 * len(names) + 1.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    colours = ["#4878a8" if others in name else "#d1495b" for name in names]
    axes.barh(names, middle, xerr=spread, capsize=2, color=colours)
    axes.set_xlabel(unit)
    axes.set_title(f"{machine['cpu']}, {machine['cores']} cores", fontsize=9)
    figure.savefig(picture, metadata={"Date": None})
