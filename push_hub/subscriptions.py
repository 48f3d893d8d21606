"""Who is subscribed, kept on disk: the lease table, the intents that wait for their check, and what became of them.

Every change of an intent and of its subscription is one transaction, and only the newest intent for a
(topic, callback) may change anything: an answer to an older one finds its row replaced and does nothing.
Works by index only, so that a million rows cost no more than a thousand.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from push_hub.bounds import SubscriptionBounds, check_request, check_room, is_there
from push_hub.model import Dialect, HubSubscription, SignatureMethod
from push_hub.protocol.leases import is_live, lease_until, refresh_at
from push_hub.protocol.numbers import Mode
from push_hub.protocol.verification import Intent, intent_from_text, intent_to_text
from push_hub.subscriber_cache import SubscriberCache
from storage import Database, Row, Transaction

T = TypeVar("T")

DEFAULT_HISTORY_ROWS = 200_000
HISTORY_TRIM_EVERY = 256
MAX_HISTORY_READ = 100

# Looked up by their text for each delivery: calling the enum takes several times as long.
_METHODS = {method.value: method for method in SignatureMethod}
_DIALECTS = {dialect.value: dialect for dialect in Dialect}
# Who missed a publication for good gets whole documents again: a difference would leave a gap. Only looked up for who
# asked for differences: this is part of every page of a fan-out.
_DIFFERENCE = (
    "CASE WHEN difference THEN NOT EXISTS "
    "(SELECT 1 FROM dead_letters WHERE dead_letters.subscription = subscriptions.id) ELSE 0 END"
)
_COLUMNS = f"id, topic, callback, secret, signature, dialect, lease_until, {_DIFFERENCE}"


@dataclass(frozen=True, slots=True)
class Change:
    """The subscriptions of a topic changed; `live` of them are there now."""

    topic: str
    live: int


@dataclass(frozen=True, slots=True)
class Ended:
    topic: str
    callback: str


@dataclass(frozen=True, slots=True)
class Pending:
    """An intent that waits for its next check."""

    row: int
    intent: Intent
    attempts: int
    next_try_at: float


@dataclass(frozen=True, slots=True)
class HistoryLine:
    at: float
    what: str


class Subscriptions:
    """Reads are immediate, from the last committed state; writes return once they are on disk."""

    def __init__(
        self,
        database: Database,
        *,
        history_rows: int = DEFAULT_HISTORY_ROWS,
        bounds: SubscriptionBounds | None = None,
    ) -> None:
        self._database = database
        self._bounds = SubscriptionBounds() if bounds is None else bounds
        self._history_rows = history_rows
        self._cache = SubscriberCache()

    # -- reading

    def page(self, topic: str, after_id: int, limit: int, now: float) -> Sequence[HubSubscription]:
        # Asked for before the page is read: one that changes in between is kept under a stamp that is over.
        stamps = self._database.read("SELECT stamp FROM subscriber_counts WHERE topic = ?", (topic,))
        if not stamps:
            return []
        stamp = stamps[0][0]
        known = self._cache.find(topic, after_id, limit, stamp, now)
        if known is not None:
            return known
        rows = self._database.read(
            f"SELECT id, callback, secret, signature, dialect, lease_until, {_DIFFERENCE}, difference "  # noqa: S608 - own constants
            "FROM subscriptions INDEXED BY subscriptions_by_topic "
            "WHERE topic = ? AND id > ? AND lease_until > ? ORDER BY id LIMIT ?",
            (topic, after_id, now, limit),
        )
        methods, dialects = _METHODS, _DIALECTS
        page = [HubSubscription(a, topic, b, c, methods[d], dialects[e], f, g == 1) for a, b, c, d, e, f, g, _ in rows]
        if not any(row[-1] for row in rows):
            self._cache.keep(topic, after_id, limit, stamp, now, page)
        return page

    def get(self, subscription_id: int, now: float) -> HubSubscription | None:
        rows = self._database.read(
            f"SELECT {_COLUMNS} FROM subscriptions WHERE id = ?",  # noqa: S608 - own constants
            (subscription_id,),
        )
        return _live(rows, now)

    def find(self, topic: str, callback: str, now: float) -> HubSubscription | None:
        rows = self._database.read(
            f"SELECT {_COLUMNS} FROM subscriptions WHERE topic = ? AND callback = ?",  # noqa: S608 - own constants
            (topic, callback),
        )
        return _live(rows, now)

    def count(self, topic: str) -> int:
        rows = self._database.read("SELECT live FROM subscriber_counts WHERE topic = ?", (topic,))
        return int(rows[0][0]) if rows else 0

    def topics(self, after: str, limit: int) -> Sequence[Change]:
        """Topics with subscribers, in order of their names."""
        rows = self._database.read(
            "SELECT topic, live FROM subscriber_counts WHERE topic > ? ORDER BY topic LIMIT ?", (after, limit)
        )
        return [Change(topic, live) for topic, live in rows]

    def pending(self, row: int) -> Pending | None:
        rows = self._database.read("SELECT id, request, attempts, next_try_at FROM verifications WHERE id = ?", (row,))
        return _pending(rows[0]) if rows else None

    def pending_for(self, topic: str, callback: str) -> Pending | None:
        rows = self._database.read(
            "SELECT id, request, attempts, next_try_at FROM verifications WHERE topic = ? AND callback = ?",
            (topic, callback),
        )
        return _pending(rows[0]) if rows else None

    def all_pending(self, after_row: int, limit: int) -> Sequence[tuple[int, str, float]]:
        """(row, callback, next try) of every waiting intent, page by page: what a restart needs to go on."""
        rows = self._database.read(
            "SELECT id, callback, next_try_at FROM verifications WHERE id > ? ORDER BY id LIMIT ?", (after_row, limit)
        )
        return [(row, callback, at) for row, callback, at in rows]

    def history(self, topic: str, callback: str, limit: int = MAX_HISTORY_READ) -> Sequence[HistoryLine]:
        """Newest first."""
        rows = self._database.read(
            "SELECT at, what FROM subscription_history WHERE topic = ? AND callback = ? ORDER BY id DESC LIMIT ?",
            (topic, callback, min(limit, MAX_HISTORY_READ)),
        )
        return [HistoryLine(at, what) for at, what in rows]

    # -- writing

    async def enqueue(self, intent: Intent, now: float) -> int:
        """Keep an intent until it is settled, in place of an older one for the same key; returns its row.

        Raises `BoundReachedError`.
        """

        def work(tx: Transaction) -> int:
            check_request(tx.execute, self._bounds, intent, now)
            return _enqueue(tx, intent, now)

        return await self._write(work)

    def check(self, intent: Intent, now: float) -> None:
        """Whether a request that does not wait may be made. Raises `BoundReachedError`."""
        check_request(self._database.read, self._bounds, intent, now)

    def is_there(self, topic: str, callback: str, now: float) -> bool:
        return is_there(self._database.read, topic, callback, now)

    async def postpone(self, row: int, intent: Intent, attempts: int, at: float, reason: str, now: float) -> bool:
        """Note a failed try. False when a newer request took the row over."""

        def work(tx: Transaction) -> bool:
            found = tx.execute(
                "UPDATE verifications SET attempts = ?, next_try_at = ? WHERE id = ? AND request = ? RETURNING id",
                (attempts, at, row, intent_to_text(intent)),
            )
            if found:
                self._note(
                    tx, intent.topic, intent.callback, now, f"{_check(intent)} failed, will be repeated: {reason}"
                )
            return bool(found)

        return await self._write(work)

    async def confirm(self, row: int | None, intent: Intent, sent_at: float, granted: int, now: float) -> Change | None:
        """The callback agreed: the intent takes effect. None when a newer request replaced it meanwhile.

        Raises `BoundReachedError`, and changes nothing, when there is no room by now.
        """

        def work(tx: Transaction) -> Change | None:
            if not _claim(tx, row, intent):
                return None
            if intent.mode is Mode.SUBSCRIBE:
                self._subscribe(tx, intent, sent_at, granted, now)
            elif intent.mode is Mode.UNSUBSCRIBE:
                self._remove(tx, intent.topic, intent.callback, now, "unsubscribed")
            else:
                self._note(tx, intent.topic, intent.callback, now, "the callback was told that it is denied")
            return Change(intent.topic, _count(tx, intent.topic))

        return await self._write(work)

    async def fail(self, row: int | None, intent: Intent, reason: str, now: float) -> Change | None:
        """The intent came to nothing. The subscription stays as it was; only a failed recheck ends it."""

        def work(tx: Transaction) -> Change | None:
            if not _claim(tx, row, intent):
                return None
            self._note(tx, intent.topic, intent.callback, now, f"{_check(intent)} failed: {reason}")
            if intent.refresh:
                self._remove(tx, intent.topic, intent.callback, now, "ended: the recheck before its lease end failed")
            return Change(intent.topic, _count(tx, intent.topic))

        return await self._write(work)

    async def deny(self, intent: Intent, now: float) -> tuple[int, Change]:
        """End a subscription, if there is one, and keep the denial until the callback has been told."""

        def work(tx: Transaction) -> tuple[int, Change]:
            self._remove(tx, intent.topic, intent.callback, now, f"denied: {intent.reason or 'no reason given'}")
            return _enqueue(tx, intent, now), Change(intent.topic, _count(tx, intent.topic))

        return await self._write(work)

    async def remove(self, subscription_id: int, reason: str, now: float) -> Change | None:
        """End a subscription, for instance because its callback is gone (410)."""

        def work(tx: Transaction) -> Change | None:
            rows = tx.execute("SELECT topic, callback FROM subscriptions WHERE id = ?", (subscription_id,))
            if not rows:
                return None
            topic, callback = rows[0]
            self._remove(tx, topic, callback, now, f"ended: {reason}")
            return Change(topic, _count(tx, topic))

        return await self._write(work)

    async def sweep(self, now: float, limit: int) -> tuple[Sequence[Ended], Sequence[Change]]:
        """Remove up to `limit` subscriptions whose lease is over."""

        def work(tx: Transaction) -> tuple[Sequence[Ended], Sequence[Change]]:
            rows = tx.execute(
                "DELETE FROM subscriptions WHERE id IN "
                "(SELECT id FROM subscriptions WHERE lease_until <= ? ORDER BY lease_until LIMIT ?) "
                "RETURNING topic, callback",
                (now, limit),
            )
            for topic, callback in rows:
                self._note(tx, topic, callback, now, "ended: its lease ran out")
            topics = dict.fromkeys(topic for topic, _ in rows)
            return [Ended(*row) for row in rows], [Change(topic, _count(tx, topic)) for topic in topics]

        return await self._write(work)

    async def start_refreshes(self, now: float, limit: int, nonce: Callable[[], str]) -> Sequence[tuple[int, str]]:
        """Queue a recheck of the 0.3 subscriptions whose lease nears its end; returns (row, callback) of each."""
        nonces = [nonce() for _ in range(limit)]

        def work(tx: Transaction) -> Sequence[tuple[int, str]]:
            due = tx.execute(
                "SELECT s.id, s.topic, s.callback, s.secret, s.signature, r.verify_token, r.lease_asked "
                "FROM refreshes r JOIN subscriptions s ON s.id = r.subscription "
                "WHERE r.refresh_at <= ? AND s.lease_until > ? ORDER BY r.refresh_at LIMIT ?",
                (now, now, limit),
            )
            queued: list[tuple[int, str]] = []
            for fresh, (number, topic, callback, secret, signature, token, asked) in zip(nonces, due, strict=False):
                tx.execute("UPDATE refreshes SET refresh_at = NULL WHERE subscription = ?", (number,))
                if tx.execute("SELECT 1 FROM verifications WHERE topic = ? AND callback = ?", (topic, callback)):
                    continue
                intent = Intent(
                    Mode.SUBSCRIBE,
                    topic,
                    callback,
                    Dialect.PUSH_03,
                    now,
                    fresh,
                    secret=secret,
                    signature=SignatureMethod(signature),
                    lease_asked=asked,
                    verify_token=token,
                    refresh=True,
                )
                queued.append((_enqueue(tx, intent, now), callback))
            return queued

        return await self._write(work)

    # -- inside a transaction

    def _subscribe(self, tx: Transaction, intent: Intent, sent_at: float, granted: int, now: float) -> None:
        until = lease_until(sent_at, granted)
        if intent.refresh:
            # Ended meanwhile by something else (410, an operator): a recheck must not bring it back.
            if not tx.execute(
                "UPDATE subscriptions SET lease_until = ? WHERE topic = ? AND callback = ? RETURNING id",
                (until, intent.topic, intent.callback),
            ):
                return
        else:
            if not is_there(tx.execute, intent.topic, intent.callback, now):
                check_room(tx.execute, self._bounds, intent)
            # Whoever renews a subscription takes it over only when nobody is charged with it.
            tx.execute(
                "INSERT INTO subscriptions (topic, callback, secret, signature, dialect, lease_until, created_at, "
                "difference, address, network) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (topic, callback) DO UPDATE SET "
                "secret = excluded.secret, signature = excluded.signature, dialect = excluded.dialect, "
                "lease_until = excluded.lease_until, difference = excluded.difference, "
                "address = iif(network = '', excluded.address, address), "
                "network = iif(network = '', excluded.network, network)",
                (
                    intent.topic,
                    intent.callback,
                    intent.secret,
                    intent.signature,
                    intent.dialect,
                    until,
                    now,
                    intent.difference,
                    intent.address,
                    intent.network,
                ),
            )
        tx.execute(
            "DELETE FROM refreshes WHERE subscription = "
            "(SELECT id FROM subscriptions WHERE topic = ? AND callback = ?)",
            (intent.topic, intent.callback),
        )
        if intent.dialect is Dialect.PUSH_03:
            tx.execute(
                "INSERT INTO refreshes SELECT id, ?, ?, ? FROM subscriptions WHERE topic = ? AND callback = ?",
                (
                    intent.verify_token,
                    intent.lease_asked,
                    refresh_at(sent_at, granted),
                    intent.topic,
                    intent.callback,
                ),
            )
        what = "lease renewed by recheck" if intent.refresh else "subscribed"
        self._note(tx, intent.topic, intent.callback, now, f"{what} for {granted} seconds")

    def _remove(self, tx: Transaction, topic: str, callback: str, now: float, what: str) -> None:
        if tx.execute("DELETE FROM subscriptions WHERE topic = ? AND callback = ? RETURNING id", (topic, callback)):
            self._note(tx, topic, callback, now, what)

    def _note(self, tx: Transaction, topic: str, callback: str, now: float, what: str) -> None:
        ((line,),) = tx.execute(
            "INSERT INTO subscription_history (topic, callback, at, what) VALUES (?, ?, ?, ?) RETURNING id",
            (topic, callback, now, what),
        )
        if line % HISTORY_TRIM_EVERY == 0:
            tx.execute("DELETE FROM subscription_history WHERE id <= ?", (line - self._history_rows,))

    async def _write(self, work: Callable[[Transaction], T]) -> T:
        return await asyncio.wrap_future(self._database.write(work))


def _enqueue(tx: Transaction, intent: Intent, now: float) -> int:
    ((row,),) = tx.execute(
        "INSERT INTO verifications (mode, topic, callback, request, next_try_at, address, network) "
        "VALUES (?, ?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (topic, callback) DO UPDATE SET mode = excluded.mode, request = excluded.request, attempts = 0, "
        "next_try_at = excluded.next_try_at, address = excluded.address, network = excluded.network RETURNING id",
        (intent.mode, intent.topic, intent.callback, intent_to_text(intent), now, intent.address, intent.network),
    )
    return int(row)


def _claim(tx: Transaction, row: int | None, intent: Intent) -> bool:
    if row is None:
        # A synchronous request is the newest one by itself: it replaces whatever waits for this key.
        tx.execute("DELETE FROM verifications WHERE topic = ? AND callback = ?", (intent.topic, intent.callback))
        return True
    return bool(
        tx.execute("DELETE FROM verifications WHERE id = ? AND request = ? RETURNING id", (row, intent_to_text(intent)))
    )


def _count(tx: Transaction, topic: str) -> int:
    rows = tx.execute("SELECT live FROM subscriber_counts WHERE topic = ?", (topic,))
    return int(rows[0][0]) if rows else 0


def _check(intent: Intent) -> str:
    if intent.mode is Mode.DENIED:
        return "telling the callback that it is denied"
    return "the recheck before the lease end" if intent.refresh else f"the check of the {intent.mode} request"


def _subscription(row: Row) -> HubSubscription:
    number, topic, callback, secret, signature, dialect, until, difference = row
    return HubSubscription(
        number, topic, callback, secret, _METHODS[signature], _DIALECTS[dialect], until, bool(difference)
    )


def _live(rows: Sequence[Row], now: float) -> HubSubscription | None:
    if not rows:
        return None
    found = _subscription(rows[0])
    return found if is_live(found.lease_until, now) else None


def _pending(row: Row) -> Pending:
    number, request, attempts, at = row
    return Pending(number, intent_from_text(request), attempts, at)
