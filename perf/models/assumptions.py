"""What a model takes for granted, as data: whoever shows a prediction can say, and test, under which assumptions.

A model that is asked for the impossible refuses: there is no mean to give past saturation.
"""

from enum import StrEnum
from math import isfinite


class Assumption(StrEnum):
    """The text completes the sentence «it is assumed that ...»."""

    POISSON = "arrivals are Poisson: independent of each other, at one rate"
    EXPONENTIAL_SERVICE = "service times are exponential"
    INDEPENDENT_SERVICE = "service times do not depend on each other or on arrivals"
    EXPONENTIAL_ON = "connected periods are exponential"
    EXPONENTIAL_OFF = "disconnected periods are exponential"
    KNOWN_OFF = "the first two moments of disconnected periods are known"
    UNBOUNDED = "nothing is dropped: the queue is unbounded"
    BOUNDED = "what finds the queue full is dropped"
    STAYS = "nothing leaves before it is served: there is no expiry"
    NO_SERVICE_TIME = "service times are negligible beside disconnections and lifetime"
    WORK_CONSERVING = "a server that is free serves whoever waits, in the order of arrival"
    INDEPENDENT_HOPS = "what leaves one queue comes to the next as if it were Poisson"
    INDEPENDENT_PARTIES = "parties are connected and disconnected independently of each other"
    POISSON_WINDOWS = "windows of the receiver begin at Poisson times, and may overlap"


class ModelError(ValueError):
    """A model was asked for something it cannot say; the text says what and why."""


class SaturatedError(ModelError):
    """The load is at or past what can be served: queues grow without end, and there is no mean."""

    def __init__(self, what: str, rate: float, most: float) -> None:
        super().__init__(
            f"{what} gets {rate:g} messages/s and can serve fewer than {most:g}: its queue grows without end. "
            "Lower the rate, serve faster, or stay connected longer"
        )
        self.rate = rate
        self.most = most


def check_positive(**values: float) -> None:
    """Every value is a number above zero."""
    for name, value in values.items():
        if not (isfinite(value) and value > 0):
            raise ModelError(f"{name} is {value:g}; expected a number above 0")


def check_not_negative(**values: float) -> None:
    for name, value in values.items():
        if not (isfinite(value) and value >= 0):
            raise ModelError(f"{name} is {value:g}; expected a number of at least 0")
