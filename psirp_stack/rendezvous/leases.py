"""Which nodes are believed to live, and until when. In memory: after a restart every known node gets a whole lease."""

import heapq
from dataclasses import dataclass


@dataclass(slots=True)
class _Lease:
    boot: int
    end: float


class Leases:
    def __init__(self, duration: float, max_nodes: int) -> None:
        self._duration = duration
        self._max_nodes = max_nodes
        self._leases: dict[str, _Lease] = {}
        self._ends: list[tuple[float, str]] = []
        """One entry for each lease, perhaps too early: looked at again when its time comes."""

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, node: str) -> bool:
        return node in self._leases

    @property
    def full(self) -> bool:
        return len(self._leases) >= self._max_nodes

    def renew(self, node: str, boot: int, now: float) -> None:
        """The node is heard in this life. One of a former life changes nothing."""
        lease = self._leases.get(node)
        if lease is None:
            self._leases[node] = _Lease(boot, now + self._duration)
            heapq.heappush(self._ends, (now + self._duration, node))
        elif boot >= lease.boot:
            lease.boot = boot
            lease.end = max(lease.end, now + self._duration)

    def next_end(self) -> float | None:
        while self._ends:
            end, node = self._ends[0]
            lease = self._leases[node]
            if lease.end <= end:
                return end
            heapq.heapreplace(self._ends, (lease.end, node))
        return None

    def ended(self, now: float) -> list[tuple[str, int]]:
        """Take out the leases that are over: node and boot of each."""
        over = []
        while (end := self.next_end()) is not None and end <= now:
            _, node = heapq.heappop(self._ends)
            over.append((node, self._leases.pop(node).boot))
        return over
