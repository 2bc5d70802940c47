"""One vocabulary for all commands: a name means the same thing, and looks the same, everywhere."""

from __future__ import annotations

import collections
import pathlib
import re
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from packio.cli import build

_APP: Any = typer.main.get_command(build())
COMMANDS: dict[str, Any] = _APP.commands
ARGUMENTS = {
    "PACK", "PACK…", "SOURCE", "OUT", "KEY", "NAME", "[SQL]", "[PATH]", "PATH",
    "PACK|MODULE:LOADER",
}  # fmt: skip
SHORT = {"-o": "--out", "-q": "--quiet", "-d": "--decoder", "-t": "--threads", "-w": "--workers",
         "-i": "--at"}  # fmt: skip
WITHOUT_INDEX = {  # what they change, or save, is beside the pack
    "add",
    "append",
    "drop-field",
    "merge",
    "select",
    "bench-decode",
    "bench-load",
    "replay",
    "warm",
}


def params(command: str, kind: str = "option") -> list[Any]:
    return [p for p in COMMANDS[command].params if p.param_type_name == kind]


def named(command: str, name: str) -> Any:
    return next((p for p in params(command) if name in p.opts), None)


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_arguments_have_names_of_the_field(command: str) -> None:
    told = [p.metavar for p in params(command, "argument")]
    assert set(told) <= ARGUMENTS, told
    if "OUT" in told:  # as of cp: what is read, then what is made
        assert told[-1] == "OUT"


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_help_shows_an_example_of_the_command(command: str) -> None:
    assert re.search(rf"Example: (packio {command}( |$)|\S+ .*packio)", COMMANDS[command].help)


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_workers_are_processes_and_threads_are_threads(command: str) -> None:
    workers, threads = named(command, "--workers"), named(command, "--threads")
    if workers is not None:
        assert workers.opts[:2] == ["--workers", "--num-workers"]  # PyTorch's name works, too
        assert re.search("Processes|Workers|workers", workers.help)
    if threads is not None:
        assert "hread" in threads.help
        assert not {"--workers", "--num-workers"} & {*threads.opts}


@pytest.mark.parametrize("command", ["reindex", "verify"])
def test_where_threads_work_a_number_of_workers_is_refused(command: str) -> None:
    done = CliRunner().invoke(build(), [command, "x.lmdb", "--num-workers", "2"])
    assert done.exit_code == 2
    assert "say --threads N" in " ".join(done.output.replace("│", " ").split())


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_json_overwrite_and_quiet_are_flags(command: str) -> None:
    for name in ("--json", "--overwrite", "--quiet", "--dry-run", "--resume"):
        option = named(command, name)
        assert option is None or option.is_flag, name
    resume = named(command, "--resume")
    assert resume is None or resume.secondary_opts == ["--no-resume"]


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - WITHOUT_INDEX))
def test_what_reads_a_pack_takes_an_index_that_is_elsewhere(command: str) -> None:
    arguments = [str(p.metavar) for p in params(command, "argument")]
    if any(name.startswith("PACK") for name in arguments):
        assert named(command, "--index") is not None


def test_a_name_takes_a_value_everywhere_or_nowhere() -> None:
    kinds = collections.defaultdict(set)
    for command in COMMANDS:
        for option in params(command):
            kinds[option.opts[0]].add((option.is_flag, option.multiple and not option.is_flag))
    differing = {name for name, found in kinds.items() if len({f for f, _ in found}) > 1}
    assert differing == set()


def test_a_short_name_has_one_meaning() -> None:
    for command in COMMANDS:
        for option in params(command):
            for short in (o for o in option.opts if re.fullmatch("-[a-z]", o)):
                if short != "-h":
                    assert option.opts[0] == SHORT[short], (command, short)


def test_one_thing_has_one_name() -> None:
    """No command has a name of its own for what others name otherwise."""
    names = {name for command in COMMANDS for p in params(command) for name in p.opts}
    for name, better in {
        "--jobs": "--workers", "--processes": "--workers", "--output": "--out", "--force-overwrite":
        "--overwrite", "--verbose": "--quiet", "--count": "--limit", "--max": "--limit",
        "--as-json": "--json", "--index-path": "--index", "--class-name": "--class",
    }.items():  # fmt: skip
        assert name not in names, better


def test_help_has_no_words_of_python() -> None:
    """``num_workers`` is Python's word, ``--workers`` that of the command."""
    for command in COMMANDS:
        for option in params(command):
            found = re.findall(r"(?<![\w.])[a-z]+_[a-z_]+(?![\w.:(])", option.help or "")
            allowed = [w for w in found if f"{w}=" in option.help]  # said as Python's on purpose
            told = [w for w in found if w not in allowed]
            assert told == [] or option.opts[0] == "--source", (command, option.opts[0], told)


def test_names_of_several_words_have_hyphens() -> None:
    for command in COMMANDS:
        for option in params(command):
            assert all("_" not in name for name in [*option.opts, *option.secondary_opts])


def test_the_reference_shows_flags_without_values_and_no_word_of_python() -> None:
    page = (pathlib.Path(__file__).parents[2] / "docs/reference/commands.md").read_text()
    assert "Ellipsis" not in page
    assert re.findall(r"`--[a-z-]+/--[a-z-]+ [A-Z_]+`", page) == []
    assert page.count("Must be given.") >= 2  # --field of add, --out of select
