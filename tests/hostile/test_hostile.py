"""Hostile files: each is refused with an error of packio's, or read correctly, in little memory.

The corpus is in `hostile_files` and `hostile_folders`; a file is added by writing one function. As
a script, this module prints what every file costs: ``python test_hostile.py``.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hostile_databases  # noqa: F401 (fills the corpus)
import hostile_folders  # noqa: F401 (fills the corpus)
import hostile_records  # noqa: F401 (fills the corpus)
import pytest
from hostile_parts import CORPUS, SECRET

_MEMORY = 200 << 20  # bytes that a hostile file may cost
_RUNNER = Path(__file__).with_name("hostile_runner.py")


class _Runner:
    """A process that tries files, as `hostile_runner` says."""

    def __init__(self, cache: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(_RUNNER)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, "PACKIO_CACHE_DIR": str(cache)},
        )  # fmt: skip

    def ask(self, verb: str, path: Path) -> dict[str, Any]:
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps({"verb": verb, "path": str(path)}), file=self._process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Runner]:
    running = _Runner(tmp_path_factory.mktemp("cache"))
    yield running
    running.close()


def _tried(runner: _Runner, name: str, folder: Path) -> dict[str, Any]:
    (folder / "secret").write_bytes(SECRET)
    return runner.ask(CORPUS[name].verb, CORPUS[name].make(folder))


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(CORPUS))
def test_hostile(name: str, runner: _Runner, tmp_path: Path) -> None:
    outcome = _tried(runner, name, tmp_path)
    wanted = CORPUS[name].images
    if wanted is None:
        assert "refused" in outcome, outcome
        assert SECRET.decode() not in outcome["refused"]
    else:
        digests = sorted(hashlib.sha256(image).hexdigest() for image in wanted)
        assert outcome.get("images") == digests, outcome
    assert not (tmp_path / "RAN").exists(), "code in the file was run"
    assert outcome["peak"] <= _MEMORY, outcome


def test_the_corpus_has_sixty_files() -> None:
    assert len(CORPUS) >= 60


def _report() -> None:
    with tempfile.TemporaryDirectory() as cache:
        running = _Runner(Path(cache))
        for name in sorted(CORPUS):
            with tempfile.TemporaryDirectory() as folder:
                outcome = _tried(running, name, Path(folder))
            answer = outcome.get("refused") or outcome.get("raised") or "read"
            wanted = "refused" if CORPUS[name].images is None else "images"
            print(
                f"{'ok ' if wanted in outcome else 'BAD'} {name}: {outcome['seconds']:.2f} s, "
                f"{outcome.get('peak', 0) >> 20} MiB: {answer[:160]}"
            )
        running.close()


if __name__ == "__main__":
    _report()
