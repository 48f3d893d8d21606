"""Why does a subscription get nothing? For the operator (a token), and for the subscriber who proves its secret.

What is wrong with a topic anybody may ask, and is told in classes; the operator gets the words.

The proof is an HMAC-SHA256, keyed with the subscription's secret, over `topic LF callback LF unix-time`:

    Authorization: PSPH-HMAC time=1700000000, mac=<hex>

It says nothing to whoever reads it later (the time must be near), and the answer to a wrong proof is the same
whether the subscription exists or not.
"""

import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from aiohttp import hdrs, web

from push_hub.delivery import Delivery
from push_hub.intake.trouble import WORDS, FetchTrouble
from push_hub.model import HubSubscription
from push_hub.protocol.requests import RequestError
from push_hub.protocol.urls import UrlError, normalised
from push_hub.subscriptions import Pending, Subscriptions
from serving.answers import bearer
from serving.gate import Gate
from storage import Database
from storage.clock import steady

_PROOF = re.compile(r"PSPH-HMAC\s+time=(\d{1,12})\s*,\s*mac=([0-9a-fA-F]{64})\Z", re.ASCII)
_NO_SECRET = b"\0" * 32  # compared against when there is nothing to compare with, so that both take as long
MAX_LISTED = 100

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class DiagnosticsConfig:
    operator_token: str | None = None
    proof_window: float = 300.0


def proof_of(secret: bytes, topic: str, callback: str, at: int) -> str:
    """The `Authorization` value a subscriber sends."""
    mac = hmac.new(secret, f"{topic}\n{callback}\n{at}".encode(), "sha256").hexdigest()
    return f"PSPH-HMAC time={at}, mac={mac}"


class Diagnostics:
    def __init__(
        self,
        config: DiagnosticsConfig,
        database: Database,
        subscriptions: Subscriptions,
        delivery: Delivery,
        gate: Gate,
        topic_refusal: Callable[[str], str | None] = lambda topic: None,
        clock: Callable[[], float] = steady,
    ) -> None:
        self._config = config
        self._database = database
        self._subscriptions = subscriptions
        self._delivery = delivery
        self._gate = gate
        self._topic_refusal = topic_refusal
        self._clock = clock

    def add_routes(self, app: web.Application) -> None:
        app.router.add_get("/diagnostics/subscription", self.subscription)
        app.router.add_get("/diagnostics/topic", self.topic)
        app.router.add_get("/diagnostics/dead-letters", self.dead_letters)
        app.router.add_post("/diagnostics/dead-letters/{number:[0-9]{1,18}}/replay", self.replay)

    async def subscription(self, request: web.Request) -> web.StreamResponse:
        self._gate.client(request)
        topic, callback = _url(request, "topic"), _url(request, "callback")
        now = self._clock()
        # In this order: a check that is settled between the two reads shows as still waiting, never as without effect.
        pending = self._subscriptions.pending_for(topic, callback)
        found = self._subscriptions.find(topic, callback, now)
        if not self._is_operator(request):
            self._check_proof(request, topic, callback, found, now)
        return _answer(self._about_subscription(topic, callback, found, pending))

    async def topic(self, request: web.Request) -> web.StreamResponse:
        self._gate.client(request)
        topic = _url(request, "topic")
        return _answer(self._about_topic(topic) if self._is_operator(request) else self._to_anybody(topic))

    async def dead_letters(self, request: web.Request) -> web.StreamResponse:
        self._only_operator(request)
        after = request.query.get("after", "0")
        if not (after.isascii() and after.isdigit() and len(after) <= 18):
            raise RequestError("after must be the number of a dead letter")
        letters = self._delivery.dead_letters(int(after), MAX_LISTED, request.query.get("topic"))
        return _answer(
            {
                "dead_letters": [
                    {
                        "id": letter.id,
                        "topic": letter.topic,
                        "callback": letter.callback,
                        "publication": letter.publication,
                        "attempts": letter.attempts,
                        "reason": letter.reason,
                        "at": _when(letter.died_at),
                    }
                    for letter in letters
                ]
            }
        )

    async def replay(self, request: web.Request) -> web.StreamResponse:
        self._only_operator(request)
        if not await self._delivery.replay(int(request.match_info["number"])):
            raise RequestError("this dead letter, or its publication, is not kept any more", 404)
        return web.Response(status=202, text="it will be tried again\n")

    # -- what is known

    def _about_subscription(
        self, topic: str, callback: str, found: HubSubscription | None, pending: Pending | None
    ) -> Json:
        document: Json = {
            "topic": topic,
            "callback": callback,
            "state": "active" if found is not None else "not subscribed",
            "waiting_check": None
            if pending is None
            else {"mode": pending.intent.mode, "tries": pending.attempts, "next_try": _when(pending.next_try_at)},
            "history": [
                {"at": _when(line.at), "what": line.what} for line in self._subscriptions.history(topic, callback)
            ],
        }
        if found is not None:
            tries = self._delivery.history(found.id)
            failures = [one for one in tries if one.reason is not None]
            delivered = [one for one in tries if one.reason is None]
            owed = self._delivery.owed(found.id, MAX_LISTED)
            tries_ahead = [one.next_try_at for one in owed if one.next_try_at is not None]
            document |= {
                "lease_end": _when(found.lease_until),
                "difference": found.difference,
                "signature": found.signature if found.secret is not None else None,
                "last_delivery": _when(delivered[-1].at) if delivered else None,
                "last_failure": failures[-1].reason if failures else None,
                "next_try": _when(min(tries_ahead, default=None)),
                "owed": [
                    {
                        "publication": one.publication,
                        "tries": one.attempts,
                        "next_try": _when(one.next_try_at),
                        "reason": one.reason,
                    }
                    for one in owed
                ],
                "deliveries": [
                    {
                        "publication": one.publication,
                        "at": _when(one.at),
                        "status": one.status,
                        "failure": one.reason,
                    }
                    for one in tries
                ],
            }
        return document

    def _to_anybody(self, topic: str) -> Json:
        """Whether something is wrong with a topic, in the classes that help its publisher and nobody else."""
        refusal = self._topic_refusal(topic)
        if refusal is not None:
            return {"topic": topic, "state": "refused", "text": refusal}
        rows = self._database.read("SELECT trouble FROM topics WHERE url = ?", (topic,))
        if not rows:
            return {"topic": topic, "state": "unknown", "text": "never fetched: no ping came since somebody subscribed"}
        trouble = rows[0][0]
        if trouble is None:
            return {"topic": topic, "state": "well", "text": "fetched and sent on"}
        return {"topic": topic, "state": trouble, "text": WORDS[FetchTrouble(trouble)]}

    def _about_topic(self, topic: str) -> Json:
        rows = self._database.read(
            "SELECT self_url, fetched_at, outcome, poll_at, trouble FROM topics WHERE url = ?", (topic,)
        )
        newest = self._delivery.latest(topic)
        refusal = self._topic_refusal(topic)
        document: Json = {
            "topic": topic,
            "refused": refusal,
            "subscribers": self._subscriptions.count(topic),
            "last_publication": _when(newest[0].accepted_at) if newest else None,
            "last_fetch": None,
        }
        if rows:
            self_url, fetched_at, outcome, poll_at, trouble = rows[0]
            document |= {
                "self": self_url,
                "last_fetch": _when(fetched_at),
                "outcome": outcome,
                "trouble": trouble,
                "next_poll": _when(poll_at),
            }
        return document

    # -- who may know

    def _is_operator(self, request: web.Request) -> bool:
        token, given = self._config.operator_token, bearer(request)
        return bool(token and given) and self._gate.knows(request, given or "", (token or "",))

    def _only_operator(self, request: web.Request) -> None:
        self._gate.client(request)
        if not self._is_operator(request):
            raise RequestError("this is for the operator: send Authorization: Bearer TOKEN", 401)

    def _check_proof(
        self, request: web.Request, topic: str, callback: str, found: HubSubscription | None, now: float
    ) -> None:
        match = _PROOF.match(request.headers.get(hdrs.AUTHORIZATION, ""))
        if match is None:
            raise RequestError("prove your secret: Authorization: PSPH-HMAC time=UNIX-TIME, mac=HEX", 401)
        at = int(match.group(1))
        secret = found.secret if found is not None else None
        expected = proof_of(secret or _NO_SECRET, topic, callback, at).rpartition("=")[2]
        right = hmac.compare_digest(expected, match.group(2).lower())
        if not right or secret is None or abs(now - at) > self._config.proof_window:
            raise RequestError("no subscription with this secret, or the time is not near now", 403)


def _url(request: web.Request, name: str) -> str:
    given = request.query.getall(name, [])
    if len(given) != 1:
        raise RequestError(f"name one {name}: ?{name}=URL")
    try:
        return normalised(given[0])
    except UrlError as error:
        raise RequestError(f"{name} {error}") from None


def _when(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def _answer(document: Json) -> web.Response:
    return web.json_response(document, headers={"Cache-Control": "no-store"})
