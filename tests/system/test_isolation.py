"""Functions that are called in another process, which may crash or hang, often or once."""

from __future__ import annotations

import errno
import gc
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from packio import errors
from packio.system import isolation
from packio.system.isolation import IsolatedFunction

# What the other process makes: a function that does by a number what a library may do.
_MODULE = """
import ctypes, os, signal
from packio import errors

def made(word):
    if word == "refused":
        raise errors.NotAPackError("no such thing")
    def call(number):
        if number == -1:
            os.kill(os.getpid(), signal.SIGSEGV)
        if number == -2:
            while True:
                pass
        if number == -3:
            raise errors.IntegrityError("it is damaged")
        if number == -4:
            raise IndexError("no sample 4")
        if number == -5:
            raise ZeroDivisionError("by zero")
        if number == -6:
            ctypes.CDLL(None).puts(b"a library prints")
            ctypes.CDLL(None).fflush(None)
        if number == -7:
            return str(os.getpid()).encode()
        return word.encode() * abs(number)
    return call
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "odd_library.py").write_text(_MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))


def _function(word: str = "ab") -> IsolatedFunction:
    return IsolatedFunction("odd_library:made", word, where="a.h5", seconds=60)


def _call(function: IsolatedFunction, number: int, seconds: float = 60) -> bytes:
    return function(number, f"sample {number}", seconds)


def _pid(function: IsolatedFunction) -> int:
    return int(_call(function, -7))


def _is_running(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def test_values_come_back_whatever_their_size() -> None:
    function = _function()
    for number in (1, 0, 100_000, 5_000_000, 3):
        assert _call(function, number) == b"ab" * number


def test_functions_share_a_process_which_is_not_this_one() -> None:
    first, second = _function("a"), _function("b")
    assert _pid(first) == _pid(second) != os.getpid()
    assert (_call(first, 3), _call(second, 2), _call(first, 1)) == (b"aaa", b"bb", b"a")


def test_a_crash_is_an_error_and_the_next_call_goes_on() -> None:
    function, other = _function(), _function("x")
    assert _call(other, 2) == b"xx"
    for _ in range(2):
        with pytest.raises(errors.IntegrityError, match=r"a\.h5: .*reads sample -1 \(SIGSEGV\)"):
            _call(function, -1)
        assert _call(function, 2) == b"abab"
        assert _call(other, 2) == b"xx"


def test_a_call_that_runs_for_ever_is_given_up() -> None:
    function = _function()
    with pytest.raises(errors.IntegrityError, match=r"sample -2 is not read in 1 seconds.*hangs"):
        _call(function, -2, seconds=1)
    assert _call(function, 1) == b"ab"


def test_a_process_that_others_kill_is_no_damage() -> None:
    function = _function()
    os.kill(_pid(function), signal.SIGKILL)
    with pytest.raises(errors.ReadError, match="was killed"):
        _call(function, 1)
    assert _call(function, 1) == b"ab"


def test_errors_come_back_as_they_are() -> None:
    with pytest.raises(errors.NotAPackError, match="no such thing"):
        _call(_function("refused"), 1)
    function = _function()
    for number, kind, message in (
        (-3, errors.IntegrityError, "it is damaged"), (-4, IndexError, "no sample 4"),
        (-5, RuntimeError, "ZeroDivisionError: by zero"),
    ):  # fmt: skip
        with pytest.raises(kind, match=message):
            _call(function, number)
    assert _call(function, 1) == b"ab"


def test_what_a_library_prints_is_no_value() -> None:
    function = _function()
    assert [_call(function, -6), _call(function, 2)] == [b"ab" * 6, b"abab"]


def test_threads_take_turns() -> None:
    functions = [_function(word) for word in "xyz"]
    calls = [(functions[i % 3], "xyz"[i % 3], i * 37 % 4000) for i in range(300)]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda call: _call(call[0], call[2]), calls))
    assert found == [word.encode() * count for _, word, count in calls]


def test_the_process_ends_with_the_last_function() -> None:
    first, second = _function(), _function()
    pid = _pid(first)
    assert _pid(second) == pid
    del first
    gc.collect()
    assert _call(second, 1) == b"ab"
    assert _pid(second) == pid
    del second
    gc.collect()
    assert not _is_running(pid)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_has_a_process_of_its_own() -> None:
    function = _function()
    mine = _pid(function)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        found = b"%d %s" % (_pid(function), _call(function, 3))
        os.write(write, found)
        os._exit(0)
    os.close(write)
    pid, value = os.read(read, 1000).split()
    os.close(read)
    os.waitpid(child, 0)
    assert value == b"ababab"
    assert int(pid) not in (mine, os.getpid())
    assert _pid(function) == mine
    while _is_running(int(pid)):  # it learns that its parent is gone; pytest has a time limit
        time.sleep(0.02)


def test_after_ctrl_c_no_answer_is_taken_for_another() -> None:
    function = _function()
    assert _call(function, 1) == b"ab"

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            _call(function, -2)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert _call(function, 2) == b"abab"


def test_an_interrupt_while_a_function_goes_leaves_no_answer_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keep, gone = _function("ab"), _function("cd")
    assert _call(keep, 1) + _call(gone, 1) == b"abcd"

    def interrupted(*_: int) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(isolation, "_read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            gone.__del__()
    assert _call(keep, 2) == b"abab"
    assert _call(gone, 2) == b"cdcd"


def test_the_process_does_not_outlive_its_parent() -> None:
    code = (
        "from packio.system.isolation import IsolatedFunction\n"
        "function = IsolatedFunction('odd_library:made', 'x', where='x', seconds=60)\n"
        "print(function(-7, 'x', 60).decode(), flush=True)\n"
        "function(-2, 'x', 2)"  # which hangs for two seconds
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    while _is_running(pid):
        time.sleep(0.02)


def test_nothing_is_left_at_the_end_of_a_program() -> None:
    code = (
        "from packio.system.isolation import IsolatedFunction\n"
        "function = IsolatedFunction('odd_library:made', 'x', where='x', seconds=60)\n"
        "print(function(-7, 'x', 60).decode())"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.stderr == ""
    assert not _is_running(int(done.stdout))


def test_such_a_process_starts_no_further_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packio.system.isolation._is_other", True)
    assert _pid(_function()) == os.getpid()


# A function that is called once


def test_a_process_that_was_killed_does_not_blame_the_file() -> None:
    with pytest.raises(errors.ReadError, match=r"^a\.h5: the process that reads it was killed"):
        isolation.run("signal:raise_signal", signal.SIGKILL, where="a.h5", seconds=60)
    with pytest.raises(errors.IntegrityError, match="SIGSEGV"):
        isolation.run("signal:raise_signal", signal.SIGSEGV, where="a.h5", seconds=60)


def test_memory_that_runs_out_is_told_as_such() -> None:
    with pytest.raises(MemoryError):
        isolation.run("builtins:bytearray", 1 << 62, where="a.h5", seconds=60)


def test_errors_of_the_system_name_a_file() -> None:
    with pytest.raises(OSError, match=r"a\.h5") as found:
        isolation.run("os:close", 9999, where="a.h5", seconds=60)
    assert found.value.errno == errno.EBADF
    with pytest.raises(FileNotFoundError, match="/nowhere"):
        isolation.run("os:open", "/nowhere", 0, where="a.h5", seconds=60)


def test_no_process_to_be_had_names_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", full)
    with pytest.raises(BlockingIOError, match=r"unavailable: 'a\.h5'"):
        isolation.run("os:close", 9999, where="a.h5", seconds=60)
