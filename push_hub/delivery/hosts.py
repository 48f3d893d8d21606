"""The servers that callbacks live on. Limits and the breaker are a host's, shared by all of its callbacks."""

from collections import deque
from typing import TYPE_CHECKING

from push_hub.delivery.batch import Key
from push_hub.delivery.breaker import Breaker, BreakerConfig
from push_hub.delivery.config import QueueLimits

if TYPE_CHECKING:
    from push_hub.delivery.walks import Job

CALLBACKS_REMEMBERED = 65_536


class Host:
    """`waiting`: deliveries for the moment a place is free. `parked`: the same, but as rows on disk."""

    __slots__ = ("breaker", "in_flight", "name", "parked", "waiting")

    def __init__(self, name: str, breaker: Breaker) -> None:
        self.name = name
        self.in_flight = 0
        self.waiting: deque[Job] = deque()
        self.parked: deque[Key] = deque()
        self.breaker = breaker

    @property
    def is_used(self) -> bool:
        return bool(self.in_flight or self.waiting or self.parked or self.breaker.failures)


class Hosts:
    """All hosts that are known now. At most `hosts`: then those that nothing happens at are forgotten."""

    def __init__(self, limits: QueueLimits, breaker: BreakerConfig) -> None:
        self._limits = limits
        self._breaker = breaker
        self._parking: dict[str, Host] = {}
        self.by_name: dict[str, Host] = {}
        self.by_callback: dict[str, Host] = {}

    def get(self, name: str) -> Host:
        host = self.by_name.get(name)
        if host is None:
            if len(self.by_name) >= self._limits.hosts:
                self._forget_idle()
            host = self.by_name[name] = Host(name, Breaker(self._breaker))
        return host

    def of(self, callback: str) -> Host:
        """`get` by the whole URL. Remembered, because the same callbacks come back with every publication."""
        host = self.by_callback.get(callback)
        if host is None:
            host = self.get(host_name(callback))
            if len(self.by_callback) >= CALLBACKS_REMEMBERED:
                self.by_callback.clear()
            self.by_callback[callback] = host
        return host

    def park(self, host: Host, key: Key) -> bool:
        """Remember a row for the moment its host has room. False: too many are remembered; its time will come."""
        if len(host.parked) >= self._limits.parked_per_host:
            return False
        host.parked.append(key)
        self._parking[host.name] = host
        return True

    def unparked(self, room: int, active: set[Key]) -> list[Key]:
        """Rows whose host has room again, at most `room`, the hosts in turn."""
        keys: list[Key] = []
        for host in list(self._parking.values()):
            if len(keys) >= room:
                break
            free = self._limits.per_host - host.in_flight - len(host.waiting)
            # A key that is active has a row that is not on disk yet: its time comes with the next batch.
            while host.parked and free > 0 and len(keys) < room and host.parked[0] not in active:
                keys.append(host.parked.popleft())
                free -= 1
            del self._parking[host.name]
            if host.parked:
                self._parking[host.name] = host  # at the end: the others first, next time
        return keys

    def _forget_idle(self) -> None:
        # Hosts with jobs that are loaded but not sent look idle too; such a job keeps its own Host object, so only
        # sharing is lost.
        self.by_callback.clear()
        self.by_name = {name: host for name, host in self.by_name.items() if host.is_used}


def host_name(callback: str) -> str:
    """Host and port as written: a cheap key, because every delivery asks for it."""
    try:
        return callback.split("/", 3)[2]
    except IndexError:
        return callback
