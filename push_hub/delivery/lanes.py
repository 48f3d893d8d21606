"""How many deliveries are under way at a time, and whose: lanes for what is quick, a window for what may take long.

    QUICK      callbacks that have proved quick: most of the lanes
    UNPROVED   new callbacks and those that were slow: a small part of the lanes, and a place in the window
    SLOW       no lane any more, or none from the start (tries again): a place in the window only

Lanes are for what ends soon. Who holds one when others wait for it, and does not answer within `crowded_after`, steps
aside into the window; after `slow_after` it does so in any case. So a lane comes free soon, whatever callbacks do.

Lanes and window are shared by network, not by name: a network has at most `per_host` quick lanes, half of the unproved
ones, and `slow_per_host` places in the window. What finds the window full takes the place of the network that has
most there. A delivery is started under the network that its host was last seen in; when the address turns out to be
elsewhere, it moves, or is not connected at all.
"""

from collections.abc import Iterator
from enum import Enum

from push_hub.delivery.batch import Key
from push_hub.delivery.config import QueueLimits
from push_hub.delivery.hosts import CallbackNetwork, Recipients
from push_hub.delivery.walks import DONE, WAITING, DeliveryJob, Pace
from serving.fairness import FairQueue

QUICK, UNPROVED, SLOW = Pace.QUICK, Pace.UNPROVED, Pace.SLOW


class Entry(Enum):
    STARTS = 0
    WAITS = 1
    NO_ROOM = 2


class DeliveryLanes:
    def __init__(self, limits: QueueLimits, recipients: Recipients) -> None:
        self._limits = limits
        self._recipients = recipients
        unproved = limits.unproved_in_flight
        self.quick: FairQueue[DeliveryJob] = FairQueue(max(1, limits.in_flight - unproved), limits.per_host)
        self.unproved: FairQueue[DeliveryJob] = FairQueue(unproved, min(limits.per_host, max(1, unproved // 2)))
        self.slow = 0
        """Places of the window that are taken."""
        self.waiting = 0
        self._in_window: dict[str, CallbackNetwork] = {}
        self._parking: dict[str, CallbackNetwork] = {}
        self._crowding: dict[str, CallbackNetwork] = {}
        self._displaced: list[DeliveryJob] = []

    @property
    def in_flight(self) -> int:
        return self.quick.shares.held + self.unproved.shares.held

    # Starting

    def wait(self, job: DeliveryJob, now: float) -> bool:
        """A first try waits for its lane. False: too much of its network waits already."""
        host = job.recipient.host
        network = self._recipients.locate(host)
        job.network = network
        if network.queued >= self._limits.queued_per_host:
            return False
        job.state = WAITING
        job.since = now
        network.queued += 1
        self.waiting += 1
        self._crowding[network.prefix] = network
        lanes = self.unproved if job.recipient.proofs_owed else self.quick
        lanes.put(network.prefix, host.name, job)
        return True

    def start_quick(self) -> Iterator[DeliveryJob]:
        """What has waited and gets its lane now."""
        quick = self.quick
        while (found := quick.take()) is not None:
            prefix, job = found
            if self._waits_still(job):
                job.pace = QUICK
                yield job
            else:
                quick.release(prefix)

    def start_unproved(self) -> Iterator[tuple[DeliveryJob, bool]]:
        """The same; what comes with False has its turn, but its network has its share of the window."""
        unproved = self.unproved
        while (found := unproved.take()) is not None:
            prefix, job = found
            if not self._waits_still(job):
                unproved.release(prefix)
                continue
            admitted = self._into_window(job)
            if admitted:
                job.pace = UNPROVED
            else:
                unproved.release(prefix)
            yield job, admitted

    def start_again(self, job: DeliveryJob) -> bool:
        """A row that is due; False: there is no room for it now."""
        job.network = self._recipients.locate(job.recipient.host)
        job.pace = SLOW
        return self._into_window(job)

    def give_up(self, job: DeliveryJob) -> None:
        """It waits no longer. What is left of it in the queue is passed over when its turn comes."""
        network = job.network
        network.queued -= 1
        self.waiting -= 1
        if not network.queued:
            self._crowding.pop(network.prefix, None)

    # Under way

    def connected(self, job: DeliveryJob, prefix: str) -> bool:
        """A job is about to be connected to this network. False: not now, there is no room for it."""
        network = job.network
        if prefix == network.prefix:
            return True
        there = job.recipient.host.network = self._recipients.network(prefix)
        in_window = job in network.window
        if in_window and len(there.window) >= self._limits.slow_per_host:
            return False
        lanes = {QUICK: self.quick, UNPROVED: self.unproved}.get(job.pace)
        if lanes is not None and not lanes.move(network.prefix, prefix):
            return False
        if in_window:
            self._out_of_window(job)
            job.network = there
            self._put_into_window(job)
        job.network = there
        return True

    def leave(self, job: DeliveryJob) -> None:
        """It is not under way any more."""
        if job.pace is QUICK:
            self.quick.release(job.network.prefix)
        else:
            if job.pace is UNPROVED:
                self.unproved.release(job.network.prefix)
            self._out_of_window(job)
        job.state = DONE

    def step_aside(self, job: DeliveryJob) -> bool:
        """Leave the lane to others. False: its network has its share of the window already, so it keeps the lane."""
        network = job.network
        if job.pace is UNPROVED:
            self.unproved.release(network.prefix)
        elif len(network.window) < self._limits.slow_per_host and self.slow < self._limits.slow_in_flight:
            self.quick.release(network.prefix)
            self._put_into_window(job)
        else:
            return False
        job.pace = SLOW
        return True

    def set_aside(self, job: DeliveryJob) -> None:
        """It was slow: off its lane in any case. Above the bound, who has most in the window gives way."""
        if job.pace is QUICK:
            self.quick.release(job.network.prefix)
            self._put_into_window(job)
            if self.slow > self._limits.slow_in_flight:
                self._displace(max(self._in_window.values(), key=lambda network: len(network.window)))
        elif job.pace is UNPROVED:
            self.unproved.release(job.network.prefix)
        job.pace = SLOW

    def displaced(self) -> list[DeliveryJob]:
        """Deliveries that must be cut off, because others had a better right to their place. Each once."""
        jobs, self._displaced = self._displaced, []
        return jobs

    # Waiting as rows

    def park(self, network: CallbackNetwork, key: Key) -> bool:
        """Remember a row for the moment there is room. False: too many are remembered; its time will come."""
        if len(network.parked) >= self._limits.parked_per_host:
            return False
        network.parked.append(key)
        self._parking[network.prefix] = network
        return True

    def unparked(self, room: int, active: set[Key]) -> list[Key]:
        """Rows whose network has room again, at most `room`, the networks in turn."""
        keys: list[Key] = []
        for network in list(self._parking.values()):
            if len(keys) >= room:
                break
            free = self._limits.slow_per_host - len(network.window)
            # A key that is active has a row that is not on disk yet: its time comes with the next batch.
            while network.parked and free > 0 and len(keys) < room and network.parked[0] not in active:
                keys.append(network.parked.popleft())
                free -= 1
            del self._parking[network.prefix]
            if network.parked:
                self._parking[network.prefix] = network  # at the end: the others first, next time
        return keys

    def crowds(self) -> list[CallbackNetwork]:
        """Networks with more waiting than they can have under way."""
        return [one for one in self._crowding.values() if one.queued > 2 * self._limits.per_host]

    # Inside

    def _waits_still(self, job: DeliveryJob) -> bool:
        if job.state is not WAITING:
            return False
        self.give_up(job)
        return True

    def _into_window(self, job: DeliveryJob) -> bool:
        network = job.network
        if len(network.window) >= self._limits.slow_per_host:
            return False
        if self.slow >= self._limits.slow_in_flight:
            most = max(self._in_window.values(), key=lambda one: len(one.window))
            if len(most.window) <= len(network.window) + 1:
                return False
            self._displace(most)
        self._put_into_window(job)
        return True

    def _displace(self, network: CallbackNetwork) -> None:
        job = next(reversed(network.window))
        self._out_of_window(job)
        self._displaced.append(job)

    def _put_into_window(self, job: DeliveryJob) -> None:
        network = job.network
        network.window[job] = None
        self._in_window[network.prefix] = network
        self.slow += 1

    def _out_of_window(self, job: DeliveryJob) -> None:
        network = job.network
        if job not in network.window:
            return  # it was displaced
        del network.window[job]
        self.slow -= 1
        if not network.window:
            self._in_window.pop(network.prefix, None)
