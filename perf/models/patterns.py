"""The seven ways in which middleware exchanges a message, as chains of queues, and how a bridge joins them.

A chain is written as its author draws it: `~PARTY` after a queue says that it only serves while that party is
connected, `!m` that what leaves it is lost while the link is down, `!l` that what is too old leaves it unserved.
"""

from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from typing import Final

from perf.models.assumptions import ModelError

OVERALL: Final = "overall"
"""Sender, receiver and the link between them, all at once: what a reliable session needs."""


class Reliability(Enum):
    UNRELIABLE = "unreliable"
    RELIABLE = "reliable"


@dataclass(frozen=True, slots=True)
class ChainQueue:
    """One queue of a chain. `party`: whose connectivity it serves by; None: it always serves."""

    name: str
    party: str | None = None
    lost_on_link: bool = False
    expires: bool = False

    @property
    def application(self) -> bool:
        """Whether it belongs to an application (or a broker's core), not to its middleware."""
        return "_mdw" not in self.name


@dataclass(frozen=True, slots=True)
class Pattern:
    """`request` goes to whoever serves it, `response` comes back; one-way patterns have no response."""

    number: str
    covers: str
    transport: Reliability
    request: tuple[ChainQueue, ...]
    response: tuple[ChainQueue, ...] = ()

    @property
    def queues(self) -> tuple[ChainQueue, ...]:
        return self.request + self.response


_COVERS: Final = {
    1: "one-way in client/server and data streaming",
    2: "two-way synchronous in client/server",
    3: "two-way asynchronous in client/server, streams",
    4: "one-way in publish/subscribe",
    5: "streams in publish/subscribe: subscribe, then events",
    6: "one-way to a tuple space",
    7: "two-way synchronous with a tuple space",
}

_CHAINS: Final = {
    (1, Reliability.UNRELIABLE): "sender_app~sender!l sender_mdw!m receiver_mdw!m receiver_app",
    (1, Reliability.RELIABLE): "sender_app~overall!l sender_mdw receiver_mdw receiver_app",
    (2, Reliability.UNRELIABLE): "client_app~client!l client_mdw!m server_mdw!m server_app!l"
    " > server_mdw2!m client_mdw2 client_app2",
    (2, Reliability.RELIABLE): "client_app~overall!l client_mdw server_mdw server_app!l"
    " > server_mdw2~overall client_mdw2 client_app2",
    (3, Reliability.UNRELIABLE): "client_app~client!l client_mdw!m server_mdw!m server_app!l"
    " > server_app2~server server_mdw2!m client_mdw2 client_app2",
    (3, Reliability.RELIABLE): "client_app~overall!l client_mdw server_mdw server_app!l"
    " > server_app2~overall server_mdw2 client_mdw2 client_app2",
    (4, Reliability.UNRELIABLE): "pub_app~publisher!l pub_mdw!m broker_in!l broker_out~broker!m!l sub_mdw!m sub_app",
    (4, Reliability.RELIABLE): "pub_app~publisher-broker!l pub_mdw broker_in!l broker_out~broker-subscriber!l"
    " sub_mdw sub_app",
    (5, Reliability.UNRELIABLE): "sub_app~subscriber sub_mdw!m broker_in > broker_out~broker!m sub_mdw2 sub_app2",
    (5, Reliability.RELIABLE): "sub_app~overall!l sub_mdw broker_in > broker_out~overall!l sub_mdw2 sub_app2",
    (6, Reliability.UNRELIABLE): "writer_app~writer!l writer_mdw!m tspace_mdw store",
    (6, Reliability.RELIABLE): "writer_app~overall!l writer_mdw tspace_mdw store",
    (7, Reliability.UNRELIABLE): "reader_app~reader!l reader_mdw!m!l tspace_in match"
    " > tspace_out!l reader_mdw2 reader_app2",
    (7, Reliability.RELIABLE): "reader_app~overall!l reader_mdw!l tspace_in match"
    " > tspace_out~overall!l reader_mdw2 reader_app2",
}


def pattern(number: int, transport: Reliability) -> Pattern:
    if (number, transport) not in _CHAINS:
        raise ModelError(f"there is no pattern {number}; expected 1 to {max(_COVERS)}")
    return _pattern(number, transport)


@cache
def _pattern(number: int, transport: Reliability) -> Pattern:
    request, _, response = _CHAINS[number, transport].partition(" > ")
    return Pattern(str(number), _COVERS[number], transport, _parsed(request), _parsed(response))


def _parsed(text: str) -> tuple[ChainQueue, ...]:
    queues = []
    for word in text.split():
        head, *marks = word.split("!")
        name, _, party = head.partition("~")
        queues.append(ChainQueue(name, party or None, "m" in marks, "l" in marks))
    return tuple(queues)


def compose(*patterns: Pattern) -> Pattern:
    """The chain across bridges: neighbouring patterns are joined where the bridge converts.

    What the first application hands to the next becomes one queue, the conversion. A bridge is always connected: with
    an unreliable next leg it serves always, with a reliable one by the connectivity between bridge and receiver.
    """
    if not patterns:
        raise ModelError("a bridge joins patterns; there is none")
    joined = _in_leg(patterns[0], 1) if len(patterns) > 1 else patterns[0]
    for leg, following in enumerate(patterns[1:], 2):
        joined = _joined(joined, _in_leg(following, leg), leg - 1)
    return joined


def _in_leg(one: Pattern, leg: int) -> Pattern:
    """Names and parties belong to one leg; `receiver_mdw` of the second is not that of the first."""

    def own(queue: ChainQueue) -> ChainQueue:
        party = None if queue.party is None else f"{queue.party}.{leg}"
        return replace(queue, name=f"{queue.name}.{leg}", party=party)

    return replace(one, request=tuple(map(own, one.request)), response=tuple(map(own, one.response)))


def _joined(before: Pattern, after: Pattern, bridge: int) -> Pattern:
    if bool(before.response) != bool(after.response):
        raise ModelError(
            f"pattern {before.number} and {after.number} cannot be joined: one has a response, one has not"
        )
    request = _merged(before.request, after.request, after.transport, f"bridge{bridge}")
    response: tuple[ChainQueue, ...] = ()
    if before.response:
        # A response goes the other way: out of the later leg, into the earlier one.
        response = _merged(after.response, before.response, before.transport, f"bridge{bridge}_back")
    return Pattern(f"{before.number}+{after.number}", "bridged", after.transport, request, response)


def _merged(
    first: tuple[ChainQueue, ...], then: tuple[ChainQueue, ...], transport: Reliability, name: str
) -> tuple[ChainQueue, ...]:
    receiving = first[-1] if first[-1].application else None
    sending = then[0] if then[0].application else None
    party = sending.party if sending is not None and transport is Reliability.RELIABLE else None
    expires = any(queue is not None and queue.expires for queue in (receiving, sending))
    conversion = ChainQueue(name, party, False, expires)
    return (*(first[:-1] if receiving else first), conversion, *(then[1:] if sending else then))


INTERCONNECTIONS: Final = {
    "PS publisher to CS client, one-way": (4, 1, 1),
    "CS server to DS consumer, one-way": (1, 1, 1),
    "PS subscriber to DS producer, stream": (5, 3, 3),
    "PS subscriber to CS server, async": (5, 3, 3),
    "DS consumer to PS broker, stream": (3, 3, 5),
    "TS reader to CS server, sync": (7, 2, 2),
}
"""What is connected to what, and the patterns of the two sides with the bus between them."""
