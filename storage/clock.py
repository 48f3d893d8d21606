"""A clock that nobody can set: what is kept on disk (due times, leases, ages) and every wait goes by it.

It shows the system's time of the moment the process began, and from then on what has passed, also while the machine
was suspended. When the system's clock is set, back or forward, nothing here jumps: a retry that was due in a minute
is due in a minute. What another start of the process makes of the times on disk is in `storage/corrections.py`.

Whoever tells a time to others, or compares one with theirs (signatures, dates of publications), asks the system.
"""

import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path

STEP_SECONDS = 1.0
"""Smaller differences are no step: they come of reading two clocks, and of a clock that is kept right."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def uptime() -> float:
    """Seconds on a clock that nobody sets and that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


def boot_id() -> str:
    """What tells one run of the machine from another; nothing where that cannot be known."""
    with contextlib.suppress(OSError):
        return BOOT_ID.read_text(encoding="ascii").strip()
    return ""


class SteadyClock:
    """Call it for seconds since the epoch. One serves the whole process: `steady`."""

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        passed: Callable[[], float] = uptime,
        boot: str | None = None,
    ) -> None:
        self.wall = wall
        self.passed = passed
        self.boot = boot_id() if boot is None else boot
        self._ahead = wall() - passed()

    def __call__(self) -> float:
        return self._ahead + self.passed()

    def stepped(self) -> float:
        """By how much the system's clock was set since the process began; 0 for what is no step."""
        by = self.wall() - self()
        return by if abs(by) >= STEP_SECONDS else 0.0


steady = SteadyClock()
"""The clock of this process."""
