"""When to try a failed delivery again, and when to stop. Pure: time and randomness come in."""

import random
from dataclasses import dataclass

DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class RetrySchedule:
    """Exponential backoff with jitter, bounded in count and in age.

    The n-th wait lies between half and the whole of `first * factor ** (n - 1)`, at most `longest`. A server's
    `Retry-After` may lengthen a wait up to `longest_asked`, never shorten it.
    """

    first: float = 5.0
    factor: float = 3.0
    longest: float = 3600.0
    longest_asked: float = 6 * 3600.0
    attempts: int = 12
    max_age: float = DAY

    def next_try(
        self, attempts: int, accepted_at: float, now: float, retry_after: float, rng: random.Random
    ) -> float | None:
        """The time of the next try after `attempts` failed ones; None: give up."""
        if attempts >= self.attempts or now - accepted_at >= self.max_age:
            return None
        # The exponent is bounded before it is used: a large count must not overflow.
        steps = min(max(attempts, 1) - 1, 64)
        return self.after(now, min(self.longest, self.first * self.factor**steps), retry_after, rng)

    def after(self, now: float, wait: float, retry_after: float, rng: random.Random) -> float:
        """`wait` from now with jitter, or as much later as the server asked for."""
        return now + max(wait * (0.5 + 0.5 * rng.random()), min(max(retry_after, 0.0), self.longest_asked))
