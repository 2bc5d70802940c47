"""The fastest exact decoder for each encoding on this machine, as `bench-decode --save` found it."""

from __future__ import annotations


def fastest(encoding: str) -> str | None:
    """Name the decoder measured fastest among the exact ones, or None where nothing is saved."""
    return None
