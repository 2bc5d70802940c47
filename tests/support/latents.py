"""Fields that tests add to packs: values that keys alone tell, and looks at what is there."""

from __future__ import annotations

import hashlib
import io
from typing import TYPE_CHECKING, Any

import numpy as np

import packio
from packio import registry

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Collection, Sequence

FORMATS = [n for n in registry.names("formats") if registry.load("formats", n).caps.writes]


def suffix(name: str) -> str:
    """The first suffix of a format."""
    return str(registry.load("formats", name).caps.suffixes[0])


def latent(key: str) -> np.ndarray:
    """Any array that the key alone tells, (2, 3) float16."""
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "little")
    return np.random.default_rng(seed).normal(size=(2, 3)).astype(np.float16)


def latent_of(sample: packio.Sample) -> np.ndarray:
    """A value for workers, which import the function by its name."""
    return latent(sample.key)


def latents_of(samples: Sequence[packio.Sample]) -> np.ndarray:
    """Values of a batch, for workers."""
    return np.stack([latent(sample.key) for sample in samples])


def save(folder: pathlib.Path, keys: Collection[str], ending: str = ".npy") -> pathlib.Path:
    """Write a file with the latent of each key into a folder; return the last one."""
    for key in keys:
        path = folder / f"{key}{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, latent(key))
    return path


def keys(out: pathlib.Path) -> list[str]:
    """All keys of a pack, in its order."""
    with packio.open(out) as pack:
        return [pack.key(i) for i in range(len(pack))]


def values(out: pathlib.Path, name: str) -> dict[str, bytes | None]:
    """A field's value of each key."""
    with packio.open(out) as pack:
        return {pack.key(i): pack.read_field(name, i) for i in range(len(pack))}


def texts(out: pathlib.Path, name: str) -> dict[str, str]:
    """A field's text of each key that has one."""
    found = values(out, name)
    return {key: bytes(data).decode() for key, data in found.items() if data is not None}


def arrays(out: pathlib.Path, name: str = "latent") -> dict[str, np.ndarray]:
    """A field's array of each key that has one."""
    found = values(out, name)
    return {key: np.load(io.BytesIO(data)) for key, data in found.items() if data is not None}


def check(out: pathlib.Path, lacking: Collection[str] = ()) -> None:
    """All samples of a pack have their latents, but for some."""
    with packio.open(out) as pack:
        assert pack.fields["latent"] == "array"
    found = arrays(out)
    assert [*found] == [key for key in keys(out) if key not in lacking]
    for key, array in found.items():
        assert array.dtype == np.float16, key
        assert np.array_equal(array, latent(key)), key
    assert packio.verify(out).ok


def files(folder: pathlib.Path, *, times: bool = False) -> dict[str, Any]:
    """Bytes of each file that is no index, with its time if asked."""
    return {
        str(p.relative_to(folder)): (p.read_bytes(), p.stat().st_mtime_ns if times else 0)
        for p in folder.rglob("*")
        if p.is_file() and not p.name.endswith(".packio")
    }
