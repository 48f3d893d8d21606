"""The bounds and choices of delivery: one typed object, made before start."""

from dataclasses import dataclass, field

from push_hub.delivery.breaker import BreakerConfig
from push_hub.model import Dialect
from storage.backoff import DAY, RetrySchedule


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """`chunk` bounds what a crash can repeat: deliveries handed out whose outcome is not on disk yet.

    What is said of a host here is counted by where it is: the /24 or /64 around its address, whatever names it has.
    """

    chunk: int = 2048
    page: int = 256
    in_flight: int = 128
    slow_in_flight: int = 1024
    per_host: int = 16
    slow_per_host: int = 64
    queued_per_host: int = 2048
    parked_per_host: int = 4096
    hosts: int = 50_000
    crowded_after: float = 0.05
    slow_after: float = 0.25
    timeout: float = 30.0

    @property
    def unproved_in_flight(self) -> int:
        """The part of `in_flight` that new callbacks share with those that were slow."""
        return max(1, self.in_flight // 4)


@dataclass(frozen=True, slots=True)
class Retention:
    """How much of the log is kept once its fan-out and retries are finished. The first bound that bites counts."""

    publications: int = 100_000
    bytes: int = 1 << 30
    age: float = 7 * DAY
    dead_letters: int = 100_000
    history_pages: int = 20_000
    history_tries: int = 200_000


@dataclass(frozen=True, slots=True)
class DeliveryConfig:
    hub_url: str
    limits: QueueLimits = field(default_factory=QueueLimits)
    schedule: RetrySchedule = field(default_factory=RetrySchedule)
    breaker: BreakerConfig = field(default_factory=BreakerConfig)
    retention: Retention = field(default_factory=Retention)
    changes_for: frozenset[Dialect] = frozenset({Dialect.PUSH_03})
    max_backlog: int = 20_000
    max_retries_stored: int = 2_000_000
    overload_retry_after: float = 5.0
    history: int = 16
    kept_bytes: int = 64 * 1024 * 1024
    """Publications that are kept ready while they are sent; others are read from the log."""
    company: float = 0.1
    """Seconds that positions alone wait for others, or for a publication whose commit they share."""
