"""``packio drop-field``."""

from __future__ import annotations

from typing import Annotated

import typer

from packio.cli import _options as option
from packio.cli._output import counted, escaped, print_json, say


def run(
    pack: option.Pack,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The field to drop.")],
    as_json: option.Json = False,
    quiet: option.Quiet = False,
) -> None:
    """Take a field out of a pack. Files that hold nothing else are removed.

    Values among those of other fields stay in their files, unseen; `packio convert` makes a pack
    without them.

    Example: packio drop-field photos.tar latent
    """
    from packio.packing.adding_field import drop_field

    report = drop_field(pack, name)
    if as_json:
        print_json(report)
    elif not quiet:
        say(
            f"{escaped(str(pack))}: {name} is dropped; {counted(len(report.removed), 'file')} "
            f"removed, {report.freed:,} bytes"
        )
        if report.remaining:
            say(
                f"{report.remaining:,} bytes of its values stay in files that hold other fields, "
                "too; to be rid of them: packio convert"
            )
        say(f"digest {report.digest}")
