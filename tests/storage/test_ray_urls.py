"""Images at a URL are packed to a URL by the nodes of a Ray cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import fsspec
import ground as grounds
import pytest
import ray_nodes

import packio

pytest.importorskip("ray", reason="Ray has no wheel for this Python")

if TYPE_CHECKING:
    import pathlib

    from object_store import Proxy


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_nodes_pack_images_at_a_url_to_a_url(s3: Proxy, tmp_path: pathlib.Path) -> None:
    """Nodes have the credentials in their environment, and see the cache, as they must."""
    grounds.make_source(tmp_path / "source", 30, 2000)
    for i, path in enumerate(sorted((tmp_path / "source").rglob("*.png"))):
        place = f"/{s3.bucket}/source/class{i % 3}/{i}.png"
        s3.forward("PUT", place, {}, path.read_bytes())
    url = f"s3://{s3.bucket}"
    with ray_nodes.cluster() as nodes:
        nodes.add()
        for name, engine in (("here", "local"), ("there", f"ray:{nodes.address}")):
            packio.pack(f"{url}/source", f"{url}/{name}/x.tar", shards=3, engine=engine)
    fs = fsspec.filesystem("s3")
    objects = [
        {n.partition("/")[2]: fs.cat_file(f"{s3.bucket}/{n}")
         for n in s3.objects() if n.startswith(name)}
        for name in ("here/", "there/")
    ]  # fmt: skip
    assert len(objects[0]) >= 4
    assert objects[0] == objects[1]
