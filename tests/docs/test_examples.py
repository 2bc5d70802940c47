"""The scripts in examples/ run as their first command says, and what they train learns."""

from __future__ import annotations

import ast
import functools
import os
import pathlib
import re
import shlex
import subprocess
import sys
from typing import Any, NamedTuple

import pytest
import torch
import vision

REPOSITORY = pathlib.Path(__file__).parents[2]
EXAMPLES = sorted((REPOSITORY / "examples").glob("*.py"))
pytestmark = pytest.mark.timeout(1800)  # other processes may want the processors, too
_NEED_TORCHVISION = {"lightning", "mmengine", "timm", "torchvision", "transformers"}
_WITH_TORCHVISION = """
import vision, runpy, sys
vision.import_torchvision()
sys.argv[:] = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class Ran(NamedTuple):
    """What a script left."""

    code: int
    out: str
    err: str
    work: pathlib.Path

    @property
    def losses(self) -> tuple[float, float]:
        """Of the beginning and of the end, as the last line says."""
        found = re.match(r"loss ([\d.]+) -> ([\d.]+), \S", self.out.splitlines()[-1])
        assert found is not None, self.out + self.err
        return float(found[1]), float(found[2])


def first_command(script: pathlib.Path) -> list[str]:
    """The first command in a script's docstring."""
    text = ast.get_docstring(ast.parse(script.read_bytes())) or ""
    found = re.search(r"^ *((?:python|torchrun) .*)$", text, re.MULTILINE)
    assert found is not None, f"{script}: no command"
    return shlex.split(found[1], comments=True)


def run(script: pathlib.Path, work: pathlib.Path, *more: str, ranks: int | None = None) -> Ran:
    """Run a script's first command, in its short form."""
    program, *arguments = first_command(script)
    if ranks is not None:
        arguments[arguments.index("--nproc_per_node") + 1] = str(ranks)
    means = {"python": [], "torchrun": ["-m", "torch.distributed.run"]}[program]
    if program == "python" and _needs_help(script):
        means = ["-c", _WITH_TORCHVISION]
    command = [sys.executable, *means, *arguments, "--short", "--work", str(work), *more]
    paths = [REPOSITORY, REPOSITORY / "tests" / "support", REPOSITORY / "tools"]
    # one thread: several spin while they wait for each other on a machine with other work
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, paths))
    }  # fmt: skip
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )
    return Ran(done.returncode, done.stdout, done.stderr, work)


def _needs_help(script: pathlib.Path) -> bool:
    """Tell whether a script imports torchvision, and this machine's does not load by itself."""
    nodes = list(ast.walk(ast.parse(script.read_bytes())))
    names = [a.name for node in nodes if isinstance(node, ast.Import) for a in node.names]
    names += [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)]
    if not _NEED_TORCHVISION & {name.partition(".")[0] for name in names}:
        return False
    vision.import_torchvision()
    return bool(vision._stub)


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs a script once, for all tests that look at what it left."""
    return functools.cache(lambda script: run(script, tmp_path_factory.mktemp(script.stem)))


@pytest.mark.long
@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.stem)
def test_the_example_runs_and_learns(script: pathlib.Path, short: Any) -> None:
    ran = short(script)
    assert ran.code == 0, ran.out + ran.err
    first, last = ran.losses
    assert last < 0.9 * first, ran.out
    places = (f"{REPOSITORY}/packio/", f"{REPOSITORY}/examples/", f"examples/{script.name}")
    assert [line for line in ran.err.splitlines() if line.startswith(places)] == []


@pytest.mark.long
def test_an_interrupted_training_ends_with_the_same_weights(
    tmp_path: pathlib.Path, short: Any
) -> None:
    script = REPOSITORY / "examples" / "train_classifier.py"
    stopped = run(script, tmp_path, "--stop-at", "7")  # in the second epoch, after a checkpoint
    assert stopped.code == 1
    assert "stopped at step 7" in stopped.err
    resumed = run(script, tmp_path, "--resume")
    assert resumed.code == 0, resumed.err
    assert "resumed after step 6" in resumed.out
    whole = short(script)
    assert resumed.out.splitlines()[-1] == whole.out.splitlines()[-1]
    a, b = (
        torch.load(work / "checkpoint.pt", weights_only=True) for work in (tmp_path, whole.work)
    )
    assert a["losses"] == b["losses"]
    assert a["model"].keys() == b["model"].keys()
    assert all(torch.equal(a["model"][name], b["model"][name]) for name in a["model"])
    assert a["loader"] == b["loader"]


def ddp_answers(ran: Ran) -> dict[str, str]:
    assert ran.code == 0, ran.out + ran.err
    return dict(line.split(": ", 1) for line in ran.out.splitlines() if ": " in line)


@pytest.mark.long
def test_two_ranks_share_each_epoch(short: Any) -> None:
    answers = ddp_answers(short(REPOSITORY / "examples" / "train_ddp.py"))
    assert answers["steps of the ranks"] == "24, 24"
    assert answers["images of the last epoch"] == "90, seen once 90, twice 0"
    assert answers["losses and weights of the ranks"] == "equal"


@pytest.mark.long
def test_four_ranks_take_equal_steps_where_the_images_do_not_divide(
    tmp_path: pathlib.Path,
) -> None:
    ran = run(REPOSITORY / "examples" / "train_ddp.py", tmp_path, ranks=4)
    answers = ddp_answers(ran)
    assert answers["steps of the ranks"] == "12, 12, 12, 12"
    assert answers["images of the last epoch"] == "90, seen once 88, twice 2"
    assert answers["losses and weights of the ranks"] == "equal"
    assert ran.losses[1] < 0.9 * ran.losses[0]
