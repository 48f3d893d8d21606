"""How long a subscription lasts: what was asked becomes what is granted, and when it is over or rechecked."""

from dataclasses import dataclass

from push_hub.protocol.numbers import DEFAULT_LEASE, MAXIMUM_LEASE, MINIMUM_LEASE

REFRESH_FRACTION = 0.1  # of the lease is left when the hub rechecks a 0.3 subscription by itself
MAX_REFRESH_AHEAD = 86_400.0


@dataclass(frozen=True, slots=True)
class LeasePolicy:
    """Seconds. Nothing is granted for ever: every lease lies between `minimum` and `maximum`."""

    minimum: int = MINIMUM_LEASE
    default: int = DEFAULT_LEASE
    maximum: int = MAXIMUM_LEASE

    def __post_init__(self) -> None:
        if not 0 < self.minimum <= self.default <= self.maximum:
            raise ValueError("leases need 0 < minimum <= default <= maximum")

    def grant(self, asked: int | None) -> int:
        if asked is None:
            return self.default
        return max(self.minimum, min(asked, self.maximum))


def lease_until(check_sent_at: float, granted: int) -> float:
    """A lease runs from the moment the hub sent the intent check, not from its answer."""
    return check_sent_at + granted


def is_live(until: float, now: float) -> bool:
    return until > now


def refresh_at(check_sent_at: float, granted: int) -> float:
    """When the hub rechecks a 0.3 subscription: early enough to retry, late enough not to be a nuisance."""
    return check_sent_at + granted - min(granted * REFRESH_FRACTION, MAX_REFRESH_AHEAD)
