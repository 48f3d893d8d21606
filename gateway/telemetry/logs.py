"""Structured logs: one JSON object a line for each event, with the ids by which a publication is followed.

    {"time": "2026-01-01T12:00:00.123+00:00", "level": "info", "gateway": "a", "event": "CrossingPublished",
     "publication": 7, "version": "56657273696f6e::...", "name": "http://...", ...}

`publication` is the hub's number, `version` the network's id, which is the same at every gateway. Single deliveries
that succeed at the first try are not logged (`FanoutFinished` says how many there were). Lines are written by a thread
of their own: who reads them slowly loses lines, which are counted, and holds up nothing.
"""

import json
import queue
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TextIO

from gateway.telemetry.plain import Plain, plain
from gateway.telemetry.recorder import PublicationPath
from gateway.telemetry.telemetry import QUIET
from push_hub.delivery.events import Delivered

MAX_WAITING = 10_000
WARNINGS = ("Failed", "Refused", "Gone", "Reached", "GaveUp", "Overtaken", "Disagreed", "Trimmed")
ERRORS = ("Broke", "StoreFailed")

WayOf = Callable[[int | None, str | None], PublicationPath | None]
"""The way of a publication, by the hub's number or the network's version."""


def level_of(name: str) -> str:
    if any(word in name for word in ERRORS):
        return "error"
    return "warning" if any(word in name for word in WARNINGS) else "info"


def line_of(event: object, gateway: str, at: float, way_of: WayOf | None = None) -> str:
    name = type(event).__name__
    document: Plain = {
        "time": datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds"),
        "level": level_of(name),
        "gateway": gateway,
        "event": name,
    }
    known = plain(event)
    known.pop("at", None)
    document |= known
    if way_of is not None:
        _identify(document, way_of)
    return json.dumps(document, ensure_ascii=False)


def _identify(document: Plain, way_of: WayOf) -> None:
    """An event has one of the two ids; the flight recorder knows the other."""
    publication, version = document.get("publication"), document.get("version")
    way = way_of(publication if isinstance(publication, int) else None, version if isinstance(version, str) else None)
    if way is None:
        return
    if publication is None:
        document["publication"] = way.publication
    if version is None:
        document["version"] = way.version
    if document["event"] == "FanoutFinished":
        document |= {"topic": way.topic, "delivered": way.delivered, "failed": way.failed}


class JsonLog:
    """Give `observe` to whoever makes events."""

    def __init__(
        self, stream: TextIO, gateway: str, clock: Callable[[], float] = time.time, max_waiting: int = MAX_WAITING
    ) -> None:
        self._stream = stream
        self._gateway = gateway
        self._clock = clock
        self._lines: queue.Queue[str | None] = queue.Queue(max_waiting)
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._started = False
        self.way_of: WayOf | None = None
        self.dropped = 0

    def start(self) -> None:
        self._started = True
        self._thread.start()

    def observe(self, event: object) -> None:
        kind = type(event)
        if kind in QUIET and not (isinstance(event, Delivered) and event.attempts > 1):
            return
        try:
            self._lines.put_nowait(line_of(event, self._gateway, self._clock(), self.way_of))
        except queue.Full:
            self.dropped += 1

    def close(self, seconds: float = 2.0) -> None:
        """Write what is left, for no longer than `seconds`."""
        if not self._started:
            return
        try:
            self._lines.put(None, timeout=seconds)
        except queue.Full:
            return
        self._thread.join(seconds)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._stream.write(line + "\n")
                if self._lines.empty():
                    self._stream.flush()
            except (OSError, ValueError):
                self.dropped += 1
