"""Intent checks: what to ask a callback, what its answer means, and when to ask again. No I/O, no clock.

    wanted --check sent--> 2xx with the challenge        -> Confirmed
                           a failure that may pass        -> TryAgain(at)
                           anything else, or out of tries -> Failed

0.3 retries every asynchronous failure but 404 over six hours, and no synchronous one. The later texts say that
any other answer is a failure, so there an answer is final; only a callback that could not answer (no
connection, 429, 5xx) is asked again, a few times.
"""

import base64
import json
from dataclasses import dataclass, field

from push_hub.model import Dialect, SignatureMethod
from push_hub.protocol.numbers import (
    HTTP_NOT_FOUND,
    HTTP_SERVER_ERROR,
    HTTP_TOO_MANY_REQUESTS,
    MAX_REASON_LENGTH,
    VERIFY_WINDOW,
    Mode,
    Parameter,
    is_success,
)
from push_hub.protocol.requests import SubscribeRequest, UnsubscribeRequest
from push_hub.protocol.urls import with_parameters
from storage.backoff import RetrySchedule

MAX_DENIAL_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Intent:
    """What somebody asked for and a callback has to confirm; or, with mode `denied`, what it is to be told.

    `nonce` tells two requests for the same (topic, callback) apart: only the newest may change anything.
    """

    mode: Mode
    topic: str
    callback: str
    dialect: Dialect
    requested_at: float
    nonce: str
    secret: bytes | None = field(default=None, repr=False)
    signature: SignatureMethod = SignatureMethod.SHA256
    lease_asked: int | None = None
    verify_token: str | None = None
    refresh: bool = False
    reason: str = ""
    difference: bool = False
    address: str = ""
    """Who asked, and the network around it: whom it is charged to. Empty when it was the hub itself."""
    network: str = ""


@dataclass(frozen=True, slots=True)
class CheckSchedule(RetrySchedule):
    """When a check is repeated that the callback could not answer. `max_age` counts from the request."""

    first: float = 30.0
    longest: float = VERIFY_WINDOW
    max_age: float = VERIFY_WINDOW
    last_at_end: bool = True
    attempts_later_texts: int = 4
    """Of requests of 0.4 or WebSub."""


@dataclass(frozen=True, slots=True)
class Confirmed:
    pass


@dataclass(frozen=True, slots=True)
class TryAgain:
    at: float
    reason: str


@dataclass(frozen=True, slots=True)
class CheckFailed:
    reason: str


Verdict = Confirmed | TryAgain | CheckFailed


@dataclass(frozen=True, slots=True)
class CallbackAnswer:
    """What came back from a callback; status None means that nothing did, and `reason` says why."""

    status: int | None
    body: bytes = b""
    reason: str = ""
    lasting: bool = False
    """It would be the same in a minute: the hub does not contact this address."""


def intent_of(request: SubscribeRequest | UnsubscribeRequest, now: float, nonce: str) -> Intent:
    if isinstance(request, UnsubscribeRequest):
        return Intent(
            Mode.UNSUBSCRIBE,
            request.topic,
            request.callback,
            request.dialect,
            now,
            nonce,
            verify_token=request.verify_token,
        )
    return Intent(
        Mode.SUBSCRIBE,
        request.topic,
        request.callback,
        request.dialect,
        now,
        nonce,
        secret=request.secret,
        signature=request.signature,
        lease_asked=request.lease_asked,
        verify_token=request.verify_token,
        difference=request.difference,
    )


def challenge_from(entropy: bytes) -> str:
    """Random bytes as text of the allowed characters."""
    return base64.urlsafe_b64encode(entropy).decode("ascii").rstrip("=")


def check_url(intent: Intent, challenge: str, lease: int) -> str:
    """Where the intent check goes. The token appears only when one was given."""
    parameters: list[tuple[str, str]] = [
        (Parameter.MODE, intent.mode),
        (Parameter.TOPIC, intent.topic),
        (Parameter.CHALLENGE, challenge),
    ]
    if intent.mode is Mode.SUBSCRIBE:
        parameters.append((Parameter.LEASE, str(lease)))
    if intent.verify_token is not None:
        parameters.append((Parameter.VERIFY_TOKEN, intent.verify_token))
    return with_parameters(intent.callback, parameters)


def denial_url(intent: Intent) -> str:
    parameters: list[tuple[str, str]] = [(Parameter.MODE, Mode.DENIED), (Parameter.TOPIC, intent.topic)]
    if intent.reason:
        parameters.append((Parameter.REASON, intent.reason[:MAX_REASON_LENGTH]))
    return with_parameters(intent.callback, parameters)


def judge(
    intent: Intent,
    answer: CallbackAnswer,
    challenge: str,
    *,
    attempts: int,
    synchronous: bool,
    now: float,
    schedule: CheckSchedule,
) -> Verdict:
    """What the answer to check number `attempts` (from 1) means."""
    if answer.status is not None and is_success(answer.status) and answer.body == challenge.encode("ascii"):
        return Confirmed()
    reason = _why(answer, challenge)
    if synchronous or answer.lasting or answer.status == HTTP_NOT_FOUND:
        return CheckFailed(reason)
    if intent.dialect is not Dialect.PUSH_03 and (
        not _could_not_answer(answer) or attempts >= schedule.attempts_later_texts
    ):
        return CheckFailed(reason)
    at = schedule.next_try(attempts, intent.requested_at, now)
    return CheckFailed(f"{reason}; gave up after {attempts} tries") if at is None else TryAgain(at, reason)


def judge_denial(
    intent: Intent, answer: CallbackAnswer, *, attempts: int, now: float, schedule: CheckSchedule
) -> Verdict:
    """A denial wants no answer; it is repeated only when the callback could not be told."""
    if not _could_not_answer(answer):
        return Confirmed()
    is_worth_it = attempts < MAX_DENIAL_ATTEMPTS and not answer.lasting
    at = schedule.next_try(attempts, intent.requested_at, now) if is_worth_it else None
    reason = _why(answer, "")
    return CheckFailed(reason) if at is None else TryAgain(at, reason)


def intent_to_text(intent: Intent) -> str:
    """The row that survives a crash."""
    return json.dumps(
        {
            "mode": intent.mode,
            "topic": intent.topic,
            "callback": intent.callback,
            "dialect": intent.dialect,
            "requested_at": intent.requested_at,
            "nonce": intent.nonce,
            "secret": None if intent.secret is None else base64.b64encode(intent.secret).decode("ascii"),
            "signature": intent.signature,
            "lease_asked": intent.lease_asked,
            "verify_token": intent.verify_token,
            "refresh": intent.refresh,
            "reason": intent.reason,
            "difference": intent.difference,
            "address": intent.address,
            "network": intent.network,
        },
        separators=(",", ":"),
    )


def intent_from_text(text: str) -> Intent:
    row = json.loads(text)
    return Intent(
        mode=Mode(row["mode"]),
        topic=row["topic"],
        callback=row["callback"],
        dialect=Dialect(row["dialect"]),
        requested_at=row["requested_at"],
        nonce=row["nonce"],
        secret=None if row["secret"] is None else base64.b64decode(row["secret"]),
        signature=SignatureMethod(row["signature"]),
        lease_asked=row["lease_asked"],
        verify_token=row["verify_token"],
        refresh=row["refresh"],
        reason=row["reason"],
        # Rows of an older version do not have these.
        difference=row.get("difference", False),
        address=row.get("address", ""),
        network=row.get("network", ""),
    )


def _could_not_answer(answer: CallbackAnswer) -> bool:
    return answer.status is None or answer.status == HTTP_TOO_MANY_REQUESTS or answer.status >= HTTP_SERVER_ERROR


def _why(answer: CallbackAnswer, challenge: str) -> str:
    if answer.status is None:
        return f"the callback could not be reached: {answer.reason}"
    if not is_success(answer.status):
        return f"the callback answered {answer.status}, expected 2xx"
    if not answer.body:
        return f"the callback answered {answer.status} with an empty body, expected the challenge"
    if answer.body.strip() == challenge.encode("ascii"):
        return f"the callback answered {answer.status} with the challenge and extra white space around it"
    return f"the callback answered {answer.status} with another body than the challenge"
