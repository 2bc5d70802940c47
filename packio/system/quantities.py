"""Numbers with their nouns and units, as people read them."""

from __future__ import annotations


def pluralize(number: int, noun: str) -> str:
    """Say how many there are: "1 sample", "2,000 samples", "3 classes"."""
    plural = "" if number == 1 else "es" if noun.endswith(("s", "ch")) else "s"
    return f"{number:,} {noun}{plural}"


def as_size(count: float) -> str:
    """Say a number of bytes: "512 bytes", "10.0 kB", "2.5 MB"."""
    if count < 10_000:
        return f"{count:,.10g} bytes"
    unit, name = next((u, n) for u, n in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if count >= u)
    return f"{count / unit:,.1f} {name}"
