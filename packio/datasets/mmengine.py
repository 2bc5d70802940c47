"""A file backend for OpenMMLab: mmengine reads files out of any pack, by their keys.

::

    import packio.datasets.mmengine

    packio.datasets.mmengine.register()
    backend_args = dict(backend="packio", db_path="train.lmdb", prefix="data/train")

With these ``backend_args``, ``mmengine.fileio.get("data/train/cats/1.jpg")``, and so every
LoadImageFromFile of mmcv, mmdet, mmseg and the like, reads the sample with the key ``cats/1.jpg``.
The same arguments work for packs of every format. Without mmengine, `PackioBackend` works by
itself.

Source: mmengine 0.10.7, ``mmengine/fileio/backends/base.py``, ``registry_utils.py`` and
``local_backend.py`` (https://github.com/open-mmlab/mmengine).
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from packio import registry
from packio.errors import KeyNotFoundError, OptionError
from packio.images.dct import as_file
from packio.packs import opening
from packio.packs.opening import Pack

_PathLike = str | os.PathLike[str]


def _base() -> Any:
    """The base class of mmengine's backends; object if mmengine is not installed."""
    if importlib.util.find_spec("mmengine") is None:
        return object
    return importlib.import_module("mmengine.fileio").BaseStorageBackend


class PackioBackend(_base()):  # type: ignore[misc]  # mmengine may be absent
    """Files out of packs, by their keys.

    Safe in threads and after fork; pickles as its arguments and the digests of its packs.

    Args:
        db_path: A pack.
        prefix: Beginning of a path that is asked for; the rest of the path is the key.
        packs: Instead of both: {prefix: pack}. If several prefixes fit a path, the longest counts.

    Raises:
        OptionError: neither or both of `db_path` and `packs`.
        NotAPackError, UnfinishedPackError, IntegrityError: see `packio.open`.
    """

    def __init__(
        self,
        db_path: _PathLike | None = None,
        *,
        prefix: str = "",
        packs: Mapping[str, _PathLike] | None = None,
    ) -> None:
        if (db_path is None) == (packs is None) or (packs is not None and prefix):
            raise OptionError("expected db_path=, with or without prefix=, or packs={prefix: path}")
        paths = {prefix: db_path} if db_path is not None else dict(packs or {})
        opened = {_folder(name): opening.open(path) for name, path in paths.items()}
        self._packs = dict(sorted(opened.items(), key=lambda item: -len(item[0])))

    def get(self, filepath: _PathLike) -> bytes:
        """Read a file's bytes, checked.

        Raises:
            KeyNotFoundError: no pack has it.
            IntegrityError: the bytes are not those that were packed.
            ReadError: the file cannot be read.
        """
        pack, key = self._place(filepath)
        row = pack.row(pack.find(key))
        return as_file(pack.read(row), row.encoding)

    def get_text(self, filepath: _PathLike, encoding: str = "utf-8") -> str:
        """Read a file as text; see `get`."""
        return self.get(filepath).decode(encoding)

    def exists(self, filepath: _PathLike) -> bool:
        """Tell whether a path is a file or a folder of a pack."""
        return self.isfile(filepath) or self.isdir(filepath)

    def isfile(self, filepath: _PathLike) -> bool:
        """Tell whether a pack has this file."""
        try:
            pack, key = self._place(filepath)
            pack.find(key)
        except KeyNotFoundError:
            return False
        return True

    def isdir(self, filepath: _PathLike) -> bool:
        """Tell whether a pack has files below this path."""
        return next(self._below(filepath), None) is not None

    def join_path(self, filepath: _PathLike, *filepaths: _PathLike) -> str:
        """Join the parts of a path with slashes."""
        first = os.fspath(filepath).rstrip("/")
        return "/".join([first, *(os.fspath(path).strip("/") for path in filepaths)])

    @contextlib.contextmanager
    def get_local_path(self, filepath: _PathLike) -> Iterator[str]:
        """Write a file's bytes to a temporary file; yield its path, and delete it in the end."""
        data = self.get(filepath)
        with tempfile.TemporaryDirectory(prefix="packio-") as folder:
            path = Path(folder, f"file{Path(filepath).suffix}")
            path.write_bytes(data)
            yield os.fspath(path)

    def list_dir_or_file(
        self,
        dir_path: _PathLike,
        list_dir: bool = True,
        list_file: bool = True,
        suffix: str | tuple[str, ...] | None = None,
        recursive: bool = False,
    ) -> Iterator[str]:
        """List what is in a folder, in bytewise order.

        Args:
            dir_path: The folder.
            list_dir: List folders.
            list_file: List files.
            suffix: List only files with this ending, or one of these; not with `list_dir`.
            recursive: Also what is in its folders.

        Yields:
            Paths relative to `dir_path`. As mmengine's other backends, nothing that begins with
            a dot.

        Raises:
            TypeError: `suffix` together with `list_dir`.
        """
        if list_dir and suffix is not None:
            raise TypeError("suffix= is of files; give list_dir=False with it")
        return self._listed(dir_path, list_dir, list_file, suffix or "", recursive)

    def _listed(
        self, folder: _PathLike, list_dir: bool, list_file: bool, suffix: str | tuple[str, ...],
        recursive: bool,
    ) -> Iterator[str]:  # fmt: skip
        seen: set[str] = set()
        for path in self._below(folder):
            *parents, name = path.split("/")
            for depth in range(len(parents) if recursive else min(1, len(parents))):
                parent = "/".join(parents[: depth + 1])
                if list_dir and parent not in seen:
                    seen.add(parent)
                    yield parent
            is_here = recursive or not parents
            if list_file and is_here and name[:1] != "." and path.endswith(suffix):
                yield path

    def _place(self, filepath: _PathLike) -> tuple[Pack, str]:
        """The pack that may have a file, and the file's key in it."""
        path = os.fspath(filepath)
        for prefix, pack in self._packs.items():
            if path.startswith(prefix):
                return pack, path[len(prefix) :]
        raise KeyNotFoundError(f"{path}: begins with none of the prefixes {list(self._packs)}")

    def _below(self, folder: _PathLike) -> Iterator[str]:
        """Paths of the files below a folder of one pack, relative to it, in bytewise order."""
        path = os.fspath(folder)
        try:
            pack, inside = self._place(_folder(path))
        except KeyNotFoundError:
            return
        start, index = os.fsencode(inside), pack.index_file
        for row in index.rows_from(start):
            key = index.key(row)
            if not key.startswith(start):
                return
            yield os.fsdecode(key[len(start) :])


def register(name: str = "packio", prefixes: str | list[str] | None = None) -> None:
    """Make `PackioBackend` known to mmengine; doing so again changes nothing.

    Args:
        name: What ``backend_args`` call it.
        prefixes: Beginnings of paths, as "packio" of ``packio://…``, that mean this backend
            without ``backend_args``.

    Raises:
        MissingPackageError: mmengine is not installed.
    """
    registry.require("mmengine").fileio.register_backend(
        name, PackioBackend, force=True, prefixes=prefixes
    )


def _folder(path: str) -> str:
    """A folder's path as the beginning of the paths in it."""
    return path if not path or path.endswith("/") else f"{path}/"
