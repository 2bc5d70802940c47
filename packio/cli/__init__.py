"""The command line: a command is a function of a module of this folder; see `COMMANDS`.

The function ``bench_decode`` is the command ``packio bench-decode``. It has typer annotations; its
docstring is the help text. A command parses, calls the library and prints. An error of packio
becomes one line on stderr and the exit code of its class. Modules that begin with an underscore are
helpers of the commands.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import typer

from packio.cli._output import as_typed, discard, open_streams, tell, until_reader_leaves, warn
from packio.errors import OptionError, OutputError, PackioError, printable
from packio.system import interrupts

COMMANDS = {  # function → its module
    name: module for module, names in {
        "checking": ("cache", "find_duplicates", "verify", "warm"),
        "contents": ("info", "ls"),
        "converting": ("convert", "merge", "reindex"),
        "fields": ("add", "drop_field"),
        "measuring": ("bench_decode", "bench_load", "bench_memory_format", "doctor"),
        "packing": ("append", "pack"),
        "pages": ("replay", "view"),
        "samples": ("cat", "export", "extract", "select"),
    }.items() for name in names
}  # fmt: skip
INTERRUPTED = 130
_GO_ON = {"pack", "convert", "merge", "add"}  # what an interrupted run of them made is kept
_EPILOG = (
    "Exit codes: 0 ok, 2 usage, 65 bad data, 73 cannot create, 74 I/O or disk full, "
    "75 locked, 130 interrupted."
)


def build(only: str | None = None, held: interrupts.DeferInterrupts | None = None) -> typer.Typer:
    """Build the command line: of all commands, or, to start faster, of one only.

    `held` holds Ctrl-C back; a command lets it through while it runs.
    """
    app = typer.Typer(
        name="packio",
        cls=_Commands,
        help="Pack image datasets into standard containers, and read them back at full speed.",
        epilog=_EPILOG,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name in [n for n in COMMANDS if n.replace("_", "-") == only] or sorted(COMMANDS):
        run = find_command(name)
        paragraphs = inspect.cleandoc(run.__doc__ or "").split("\n\n")
        text = "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)
        app.command(name.replace("_", "-"), help=text, epilog=_EPILOG)(_quietly(run, held))
    return app


def find_command(name: str) -> Callable[..., None]:
    """Import the function of a command."""
    run: Callable[..., None] = getattr(
        importlib.import_module(f"packio.cli.{COMMANDS[name]}"), name
    )
    return run


def _quietly(
    run: Callable[..., None], held: interrupts.DeferInterrupts | None = None
) -> Callable[..., None]:
    """Let a command end in silence when the reader of its output has left, as in ``| head``.

    It ends as interrupted after a Ctrl-C, also if the clean-up failed.
    """

    @functools.wraps(run)
    def wrapped(*args: Any, **options: Any) -> None:
        with until_reader_leaves():
            try:
                with held.let_through() if held is not None else contextlib.nullcontext():
                    run(*args, **options)
            except Exception as error:
                if interrupts.is_interrupt(error):
                    raise KeyboardInterrupt from error
                raise

    return wrapped


def _print_version(wanted: bool) -> None:
    if wanted:
        from packio import __version__

        typer.echo(f"packio {__version__}")
        raise typer.Exit


def _root(
    version: bool = typer.Option(False, "--version", help="Print the version and stop.",
                                 is_eager=True, callback=_print_version),
) -> None:  # fmt: skip
    pass


class _Commands(typer.core.TyperGroup):
    """Escapes what a message about wrong arguments quotes: a file's name may be there."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            if isinstance(said := getattr(error, "message", None), str):
                error.message = printable(said)  # type: ignore[attr-defined]  # of typer's errors
            raise


def main() -> None:
    """Run the command line and leave the process with its exit code.

    Only a command heeds Ctrl-C: libraries that are being imported bear no interruption. After the
    command there is nothing to clean up, and Ctrl-C ends the process at once.
    """
    with interrupts.DeferInterrupts() as held:
        try:
            _main(held)
        finally:
            if signal.getsignal(signal.SIGINT) is held:
                signal.signal(signal.SIGINT, signal.SIG_DFL)


def _main(held: interrupts.DeferInterrupts) -> None:
    warnings.filterwarnings("ignore", module="PIL")  # packio's own messages say what matters
    warn_once = functools.cache(lambda text: warn([text]))
    warnings.showwarning = lambda message, *_, **__: warn_once(str(message))
    logging.getLogger("PIL").setLevel(logging.CRITICAL + 1)
    open_streams()
    only = next((a for a in sys.argv[1:] if not a.startswith("-")), None)
    try:
        _run(only, held)
    except (KeyboardInterrupt, SystemExit) as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # typer's, of `packio --help | head`
            discard(sys.stdout)
            sys.exit(0)
        if isinstance(stop, SystemExit) and stop.code != INTERRUPTED:  # typer's, on an interrupt
            raise
        if interrupts.left_behind():  # a library at work, which Python's end could bring to abort
            tell(f"packio: {_interrupted(only)}")
            os._exit(INTERRUPTED)
        _fail(_interrupted(only), INTERRUPTED)
    except MemoryError:
        _fail("memory ran out; raise its limit, or end what else takes it", OutputError.exit_code)
    except BrokenPipeError:  # `packio ls | head`: the reader has read enough
        discard(sys.stdout)
        sys.exit(0)
    except OSError as error:  # stdout cannot be written
        discard(sys.stdout)
        where = "standard output" if error.filename is None else os.fspath(error.filename)
        _fail(f"{where}: {error.strerror or error}", OutputError.exit_code)


def _interrupted(command: str | None) -> str:
    goes_on = command in _GO_ON and "--no-resume" not in sys.argv
    return "interrupted" + ("; to go on, run the same command again" if goes_on else "")


def _run(only: str | None, held: interrupts.DeferInterrupts) -> None:
    app: Any = typer.main.get_command(build(only, held))
    command = app.commands.get(only)
    for last, word in zip(["", *sys.argv[1:]], sys.argv[1:], strict=False):
        if not word and (not last.startswith("-") or last in ("-o", "--out")):
            # an argument, or the value of -o, that Python would take for the current folder
            _fail("a name is empty; is a variable of the shell not set?", OptionError.exit_code)
    try:
        app(sys.argv[1:], prog_name="packio")
    except PackioError as error:
        options = {p.name: p.opts[0] for p in command.params} if command else {}
        _fail(as_typed(str(error), options), error.exit_code)
    except SystemExit:
        sys.stdout.flush()  # here an error can still be told
        raise


def _fail(message: str, code: int) -> NoReturn:
    tell(f"packio: {message}")
    sys.exit(code)
