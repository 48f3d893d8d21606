"""A topic of the hub's own that goes the whole way again and again, so that the hub notices by itself when it stops.

Each beat is a change of a small document. It takes the way of any other: the callback is verified, the ping is
stored, the document fetched over HTTP, compared, written to the log, fanned out and posted, signed, to a callback.
Document and callback are served on a loopback socket which serves nothing else; its paths cannot be guessed, and
the address guard lets the hub's client connect to exactly this one address and port.

`Pulse` knows which beats are out and what that means; it has no clock and no socket. `Canary` moves them.
"""

import asyncio
import hmac
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from aiohttp import web

from push_hub.delivery.signing import signature_matches
from push_hub.events import CanaryArrived, CanaryChanged
from push_hub.model import Dialect, SignatureMethod
from push_hub.ports import OverloadedError, PingTaker
from push_hub.protocol.numbers import Mode, Parameter
from push_hub.protocol.verification import Intent
from push_hub.subscriptions import Subscriptions
from push_hub.verifier import IntentVerifier
from serving.port import Port, PortConfig
from storage import Database, Migration, StorageError, Transaction
from storage.clock import steady

TOKEN_BYTES = 24
MAX_BODY = 4096
PORT = PortConfig("127.0.0.1", max_connections=64, stop_grace=0.2)
CONTENT_TYPE = "text/plain; charset=utf-8"
RENEW_BEATS_AHEAD = 3

MIGRATIONS = [
    Migration(
        "push_hub.canary",
        1,
        # Which topics were a canary's: a start removes what an earlier process left of them.
        ["CREATE TABLE canaries (topic TEXT PRIMARY KEY) WITHOUT ROWID"],
    )
]
_TRACES = (
    "DELETE FROM verifications WHERE topic = ?",
    "DELETE FROM subscriptions WHERE topic = ?",
    "DELETE FROM pings WHERE topic = ?",
    "DELETE FROM publications WHERE topic = ?",
    "DELETE FROM dead_letters WHERE topic = ?",
    "DELETE FROM subscription_history WHERE topic = ?",
    "DELETE FROM sources WHERE topic = ?",
    "DELETE FROM topics WHERE url = ?",
    "DELETE FROM canaries WHERE topic = ?",
)


@dataclass(frozen=True, slots=True)
class CanaryConfig:
    """A beat every `interval` seconds; health turns red when one has not arrived `deadline` seconds after it began."""

    enabled: bool = True
    interval: float = 60.0
    deadline: float = 30.0

    def __post_init__(self) -> None:
        if self.interval <= 0 or self.deadline <= 0:
            raise ValueError("the canary's interval and deadline must be above 0 seconds")


BEGUN = "it had only just begun"


class Pulse:
    """Which beats are under way, how far the oldest has come, and whether that is bad."""

    def __init__(self, config: CanaryConfig) -> None:
        self._config = config
        self._number = 0
        self._sent_at: float | None = None
        self._waiting_since: float | None = None
        self._last_sign = ""
        self.arrived_at: float | None = None

    @property
    def number(self) -> int:
        """The newest beat's."""
        return self._number

    def send(self, now: float) -> int:
        """A new beat begins. An older one that never arrived goes on counting: the newest arrival settles all."""
        self._number += 1
        self._sent_at = now
        if self._waiting_since is None:
            self._waiting_since = now
        self._last_sign = BEGUN
        return self._number

    def saw(self, number: int, sign: str, *, first: bool = False) -> None:
        """How far a beat has come, in words. `first`: unless more is known already, as after a ping that was quick."""
        if number == self._number and not (first and self._last_sign != BEGUN):
            self._last_sign = sign

    def arrived(self, number: int, now: float) -> float | None:
        """How long it took; None for what says nothing about now: a late one, or one that was here already."""
        if number != self._number or self._sent_at is None:
            return None
        is_first = self._waiting_since is not None
        self._waiting_since = None
        self.arrived_at = now
        return now - self._sent_at if is_first else None

    def trouble(self, now: float) -> str | None:
        """Why the canary is not well, or None."""
        if self._sent_at is None:
            return None
        if self._waiting_since is not None and now - self._waiting_since > self._config.deadline:
            return (
                f"the canary has not arrived for {now - self._waiting_since:.0f} seconds "
                f"(deadline {self._config.deadline:g}): {self._last_sign}"
            )
        if now - self._sent_at > self._config.interval + self._config.deadline:
            return f"the canary was not sent for {now - self._sent_at:.0f} seconds"
        return None

    def until_deadline(self, now: float) -> float | None:
        """Seconds until the beat under way is late; None when none is, or it is already."""
        if self._waiting_since is None:
            return None
        left = self._waiting_since + self._config.deadline - now
        return left if left > 0 else None


class Canary:
    """Made before the hub's client (which must be told `address`), started after the parts it goes through."""

    def __init__(
        self,
        config: CanaryConfig,
        *,
        clock: Callable[[], float] = steady,
        monotonic: Callable[[], float] = time.monotonic,
        observer: Callable[[object], None] | None = None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._monotonic = monotonic
        self._observer = observer
        self._port = Port(PORT, observer)
        self.address: tuple[str, int] = self._port.address
        self._base = self._port.url.rstrip("/")
        self._topic_token = secrets.token_urlsafe(TOKEN_BYTES)
        self._callback_token = secrets.token_urlsafe(TOKEN_BYTES)
        self._secret = secrets.token_urlsafe(TOKEN_BYTES).encode()
        self.topic = f"{self._base}/{self._topic_token}"
        self._pulse = Pulse(config)
        self._subscribed = asyncio.Event()
        self._well = True
        self._subscriptions: Subscriptions | None = None
        self._verifier: IntentVerifier | None = None
        self._pings: PingTaker | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def callback(self) -> str:
        return f"{self._base}/{self._callback_token}"

    def trouble(self) -> str | None:
        """Why the canary is not well, in words; None when it is."""
        return self._pulse.trouble(self._monotonic())

    @property
    def seconds_since_arrival(self) -> float | None:
        at = self._pulse.arrived_at
        return None if at is None else max(0.0, self._monotonic() - at)

    # -- what the hub tells it

    def accepted(self) -> None:
        self._pulse.saw(self._pulse.number, "it is in the log, but was not delivered")

    def subscribers_changed(self, live: int) -> None:
        if live:
            self._subscribed.set()
        else:
            self._subscribed.clear()

    # -- life

    async def start(self, subscriptions: Subscriptions, verifier: IntentVerifier, pings: PingTaker) -> None:
        self._subscriptions, self._verifier, self._pings = subscriptions, verifier, pings
        await self._listen()
        self._task = asyncio.create_task(self._beat_forever())

    async def _listen(self) -> None:
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_get("/{token}", self._get)
        app.router.add_post("/{token}", self._post)
        await self._port.serve(app)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._port.stop()

    async def beat(self) -> None:
        """Send one round. Returns when its ping is on disk, or when it is clear that it will not get that far."""
        if self._subscriptions is None or self._verifier is None or self._pings is None:
            raise RuntimeError("the canary is not started")
        late = self.trouble() is not None
        number = self._pulse.send(self._monotonic())
        try:
            await self._subscribe(self._subscriptions, self._verifier, afresh=late)
            await self._pings.ping([self.topic])
        except TimeoutError:
            self._pulse.saw(number, "its own subscription was not confirmed")
        except OverloadedError as error:
            self._pulse.saw(number, f"the hub refused it: {error.text}")
        except StorageError:
            self._pulse.saw(number, "the hub could not write to its store")
        else:
            self._pulse.saw(number, "its ping is stored, but its document was not fetched", first=True)

    async def _subscribe(self, subscriptions: Subscriptions, verifier: IntentVerifier, *, afresh: bool) -> None:
        now = self._clock()
        found = subscriptions.find(self.topic, self.callback, now)
        if found is not None and afresh:
            # What is owed to the old callback waits for its next try; a new one has nothing to wait behind.
            await subscriptions.remove(found.id, "the canary was late", now)
            self._subscribed.clear()
            self._callback_token = secrets.token_urlsafe(TOKEN_BYTES)
            found = None
        ahead = self._config.interval * RENEW_BEATS_AHEAD + self._config.deadline
        if found is not None and found.lease_until - now > ahead:
            return
        nonce = verifier.new_nonce()
        await verifier.submit(
            Intent(
                Mode.SUBSCRIBE,
                self.topic,
                self.callback,
                Dialect.WEBSUB,
                now,
                nonce,
                secret=self._secret,
                signature=SignatureMethod.SHA256,
            )
        )
        async with asyncio.timeout(self._config.deadline):
            await self._subscribed.wait()

    async def _beat_forever(self) -> None:
        while True:
            started = self._monotonic()
            with suppress(Exception):  # whatever it was, the beat is late by it, and the next one is tried
                await self.beat()
            left = self._pulse.until_deadline(self._monotonic())
            pause = max(0.0, started + self._config.interval - self._monotonic())
            if left is not None and left < pause:
                await asyncio.sleep(left)
                self._look()
                pause = max(0.0, started + self._config.interval - self._monotonic())
            await asyncio.sleep(pause)
            self._look()

    def _look(self) -> None:
        """Tell when it turned bad or good."""
        reason = self.trouble()
        if (reason is None) != self._well:
            self._well = reason is None
            if self._observer is not None:
                self._observer(CanaryChanged(self._well, reason or "the canary arrives again"))

    # -- its own publisher and subscriber

    async def _get(self, request: web.Request) -> web.StreamResponse:
        token = request.match_info["token"]
        number = self._pulse.number
        if hmac.compare_digest(token.encode(), self._topic_token.encode()):
            self._pulse.saw(number, "its document was fetched, but is not in the log")
            return web.Response(body=_body(number), headers={"Content-Type": CONTENT_TYPE, "Cache-Control": "no-store"})
        self._check_callback(token)
        if request.query.get(Parameter.TOPIC) != self.topic:
            raise web.HTTPNotFound
        return web.Response(text=request.query.get(Parameter.CHALLENGE, ""), content_type="text/plain")

    async def _post(self, request: web.Request) -> web.StreamResponse:
        self._check_callback(request.match_info["token"])
        body = await request.read()
        number = self._pulse.number
        if not signature_matches(
            self._secret, SignatureMethod.SHA256, body, request.headers.get("X-Hub-Signature", "")
        ):
            self._pulse.saw(number, "it was delivered, but with a wrong signature")
        elif body == _body(number):
            seconds = self._pulse.arrived(number, self._monotonic())
            if seconds is not None and self._observer is not None:
                self._observer(CanaryArrived(seconds))
            self._look()
        return web.Response(status=204)

    def _check_callback(self, token: str) -> None:
        if not hmac.compare_digest(token.encode(), self._callback_token.encode()):
            raise web.HTTPNotFound


def remove_traces(database: Database, topic: str | None) -> None:
    """Forget every earlier canary, and write down today's. Before the parts that would take its rows up again start."""

    def work(tx: Transaction) -> None:
        for (old,) in tx.execute("SELECT topic FROM canaries"):
            for statement in _TRACES:
                tx.execute(statement, (old,))
        if topic is not None:
            tx.execute("INSERT INTO canaries VALUES (?)", (topic,))

    database.write(work).result()


def _body(number: int) -> bytes:
    return f"canary {number}\n".encode()
