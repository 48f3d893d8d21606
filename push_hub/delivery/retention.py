"""What is let go of, so that the store stays within its bounds: a bounded piece of work at a time.

The writer does nothing else meanwhile, so nothing here looks through the whole log: how many publications there are,
and of how many bytes, is kept by triggers, and all that is removed is found from its oldest end.
"""

from dataclasses import dataclass

from push_hub.delivery.config import Retention
from storage import Migration, Transaction

REMOVED_AT_ONCE = 500

MIGRATIONS = [
    Migration(
        "push_hub_delivery",
        2,
        [
            "CREATE TABLE log_size (publications INTEGER NOT NULL, bytes INTEGER NOT NULL)",
            """INSERT INTO log_size
                SELECT count(*), coalesce(sum(length(body) + coalesce(length(changes), 0)), 0) FROM publications""",
            """CREATE TRIGGER publication_added AFTER INSERT ON publications BEGIN
                UPDATE log_size SET publications = publications + 1,
                    bytes = bytes + length(new.body) + coalesce(length(new.changes), 0);
            END""",
            """CREATE TRIGGER publication_removed AFTER DELETE ON publications BEGIN
                UPDATE log_size SET publications = publications - 1,
                    bytes = bytes - length(old.body) - coalesce(length(old.changes), 0);
            END""",
        ],
    )
]


@dataclass(frozen=True, slots=True)
class Trimmed:
    """How many publications went, and whether there is more to remove, of whatever kind."""

    publications: int
    more: bool


def trim(tx: Transaction, retention: Retention, now: float) -> Trimmed:
    publications = _trim_publications(tx, retention, now)
    most = max(
        publications,
        _keep_newest(tx, "delivered_pages", retention.history_pages),
        _keep_newest(tx, "tries", retention.history_tries),
        _keep_newest(tx, "dead_letters", retention.dead_letters),
    )
    return Trimmed(publications, most >= REMOVED_AT_ONCE)


def _trim_publications(tx: Transaction, retention: Retention, now: float) -> int:
    ((count, size),) = tx.execute("SELECT publications, bytes FROM log_size")
    # What nothing refers to any more may go; what is still to be delivered may not.
    oldest = tx.execute(
        "SELECT id, length(body) + coalesce(length(changes), 0), accepted_at FROM publications "
        "WHERE NOT EXISTS (SELECT 1 FROM fanouts WHERE fanouts.publication = publications.id) "
        "AND NOT EXISTS (SELECT 1 FROM retries WHERE retries.publication = publications.id) ORDER BY id LIMIT ?",
        (REMOVED_AT_ONCE,),
    )
    doomed: list[tuple[int]] = []
    for publication, length, accepted_at in oldest:
        if count <= retention.publications and size <= retention.bytes and accepted_at >= now - retention.age:
            break
        doomed.append((publication,))
        count -= 1
        size -= length
    if doomed:
        tx.execute_many("DELETE FROM publications WHERE id = ?", doomed)
    return len(doomed)


def _keep_newest(tx: Transaction, table: str, kept: int) -> int:
    """By their numbers, which only grow: no row is counted. Returns how many went."""
    ((first, last),) = tx.execute(f"SELECT (SELECT min(id) FROM {table}), (SELECT max(id) FROM {table})")  # noqa: S608
    if first is None or first > last - kept:
        return 0
    until = min(last - kept, first + REMOVED_AT_ONCE - 1)
    tx.execute(f"DELETE FROM {table} WHERE id <= ?", (until,))  # noqa: S608 - own names
    return int(until - first + 1)
