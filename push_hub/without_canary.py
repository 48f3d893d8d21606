"""Events without those of the hub's own canary, so that whoever counts, logs or traces sees what users did.

The canary tells of itself: `CanaryArrived` each round, `CanaryChanged` when it turns bad or good.
"""

from collections.abc import Callable

from push_hub.delivery.events import Delivered, DeliveryFailed, FanoutFinished, PublicationAccepted, SubscriptionGone


class WithoutCanary:
    def __init__(self, observer: Callable[[object], None]) -> None:
        self._observer = observer
        self.topic: str | None = None
        """The canary's; None while there is none."""
        self._publications: set[int] = set()
        """The canary's whose fan-out is not finished: one or two."""

    def __call__(self, event: object) -> None:
        if self.topic is None or not self._is_canary(event):
            self._observer(event)

    def _is_canary(self, event: object) -> bool:
        if isinstance(event, Delivered | DeliveryFailed | SubscriptionGone):
            return event.subscription.topic == self.topic
        if isinstance(event, FanoutFinished):
            if event.publication not in self._publications:
                return False
            self._publications.remove(event.publication)
            return True
        if getattr(event, "topic", None) != self.topic:
            return False
        if isinstance(event, PublicationAccepted):
            self._publications.add(event.publication)
        return True
