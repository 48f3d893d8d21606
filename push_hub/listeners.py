"""Whoever listens to the hub from outside, and what a fault of theirs does: nothing but an event."""

from collections.abc import Callable

from push_hub.events import Observer, PartFailed
from push_hub.model import HubListener, HubPublication


class GuardedListener:
    """What a listener is told is on disk already: a fault of its own must not look like a fault of the store."""

    def __init__(self, listener: HubListener, observer: Observer | None) -> None:
        self._listener = listener
        self._observer = observer

    def publication_accepted(self, publication: HubPublication) -> None:
        self._guarded(lambda: self._listener.publication_accepted(publication))

    def subscription_changed(self, topic: str, live: int) -> None:
        self._guarded(lambda: self._listener.subscription_changed(topic, live))

    def _guarded(self, tell: Callable[[], None]) -> None:
        try:
            tell()
        except Exception as error:
            if self._observer is not None:
                self._observer(PartFailed("listener", f"{type(error).__name__}: {error}"))
