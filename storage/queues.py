"""Stays in queues, and who is connected, told to whoever traces them.

    watch = watch_queue("intake", tell)      # None when nobody wants to know: then nothing is noted
    stay = watch.came("http://...")
    stay.begins()
    stay.ends()

Whoever is told is called from any thread; it neither waits nor raises.
"""

import time
from collections.abc import Callable
from itertools import count
from typing import Literal, NamedTuple

StayEnd = Literal["ok", "failed", "refused", "lost"]


class QueueStay(NamedTuple):
    """Somebody was in a queue, and has left it. Times are of the machine's monotonic clock."""

    resource: str
    """`kind` or `kind/which`; never a secret."""
    about: str
    queued_ns: int
    started_ns: int
    """When its service began."""
    done_ns: int
    found: int
    """How many were there when it came, with those in service."""
    end: StayEnd


class ConnectionChange(NamedTuple):
    """A link, session or subscriber is connected now, or is not."""

    resource: str
    is_up: bool
    at_ns: int


QueueObserver = Callable[[QueueStay | ConnectionChange], None]


class OpenStay:
    """Somebody is in a queue."""

    __slots__ = ("_about", "_found", "_queued_ns", "_started_ns", "_watch")

    def __init__(self, watch: "QueueWatch", about: str, found: int, queued_ns: int) -> None:
        self._watch = watch
        self._about = about
        self._found = found
        self._queued_ns = queued_ns
        self._started_ns = 0

    def begins(self) -> None:
        """Its turn has come. Again: what was tried before did not count."""
        self._started_ns = self._watch.now()

    def ends(self, end: StayEnd = "ok") -> None:
        self._watch.left(self._about, self._found, self._queued_ns, self._started_ns, end)

    def leaves(self) -> None:
        """It goes without having been served; nobody is told."""
        self._watch.forget()


class QueueWatch:
    """One queue. Anybody may come from any thread; they leave in one and the same."""

    __slots__ = ("_came", "_left", "_resource", "_tell", "now")

    def __init__(self, resource: str, tell: QueueObserver, now: Callable[[], int] = time.monotonic_ns) -> None:
        self._resource = resource
        self._tell = tell
        self._came = count()  # threads take numbers from it without a lock
        self._left = 0
        self.now = now

    def came(self, about: str = "") -> OpenStay:
        return OpenStay(self, about, next(self._came) - self._left, self.now())

    def left(self, about: str, found: int, queued_ns: int, started_ns: int, end: StayEnd) -> None:
        self._left += 1
        done_ns = self.now()
        started_ns = started_ns or done_ns
        self._tell(QueueStay(self._resource, about, queued_ns, started_ns, done_ns, max(found, 0), end))

    def forget(self) -> None:
        self._left += 1


def watch_queue(resource: str, tell: QueueObserver | None) -> QueueWatch | None:
    return None if tell is None else QueueWatch(resource, tell)
