"""What the commands that make packs have in common."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path

from packio.errors import OptionError
from packio.packing.report import PackReport


def byte_count(text: str | None) -> int | None:
    """Turn "256MB", "1.5GiB" or "1000" into bytes.

    Raises:
        OptionError: it means no size.
    """
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kKMGT]?)(i?)B?", text.strip())
    if match is None:
        raise OptionError(f"{text!r}: expected a size in bytes, as 256MB or 1GiB")
    number, prefix, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** " KMGT".index(prefix.upper() or " "))


def pair(text: str | None) -> tuple[int, int] | None:
    """Turn "3/8" into (3, 8).

    Raises:
        OptionError: it is no such pair.
    """
    if text is None:
        return None
    match = re.fullmatch(r"(\d+)/(\d+)", text.strip())
    if match is None:
        raise OptionError(f"{text!r}: expected a part of how many, as 3/8")
    return int(match[1]), int(match[2])


def shares(text: str | None) -> tuple[tuple[str, float], ...]:
    """Turn "train=0.9,val=0.1" into names and shares.

    Raises:
        OptionError: it is no such list.
    """
    try:
        named = [item.partition("=") for item in text.split(",")] if text else []
        return tuple((name.strip(), float(share)) for name, _, share in named)
    except ValueError as error:
        raise OptionError(f"{text!r}: expected shares, as train=0.9,val=0.1") from error


def show(report: PackReport, out: Path, *, as_json: bool, quiet: bool) -> None:
    """Print what a packing run did, its warnings to stderr."""
    for warning in report.warnings:
        print(f"packio: warning: {warning}", file=sys.stderr)
    if as_json:
        print(json.dumps(_summary(report)))
    elif not quiet:
        _print_summary(report, out)


def _summary(report: PackReport) -> dict[str, object]:
    values = dataclasses.asdict(report)
    values["skipped"] = [s.as_json() for s in report.skipped]
    values["out"], values["skipped_file"] = str(report.out), str(report.skipped_file or "") or None
    return values


def _print_summary(report: PackReport, out: Path) -> None:
    out = report.out if "://" in str(report.out) else out
    if report.up_to_date:
        print(f"{out}: up to date ({report.packed:,} images)")
        return
    if report.part is not None:
        print(f"{out}: part {report.part[0]} of {report.part[1]}: {report.packed:,} images; "
              "put the parts together with --finish, once all are written")  # fmt: skip
        return
    if report.resumed:
        print(f"{out}: went on from {report.resumed:,} finished shards")
    seconds = max(report.seconds, 1e-6)
    print(
        f"{out}: {report.packed:,} images in {report.classes:,} classes, "
        f"{report.source_bytes / 1e6:,.1f} MB of images in {report.out_bytes / 1e6:,.1f} MB, "
        f"{seconds:.1f} s ({report.packed / seconds:,.0f} img/s, "
        f"{report.source_bytes / seconds / 1e6:,.0f} MB/s)"
    )
    if report.skipped:
        print(
            f"{len(report.skipped):,} of {report.found:,} skipped, listed in {report.skipped_file}"
            + (f"; {report.quarantined:,} copied" if report.quarantined else "")
        )
    print(f"digest {report.digest}")
