"""What bootstrapping keeps on disk: who this gateway is, zones it spoke to, requests it took, their upstreams."""

import secrets
from enum import StrEnum
from typing import NamedTuple

from gateway.bootstrapping.manager_table import HeldRequest, Known, ManagerOutcome
from gateway.bootstrapping.messages import REQUESTER_ID_BYTES
from storage import Database, Migration, Transaction

MIGRATIONS = [
    Migration(
        "gateway.bootstrapping",
        1,
        [
            "CREATE TABLE requester (id TEXT PRIMARY KEY, last_number INTEGER NOT NULL) WITHOUT ROWID",
            "CREATE TABLE zones_asked (zone TEXT PRIMARY KEY) WITHOUT ROWID",
            """CREATE TABLE zone_requests (
                zone      TEXT NOT NULL,
                requester TEXT NOT NULL,
                topic     TEXT NOT NULL,
                number    INTEGER NOT NULL,
                until     REAL NOT NULL,
                PRIMARY KEY (zone, requester, topic)
            ) WITHOUT ROWID""",
            """CREATE TABLE upstreams (
                topic    TEXT PRIMARY KEY,
                kind     TEXT NOT NULL,
                upstream TEXT NOT NULL,
                accepted INTEGER NOT NULL,
                reason   TEXT NOT NULL
            ) WITHOUT ROWID""",
            "CREATE INDEX upstreams_by_upstream ON upstreams (upstream)",
            "CREATE INDEX upstreams_by_kind ON upstreams (kind)",
        ],
        times=["zone_requests.until"],
    ),
    Migration(
        "gateway.bootstrapping",
        2,
        [
            """CREATE TABLE zone_requesters (
                zone      TEXT NOT NULL,
                requester TEXT NOT NULL,
                serial    INTEGER NOT NULL,
                signer    TEXT NOT NULL,
                PRIMARY KEY (zone, requester)
            ) WITHOUT ROWID"""
        ],
    ),
]


class ContentSource(StrEnum):
    """Where a topic's content comes from."""

    OWN = "own"
    """Its hub is the one of this gateway."""
    HUB = "hub"
    """Another hub, which pushes it here."""
    POLLED = "polled"
    NONE = "none"
    """It was denied."""


class Upstream(NamedTuple):
    topic: str
    kind: ContentSource
    upstream: str
    """The topic as its hub names it."""
    accepted: bool
    reason: str


class BootstrappingStore:
    """Reads are immediate; what writes is a function for `Database.write`, or done by the first call of `identity`."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def identity(self) -> tuple[str, int]:
        """This gateway's id as a requester, made once, and the last number it gave out."""
        rows = self.database.read("SELECT id, last_number FROM requester")
        if rows:
            return str(rows[0][0]), int(rows[0][1])
        made = secrets.token_hex(REQUESTER_ID_BYTES)
        self.database.write(lambda tx: tx.execute("INSERT INTO requester VALUES (?, 0)", (made,))).result()
        return made, 0

    def zones_asked(self) -> list[str]:
        return [str(zone) for (zone,) in self.database.read("SELECT zone FROM zones_asked")]

    def held(self) -> list[HeldRequest]:
        rows = self.database.read("SELECT zone, requester, topic, number, until FROM zone_requests")
        return [HeldRequest(zone, requester, topic, number, until) for zone, requester, topic, number, until in rows]

    def known(self) -> list[Known]:
        rows = self.database.read("SELECT zone, requester, serial, signer FROM zone_requesters")
        return [Known(zone, requester, serial, signer) for zone, requester, serial, signer in rows]

    def upstreams(self) -> list[Upstream]:
        return self._upstreams("SELECT * FROM upstreams", ())

    def upstream(self, topic: str) -> Upstream | None:
        found = self._upstreams("SELECT * FROM upstreams WHERE topic = ?", (topic,))
        return found[0] if found else None

    def fed_by(self, upstream: str) -> list[Upstream]:
        return self._upstreams("SELECT * FROM upstreams WHERE upstream = ? AND kind = 'hub'", (upstream,))

    def polled(self) -> list[str]:
        return [str(topic) for (topic,) in self.database.read("SELECT topic FROM upstreams WHERE kind = 'polled'")]

    def _upstreams(self, sql: str, parameters: tuple[str, ...]) -> list[Upstream]:
        rows = self.database.read(sql, parameters)
        return [
            Upstream(topic, ContentSource(kind), up, bool(accepted), reason)
            for topic, kind, up, accepted, reason in rows
        ]

    # Pieces of work for `Database.write`.

    @staticmethod
    def asked(zone: str, last_number: int, tx: Transaction) -> None:
        tx.execute("UPDATE requester SET last_number = max(last_number, ?)", (last_number,))
        tx.execute("INSERT OR IGNORE INTO zones_asked VALUES (?)", (zone,))

    @staticmethod
    def left(zone: str, tx: Transaction) -> None:
        tx.execute("DELETE FROM zones_asked WHERE zone = ?", (zone,))

    @staticmethod
    def change(outcome: ManagerOutcome, tx: Transaction) -> None:
        for zone, requester in outcome.forgotten:
            tx.execute("DELETE FROM zone_requesters WHERE zone = ? AND requester = ?", (zone, requester))
        if (known := outcome.known) is not None:
            row = (known.zone, known.requester, known.serial, known.signer)
            tx.execute("INSERT OR REPLACE INTO zone_requesters VALUES (?, ?, ?, ?)", row)
        for held in outcome.dropped:
            tx.execute(
                "DELETE FROM zone_requests WHERE zone = ? AND requester = ? AND topic = ?",
                (held.zone, held.requester, held.topic),
            )
        for held in outcome.put:
            tx.execute(
                "INSERT OR REPLACE INTO zone_requests VALUES (?, ?, ?, ?, ?)",
                (held.zone, held.requester, held.topic, held.number, held.until),
            )

    @staticmethod
    def put_upstream(upstream: Upstream, tx: Transaction) -> None:
        row = (upstream.topic, str(upstream.kind), upstream.upstream, int(upstream.accepted), upstream.reason)
        tx.execute("INSERT OR REPLACE INTO upstreams VALUES (?, ?, ?, ?, ?)", row)

    @staticmethod
    def drop_upstream(topic: str, tx: Transaction) -> None:
        tx.execute("DELETE FROM upstreams WHERE topic = ?", (topic,))
