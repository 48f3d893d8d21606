"""The names and numbers of the protocol texts, and the bounds the hub adds to them, in one place."""

from enum import StrEnum
from typing import Final

FORM_TYPE: Final = "application/x-www-form-urlencoded"


class Mode(StrEnum):
    SUBSCRIBE = "subscribe"
    UNSUBSCRIBE = "unsubscribe"
    PUBLISH = "publish"
    DENIED = "denied"


class Parameter(StrEnum):
    MODE = "hub.mode"
    TOPIC = "hub.topic"
    CALLBACK = "hub.callback"
    URL = "hub.url"
    SECRET = "hub.secret"  # noqa: S105 - the name of a parameter
    LEASE = "hub.lease_seconds"
    VERIFY = "hub.verify"
    VERIFY_TOKEN = "hub.verify_token"  # noqa: S105 - the name of a parameter
    CHALLENGE = "hub.challenge"
    REASON = "hub.reason"
    # Our own: the subscriber chooses how its deliveries are signed.
    SIGNATURE = "hub.signature"
    # Our own: "true" asks for what this callback has not acknowledged yet, instead of whole documents.
    DIFFERENCE = "hub.difference"


class VerifyMode(StrEnum):
    SYNC = "sync"
    ASYNC = "async"


SECRET_LIMIT: Final = 200  # bytes; a secret is shorter than this
CHALLENGE_ALPHABET: Final = frozenset("+-./0123456789=ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz")
CHALLENGE_BYTES: Final = 32

DAY: Final = 86_400
DEFAULT_LEASE: Final = 10 * DAY
MINIMUM_LEASE: Final = 300
MAXIMUM_LEASE: Final = 30 * DAY

VERIFY_WINDOW: Final = 6 * 3600.0  # 0.3: how long a failing asynchronous check is retried
MAX_LEASE_DIGITS: Final = 12

MAX_URL_LENGTH: Final = 2048
MAX_FIELDS: Final = 300
MAX_TOPICS_PER_PING: Final = 100
MAX_TOKEN_LENGTH: Final = 1024
MAX_REASON_LENGTH: Final = 300

HTTP_OK: Final = 200
HTTP_MULTIPLE_CHOICES: Final = 300
HTTP_BAD_REQUEST: Final = 400
HTTP_NOT_FOUND: Final = 404
HTTP_TOO_LARGE: Final = 413
HTTP_UNSUPPORTED_TYPE: Final = 415
HTTP_TOO_MANY_REQUESTS: Final = 429
HTTP_SERVER_ERROR: Final = 500


def is_success(status: int) -> bool:
    return HTTP_OK <= status < HTTP_MULTIPLE_CHOICES
