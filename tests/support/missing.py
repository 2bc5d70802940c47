"""What packio says where an optional package is not installed."""

from __future__ import annotations

import subprocess
import sys

from packio.errors import MissingPackageError


def told(package: str, code: str) -> str:
    """What Python prints of `code` in a process of its own, where `package` cannot be imported."""
    code = f"import sys; sys.modules[{package!r}] = None; import packio\n{code}"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    assert MissingPackageError.__name__ in done.stderr
    return done.stderr
