"""What an operator must know without having asked: one line on stderr for what was refused or came to nothing.

Strangers cause most of it, so lines are bounded: a few of each kind in a minute, and then how many there were more.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from gateway.discovery.events import RegistrationFailed
from gateway.telemetry.plain import without_keys
from push_hub.delivery.events import DeliveryFailed
from push_hub.events import CanaryChanged, IntentFailed, IntentRetried, PartFailed
from push_hub.intake.events import DocumentRefused, FetchFailed, ParserGaveUp, ParsersDisagreed
from serving.events import LimitReached, RequestBroke, RequestRefused
from serving.tls import CertificateRefused

LINES = 10
"""Of one kind, in `WINDOW` seconds."""
WINDOW = 60.0
MAX_LINE = 500
FORBIDDEN = 403


WORTH_A_LOOK = frozenset(
    (
        *(IntentFailed, IntentRetried, DocumentRefused, FetchFailed, ParserGaveUp, ParsersDisagreed, DeliveryFailed),
        *(RequestRefused, LimitReached, RequestBroke, PartFailed, CanaryChanged, CertificateRefused),
        RegistrationFailed,
    )
)
"""Of which there may be a line."""


def said_of(event: object) -> str | None:
    """The line for an event; None for what nobody needs to be told of."""
    match event:
        case IntentFailed():
            return f"refused: {event.mode} {without_keys(event.callback)} to {event.topic}: {event.reason}"
        case IntentRetried():
            return f"not verified yet: {without_keys(event.callback)} for {event.topic}: {event.reason}"
        case DocumentRefused():
            return f"document refused ({event.trouble}): {event.topic}: {event.reason}"
        case FetchFailed():
            again = "waiting for the next ping" if event.retry_at is None else "trying again"
            return f"not fetched: {event.topic}: {event.reason}; {again}"
        case ParserGaveUp() | ParsersDisagreed():
            return f"feed passed on whole: {event.topic}: {event.reason}"
        case DeliveryFailed() if event.given_up:
            return f"delivery given up: {without_keys(event.subscription.callback)}: {event.reason}"
        case RequestRefused() if event.status == FORBIDDEN:
            return f"request refused{f' of {event.client}' if event.client else ''}: {event.text}"
        case LimitReached():
            return f"a bound bit: {event.name} (the table of bounds is in docs/hub.md)"
        case RequestBroke():
            return f"a request met a fault of ours: {event.error}"
        case PartFailed():
            return f"{event.part} failed: {event.error}"
        case CanaryChanged():
            return event.reason
        case CertificateRefused():
            return f"the certificate is not replaced: {event.reason}"
        case RegistrationFailed():
            again = "" if event.retry_in is None else f"; trying again in {event.retry_in:.0f} s"
            return f"{event.name}: {event.reason}{again}"
    return None


@dataclass(slots=True)
class _Kind:
    until: float
    lines: int = 0
    kept_back: int = 0


def say_on_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


class Complaints:
    """An observer that writes the lines. `observe` costs a look-up for what is of no interest."""

    def __init__(
        self,
        program: str,
        write: Callable[[str], object] = say_on_stderr,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._program = program
        self._write = write
        self._monotonic = monotonic
        self._kinds: dict[type, _Kind] = {}

    def observe(self, event: object) -> None:
        if type(event) not in WORTH_A_LOOK:
            return
        line = said_of(event)
        if line is None:
            return
        now = self._monotonic()
        name = type(event)
        kind = self._kinds.get(name)
        if kind is None or now >= kind.until:
            if kind is not None:
                self._say_kept_back(name, kind)
            kind = self._kinds[name] = _Kind(now + WINDOW)
        if kind.lines >= LINES:
            kind.kept_back += 1
            return
        kind.lines += 1
        self._say(line)

    def close(self) -> None:
        for name, kind in self._kinds.items():
            self._say_kept_back(name, kind)
        self._kinds.clear()

    def _say_kept_back(self, name: type, kind: _Kind) -> None:
        if kind.kept_back:
            self._say(f"and {kind.kept_back} more of {name.__name__}")

    def _say(self, line: str) -> None:
        printable = "".join(c if c.isprintable() else " " for c in line[:MAX_LINE])
        self._write(f"{self._program}: {printable}")
