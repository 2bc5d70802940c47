"""A node of a Ray cluster dies while it packs: its shards are written elsewhere, the same bytes."""

from __future__ import annotations

import os
import random
import shutil
from typing import TYPE_CHECKING, Any

import ground as grounds
import pytest

import packio

ray = pytest.importorskip("ray", reason="Ray has no wheel for this Python")

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

    from packio.system.progress import Progress

_TRIALS = 10 if os.environ.get("PACKIO_LONG") else 1


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A Ray cluster of a head without processors; nodes are added."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    yield made
    ray.shutdown()
    made.shutdown()  # type: ignore[no-untyped-call]  # it has no types


@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_node_that_dies_loses_nothing(cluster: Any, tmp_path: pathlib.Path) -> None:
    source, shards = tmp_path / "source", 12
    grounds.make_source(source, 600, 4000)
    out, alone = (tmp_path / name / "x.tar" for name in ("out", "alone"))
    alone.parent.mkdir()
    digest = packio.pack(source, alone, shards=shards).digest
    draw = random.Random(1)
    address = cluster.address
    for _ in range(_TRIALS):
        node = cluster.add_node(num_cpus=2)
        moment = draw.randrange(10, 500)
        killed: list[int] = []

        def kill(
            progress: Progress, moment: int = moment, node: Any = node,
            killed: list[int] = killed,
        ) -> None:  # fmt: skip
            if not killed and progress.done >= moment:
                killed.append(progress.done)
                cluster.remove_node(node, allow_graceful=False)

        out.parent.mkdir()
        report = packio.pack(source, out, engine=f"ray:{address}", progress=kill, shards=shards)
        assert killed
        assert report.digest == digest
        assert grounds.tree(out.parent) == grounds.tree(alone.parent)
        shutil.rmtree(out.parent)
