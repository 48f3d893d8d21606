"""Callbacks that an operator has told the hub to leave alone for a while. On disk, so that a restart keeps to it.

What a paused subscription would have been sent is owed to it, in order, and goes out when the pause ends; its lease
runs on meanwhile, and what retention removes is not sent later.
"""

from concurrent.futures import Future

from storage import Database, Migration, Transaction

MIGRATIONS = [
    Migration(
        "push_hub_delivery",
        3,
        ["CREATE TABLE paused (subscription INTEGER PRIMARY KEY REFERENCES subscriptions (id) ON DELETE CASCADE)"],
    )
]

PAUSED = "paused by the operator"
MAX_PAUSED = 10_000


class TooManyPausedError(Exception):
    """The bound on paused subscriptions bit."""


class Pauses:
    """Who is paused: a set in memory, since every delivery asks, and a table."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.paused: set[int] = set()

    def load(self) -> None:
        self.paused = {int(row[0]) for row in self._database.read("SELECT subscription FROM paused")}

    def pause(self, subscription: int) -> Future[None]:
        if len(self.paused) >= MAX_PAUSED and subscription not in self.paused:
            raise TooManyPausedError(f"{MAX_PAUSED} subscriptions are paused, which is the limit")
        self.paused.add(subscription)

        def work(tx: Transaction) -> None:
            tx.execute(
                "INSERT OR IGNORE INTO paused SELECT id FROM subscriptions WHERE id = ?",
                (subscription,),
            )

        return self._database.write(work)

    def resume(self, subscription: int, now: float) -> Future[bool]:
        """Also makes the first thing that is owed due at once. Says whether it was paused."""
        self.paused.discard(subscription)

        def work(tx: Transaction) -> bool:
            was = tx.execute("DELETE FROM paused WHERE subscription = ? RETURNING subscription", (subscription,))
            make_due(tx, subscription, now)
            return bool(was)

        return self._database.write(work)


def make_due(tx: Transaction, subscription: int, now: float) -> bool:
    """Let the first delivery that is owed to a subscription be tried now; False when nothing is owed."""
    rows = tx.execute(
        "UPDATE retries SET next_try_at = ?1 WHERE subscription = ?2 "
        "AND publication = (SELECT min(publication) FROM retries WHERE subscription = ?2) RETURNING publication",
        (now, subscription),
    )
    return bool(rows)
