"""Others' readers, of versions that people still have, on what packio writes.

Each lies in a folder of its own, under ``old`` in the environment, where ``make test`` puts it; a
process that has the folder first in its path reads with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import interop_lmdb
import pytest

import packio

_OLD = Path(sys.prefix) / "old"


def _run(package: str, *command: str | os.PathLike[str], cwd: Path) -> str:
    """Run Python with an old package; return what it prints."""
    folder = _OLD / package
    assert folder.is_dir(), f"{folder} is missing; run `make test`, which installs it"
    done = subprocess.run(
        [sys.executable, *command], check=False, capture_output=True, text=True, timeout=600,
        cwd=cwd, env={**os.environ, "PYTHONPATH": str(folder)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lmdb")
    interop_lmdb.write(folder)
    return folder


@pytest.mark.parametrize("version", ["1.6.2", "2.3.0"])
def test_old_py_lmdb_reads_packs_and_writes_what_is_read(
    version: str, written: Path, tmp_path: Path
) -> None:
    said = _run(f"lmdb-{version}", interop_lmdb.__file__, "read", written, cwd=tmp_path)
    assert said == f"py-lmdb {version}: 120 records each of 2 packs\n"
    interop_lmdb.check(written)


_WEBDATASET = """
import importlib.metadata, json, sys, warnings
warnings.simplefilter("ignore")
import webdataset, wids
streamed, indexed = [], []
for sample in webdataset.WebDataset(sys.argv[2:], shardshuffle=False):
    image = sample.get("jpg") or sample["png"]
    streamed.append([image.hex(), int(sample["cls"]), json.loads(sample["json"])["key"]])
dataset = wids.ShardListDataset(sys.argv[1], transformations=[], cache_dir="cache")
for sample in map(dataset.__getitem__, range(len(dataset))):
    image = sample.get(".jpg") or sample[".png"]
    key = json.loads(sample[".json"].read())["key"]
    indexed.append([image.read().hex(), int(sample[".cls"].read()), key])
print(json.dumps([importlib.metadata.version("webdataset"), streamed, indexed]))
"""


def test_old_webdataset_and_wids_read_packs(tmp_path: Path, image_folder: Path) -> None:
    out = packio.pack(image_folder, tmp_path / "photos.tar", shards=3).out
    arguments = out / "shardindex.json", *sorted(out.glob("*.tar"))
    said = _run("webdataset-0.2.111", "-c", _WEBDATASET, *arguments, cwd=tmp_path)
    version, streamed, indexed = json.loads(said)
    assert version == "0.2.111"
    with packio.open(out) as pack:
        assert streamed == [[sample.data.hex(), sample.label, sample.key] for sample in pack]
    assert indexed == streamed


def test_one_index_of_several_rec_files_leads_to_every_record(
    tmp_path: Path, image_folder: Path
) -> None:
    """DALI and dmlc's InputSplit take the files end to end; `tools/interop_dali.sh` runs DALI."""
    out = packio.pack(image_folder, tmp_path / "photos.rec", shards=3).out
    whole = b"".join(path.read_bytes() for path in sorted(out.glob("*.rec")))
    lines = (out / "photos.all.idx").read_text().splitlines()
    numbers, positions = zip(*(map(int, line.split("\t")) for line in lines), strict=True)
    with packio.open(out) as pack:
        assert numbers == tuple(range(len(pack)))
        for position, sample in zip(positions, pack, strict=True):
            assert whole[position : position + 4] == b"\x0a\x23\xd7\xce"
            assert whole[position + 32 :].startswith(sample.data)
        assert "photos.all.idx" in {name for name, *_ in pack.index_file.files()}
    assert packio.verify(out).warnings == ()
