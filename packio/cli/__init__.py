"""The command line: one module a command, found by its place in this folder.

A module ``bench_decode.py`` is the command ``packio bench-decode``. It has a function ``run`` with
typer annotations, whose docstring is the help text, and does no more than parse, call the library
and print. Errors of packio's become one line on stderr and the exit code of their class.
"""

from __future__ import annotations

import importlib
import io
import logging
import os
import pkgutil
import sys
import warnings

import typer

from packio.errors import OutputError, PackioError

INTERRUPTED = 130
_EPILOG = (
    "Exit codes: 0 ok, 2 usage, 65 bad data, 73 cannot create, 74 I/O or disk full, "
    "75 locked, 130 interrupted."
)


def build(only: str | None = None) -> typer.Typer:
    """Build the command line.

    Args:
        only: A command's name: its module alone is loaded, to start faster; None loads all.
    """
    app = typer.Typer(
        name="packio",
        help="Pack image datasets into standard containers, and read them back at full speed.",
        epilog=_EPILOG,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    names = [m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")]
    chosen = [n for n in names if n.replace("_", "-") == only] or names
    for name in chosen:
        module = importlib.import_module(f"packio.cli.{name}")
        app.command(name.replace("_", "-"), epilog=_EPILOG)(module.run)
    return app


def _print_version(wanted: bool) -> None:
    if not wanted:
        return
    from packio import __version__

    typer.echo(f"packio {__version__}")
    raise typer.Exit


def _root(
    version: bool = typer.Option(False, "--version", help="Print the version and stop.",
                                 is_eager=True, callback=_print_version),
) -> None:  # fmt: skip
    pass


def _run(only: str | None) -> None:
    try:
        build(only)(standalone_mode=True)
    except SystemExit:
        if sys.stdout is not None:
            sys.stdout.flush()  # here an error can still be told
        raise


def main() -> None:
    """Run the command line and leave the process with its exit code."""
    warnings.filterwarnings("ignore", module="PIL")  # what matters of them is in our messages
    logging.getLogger("PIL").setLevel(logging.CRITICAL + 1)
    only = next((a for a in sys.argv[1:] if not a.startswith("-")), None)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files need not be text
    try:
        _run(only)
    except PackioError as error:
        print(f"packio: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, SystemExit) as stop:
        if isinstance(stop, SystemExit) and stop.code != INTERRUPTED:  # typer's, on an interrupt
            raise
        print("packio: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except MemoryError:
        print("packio: memory ran out; raise its limit, or end what else takes it", file=sys.stderr)
        sys.exit(OutputError.exit_code)
    except BrokenPipeError:  # `packio ls | head`: the reader has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:  # of what is printed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"packio: {error}", file=sys.stderr)
        sys.exit(OutputError.exit_code)
