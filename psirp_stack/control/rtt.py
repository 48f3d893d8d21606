"""How long to wait for an answer before asking again: follows measured round trips, as RFC 6298 does for TCP.

Karn's rule: an answer to something that was sent twice says nothing about the round trip, since it may belong to
either copy. The backed-off wait stays until an exchange succeeds at the first attempt.
"""

from dataclasses import dataclass

GAIN = 1 / 8
DEVIATION_GAIN = 1 / 4
DEVIATIONS = 4


@dataclass(slots=True)
class RoundTrip:
    """The estimate for one peer. All times are seconds."""

    initial: float = 0.5
    """What to wait while nothing was measured."""
    minimum: float = 0.02
    maximum: float = 10.0
    smoothed: float | None = None
    deviation: float = 0.0
    backoff: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.minimum <= self.initial <= self.maximum:
            raise ValueError(
                f"expected 0 < minimum <= initial <= maximum, not {self.minimum}, {self.initial}, {self.maximum}"
            )

    @property
    def variation(self) -> float:
        """By how much an answer may be later than usual without being overdue."""
        return max(DEVIATIONS * self.deviation, self.minimum)

    @property
    def timeout(self) -> float:
        """How long to wait for the answer to what is sent now."""
        wait = self.initial if self.smoothed is None else max(self.minimum, self.smoothed + self.variation)
        return min(wait * self.backoff, self.maximum)

    def answered(self, sent: float, now: float, transmissions: int) -> None:
        """An answer came to what was sent at `sent`, for the `transmissions`-th time."""
        if transmissions == 1:
            self._measured(max(0.0, now - sent))

    def timed_out(self) -> None:
        """Nobody answered in time: wait twice as long next time."""
        if self.timeout < self.maximum:
            self.backoff *= 2

    def _measured(self, seconds: float) -> None:
        if self.smoothed is None:
            self.smoothed, self.deviation = seconds, seconds / 2
        else:
            self.deviation += DEVIATION_GAIN * (abs(self.smoothed - seconds) - self.deviation)
            self.smoothed += GAIN * (seconds - self.smoothed)
        self.backoff = 1
