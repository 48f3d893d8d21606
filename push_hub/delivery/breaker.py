"""A circuit breaker for one host: after a run of failures it is left alone for a while. Pure: time comes in.

closed     requests go; a success forgets earlier failures
open       no requests until `reopens_at`
half open  one request goes as a probe: success closes, failure opens again for twice as long
"""

from dataclasses import dataclass

from storage.backoff import BackOff


@dataclass(frozen=True, slots=True)
class BreakerConfig:
    failures: int = 8
    cooldown: float = 10.0
    longest_cooldown: float = 600.0


class Breaker:
    __slots__ = ("_config", "_cooldowns", "_opened", "_probing", "failures", "reopens_at")

    def __init__(self, config: BreakerConfig) -> None:
        self._config = config
        self._cooldowns = BackOff(config.cooldown, longest=config.longest_cooldown)
        self._opened = 1
        """Times in a row that it opened."""
        self._probing = False
        self.failures = 0
        self.reopens_at = 0.0

    @property
    def is_closed(self) -> bool:
        return self.failures < self._config.failures

    def admits(self, now: float) -> bool:
        """Whether a request may go now. Saying yes while not closed takes the probe."""
        if self.failures < self._config.failures:
            return True
        if self._probing or now < self.reopens_at:
            return False
        self._probing = True
        return True

    def succeeded(self) -> None:
        self.failures = 0
        self._probing = False
        self._opened = 1

    def failed(self, now: float) -> None:
        self.failures += 1
        if self.failures < self._config.failures:
            return
        if self._probing:
            self._opened += 1
            self._probing = False
        self.reopens_at = max(self.reopens_at, now + self._cooldowns.wait(self._opened))

    def released(self) -> None:
        """A request that was admitted ended without saying anything about the host."""
        self._probing = False
