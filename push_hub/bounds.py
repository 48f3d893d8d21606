"""How many subscriptions there may be: in all, and of whoever asked for them. No I/O, no clock.

Callbacks and topics are names and cost nothing, so a subscription is charged to the address that asked for it and to
the network around it (a /24 of IPv4, a /64 of IPv6). It stays so across restarts: both are columns of its row, and
triggers keep the sums. What the hub or its operator asks for (an empty network) counts in the whole only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from push_hub.protocol.numbers import Mode
from push_hub.protocol.verification import Intent
from storage import Row, Value

Ask = Callable[[str, Sequence[Value]], list[Row]]
MAX_ADDRESS_LENGTH = 64


@dataclass(frozen=True, slots=True)
class SubscriptionBounds:
    """What is there is always renewed and ended, whatever these say."""

    in_all: int = 1_000_000
    per_network: int = 100_000
    per_address: int = 50_000
    pending_per_network: int = 10_000
    """New ones whose callbacks have not answered yet."""


class BoundReachedError(Exception):
    """`name` is the bound's. `own`: it is the asker's share that is used up, not the hub's room."""

    def __init__(self, name: str, text: str, *, own: bool) -> None:
        super().__init__(text)
        self.name = f"subscriptions.{name}"
        self.text = text
        self.own = own


def is_there(ask: Ask, topic: str, callback: str, now: float) -> bool:
    key = (topic, callback, now)
    return bool(ask("SELECT 1 FROM subscriptions WHERE topic = ? AND callback = ? AND lease_until > ?", key))


def check_request(ask: Ask, bounds: SubscriptionBounds, intent: Intent, now: float) -> None:
    """Whether a request may wait for its check. Raises `BoundReachedError`."""
    if not intent.network or is_there(ask, intent.topic, intent.callback, now):
        return
    waits = "SELECT 1 FROM verifications WHERE topic = ? AND callback = ? AND network = ?"
    if ask(waits, (intent.topic, intent.callback, intent.network)):
        return  # the same again replaces what waits
    _, pending = _counted(ask, intent.network, "")
    if pending >= bounds.pending_per_network:
        text = f"{pending:,} requests of your network {intent.network} wait for their callbacks' answers: wait for some"
        raise BoundReachedError("pending_per_network", text, own=True)
    if intent.mode is Mode.SUBSCRIBE:
        check_room(ask, bounds, intent)


def check_room(ask: Ask, bounds: SubscriptionBounds, intent: Intent) -> None:
    """Whether there is room for one more. Raises `BoundReachedError`."""
    if not intent.network:
        return
    shares = (("per_address", intent.address, bounds.per_address), ("per_network", "", bounds.per_network))
    for name, address, most in shares:
        if _counted(ask, intent.network, address)[0] >= most:
            whose = f"address {address}" if address else f"network {intent.network}"
            text = f"your {whose} has its {most:,} subscriptions here: end some, or ask the hub's operator for more"
            raise BoundReachedError(name, text, own=True)
    if _counted(ask, "", "")[0] >= bounds.in_all:
        raise BoundReachedError("in_all", "the hub has as many subscriptions as it takes: try another hub", own=False)


def _counted(ask: Ask, network: str, address: str) -> tuple[int, int]:
    """(subscriptions, requests that wait)"""
    rows = ask("SELECT live, pending FROM client_counts WHERE network = ? AND address = ?", (network, address))
    return (int(rows[0][0]), int(rows[0][1])) if rows else (0, 0)
