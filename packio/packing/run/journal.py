"""The journal of a run: its finished shards. If the run is cut short, the next run takes them over.

The journal is the folder ``OUT.packio-tmp/shards``. Each attempt to write a shard has a folder of
its own in it. When the files of an attempt are complete and synced, the shard's index is put in
place as ``NUMBER.packio``, by a hard link that only the first of several attempts can make. So a
shard is finished or not, wherever a process was killed, and however many processes tried.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packio.errors import OutputExistsError, PackioError
from packio.index import indexfile
from packio.index.indexfile import canonical_json
from packio.packing.plan.planning import Plan
from packio.packing.run.tally import Tally
from packio.sample.recipe import Recipe
from packio.system import files

if TYPE_CHECKING:
    import numpy as np

_PLAN = "plan"
_TALLY = "tally"
_PART = "part-{}-of-{}"
_POLL_SECONDS = 0.2
# NFS keeps what it knows of a folder for as long. Source: nfs(5), acdirmax.
_NETWORK_SECONDS = 60.0


class Journal:
    """The finished shards of a plan.

    Args:
        folder: The journal's folder; `begin` makes it.
        plan: What is packed.
        out: The pack to make; begins error messages.
    """

    def __init__(self, folder: Path, plan: Plan, out: Path) -> None:
        self.folder: Path = folder
        self.digest: str = plan.digest
        self.shards: int = len(plan.shards)
        self._recipe, self._out = plan.own, out

    @property
    def plan_file(self) -> Path:
        """Path of the file whose first line is the digest of the plan."""
        return self.folder / _PLAN

    def begin(self, *, alone: bool) -> None:
        """Make the folder; keep the finished shards of the same plan."""
        if alone and not self._is_of_this_plan():
            files.remove(self.folder)
        self.check()
        self.folder.mkdir(exist_ok=True)
        with files.replacing(self.plan_file) as file:
            file.write(f"{self.digest}\n{canonical_json(self._recipe.as_json())}".encode())
        if alone:
            self._sweep()

    def check(self, *, skip: bool = True) -> None:
        """Refuse shards of another plan; delete nothing."""
        if self._is_of_this_plan():
            if not skip:
                self._refuse_skipped()
            return
        _, _, text = self._noted().partition("\n")
        differs = self._recipe.differences(Recipe.of({"recipe": json.loads(text or "{}")}))
        raise OutputExistsError(
            f"{self._out}: parts of another pack are in {self.folder.parent}; what differs: "
            f"{'; '.join(differs) or 'files, format or shards'}; give the options that the parts "
            "were written with, or delete that folder to begin anew"
        )

    def _refuse_skipped(self) -> None:
        for number in range(self.shards):
            finished = self.find(number)
            skipped = finished.metadata["skipped"] if finished is not None else ()
            if skipped:
                raise OutputExistsError(
                    f"{self._out}: shard {number} was written without {len(skipped)} bad samples, "
                    f"as {ascii(skipped[0][0])[1:-1]} ({skipped[0][1]}); what differs: on_error; "
                    "give the --on-error that the parts were written with"
                )

    def _is_of_this_plan(self) -> bool:
        noted = self._noted()
        return not noted or noted.partition("\n")[0] == self.digest

    def _noted(self) -> str:
        """Digest and recipe of an earlier run's plan; empty if there was no run."""
        try:
            return self.plan_file.read_text()
        except FileNotFoundError:
            return ""

    def _sweep(self) -> None:
        """Remove the attempts that did not become the finished shard."""
        kept = {_PLAN}
        for number in range(self.shards):
            finished = self.find(number)
            if finished is not None:
                kept |= {self._record(number).name, finished.metadata["attempt"]}
        for path in list(self.folder.iterdir()):
            if path.name not in kept and not path.name.startswith(_PART[:5]):
                files.remove(path)

    def note_part(self, part: tuple[int, int]) -> None:
        """Note that a part was begun, for the run that finishes."""
        self.folder.joinpath(_PART.format(*part)).touch()

    def parts_of(self, missing: Sequence[int]) -> tuple[list[int], int] | None:
        """Parts that shards belong to, and the number of all parts; None if nobody noted it."""
        noted = {int(path.name.rpartition("-")[2]) for path in self.folder.glob(_PART[:5] + "*")}
        if len(noted) != 1:  # none, or several divisions
            return None
        (count,) = noted
        return sorted({number % count + 1 for number in missing}), count

    def tally(self, part: tuple[int, int] | None) -> Tally:
        """The counters of the run, or of a part of it."""
        name = _TALLY if part is None else f"{_TALLY}-{part[0]}"
        return Tally(self.folder / name, self.shards)

    def attempt(self, number: int) -> Path:
        """Path of the folder of a new attempt at a shard."""
        return self.folder / f"{number:05d}-{secrets.token_hex(6)}"

    def finish(
        self, number: int, columns: Mapping[str, np.ndarray], metadata: Mapping[str, Any]
    ) -> None:
        """Note that a shard is finished and its files are synced; the first attempt wins."""
        temporary = self.folder / f"{number:05d}.{secrets.token_hex(6)}.tmp"
        indexfile.write(temporary, columns, metadata)
        try:
            os.link(temporary, self._record(number))
        except FileExistsError:  # another attempt was first, with the same bytes
            pass
        except OSError:  # no links here
            temporary.replace(self._record(number))
        temporary.unlink(missing_ok=True)
        files.sync(self.folder)

    def find(self, number: int) -> indexfile.Index | None:
        """Index of a finished shard; None if the shard is not finished."""
        try:
            return indexfile.Index(self._record(number), is_one_of_many=True, stays_open=False)
        except PackioError:
            return None

    def awaited(self, number: int, seconds: float = _NETWORK_SECONDS) -> indexfile.Index | None:
        """Index of a shard that another machine has finished; see `find`.

        A network file system remembers for a while that a name was not there.
        """
        deadline = time.monotonic() + seconds
        while (found := self.find(number)) is None and time.monotonic() < deadline:
            os.listdir(self.folder)  # asks the server anew
            time.sleep(_POLL_SECONDS)
        return found

    def forget(self, number: int) -> None:
        """Remove the note of a finished shard, so that the shard is written anew."""
        self._record(number).unlink(missing_ok=True)

    def settle(self, finished: indexfile.Index, built: Path) -> bool:
        """Move a finished shard's files to where the pack is built. It may be called again.

        Returns:
            Whether all files of the shard are there and have their sizes.
        """
        attempt = self.folder / str(finished.metadata["attempt"])
        with suppress(FileNotFoundError):
            for path in sorted(attempt.iterdir()):
                target = built / path.name
                files.remove(target)  # of an attempt that lost its record
                path.rename(target)
        for name, size, _ in finished.files():
            try:
                if (built / name).stat().st_size != size:
                    return False
            except OSError:
                return False
        return True

    def _record(self, number: int) -> Path:
        return self.folder / f"{number:05d}{indexfile.INDEX_SUFFIX}"
