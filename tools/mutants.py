"""Whether the tests notice small changes of packio.

    python tools/mutants.py [--count 40] [--seed 1] [--room NAME …] [--matrix] [--than REVISION]
                            [--json FILE]

A mutant is packio with one small change: another comparison, ``and`` for ``or``, a condition the
other way round, a number one greater, plus for minus, a call that is left out. Each mutant is drawn
by seed, from all places alike. Tests run on a copy of the repository until one fails: those of
``make test`` in the folder of the changed room, then the long ones there; with ``--matrix``, those
of tests/matrix as well, which takes ten minutes for a mutant that nothing notices. "short" means
that ``make test`` notices the mutant, "long" that only the long tests do, "nothing" that no test of
these folders does; many of the latter change a message or a limit, or nothing. With ``--than`` a
revision of packio, as before its tests became fewer: "before" means that of both short suites only
that revision's notices the mutant.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

TOP = Path(__file__).resolve().parent.parent
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
    ast.LShift: ast.RShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
HIDDEN = shutil.ignore_patterns(".*", "demo", "build", "dist", "__pycache__", "*.egg-info")


class Mutant(NamedTuple):
    """A change: where it is, and what stands there before and after."""

    path: Path  # from the top of the repository
    start: int  # offsets into the file, bytes
    end: int
    before: str
    after: str

    @property
    def room(self) -> str:
        """The folder of tests that knows the changed module best."""
        name = self.path.parts[1]
        return name if (TOP / "tests" / name).is_dir() else "packing"

    def __str__(self) -> str:
        """One line about it."""
        line = (TOP / self.path).read_bytes()[: self.start].count(b"\n") + 1
        return f"{self.path}:{line}: {self.before} → {self.after}".replace("\n", " ")


def change(node: ast.AST) -> ast.AST | None:
    """Make the other node, if this one can be changed."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        return ast.Compare(node.left, [COMPARISONS[type(node.ops[0])](), *node.ops[1:]],
                           node.comparators)  # fmt: skip
    if isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        return ast.BoolOp(other, node.values)
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        return ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return node.operand
    if isinstance(node, ast.IfExp):
        return ast.IfExp(node.test, node.orelse, node.body)
    if isinstance(node, ast.Constant) and isinstance(node.value, bool | int):
        value = node.value
        return ast.Constant(not value if isinstance(value, bool) else value + 1)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return ast.Pass()
    return None


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Go through all nodes but types, and f-strings, whose places Python 3.11 does not tell."""
    if not isinstance(node, ast.JoinedStr):
        yield node
        types = [getattr(node, name, None) for name in ("annotation", "returns")]
        for child in ast.iter_child_nodes(node):
            if child not in types:
                yield from walk(child)


def find_mutants(path: Path) -> list[Mutant]:
    """All mutants of a module, but for what runs when it is imported."""
    data = (TOP / path).read_bytes()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    tree = ast.parse(data)
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    nodes = {id(n): n for f in functions for statement in f.body for n in walk(statement)}
    found = []
    for node in nodes.values():
        other = change(node)
        if other is None or not isinstance(node, ast.expr | ast.stmt):
            continue
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        text = ast.unparse(other)
        after = text if isinstance(other, ast.Pass | ast.Constant) else f"({text})"
        found.append(Mutant(path, start, end, data[start:end].decode(), after))
    return found


def run_tests(copy: Path, folder: str, marked: str, processes: int) -> str:
    """Run tests of a folder until one fails; return the name of that one."""
    command = [
        sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", marked,
        "-n", str(processes), "--dist", "loadfile", f"tests/{folder}",
    ]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    env.pop("PACKIO_TESTS", None)
    done = subprocess.run(
        command, cwd=copy, env=env, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    if done.returncode in (0, 5):  # 5: none is marked so
        return ""
    told = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return told[0] if told else f"status {done.returncode}"


def copy_tests(revision: str, copy: Path) -> None:
    """Make the tests of a copy of the repository those of a revision."""
    shutil.rmtree(copy / "tests")
    with subprocess.Popen(
        ["git", "archive", revision, "tests"], cwd=TOP, stdout=subprocess.PIPE
    ) as archive:
        subprocess.run(["tar", "-x"], cwd=copy, stdin=archive.stdout, check=True)


def judge(
    mutant: Mutant, copy: Path, before: Path | None, processes: int, *, matrix: bool
) -> tuple[str, str]:
    """Run the tests on a mutant; return the verdict, and the test that fails."""
    folders = [mutant.room, "matrix"] if matrix else [mutant.room]
    suites = [("short", copy, "not long"), ("before", before, "not long"), ("long", copy, "long")]
    for verdict, top, marked in suites:
        if top is None:
            continue
        place = top / mutant.path
        original = place.read_bytes()
        place.write_bytes(original[: mutant.start] + mutant.after.encode() + original[mutant.end :])
        try:
            for folder in folders:
                if failed := run_tests(top, folder, marked, processes):
                    return verdict, failed
        finally:
            place.write_bytes(original)
    return "nothing", ""


def main() -> None:
    """Draw mutants, judge them, and print a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--room", action="append", help="a folder of packio; may be said again")
    parser.add_argument("--matrix", action="store_true", help="run tests/matrix, too")
    parser.add_argument("--than", metavar="REVISION", help="whose tests are tried as well")
    parser.add_argument("--processes", type=int, default=2, help="that run tests at a time")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    paths = sorted(path.relative_to(TOP) for path in (TOP / "packio").rglob("*.py"))
    mutants = [
        mutant for path in paths
        if len(path.parts) > 2 and (not given.room or path.parts[1] in given.room)
        for mutant in find_mutants(path)
    ]  # fmt: skip
    drawn = random.Random(given.seed).sample(mutants, min(given.count, len(mutants)))
    told = list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / "packio"
        shutil.copytree(TOP, copy, ignore=HIDDEN)
        before = None
        if given.than:
            before = Path(temporary) / "before"
            shutil.copytree(copy, before)
            copy_tests(given.than, before)
        for number, mutant in enumerate(drawn, 1):
            verdict, test = judge(mutant, copy, before, given.processes, matrix=given.matrix)
            print(f"{number}/{len(drawn)} {verdict}: {mutant}  {test}", flush=True)
            told.append({"mutant": str(mutant), "verdict": verdict, "test": test})
            if given.json:
                given.json.write_text(json.dumps(told, indent=1) + "\n")
    print(*(f"{verdict}: {n}" for verdict, n in Counter(t["verdict"] for t in told).items()))


if __name__ == "__main__":
    main()
