"""The values that the parts of the hub hand to each other. No behaviour, no I/O.

Times are wall-clock seconds since the epoch (they outlive a restart); who reads the clock passes them in.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol


class Dialect(StrEnum):
    """Which text a subscriber spoke when it subscribed: decides bodies and signatures."""

    PUSH_03 = "0.3"
    PUSH_04 = "0.4"
    WEBSUB = "websub"


class SignatureMethod(StrEnum):
    SHA1 = "sha1"
    SHA256 = "sha256"
    SHA384 = "sha384"
    SHA512 = "sha512"


class HubSubscription(NamedTuple):
    """A verified subscription. (topic, callback) is its key; `id` orders the fan-out.

    A named tuple, because one is made for each delivery and a frozen dataclass takes four times as long to make.
    """

    id: int
    topic: str
    callback: str
    secret: bytes | None
    signature: SignatureMethod
    dialect: Dialect
    lease_until: float
    difference: bool = False
    """It asked for what it does not have yet only, and has missed nothing: bodies are reduced where they can be."""

    def __repr__(self) -> str:
        """Without the secret: it is in events, and those end in logs."""
        return f"Subscription(id={self.id}, topic={self.topic!r}, callback={self.callback!r}, dialect={self.dialect!s})"


@dataclass(frozen=True, slots=True)
class Content:
    """What a topic said: exactly what goes to subscribers.

    `changes` is the document reduced to its new and changed entries, when that is less and the format allows it.
    """

    content_type: str
    body: bytes
    changes: bytes | None = None
    brought: bool = False
    """Whether a gateway brought it from another network, where it must not be sent again."""


@dataclass(frozen=True, slots=True)
class HubPublication:
    """One accepted state of a topic, stored once for all its subscribers."""

    id: int
    topic: str
    self_url: str
    content: Content
    accepted_at: float


class SubscriberSource(Protocol):
    """Where the fan-out finds who to deliver to."""

    def page(self, topic: str, after_id: int, limit: int, now: float) -> Sequence[HubSubscription]:
        """Live subscriptions of the topic with an id above `after_id`, in id order."""

    def get(self, subscription_id: int, now: float) -> HubSubscription | None:
        """One subscription, if it is still live."""


class HubListener(Protocol):
    """What somebody outside the hub (the gateway) may want to hear. Called on the event loop; must not block."""

    def publication_accepted(self, publication: HubPublication) -> None: ...

    def subscription_changed(self, topic: str, live: int) -> None:
        """The number of live subscriptions of a topic is now `live`."""
