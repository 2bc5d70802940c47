"""Making items ahead of their use, in a thread that always ends."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from packio.errors import OptionError
from packio.system import interrupts, memory

T = TypeVar("T")

_PATIENCE = 2.0  # seconds after Ctrl-C, for an item that is being made


class prefetch(Generic[T]):  # noqa: N801 (called like a function)
    """Iterate over an iterable in a background thread, up to ``n`` items ahead.

    An exception of the iterable is raised in place of the item, with its traceback. The thread ends
    when the iterable ends, when this object is closed, left as a context or garbage-collected, and
    when the interpreter exits. The iterable's iterator is then closed, if it has ``close()``. When
    Ctrl-C comes while ``next`` waits for an item, ``next`` ends within two seconds.

    Args:
        iterable: The iterable. The thread takes its items one at a time.
        n: Items that may wait, at least 1; one more is being made.

    Raises:
        OptionError: n is less than 1.
        MemoryError: there is no room for a thread.
    """

    def __init__(self, iterable: Iterable[T], n: int = 2) -> None:
        if n < 1:
            raise OptionError(f"n={n}: expected at least 1 item to wait")
        memory.require_thread()
        self._channel: _Channel[T] = _Channel(n)
        thread = threading.Thread(
            target=_fill, args=(self._channel, iterable), name="packio-prefetch", daemon=True
        )  # without a reference to this object, whose collection ends the thread
        self._finish = weakref.finalize(self, _end, self._channel, thread)
        with interrupts.DeferInterrupts():
            thread.start()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        try:
            return self._channel.take()
        except KeyboardInterrupt:
            if (left := self._finish.detach()) is not None:
                channel, thread = left[2]
                channel.close()
                thread.join(_PATIENCE)  # if its item waits for a server, it ends later
            raise
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the thread after the item that it is making; drop the items that wait."""
        self._finish()

    def __enter__(self) -> prefetch[T]:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Channel(Generic[T]):
    """Items on their way from one thread to another."""

    def __init__(self, most: int) -> None:
        self.left = threading.Event()
        self._most, self._items = most, deque[T]()
        self._changed = threading.Condition()
        self._closed = self._ended = False
        self._error: BaseException | None = None

    def put(self, item: T) -> bool:
        """Wait for room and add an item; return False if the reader has closed the channel."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._items) < self._most)
            if not self._closed:
                self._items.append(item)
                self._changed.notify_all()
            return not self._closed

    def end(self, error: BaseException | None) -> None:
        """Tell the reader that no more items come, or that an error ended them."""
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def take(self) -> T:
        """Wait for the next item."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._ended or self._items)
            if self._items:
                item = self._items.popleft()
                self._changed.notify_all()
                return item
            error, self._error = self._error, None
        if error is not None:
            raise error
        raise StopIteration

    def close(self) -> None:
        """Tell the writer that no more items are wanted, nor the one that is being made."""
        self.left.set()
        with self._changed:
            self._closed = True
            self._items.clear()
            self._changed.notify_all()


def _fill(channel: _Channel[T], iterable: Iterable[T]) -> None:
    iterator, error = None, None
    try:
        with interrupts.leaving(channel.left):
            iterator = iter(iterable)
            for item in iterator:
                if not channel.put(item):
                    break
                del item  # not kept until the next one is there
    except BaseException as caught:  # noqa: BLE001 (raised where the items are taken)
        error = caught
    try:
        close = getattr(iterator, "close", None)
        if close is not None:
            close()
    except BaseException as caught:  # noqa: BLE001 (as above)
        error = error or caught
    del iterable, iterator
    channel.end(error)


def _end(channel: _Channel[T], thread: threading.Thread) -> None:
    channel.close()
    if thread is not threading.current_thread():  # collected in the thread itself
        thread.join()
