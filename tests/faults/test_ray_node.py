"""Nodes of a Ray cluster die and others join while it packs: the same bytes, or a clear end."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import ray_nodes

pytest.importorskip("ray", reason="Ray has no wheel for this Python")

if TYPE_CHECKING:
    import pathlib

_LONG = bool(os.environ.get("PACKIO_LONG"))
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]


@pytest.mark.parametrize("seed", range(10 if _LONG else 1))
def test_nodes_that_die_lose_nothing(seed: int, tmp_path: pathlib.Path) -> None:
    source = ray_nodes.source_of(tmp_path, 800)
    suffix = ray_nodes.SUFFIXES[seed % len(ray_nodes.SUFFIXES)]
    with ray_nodes.cluster() as nodes:
        told = ray_nodes.run(nodes, source, tmp_path / "trial", suffix, seed, 12)
    assert "nodes died after" in told


def test_without_a_node_it_ends_with_one_error_and_goes_on_elsewhere(
    tmp_path: pathlib.Path,
) -> None:
    source = ray_nodes.source_of(tmp_path, 800)
    with ray_nodes.cluster(wait=3) as nodes:
        told = ray_nodes.without_nodes(nodes, source, tmp_path / "trial", 12)
    assert "has had no node with a processor for 3 s (PACKIO_RAY_WAIT)" in told


@pytest.mark.skipif(not _LONG, reason="takes a minute: PACKIO_LONG")
def test_without_its_head_it_ends_with_one_error(tmp_path: pathlib.Path) -> None:
    source = ray_nodes.source_of(tmp_path, 800)
    with ray_nodes.cluster() as nodes:
        told = ray_nodes.without_head(nodes, source, tmp_path / "trial", 12)
    assert "its head does not answer" in told
