"""A WebSub hub that knows nothing of gateways, as a process: python -m trials.crash.stock_hub HOST:PORT DATA LEASE

Written from the W3C text alone, to be the hub of topics that a gateway can only get by subscribing there. It keeps its
word: what it answered 202 is on disk first, intents are checked and deliveries repeated until somebody answers, also
after kill -9. A callback that fails gets the newest state of the topic at the next try. The leases it grants are short,
whatever is asked for, so that whoever wants to stay has to renew.
"""

import asyncio
import hashlib
import hmac
import secrets
import signal
import sqlite3
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from perf.loopback import Connection, LoopbackClient, LoopbackRequest, Reply, answer

PATIENCE = 10.0
RETRY = 0.2
INTENT_TRIES = 50
ADDRESS_OF_TOPICS = "127.0.0.1"
"""Where every topic's name leads to: this hub's /etc/hosts."""
TABLES = """
CREATE TABLE IF NOT EXISTS intents (
    topic TEXT, callback TEXT, mode TEXT, secret TEXT, PRIMARY KEY (topic, callback)
);
CREATE TABLE IF NOT EXISTS subscriptions (
    topic TEXT, callback TEXT, secret TEXT, until REAL, PRIMARY KEY (topic, callback)
);
CREATE TABLE IF NOT EXISTS pings (topic TEXT PRIMARY KEY, number INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS contents (topic TEXT PRIMARY KEY, type TEXT, body BLOB);
CREATE TABLE IF NOT EXISTS due (topic TEXT, callback TEXT, PRIMARY KEY (topic, callback));
CREATE TABLE IF NOT EXISTS taken (topic TEXT, digest TEXT, PRIMARY KEY (topic, digest));
CREATE TABLE IF NOT EXISTS counts (what TEXT PRIMARY KEY, number INTEGER NOT NULL);
"""

Pair = tuple[str, str]
"""Topic and callback."""


class StockHub:
    def __init__(self, url: str, data: Path, lease: int) -> None:
        self.url = url
        self._lease = lease
        self._database = sqlite3.connect(data, isolation_level=None)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.executescript(TABLES)
        self._working: dict[tuple[str, ...], asyncio.Task[None]] = {}

    def take_up(self) -> None:
        """What was promised before the last end."""
        for topic, callback in self._all("SELECT topic, callback FROM intents"):
            self._run(("intent", topic, callback), self._check((topic, callback)))
        for (topic,) in self._all("SELECT topic FROM pings"):
            self._run(("ping", topic), self._fetch(topic))
        for topic, callback in self._all("SELECT topic, callback FROM due"):
            self._run(("due", topic, callback), self._deliver((topic, callback)))

    async def stop(self) -> None:
        for task in list(self._working.values()):
            task.cancel()
        await asyncio.gather(*self._working.values(), return_exceptions=True)
        self._database.close()

    def handle(self, request: LoopbackRequest, reply: Reply) -> None:
        fields = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
        mode, topic = fields.get("hub.mode", ""), fields.get("hub.topic") or fields.get("hub.url", "")
        callback = fields.get("hub.callback", "")
        if mode == "publish" and topic:
            self._do("INSERT INTO pings VALUES (?, 1) ON CONFLICT DO UPDATE SET number = number + 1", topic)
            reply(answer(202))
            self._run(("ping", topic), self._fetch(topic))
        elif mode in ("subscribe", "unsubscribe") and topic and callback:
            self._do(
                "INSERT OR REPLACE INTO intents VALUES (?, ?, ?, ?)", topic, callback, mode, fields.get("hub.secret")
            )
            reply(answer(202))
            self._run(("intent", topic, callback), self._check((topic, callback)))
        else:
            reply(answer(400, b"not a request of WebSub\n"))

    # Intents.

    async def _check(self, pair: Pair) -> None:
        """Ask the callback, again while it cannot be reached."""
        tries = 0
        while rows := self._all("SELECT mode, secret FROM intents WHERE topic = ? AND callback = ?", *pair):
            mode, secret = rows[0]
            challenge = secrets.token_hex(16)
            query = {"hub.mode": mode, "hub.topic": pair[0], "hub.challenge": challenge}
            if mode == "subscribe":
                query["hub.lease_seconds"] = str(self._lease)
            parts = urlsplit(pair[1])
            try:
                status, body, _ = await _ask(pair[1], "GET", f"{parts.path}?{urlencode(query)}")
            except (ConnectionError, TimeoutError):
                tries += 1
                if tries < INTENT_TRIES:
                    await asyncio.sleep(RETRY)
                    continue
                status, body = 0, b""
            confirmed = status // 100 == 2 and body == challenge.encode()
            self._settle(pair, mode, secret, confirmed=confirmed)

    def _settle(self, pair: Pair, mode: str, secret: str | None, *, confirmed: bool) -> None:
        self._do("DELETE FROM intents WHERE topic = ? AND callback = ? AND mode = ?", *pair, mode)
        if not confirmed:
            self._count("not confirmed")
        elif mode == "unsubscribe":
            self._end(pair, "unsubscribed")
        else:
            before = self._all("SELECT 1 FROM subscriptions WHERE topic = ?", pair[0])
            self._count("renewed" if before else "subscribed")
            self._do("INSERT OR REPLACE INTO subscriptions VALUES (?, ?, ?, ?)", *pair, secret, self._end_of_lease())

    def _end_of_lease(self) -> float:
        return time.time() + self._lease

    def _end(self, pair: Pair, how: str) -> None:
        if self._all("SELECT 1 FROM subscriptions WHERE topic = ? AND callback = ?", *pair):
            self._count(how)
        self._do("DELETE FROM subscriptions WHERE topic = ? AND callback = ?", *pair)
        self._do("DELETE FROM due WHERE topic = ? AND callback = ?", *pair)

    # Content.

    async def _fetch(self, topic: str) -> None:
        while rows := self._all("SELECT number FROM pings WHERE topic = ?", topic):
            parts = urlsplit(topic)
            try:
                status, body, kind = await _ask(f"http://{ADDRESS_OF_TOPICS}:{parts.port}/", "GET", parts.path)
            except (ConnectionError, TimeoutError):
                status, body, kind = 0, b"", ""
            if status == 200:
                self._distribute(topic, kind, body, rows[0][0])
            else:
                await asyncio.sleep(RETRY)

    def _distribute(self, topic: str, kind: str, body: bytes, ping: object) -> None:
        now = time.time()
        for (callback,) in self._all("SELECT callback FROM subscriptions WHERE topic = ? AND until <= ?", topic, now):
            self._end((topic, callback), "lease ended")
        callbacks = [row[0] for row in self._all("SELECT callback FROM subscriptions WHERE topic = ?", topic)]
        self._do("BEGIN")
        # Another ping that came while this one was looked after is about something newer, perhaps.
        self._do("DELETE FROM pings WHERE topic = ? AND number = ?", topic, ping)
        self._do("INSERT OR REPLACE INTO contents VALUES (?, ?, ?)", topic, kind, body)
        for callback in callbacks:
            self._do("INSERT OR IGNORE INTO due VALUES (?, ?)", topic, callback)
        self._do("COMMIT")
        for callback in callbacks:
            self._run(("due", topic, callback), self._deliver((topic, callback)))

    async def _deliver(self, pair: Pair) -> None:
        topic, callback = pair
        while rows := self._all(
            "SELECT type, body, secret, until FROM due JOIN contents USING (topic) "
            "LEFT JOIN subscriptions USING (topic, callback) WHERE topic = ? AND callback = ?",
            *pair,
        ):
            kind, body, secret, until = rows[0]
            if until is None or until <= time.time():
                self._end(pair, "lease ended")
                return
            headers = {"Content-Type": kind, "Link": f'<{self.url}>; rel="hub", <{topic}>; rel="self"'}
            if secret:
                headers["X-Hub-Signature"] = f"sha256={hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}"
            try:
                status, _, _ = await _ask(callback, "POST", urlsplit(callback).path, body, headers)
            except (ConnectionError, TimeoutError):
                status = 0
            if status == 410:
                self._end(pair, "gone")
            elif status // 100 == 2:
                self._took(pair, body)
            else:
                self._count("repeated")
                await asyncio.sleep(RETRY)

    def _took(self, pair: Pair, body: bytes) -> None:
        self._count("delivered")
        self._do("INSERT OR IGNORE INTO taken VALUES (?, ?)", pair[0], hashlib.sha256(body).hexdigest())
        if self._all("SELECT 1 FROM contents WHERE topic = ? AND body = ?", pair[0], body):
            self._do("DELETE FROM due WHERE topic = ? AND callback = ?", *pair)

    # Inside.

    def _run(self, key: tuple[str, ...], work: Coroutine[None, None, None]) -> None:
        """One worker for each thing to do: who is at it already finds what is new by itself."""
        if key in self._working and not self._working[key].done():
            work.close()
            return
        task = asyncio.create_task(work)
        self._working[key] = task
        task.add_done_callback(lambda ended: self._ended(key, ended))

    def _ended(self, key: tuple[str, ...], task: asyncio.Task[None]) -> None:
        if self._working[key] is task:
            del self._working[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            sys.stderr.write(f"{key}: {error!r}\n")

    def _all(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        return self._database.execute(sql, values).fetchall()

    def _do(self, sql: str, *values: object) -> None:
        self._database.execute(sql, values)

    def _count(self, what: str) -> None:
        self._do("INSERT INTO counts VALUES (?, 1) ON CONFLICT DO UPDATE SET number = number + 1", what)


async def _ask(
    url: str, method: str, target: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> tuple[int, bytes, str]:
    """Status, body and content type. `ConnectionError` or `TimeoutError` when there is no answer."""
    client = LoopbackClient(url)
    try:
        async with asyncio.timeout(PATIENCE):
            status, content = await client.request(method, target, body, headers)
    finally:
        client.close()
    kind = LoopbackRequest("", "", client.head, b"").header("Content-Type")
    return status, content, kind or ""


def read_counts(data: Path) -> dict[str, int]:
    """What the hub did in all its lives."""
    if not data.exists():
        return {}
    reader = sqlite3.connect(f"file:{data}?mode=ro", uri=True)
    try:
        return dict(reader.execute("SELECT what, number FROM counts ORDER BY what").fetchall())
    finally:
        reader.close()


def read_taken(data: Path) -> dict[str, set[str]]:
    """The SHA-256 of each state of each topic that some callback took."""
    taken: dict[str, set[str]] = {}
    reader = sqlite3.connect(f"file:{data}?mode=ro", uri=True)
    try:
        for topic, digest in reader.execute("SELECT topic, digest FROM taken"):
            taken.setdefault(topic, set()).add(digest)
    finally:
        reader.close()
    return taken


async def serve(address: str, data: Path, lease: int) -> None:
    host, _, port = address.rpartition(":")
    hub = StockHub(f"http://{address}/", data, lease)
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    server = await loop.create_server(lambda: Connection(hub.handle), host, int(port))
    hub.take_up()
    sys.stdout.write(f"stock hub up at {hub.url}\n")
    sys.stdout.flush()
    await ended.wait()
    server.close()
    await hub.stop()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
