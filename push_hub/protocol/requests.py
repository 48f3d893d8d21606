"""A form body becomes one typed request, or an error that says what was wrong. No I/O.

The three texts are told apart by what the request holds: `hub.verify` exists only in 0.3, where it is required;
a `hub.verify_token` without it is a leftover of clients written for 0.4; everything else is WebSub.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl

from push_hub.model import Dialect, SignatureMethod
from push_hub.protocol.numbers import (
    FORM_TYPE,
    HTTP_BAD_REQUEST,
    HTTP_TOO_LARGE,
    HTTP_UNSUPPORTED_TYPE,
    MAX_FIELDS,
    MAX_LEASE_DIGITS,
    MAX_TOKEN_LENGTH,
    MAX_TOPICS_PER_PING,
    SECRET_LIMIT,
    Mode,
    Parameter,
    VerifyMode,
)
from push_hub.protocol.urls import UrlError, has_fragment, normalised

_DECIMAL = re.compile(r"[0-9]+\Z", re.ASCII)
_ONCE = (
    Parameter.TOPIC,
    Parameter.CALLBACK,
    Parameter.SECRET,
    Parameter.LEASE,
    Parameter.VERIFY_TOKEN,
    Parameter.SIGNATURE,
    Parameter.DIFFERENCE,
)


class RequestError(Exception):
    """A request the hub refuses: the status and a short text for its sender."""

    def __init__(self, text: str, status: int = HTTP_BAD_REQUEST) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


@dataclass(frozen=True, slots=True)
class SubscribeRequest:
    topic: str
    callback: str
    dialect: Dialect
    secret: bytes | None
    signature: SignatureMethod
    lease_asked: int | None
    verify_token: str | None
    synchronous: bool
    difference: bool = False


@dataclass(frozen=True, slots=True)
class UnsubscribeRequest:
    topic: str
    callback: str
    dialect: Dialect
    verify_token: str | None
    synchronous: bool


@dataclass(frozen=True, slots=True)
class PublishRequest:
    topics: tuple[str, ...]


HubRequest = SubscribeRequest | UnsubscribeRequest | PublishRequest


@dataclass(frozen=True, slots=True)
class RequestRules:
    """What the operator may set about requests."""

    max_topics_per_ping: int = MAX_TOPICS_PER_PING
    websub_signature: SignatureMethod = SignatureMethod.SHA256


DEFAULT_RULES = RequestRules()


def parse_request(content_type: str, body: bytes, rules: RequestRules = DEFAULT_RULES) -> HubRequest:
    """Read a POST to the hub. Raises `RequestError` and nothing else, whatever the bytes are."""
    fields = _fields(content_type, body)
    mode = _only(fields, Parameter.MODE)
    if mode is None:
        raise RequestError("hub.mode is missing: expected subscribe, unsubscribe or publish")
    if mode == Mode.PUBLISH:
        return _publish(fields, rules)
    if mode == Mode.SUBSCRIBE:
        return _subscribe(fields, rules)
    if mode == Mode.UNSUBSCRIBE:
        return _unsubscribe(fields)
    raise RequestError(f"hub.mode is {_shown(mode)}: expected subscribe, unsubscribe or publish")


def _fields(content_type: str, body: bytes) -> Mapping[str, Sequence[str]]:
    media_type, _, parameters = content_type.partition(";")
    if media_type.strip().lower() != FORM_TYPE:
        raise RequestError(f"the content type must be {FORM_TYPE}", HTTP_UNSUPPORTED_TYPE)
    charset = re.search(r"charset\s*=\s*\"?([^\s\";]+)", parameters, re.IGNORECASE)
    if charset and charset.group(1).lower() not in ("utf-8", "utf8", "us-ascii"):
        raise RequestError("the form must be encoded in UTF-8", HTTP_UNSUPPORTED_TYPE)
    try:
        text = body.decode("utf-8")
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
    except UnicodeDecodeError:
        raise RequestError("the form is not valid UTF-8") from None
    except ValueError:
        raise RequestError(f"the form has more than {MAX_FIELDS} fields", HTTP_TOO_LARGE) from None
    fields: dict[str, list[str]] = {}
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    return fields


def _publish(fields: Mapping[str, Sequence[str]], rules: RequestRules) -> PublishRequest:
    given = [*fields.get(Parameter.URL, ()), *fields.get(Parameter.TOPIC, ())]
    if not given:
        raise RequestError("a publish needs hub.url (or hub.topic): the topic that changed")
    if len(given) > rules.max_topics_per_ping:
        raise RequestError(
            f"{len(given)} topics in one request: at most {rules.max_topics_per_ping} are accepted", HTTP_TOO_LARGE
        )
    return PublishRequest(tuple(dict.fromkeys(_url(url, Parameter.URL) for url in given)))


def _subscribe(fields: Mapping[str, Sequence[str]], rules: RequestRules) -> SubscribeRequest:
    _refuse_repeated(fields, _ONCE)
    dialect = _dialect(fields)
    topic, callback = _key(fields, dialect)
    return SubscribeRequest(
        topic=topic,
        callback=callback,
        dialect=dialect,
        secret=_secret(fields),
        signature=_signature(fields, dialect, rules),
        lease_asked=_lease(fields),
        verify_token=_verify_token(fields, dialect),
        synchronous=_synchronous(fields, dialect),
        difference=_difference(fields),
    )


def _unsubscribe(fields: Mapping[str, Sequence[str]]) -> UnsubscribeRequest:
    _refuse_repeated(fields, (Parameter.TOPIC, Parameter.CALLBACK, Parameter.VERIFY_TOKEN))
    dialect = _dialect(fields)
    topic, callback = _key(fields, dialect)
    return UnsubscribeRequest(topic, callback, dialect, _verify_token(fields, dialect), _synchronous(fields, dialect))


def _dialect(fields: Mapping[str, Sequence[str]]) -> Dialect:
    if Parameter.VERIFY in fields:
        return Dialect.PUSH_03
    if Parameter.VERIFY_TOKEN in fields:
        return Dialect.PUSH_04
    return Dialect.WEBSUB


def _key(fields: Mapping[str, Sequence[str]], dialect: Dialect) -> tuple[str, str]:
    values: list[str] = []
    for name in (Parameter.TOPIC, Parameter.CALLBACK):
        value = _only(fields, name)
        if value is None:
            raise RequestError(f"{name} is missing: expected an http or https URL")
        url = _url(value, name)
        if dialect is Dialect.PUSH_03 and has_fragment(url):
            raise RequestError(f"{name} must not contain a fragment ('#')")
        values.append(url)
    return values[0], values[1]


def _url(value: str, name: str) -> str:
    try:
        return normalised(value)
    except UrlError as error:
        raise RequestError(f"{name} {error}") from None


def _secret(fields: Mapping[str, Sequence[str]]) -> bytes | None:
    value = _only(fields, Parameter.SECRET)
    if not value:
        return None
    secret = value.encode("utf-8")
    if len(secret) >= SECRET_LIMIT:
        raise RequestError(f"hub.secret has {len(secret)} bytes: it must be shorter than {SECRET_LIMIT}")
    return secret


def _lease(fields: Mapping[str, Sequence[str]]) -> int | None:
    value = _only(fields, Parameter.LEASE)
    if not value:
        return None
    if not _DECIMAL.match(value) or not value.strip("0"):
        raise RequestError("hub.lease_seconds must be a positive decimal integer")
    digits = value.lstrip("0")
    # A longer number is only a longer wish; the hub grants its maximum.
    return int(digits) if len(digits) <= MAX_LEASE_DIGITS else 10**MAX_LEASE_DIGITS


def _signature(fields: Mapping[str, Sequence[str]], dialect: Dialect, rules: RequestRules) -> SignatureMethod:
    value = _only(fields, Parameter.SIGNATURE)
    if value is not None:
        try:
            return SignatureMethod(value)
        except ValueError:
            raise RequestError(f"hub.signature must be one of {', '.join(SignatureMethod)}") from None
    return rules.websub_signature if dialect is Dialect.WEBSUB else SignatureMethod.SHA1


def _difference(fields: Mapping[str, Sequence[str]]) -> bool:
    value = _only(fields, Parameter.DIFFERENCE)
    if value not in (None, "true", "false"):
        raise RequestError("hub.difference must be true or false")
    return value == "true"


def _verify_token(fields: Mapping[str, Sequence[str]], dialect: Dialect) -> str | None:
    value = _only(fields, Parameter.VERIFY_TOKEN)
    if dialect is not Dialect.PUSH_03 or value is None:
        return None
    if len(value) > MAX_TOKEN_LENGTH:
        raise RequestError(f"hub.verify_token is longer than {MAX_TOKEN_LENGTH} characters")
    return value


def _synchronous(fields: Mapping[str, Sequence[str]], dialect: Dialect) -> bool:
    if dialect is not Dialect.PUSH_03:
        return False
    for word in fields[Parameter.VERIFY]:
        if word == VerifyMode.SYNC:
            return True
        if word == VerifyMode.ASYNC:
            return False
    raise RequestError("hub.verify must be sync or async")


def _only(fields: Mapping[str, Sequence[str]], name: str) -> str | None:
    values = fields.get(name)
    if not values:
        return None
    if len(values) > 1 and name == Parameter.MODE:
        raise RequestError("hub.mode is given more than once")
    return values[0]


def _refuse_repeated(fields: Mapping[str, Sequence[str]], names: Sequence[str]) -> None:
    for name in names:
        if len(fields.get(name, ())) > 1:
            raise RequestError(f"{name} is given more than once")


def _shown(value: str) -> str:
    return ascii(value[:40])
