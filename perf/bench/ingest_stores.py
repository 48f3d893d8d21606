"""What gateways still have to do, as their own stores say it: read when they have stopped."""

import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

NUMBER: Final = re.compile(rb"urn:e:(\d{8})")
"""In a document of `ingest_load`: which publication it is."""
_PINGED: Final = "SELECT topic FROM pings"
_TO_DELIVER: Final = (
    "SELECT body FROM publications WHERE id IN (SELECT publication FROM fanouts UNION SELECT publication FROM retries)"
)
_ACCEPTED: Final = "SELECT body FROM publications WHERE brought = 0"
_IN_LOG: Final = "SELECT body FROM exchange_log"
_BEFORE_SESSIONS: Final = """SELECT l.body FROM exchange_log l JOIN exchange_sessions s ON l.via <> s.reader
    WHERE EXISTS (SELECT 1 FROM exchange_interests i
                  WHERE i.reader = s.reader AND i.who = s.who AND (i.item = l.item OR i.item = x''))
    AND l.position > max(s.base, coalesce((SELECT c.position FROM exchange_cursors c
                                           WHERE c.reader = s.reader AND c.who = s.who AND c.item = l.item), 0))"""


def stores_below(folder: Path) -> list[Path]:
    """Of all gateways whose data are somewhere below it."""
    return sorted(path.parent for path in folder.rglob("gateway.sqlite"))


def waiting_in(gateways: Iterable[Path], asked: Mapping[int, str]) -> set[int]:
    """Of publications, given with their topics, those that a gateway has yet to fetch, to pass on or to deliver."""
    topics: set[str] = set()
    waiting: set[int] = set()
    for gateway in gateways:
        with closing(sqlite3.connect(gateway / "hub" / "hub.sqlite")) as hub:
            topics.update(str(topic) for (topic,) in hub.execute(_PINGED))
            waiting.update(_numbers(hub, _TO_DELIVER))
            accepted = set(_numbers(hub, _ACCEPTED))
        with closing(sqlite3.connect(gateway / "gateway.sqlite")) as store:
            waiting.update(_numbers(store, _BEFORE_SESSIONS))
            waiting |= accepted.difference(_numbers(store, _IN_LOG))
    return {number for number, topic in asked.items() if number in waiting or topic in topics}


def _numbers(database: sqlite3.Connection, query: str) -> Iterator[int]:
    for (body,) in database.execute(query):
        found = NUMBER.search(bytes(body), 0, 400)
        if found is not None:
            yield int(found[1])
