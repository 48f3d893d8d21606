"""One budget of memory for a process: what caches, queues and publications that arrive in pieces may take together.

It comes on top of what the program itself takes, about 100 MB. Whoever keeps something by its bytes takes the share
that has its name; none is more than it was without a budget, so that a large one changes nothing for the worse.
"""

import sqlite3
from contextlib import closing
from dataclasses import dataclass

MIB = 1024 * 1024
LEAST_MIB = 32
USUAL_MIB = 192


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    total: int = USUAL_MIB * MIB

    def __post_init__(self) -> None:
        if self.total < LEAST_MIB * MIB:
            raise ValueError(f"expected at least {LEAST_MIB} MiB")

    @property
    def stores(self) -> int:
        """Pages of all stores, whoever reads or writes them."""
        return self.total // 4

    @property
    def arriving(self) -> int:
        """Publications that have not arrived whole."""
        return min(self.total // 4, 64 * MIB)

    @property
    def sent(self) -> int:
        """Publications that not all who want them have confirmed."""
        return min(self.total // 8, 32 * MIB)

    @property
    def delivered(self) -> int:
        """Publications whose deliveries go on."""
        return min(self.total // 8, 64 * MIB)

    @property
    def newest(self) -> int:
        """Entries of the log that were appended a moment ago."""
        return min(self.total // 32, 8 * MIB)

    def enforce_on_stores(self) -> None:
        """For all of this process: SQLite then uses pages again instead of asking for more."""
        with closing(sqlite3.connect(":memory:")) as connection:
            connection.execute(f"PRAGMA soft_heap_limit = {self.stores}")
