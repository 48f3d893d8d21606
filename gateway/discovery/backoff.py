"""How long to wait after the n-th failure in a row. Pure: the randomness comes in."""

import random
from dataclasses import dataclass

from gateway.discovery.model import DiscoveryError, check_seconds

MAX_EXPONENT = 64
MAX_FACTOR = 100


@dataclass(frozen=True, slots=True)
class BackOff:
    """The n-th wait lies between half and the whole of `first * factor ** (n - 1)` seconds, at most `longest`."""

    first: float = 1.0
    factor: float = 2.0
    longest: float = 300.0

    def __post_init__(self) -> None:
        check_seconds("back-off longest", self.longest)
        if not (0 < self.first <= self.longest and 1 <= self.factor <= MAX_FACTOR):
            raise DiscoveryError(f"a back-off needs 0 < first <= longest and a factor of 1 to {MAX_FACTOR}")

    def wait(self, failures: int, rng: random.Random) -> float:
        # The exponent is bounded before it is used: a large count must not overflow.
        steps = min(max(failures, 1) - 1, MAX_EXPONENT)
        return min(self.longest, self.first * self.factor**steps) * (0.5 + 0.5 * rng.random())
