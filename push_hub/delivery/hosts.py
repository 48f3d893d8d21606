"""Who is delivered to, and where that is: callbacks, the hosts their URLs name, the networks those hosts are in.

    Recipient         a callback: whether it has proved quick
    CallbackHost      host and port as URLs name them: whether it can be reached (the breaker)
    CallbackNetwork   the prefix around the address (`serving.fairness`): what is under way and waits there

What an application answers says something about the callback. Only that nobody can be reached says something about
the host. How much goes on at a time is counted by network, because names cost nothing.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from push_hub.delivery.batch import Key
from push_hub.delivery.breaker import Breaker, BreakerConfig
from push_hub.delivery.config import QueueLimits
from serving.fairness import name_in

if TYPE_CHECKING:
    from push_hub.delivery.walks import DeliveryJob

CALLBACKS_REMEMBERED = 262_144
PROOFS_OF_NEW = 1
PROOFS_OF_SLOW = 3


class CallbackNetwork:
    """`window`: what is under way and may take long. `queued`: what waits for a lane. `parked`: rows on disk that wait
    for a place in the window."""

    __slots__ = ("parked", "prefix", "queued", "window")

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.window: dict[DeliveryJob, None] = {}
        self.queued = 0
        self.parked: deque[Key] = deque()

    @property
    def is_used(self) -> bool:
        return bool(self.window or self.queued or self.parked)


class CallbackHost:
    __slots__ = ("breaker", "name", "network")

    def __init__(self, name: str, breaker: Breaker, network: CallbackNetwork) -> None:
        self.name = name
        self.breaker = breaker
        self.network = network


class Recipient:
    """`proofs_owed`: quick answers it has to give until it counts as quick."""

    __slots__ = ("host", "proofs_owed")

    def __init__(self, host: CallbackHost) -> None:
        self.host = host
        self.proofs_owed = PROOFS_OF_NEW


class Recipients:
    """All that are known now, bounded: then those forgotten first that nothing happens at."""

    def __init__(self, limits: QueueLimits, breaker: BreakerConfig, prefix_of_name: Callable[[str], str]) -> None:
        self._limits = limits
        self._breaker = breaker
        self._prefix_of_name = prefix_of_name
        self._hosts: dict[str, CallbackHost] = {}
        self._networks: dict[str, CallbackNetwork] = {}
        self.by_callback: dict[str, Recipient] = {}

    def of(self, callback: str) -> Recipient:
        """By the whole URL: the same callbacks come back with every publication."""
        recipient = self.by_callback.get(callback)
        if recipient is None:
            if len(self.by_callback) >= CALLBACKS_REMEMBERED:
                del self.by_callback[next(iter(self.by_callback))]
            recipient = self.by_callback[callback] = Recipient(self._host(name_in(callback)))
        return recipient

    def network(self, prefix: str) -> CallbackNetwork:
        network = self._networks.get(prefix)
        if network is None:
            if len(self._networks) >= self._limits.hosts:
                self._networks = {name: known for name, known in self._networks.items() if known.is_used}
            network = self._networks[prefix] = CallbackNetwork(prefix)
        return network

    def locate(self, host: CallbackHost) -> CallbackNetwork:
        """Where a host is by now: somebody else may have connected to it meanwhile."""
        prefix = self._prefix_of_name(host.name)
        if prefix != host.network.prefix:
            host.network = self.network(prefix)
        return host.network

    def _host(self, name: str) -> CallbackHost:
        host = self._hosts.get(name)
        if host is None:
            if len(self._hosts) >= self._limits.hosts:
                # A recipient keeps its own host object, so only sharing is lost.
                self._hosts = {known: one for known, one in self._hosts.items() if one.breaker.failures}
            network = self.network(self._prefix_of_name(name))
            host = self._hosts[name] = CallbackHost(name, Breaker(self._breaker), network)
        return host
