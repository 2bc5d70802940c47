"""The journal of a job: what of it is finished. If it is cut short, the next job takes that over.

Packing, appending, merging, converting, adding a field, and reindexing a bucket keep one. It is a
folder, mostly ``OUT.packio-tmp/shards``, in which lie:

- ``plan``: the digest of all that decides the results; on a second line JSON, for people;
- ``NUMBER-RANDOM/``: the files that one attempt at a task writes, which nobody else touches;
- ``NUMBER.packio``: the record of a task that is finished, an index file.

An attempt syncs its files and folders first; then its record is written under another name, synced,
put in place by a hard link that only the first of several attempts can make, and the folder synced.
So wherever a process is killed, a record that is there tells of files that are whole and on disk,
and a task without a record has at most an attempt that the next job clears away. However many
machines try a task, one attempt counts.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packio.errors import PackioError
from packio.index import indexfile
from packio.index.indexfile import INDEX_SUFFIX, canonical_json
from packio.system import files

if TYPE_CHECKING:
    import numpy as np

PART = "part-"  # begins what else a job keeps: of a division into parts, or values of some rows
_PLAN = "plan"
_POLL_SECONDS = 0.2
# NFS keeps what it knows of a folder for as long. Source: nfs(5), acdirmax.
_NETWORK_SECONDS = 60.0


class Journal:
    """The finished tasks of the plan with a digest, which are numbered from 0."""

    def __init__(self, folder: Path, digest: str = "", tasks: int = 0) -> None:
        self.folder, self.digest, self.tasks = folder, digest, tasks

    @property
    def plan_file(self) -> Path:
        return self.folder / _PLAN

    def read_plan(self) -> tuple[str, dict[str, Any]]:
        """Digest and description of an earlier job's plan; empty if there was no job."""
        try:
            digest, _, described = self.plan_file.read_text().partition("\n")
        except FileNotFoundError:
            return "", {}
        with suppress(ValueError):
            return digest, json.loads(described)
        return digest or "?", {}  # of no plan that this packio has noted

    @property
    def is_of_this_plan(self) -> bool:
        """Whether all that is here is of this plan, or nothing is here."""
        return self.read_plan()[0] in ("", self.digest)

    def begin(self, described: Mapping[str, Any]) -> None:
        """Make the folder, and note the plan."""
        self.folder.mkdir(exist_ok=True)
        with files.replacing(self.plan_file) as file:
            file.write(f"{self.digest}\n{canonical_json(described)}".encode())

    def discard(self) -> None:
        """Remove the journal in one step, whenever a kill comes.

        Of half a journal the plan might be gone, and its records taken for those of another plan.
        """
        gone = self.folder.with_name(f"{self.folder.name}.gone")
        files.remove(gone)
        with suppress(FileNotFoundError):
            self.folder.rename(gone)
        files.remove(gone)

    def sweep(self) -> None:
        """Remove the attempts that did not become the finished task."""
        kept = {_PLAN}
        for number in range(self.tasks):
            finished = self.find(number)
            if finished is not None:
                kept |= {self._record(number).name, finished.metadata["attempt"]}
        for path in list(self.folder.iterdir()):
            if path.name not in kept and not path.name.startswith(PART):
                files.remove(path)

    def attempt(self, number: int) -> Path:
        """Path of the folder of a new attempt at a task."""
        return self.folder / f"{number:05d}-{secrets.token_hex(6)}"

    def finish(
        self, number: int, columns: Mapping[str, np.ndarray], metadata: Mapping[str, Any]
    ) -> None:
        """Note that a task is finished and its files are synced; the first attempt wins."""
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
        """The record of a finished task, or None."""
        try:
            return indexfile.Index(self._record(number), is_one_of_many=True)
        except PackioError:
            return None

    def wait_for(self, number: int, seconds: float = _NETWORK_SECONDS) -> indexfile.Index | None:
        """The record of a task that another machine has finished, or None."""
        deadline = time.monotonic() + seconds
        while (found := self.find(number)) is None and time.monotonic() < deadline:
            os.listdir(self.folder)  # asks the server anew, which remembers what was not there
            time.sleep(_POLL_SECONDS)
        return found

    def forget(self, number: int) -> None:
        """Remove a record, so that the task is done anew."""
        self._record(number).unlink(missing_ok=True)

    def settle(self, finished: indexfile.Index, built: Path) -> bool:
        """Move a finished task's files to where the pack is built; tell whether all are there.

        It may be called again: a run may have been killed amid the moves.
        """
        inner = os.path.dirname(str(finished.metadata["name"]))  # of a container within a shard
        with suppress(FileNotFoundError):
            for path in sorted((self.folder / str(finished.metadata["attempt"]) / inner).iterdir()):
                target = built / inner / path.name
                target.parent.mkdir(parents=True, exist_ok=True)
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
        return self.folder / f"{number:05d}{INDEX_SUFFIX}"
