"""What the broker must remember, in the gateway's store: sessions, filters, queues, what is retained, wills.

Messages are in the exchange's log, once; a queue is rows that refer to it. A group of work is one transaction: messages
enter the log together with the rows of all who are to have them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from exchange.model import Appended, Draft, Mark
from exchange.sqlite import SqliteLog
from exchange.sqlite.rows import ENTRY_COLUMNS, entry_from
from gateway.protocols.mqtt.broker import request_of
from gateway.protocols.mqtt.decode import Decoder
from gateway.protocols.mqtt.drafts import draft_of, message_from
from gateway.protocols.mqtt.messages import (
    BrokerMessage,
    EnteringMessage,
    MessageAcked,
    MessageReleased,
    OutgoingPublish,
    ReceivedDropped,
    ReceivedPut,
    RetainedDropped,
    SessionDropped,
    SessionPut,
    StoreOp,
    SubscriptionDropped,
    SubscriptionPut,
    WillDropped,
    WillDue,
    WillPut,
    WorkGroup,
)
from gateway.protocols.mqtt.names import TopicNames
from gateway.protocols.mqtt.numbers import Level
from gateway.protocols.mqtt.packets import PublishPacket, SubscriptionRequest, Will
from gateway.protocols.mqtt.session import MqttSession
from identifiers import ItemId, TopicError
from storage import Database, Migration, Transaction

LABEL = "mqtt"
PAGE = 500
FOREVER = 1e12

_ENTRY = ", ".join(f"l.{column.strip()}" for column in ENTRY_COLUMNS.split(","))
_PAGE = (
    f"SELECT q.seq, q.packet_id, q.qos, q.retain, q.ids, q.released, {_ENTRY} FROM "  # noqa: S608 - own names
    "mqtt_queue q JOIN exchange_log l ON l.position = q.position WHERE q.session = ? AND q.seq > ? "
    "ORDER BY q.seq LIMIT ?"
)
_RETAINED = (
    f"SELECT r.topic, {_ENTRY} FROM mqtt_retained r JOIN exchange_log l ON l.position = r.position "  # noqa: S608
    "WHERE r.topic > ? ORDER BY r.topic LIMIT ?"
)

MIGRATIONS = [
    Migration(
        LABEL,
        1,
        [
            """CREATE TABLE mqtt_sessions (
                number    INTEGER PRIMARY KEY,
                client_id TEXT NOT NULL UNIQUE,
                expiry    INTEGER NOT NULL,
                ends      REAL NOT NULL,
                user      TEXT NOT NULL
            )""",
            """CREATE TABLE mqtt_filters (
                session    INTEGER NOT NULL,
                filter     TEXT NOT NULL,
                options    INTEGER NOT NULL,
                identifier INTEGER NOT NULL,
                PRIMARY KEY (session, filter)
            ) WITHOUT ROWID""",
            # What a session is to be sent, by the place of each message in the log, which keeps what is held.
            """CREATE TABLE mqtt_queue (
                session   INTEGER NOT NULL,
                seq       INTEGER NOT NULL,
                packet_id INTEGER NOT NULL,
                position  INTEGER NOT NULL,
                qos       INTEGER NOT NULL,
                retain    INTEGER NOT NULL,
                ids       TEXT NOT NULL,
                released  INTEGER NOT NULL DEFAULT 0,
                PRIMARY KEY (session, seq)
            ) WITHOUT ROWID""",
            # Of QoS 2, from clients that have not released it.
            """CREATE TABLE mqtt_received (
                session   INTEGER NOT NULL,
                packet_id INTEGER NOT NULL,
                packet    BLOB NOT NULL,
                PRIMARY KEY (session, packet_id)
            ) WITHOUT ROWID""",
            "CREATE TABLE mqtt_retained (topic TEXT PRIMARY KEY, position INTEGER NOT NULL) WITHOUT ROWID",
            # `at` 0: its client is connected.
            """CREATE TABLE mqtt_wills (
                client_id TEXT PRIMARY KEY,
                packet    BLOB NOT NULL,
                delay     INTEGER NOT NULL,
                at        REAL NOT NULL
            ) WITHOUT ROWID""",
        ],
        times=["mqtt_sessions.ends", "mqtt_wills.at"],
    )
]


@dataclass(frozen=True, slots=True)
class StoredSession:
    session: MqttSession
    filters: tuple[tuple[SubscriptionRequest, int], ...]


class BrokerStore:
    def __init__(self, database: Database, names: TopicNames) -> None:
        self._database = database
        self._log = SqliteLog(database)
        self._names = names

    # One transaction.

    def apply(self, group: WorkGroup, now_ms: int, tx: Transaction) -> list[tuple[ItemId, Appended]]:
        """Write all of it; says what entered the log."""
        entering = group.entering
        drafts: list[tuple[Draft, int]] = []
        fresh: list[EnteringMessage] = []
        for one in entering:
            if one.is_new:
                message = one.message
                kept = one.is_retained and bool(message.payload)
                drafts.append((draft_of(message, *self._name(message.topic)), _rows_of(one) + kept))
                fresh.append(one)
        entered = self._log.enter_many(drafts, LABEL, now_ms, tx)
        for one, appended in zip(fresh, entered, strict=True):
            one.message.position = appended.position
        if entering:
            _queue(entering, tx)
        _acknowledge([op for op in group.ops if isinstance(op, MessageAcked)], tx)
        for op in group.ops:
            if not isinstance(op, MessageAcked):
                _write(op, tx)
        return [(draft.item, appended) for (draft, _), appended in zip(drafts, entered, strict=True)]

    def _name(self, topic: str) -> tuple[str, ItemId]:
        return self._names.of_topic(topic)

    # Reading.

    def page(self, session: MqttSession) -> tuple[list[OutgoingPublish], bool]:
        """What follows in a session's queue, and whether that is all of it."""
        rows = self._database.read(_PAGE, (session.number, session.loaded, PAGE))
        found: list[OutgoingPublish] = []
        for seq, packet_id, qos, retain, ids, released, *columns in rows:
            entry = entry_from(columns)
            message = message_from(entry, self._names.topic_of(entry.draft.name))
            out = OutgoingPublish(message, qos, bool(retain), _ids_from(ids), packet_id, seq)
            out.is_released = bool(released)
            found.append(out)
        return found, len(found) < PAGE

    def sessions(self, inflight: int) -> Iterator[StoredSession]:
        filters: dict[int, list[tuple[SubscriptionRequest, int]]] = {}
        for number, wanted, options, identifier in self._database.read(
            "SELECT session, filter, options, identifier FROM mqtt_filters"
        ):
            filters.setdefault(number, []).append((request_of(wanted, options), identifier))
        queues = {
            number: (count, last, last_id, size)
            for number, count, last, last_id, size in self._database.read(
                "SELECT q.session, count(*), max(q.seq), "
                "(SELECT packet_id FROM mqtt_queue n WHERE n.session = q.session ORDER BY seq DESC LIMIT 1), "
                "sum(length(l.body) + length(l.name)) "
                "FROM mqtt_queue q JOIN exchange_log l ON l.position = q.position GROUP BY q.session"
            )
        }
        received: dict[int, dict[int, PublishPacket]] = {}
        for number, packet_id, raw in self._database.read("SELECT session, packet_id, packet FROM mqtt_received"):
            received.setdefault(number, {})[packet_id] = _packet_from(raw)
        for number, client_id, expiry, ends, user in self._database.read(
            "SELECT number, client_id, expiry, ends, user FROM mqtt_sessions"
        ):
            session = MqttSession(client_id, number, user)
            session.expiry, session.ends = expiry, ends
            if number in queues:
                session.queued, session.seq, session.last_id, session.queued_bytes = queues[number]
                session.stored = session.seq
            session.received = received.get(number, {})
            session.received_bytes = sum(len(one.payload) + len(one.topic) for one in session.received.values())
            # What was sent by a process that was killed, nobody knows: as much as may have been.
            session.sent_before = {
                packet_id
                for (packet_id,) in self._database.read(
                    "SELECT packet_id FROM mqtt_queue WHERE session = ? ORDER BY seq LIMIT ?", (number, inflight)
                )
            }
            yield StoredSession(session, tuple(filters.get(number, ())))

    def retained(self) -> Iterator[BrokerMessage]:
        after = ""
        while rows := self._database.read(
            _RETAINED,
            (after, PAGE),
        ):
            after = rows[-1][0]
            for topic, *columns in rows:
                yield message_from(entry_from(columns), topic)

    def wills(self) -> Iterator[tuple[str, Will, float]]:
        for client_id, raw, delay, at in self._database.read("SELECT client_id, packet, delay, at FROM mqtt_wills"):
            yield client_id, Will(_packet_from(raw), delay), at

    def taken(self, item: ItemId) -> int:
        """How far an item has been taken from the log."""
        rows = self._database.read(
            "SELECT value FROM exchange_marks WHERE source = ? AND key = ?", (LABEL, bytes(item).hex())
        )
        return int(rows[0][0]) if rows else 0

    def is_nameable(self, topic: str) -> bool:
        try:
            self._name(topic)
        except TopicError:
            return False
        return True


def _rows_of(one: EnteringMessage) -> int:
    return sum(session.durable for session, _ in one.targets)


def _queue(entering: Sequence[EnteringMessage], tx: Transaction) -> None:
    rows: list[tuple[int | str, ...]] = []
    held: list[tuple[int, int]] = []
    for one in entering:
        position = one.message.position
        if not one.is_new and (count := _rows_of(one) + (one.is_retained and bool(one.message.payload))):
            held.append((count, position))
        for session, out in one.targets:
            if session.durable:
                ids = ",".join(map(str, out.ids))
                rows.append((session.number, out.seq, out.packet_id, position, out.qos, int(out.retain), ids))
        if one.is_retained:
            _retain(one.message, tx)
        if one.mark is not None:
            SqliteLog.write_marks([Mark(LABEL, *one.mark)], tx)
    if held:
        tx.execute_many("UPDATE exchange_log SET held = held + ? WHERE position = ?", held)
    if rows:
        tx.execute_many(
            "INSERT INTO mqtt_queue (session, seq, packet_id, position, qos, retain, ids) VALUES (?, ?, ?, ?, ?, ?, ?)",
            rows,
        )


def _acknowledge(acked: Sequence[MessageAcked], tx: Transaction) -> None:
    """Their sessions are there: one that ends does so after all it has acknowledged."""
    if acked:
        tx.execute_many(
            "DELETE FROM mqtt_queue WHERE session = ? AND seq = ?", [(one.number, one.seq) for one in acked]
        )
        SqliteLog.release([one.position for one in acked], tx)


def _retain(message: BrokerMessage, tx: Transaction) -> None:
    _forget_retained(message.topic, tx)
    if message.payload:
        tx.execute("INSERT INTO mqtt_retained VALUES (?, ?)", (message.topic, message.position))


def _forget_retained(topic: str, tx: Transaction) -> None:
    for (position,) in tx.execute("DELETE FROM mqtt_retained WHERE topic = ? RETURNING position", (topic,)):
        SqliteLog.release([position], tx)


def _write(op: StoreOp, tx: Transaction) -> None:
    if isinstance(op, MessageReleased):
        tx.execute("UPDATE mqtt_queue SET released = 1 WHERE session = ? AND seq = ?", (op.number, op.seq))
    elif isinstance(op, ReceivedPut):
        tx.execute("INSERT OR REPLACE INTO mqtt_received VALUES (?, ?, ?)", (op.number, op.packet_id, op.packet))
    elif isinstance(op, ReceivedDropped):
        tx.execute("DELETE FROM mqtt_received WHERE session = ? AND packet_id = ?", (op.number, op.packet_id))
    elif isinstance(op, SessionPut):
        tx.execute(
            "INSERT INTO mqtt_sessions VALUES (?, ?, ?, ?, ?) ON CONFLICT (number) DO UPDATE SET "
            "expiry = excluded.expiry, ends = excluded.ends, user = excluded.user",
            (op.number, op.client_id, op.expiry, op.ends, op.user),
        )
    elif isinstance(op, SessionDropped):
        tx.execute(
            "UPDATE exchange_log SET held = held - "
            "(SELECT count(*) FROM mqtt_queue q WHERE q.session = ?1 AND q.position = exchange_log.position) "
            "WHERE position IN (SELECT position FROM mqtt_queue WHERE session = ?1)",
            (op.number,),
        )
        for table in ("mqtt_queue", "mqtt_filters", "mqtt_received"):
            tx.execute(f"DELETE FROM {table} WHERE session = ?", (op.number,))  # noqa: S608 - own names
        tx.execute("DELETE FROM mqtt_sessions WHERE number = ?", (op.number,))
    elif isinstance(op, SubscriptionPut):
        tx.execute(
            "INSERT OR REPLACE INTO mqtt_filters VALUES (?, ?, ?, ?)",
            (op.number, op.filter, op.options, op.identifier),
        )
    elif isinstance(op, SubscriptionDropped):
        tx.execute("DELETE FROM mqtt_filters WHERE session = ? AND filter = ?", (op.number, op.filter))
    elif isinstance(op, RetainedDropped):
        _forget_retained(op.topic, tx)
    elif isinstance(op, WillPut):
        tx.execute("INSERT OR REPLACE INTO mqtt_wills VALUES (?, ?, ?, 0)", (op.client_id, op.packet, op.delay))
    elif isinstance(op, WillDue):
        tx.execute("UPDATE mqtt_wills SET at = ? WHERE client_id = ?", (op.at, op.client_id))
    elif isinstance(op, WillDropped):
        tx.execute("DELETE FROM mqtt_wills WHERE client_id = ?", (op.client_id,))


def _ids_from(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text else ()


def _packet_from(raw: bytes) -> PublishPacket:
    """As we wrote it ourselves."""
    (packet,) = Decoder(server=False, level=Level.V5).feed(bytes(raw))
    if not isinstance(packet, PublishPacket):
        raise TypeError("what is kept here is a PUBLISH")
    return packet
