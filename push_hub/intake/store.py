"""The intake's rows: pings that wait, what is known of a topic's source, which entries were seen."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from push_hub.intake.config import IntakeConfig
from push_hub.intake.feeds import FeedEntry, PollHints
from push_hub.intake.source import Validators
from push_hub.intake.trouble import FetchTrouble
from push_hub.intake.unwanted import MIGRATION as UNWANTED_PINGS
from push_hub.intake.unwanted import UnwantedPings
from push_hub.model import Content
from storage import Database, Migration, Transaction

MIGRATIONS = [
    Migration(
        "push_hub.intake",
        1,
        [
            """CREATE TABLE sources (
                topic         TEXT PRIMARY KEY,
                validated_url TEXT NOT NULL,
                moved_to      TEXT,
                moved_at      REAL,
                frame_digest  BLOB
            ) WITHOUT ROWID""",
        ],
        times=["sources.moved_at"],
    ),
    Migration(
        "push_hub.intake",
        2,
        [
            # What the publisher says about polling counts also when the next answer is «not modified».
            "ALTER TABLE sources ADD COLUMN ttl REAL",
            "ALTER TABLE sources ADD COLUMN skip_hours INTEGER NOT NULL DEFAULT 0",
            "ALTER TABLE sources ADD COLUMN skip_days INTEGER NOT NULL DEFAULT 0",
        ],
    ),
    UNWANTED_PINGS,
    # What strangers may know of why a topic brings nothing; NULL when nothing is wrong.
    Migration("push_hub.intake", 4, ["ALTER TABLE topics ADD COLUMN trouble TEXT"]),
]

NO_HINTS = PollHints()
SHORT_UPDATE = 64
"""Entries that are written down on the event loop; more of them are for the writer's thread."""
_TAKE_HINTS = ", ttl = excluded.ttl, skip_hours = excluded.skip_hours, skip_days = excluded.skip_days"
_TAKE_VALIDATORS = ", etag = excluded.etag, last_modified = excluded.last_modified, body_digest = excluded.body_digest"
PING_STEP = 1e-6
"""Each ping of a topic raises `received_at` by at least this, so that a fetch can tell which pings it answered."""


@dataclass(frozen=True, slots=True)
class FetchSource:
    """What is known of a topic before it is fetched."""

    self_url: str
    validators: Validators = field(default_factory=Validators)
    body_digest: bytes | None = None
    frame: bytes | None = None
    moved_to: str | None = None
    moved_at: float = 0.0
    poll_every: float | None = None
    hints: PollHints = field(default_factory=PollHints)
    pinged_until: float | None = None
    """When the newest ping that is stored was received."""
    subscribers: int = 0
    trouble: FetchTrouble | None = None


@dataclass(frozen=True, slots=True)
class TopicPage:
    """Topics found on a part of a round, and where the next part begins (empty: at the beginning)."""

    topics: Sequence[str]
    until: str


@dataclass(frozen=True, slots=True)
class Update:
    """What one finished fetch leaves behind. None means: as it was."""

    topic: str
    self_url: str
    outcome: str
    fetched_at: float
    answered: float | None
    """Pings received up to this are done."""
    validators: Validators | None = None
    body_digest: bytes | None = None
    frame: bytes | None = None
    entries: Sequence[FeedEntry] = ()
    known_entries: int | None = None
    """How many entries of the topic were known before."""
    moved_to: str | None = None
    moved_at: float | None = None
    poll_every: float | None = None
    poll_at: float | None = None
    hints: PollHints | None = None
    trouble: FetchTrouble | None = None
    """Also when it is None: nothing is wrong now."""


@dataclass(frozen=True, slots=True)
class Added:
    """What became of pings: topics to be fetched, those that nobody wants, and others that were let go of for them."""

    wanted: Sequence[str]
    unwanted: Sequence[str]
    gone: Sequence[str]


class IntakeStore:
    def __init__(self, database: Database, config: IntakeConfig) -> None:
        self._database = database
        self._max_entries = config.max_entries_kept
        self.unwanted = UnwantedPings(database, config)

    def add_pings(
        self, topics: Sequence[str], client: str, now: float, wants: Callable[[str], bool]
    ) -> "asyncio.Future[Added]":
        """`now`: when they were received. `wants` is about subscribers elsewhere."""

        def work(tx: Transaction) -> Added:
            # Here, because who subscribes at this moment is in a transaction before or after this one.
            wanted = [
                topic
                for topic in topics
                if tx.execute("SELECT 1 FROM subscriber_counts WHERE topic = ?", (topic,)) or wants(topic)
            ]
            unwanted = [topic for topic in topics if topic not in wanted]
            gone = [old for topic in unwanted for old in self.unwanted.keep(tx, topic, client, now)]
            tx.execute_many(
                "INSERT INTO pings VALUES (?, ?) ON CONFLICT (topic) DO UPDATE SET "
                "received_at = max(excluded.received_at, received_at + ?)",
                [(topic, now, PING_STEP) for topic in wanted],
            )
            return Added(wanted, unwanted, gone)

        return self._database.transact(work)

    def is_wanted(self, topic: str) -> bool:
        """Whether somebody is subscribed here."""
        return bool(self._database.read("SELECT 1 FROM subscriber_counts WHERE topic = ?", (topic,)))

    def pings_after(self, topic: str, limit: int) -> list[str]:
        """Pinged topics in the order of their names, after this one."""
        rows = self._database.read("SELECT topic FROM pings WHERE topic > ? ORDER BY topic LIMIT ?", (topic, limit))
        return [str(topic) for (topic,) in rows]

    def source(self, topic: str) -> FetchSource:
        """All that a visit needs to know, in one read: it is asked for before each fetch."""
        # The kept number of subscribers, not a count of rows: a topic may have a million.
        (row,) = self._database.read(
            "SELECT t.self_url, t.etag, t.last_modified, t.body_digest, t.poll_every, s.validated_url, s.moved_to, "
            "s.moved_at, s.frame_digest, s.ttl, s.skip_hours, s.skip_days, t.trouble, "
            "(SELECT received_at FROM pings WHERE topic = ?1), "
            "(SELECT live FROM subscriber_counts WHERE topic = ?1) "
            "FROM (SELECT ?1 AS url) LEFT JOIN topics t USING (url) LEFT JOIN sources s ON s.topic = t.url",
            (topic,),
        )
        self_url, etag, modified, digest, every, url, moved_to, moved_at, frame, ttl, hours, days, trouble, *rest = row
        ping, live = rest
        live = live or 0
        if self_url is None:
            return FetchSource(topic, pinged_until=ping, subscribers=live)
        hints = PollHints(ttl, _from_bits(hours), _from_bits(days)) if hours or days or ttl is not None else NO_HINTS
        validators = Validators(url or "", etag, modified)
        wrong = None if trouble is None else FetchTrouble(trouble)
        return FetchSource(
            self_url, validators, digest, frame, moved_to, moved_at or 0.0, every, hints, ping, live, wrong
        )

    def seen(self, topic: str) -> dict[bytes, bytes]:
        return dict(
            self._database.read(
                "SELECT entry, digest FROM seen_entries WHERE topic = "
                "(SELECT number FROM topic_numbers WHERE topic_numbers.topic = ?)",
                (topic,),
            )
        )

    def was_published(self, topic: str, content: Content) -> bool:
        """Is this what the newest publication of the topic says already?"""
        # The length first: it is known without reading the body, which may be far larger than this one.
        rows = self._database.read(
            "SELECT length(body) = ? AND body = ? AND content_type = ? FROM publications WHERE topic = ? "
            "ORDER BY id DESC LIMIT 1",
            (len(content.body), content.body, content.content_type, topic),
        )
        return bool(rows and rows[0][0])

    def wants_changes(self, topic: str) -> bool:
        """Does anybody get reduced documents of the topic? As the condition of the index says it."""
        rows = self._database.read(
            "SELECT 1 FROM subscriptions WHERE topic = ? AND (dialect = '0.3' OR difference = 1) LIMIT 1", (topic,)
        )
        return bool(rows)

    def due_polls(self, now: float, limit: int) -> list[str]:
        rows = self._database.read(
            "SELECT url FROM topics WHERE poll_at <= ? AND EXISTS "
            "(SELECT 1 FROM subscriptions WHERE topic = url) ORDER BY poll_at LIMIT ?",
            (now, limit),
        )
        return [str(url) for (url,) in rows]

    def unknown_topics(self, after: str, limit: int) -> TopicPage:
        """Subscribed topics that have no time for their next look yet, among the next `limit` topics."""
        # From one topic to the next by the index: a topic may have a million subscriptions to be jumped over.
        rows = self._database.read(
            "WITH RECURSIVE next (topic) AS (SELECT min(topic) FROM subscriptions WHERE topic > ?1 UNION ALL "
            "SELECT (SELECT min(topic) FROM subscriptions WHERE topic > next.topic) FROM next "
            "WHERE next.topic IS NOT NULL LIMIT ?2) "
            "SELECT topic, EXISTS (SELECT 1 FROM topics WHERE url = topic AND poll_at IS NOT NULL) FROM next "
            "WHERE topic IS NOT NULL",
            (after, limit),
        )
        return TopicPage(
            [str(topic) for topic, known in rows if not known], str(rows[-1][0]) if len(rows) == limit else ""
        )

    def finish(self, update: Update) -> "asyncio.Future[None]":
        if len(update.entries) > SHORT_UPDATE:
            return asyncio.wrap_future(self._database.write(lambda tx: self.write_down(tx, update)))
        return self._database.transact(lambda tx: self.write_down(tx, update))

    def write_down(self, tx: Transaction, update: Update) -> None:
        new = update.validators
        tx.execute(
            f"INSERT INTO topics (url, self_url, etag, last_modified, body_digest, fetched_at, outcome, poll_every, "  # noqa: S608
            f"poll_at, trouble) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (url) DO UPDATE SET "
            f"self_url = excluded.self_url, fetched_at = excluded.fetched_at, outcome = excluded.outcome, "
            f"poll_every = coalesce(excluded.poll_every, poll_every), poll_at = excluded.poll_at, "
            f"trouble = excluded.trouble{'' if new is None else _TAKE_VALIDATORS}",
            (
                update.topic,
                update.self_url,
                new.etag if new else None,
                new.last_modified if new else None,
                update.body_digest,
                update.fetched_at,
                update.outcome,
                update.poll_every,
                update.poll_at,
                update.trouble,
            ),
        )
        if new is not None:
            hints = update.hints
            said = None if hints is None else (hints.ttl, _bits(hints.skip_hours), _bits(hints.skip_days))
            tx.execute(
                f"INSERT INTO sources (topic, validated_url, frame_digest, ttl, skip_hours, skip_days) "  # noqa: S608
                f"VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (topic) DO UPDATE SET validated_url = excluded.validated_url, "
                f"frame_digest = excluded.frame_digest{'' if said is None else _TAKE_HINTS}",
                (update.topic, new.url, update.frame, *(said or (None, 0, 0))),
            )
        elif update.hints is not None:
            self._take_hints(tx, update.topic, update.hints)
        if update.moved_at is not None:
            tx.execute(
                "UPDATE sources SET moved_to = ?, moved_at = ? WHERE topic = ?",
                (update.moved_to, update.moved_at, update.topic),
            )
        if update.entries:
            self._remember(tx, update.topic, update.entries, update.known_entries, update.fetched_at)
        if update.answered is not None:
            tx.execute("DELETE FROM pings WHERE topic = ? AND received_at <= ?", (update.topic, update.answered))

    def caught_up(
        self,
        topic: str,
        digest: bytes,
        frame: bytes | None,
        entries: Sequence[FeedEntry],
        hints: PollHints | None,
        now: float,
    ) -> "asyncio.Future[None]":
        """What a document says that was published before it was taken apart, unless there is a newer one."""

        def write(tx: Transaction) -> None:
            if not tx.execute("SELECT 1 FROM topics WHERE url = ? AND body_digest = ?", (topic, digest)):
                return
            tx.execute("UPDATE sources SET frame_digest = ? WHERE topic = ?", (frame, topic))
            if hints is not None:
                self._take_hints(tx, topic, hints)
            if entries:
                self._remember(tx, topic, entries, None, now)

        return asyncio.wrap_future(self._database.write(write))

    def _take_hints(self, tx: Transaction, topic: str, hints: PollHints) -> None:
        tx.execute(
            "UPDATE sources SET ttl = ?, skip_hours = ?, skip_days = ? WHERE topic = ?",
            (hints.ttl, _bits(hints.skip_hours), _bits(hints.skip_days), topic),
        )

    def _remember(
        self, tx: Transaction, topic: str, entries: Sequence[FeedEntry], known: int | None, now: float
    ) -> None:
        tx.execute("INSERT OR IGNORE INTO topic_numbers (topic) VALUES (?)", (topic,))
        ((number,),) = tx.execute("SELECT number FROM topic_numbers WHERE topic = ?", (topic,))
        tx.execute_many(
            "INSERT INTO seen_entries VALUES (?, ?, ?, ?) ON CONFLICT (topic, entry) DO UPDATE SET "
            "digest = excluded.digest, seen_at = excluded.seen_at",
            [(number, entry.key, entry.digest, now) for entry in entries],
        )
        if known is not None and known <= self._max_entries:
            return  # with those of the document there are not too many
        # What stands in the document now has the newest time, so it is never what is forgotten.
        tx.execute(
            "DELETE FROM seen_entries WHERE topic = ?1 AND seen_at < ?2 AND entry NOT IN "
            "(SELECT entry FROM seen_entries WHERE topic = ?1 ORDER BY seen_at DESC LIMIT ?3)",
            (number, now, self._max_entries + len(entries)),
        )


def _bits(numbers: frozenset[int]) -> int:
    return sum(1 << number for number in numbers)


def _from_bits(bits: int) -> frozenset[int]:
    return frozenset(number for number in range(24) if bits >> number & 1)
