"""How much of the processors the event loop takes, and the whole process: what all queues share, and none tells."""

import os
import threading
import time
from typing import Final, NamedTuple

EVERY_NS: Final = 500_000_000
LOOP, PROCESS = "cpu/loop", "cpu/process"


class ProcessorUse(NamedTuple):
    """Of the time from `begin_ns` to `end_ns`, `used_ns` were computed; by a process: by each core on average."""

    resource: str
    begin_ns: int
    end_ns: int
    used_ns: int


class ProcessorMeter:
    """Ask it now and then, from any one thread. The loop is taken to run in the main thread."""

    def __init__(self) -> None:
        main = threading.main_thread().ident
        self._clock = None if main is None else time.pthread_getcpuclockid(main)
        self._cores = len(os.sched_getaffinity(0))
        self._at = time.monotonic_ns()
        self._before = self._used()

    def sample(self) -> list[ProcessorUse]:
        """Empty when the last one was a moment ago."""
        now = time.monotonic_ns()
        begin = self._at
        if now - begin < EVERY_NS:
            return []
        used, before = self._used(), self._before
        self._at, self._before = now, used
        return [ProcessorUse(name, begin, now, min(max(used[name] - before[name], 0), now - begin)) for name in used]

    def _used(self) -> dict[str, int]:
        found = {PROCESS: time.process_time_ns() // self._cores}
        if self._clock is not None:
            found[LOOP] = time.clock_gettime_ns(self._clock)
        return found
