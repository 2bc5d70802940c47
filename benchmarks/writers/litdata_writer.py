"""LitData's optimize: bytes as they are, two processes."""

from __future__ import annotations

import argparse

import litdata
from _turn import images, read, take


def sample(found: tuple[str, int]) -> dict[str, object]:
    """What is stored of an image."""
    path, label = found
    return {"image": read(path), "label": label}


def keep(given: argparse.Namespace) -> None:
    """Chunks of 64 MB; forks: by default it starts Python anew, which takes seconds."""
    litdata.optimize(
        fn=sample, inputs=images(given.source), output_dir=given.out, chunk_bytes="64MB",
        num_workers=2, start_method="fork", verbose=False,
    )  # fmt: skip


if __name__ == "__main__":
    take({"keep": keep}, "litdata")
