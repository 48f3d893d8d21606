"""The request parser: each rule by example, and properties over whatever bytes come in."""

from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from push_hub.model import Dialect, SignatureMethod
from push_hub.protocol.numbers import FORM_TYPE, SECRET_LIMIT
from push_hub.protocol.requests import (
    HubRequest,
    PublishRequest,
    RequestError,
    SubscribeRequest,
    UnsubscribeRequest,
    parse_request,
)

TOPIC = "http://publisher.example/feed"
CALLBACK = "http://subscriber.example/cb?x=1"


def parse(*pairs: tuple[str, str]) -> HubRequest:
    return parse_request(FORM_TYPE, urlencode(pairs).encode())


def subscribe(*pairs: tuple[str, str]) -> SubscribeRequest:
    given = dict(pairs)
    base = {"hub.mode": "subscribe", "hub.topic": TOPIC, "hub.callback": CALLBACK}
    result = parse(*[(name, value) for name, value in base.items() if name not in given], *pairs)
    assert isinstance(result, SubscribeRequest)
    return result


def test_plain_request_is_websub() -> None:
    assert subscribe() == SubscribeRequest(
        TOPIC, CALLBACK, Dialect.WEBSUB, None, SignatureMethod.SHA256, None, None, synchronous=False
    )


def test_hub_verify_makes_it_0_3() -> None:
    request = subscribe(("hub.verify", "async"), ("hub.verify_token", "t"))
    assert (request.dialect, request.signature, request.verify_token) == (Dialect.PUSH_03, SignatureMethod.SHA1, "t")


def test_leftover_token_makes_it_0_4_and_is_ignored() -> None:
    request = subscribe(("hub.verify_token", "t"))
    assert (request.dialect, request.signature, request.verify_token) == (Dialect.PUSH_04, SignatureMethod.SHA1, None)


def test_chosen_signature() -> None:
    assert subscribe(("hub.signature", "sha512")).signature is SignatureMethod.SHA512
    with pytest.raises(RequestError, match="sha1, sha256, sha384, sha512"):
        subscribe(("hub.signature", "md5"))


@pytest.mark.parametrize(
    ("words", "synchronous"),
    [
        (["sync"], True),
        (["async"], False),
        (["sync", "async"], True),
        (["async", "sync"], False),
        (["x", "sync"], True),
    ],
)
def test_verify_words_by_preference(words: list[str], synchronous: bool) -> None:
    assert subscribe(*[("hub.verify", word) for word in words]).synchronous is synchronous


def test_no_known_verify_word() -> None:
    with pytest.raises(RequestError, match="sync or async"):
        subscribe(("hub.verify", "later"))


@pytest.mark.parametrize("missing", ["hub.mode", "hub.topic", "hub.callback"])
def test_missing_parameter(missing: str) -> None:
    base = {"hub.mode": "subscribe", "hub.topic": TOPIC, "hub.callback": CALLBACK}
    with pytest.raises(RequestError, match=missing):
        parse(*[pair for pair in base.items() if pair[0] != missing])


def test_secret_limit_counts_bytes() -> None:
    assert subscribe(("hub.secret", "s" * (SECRET_LIMIT - 1))).secret == b"s" * (SECRET_LIMIT - 1)
    with pytest.raises(RequestError, match="shorter than 200"):
        subscribe(("hub.secret", "é" * (SECRET_LIMIT // 2)))


@pytest.mark.parametrize("lease", ["0", "-1", "1.5", "ten", "٣", "1e3"])
def test_bad_lease(lease: str) -> None:
    with pytest.raises(RequestError, match="positive decimal integer"):
        subscribe(("hub.lease_seconds", lease))


def test_empty_lease_is_absent_and_huge_one_is_only_a_wish() -> None:
    assert subscribe(("hub.lease_seconds", "")).lease_asked is None
    huge = subscribe(("hub.lease_seconds", "9" * 5000)).lease_asked
    assert huge is not None
    assert huge >= 10**12


def test_unsubscribe_ignores_the_lease() -> None:
    request = parse(
        ("hub.mode", "unsubscribe"), ("hub.topic", TOPIC), ("hub.callback", CALLBACK), ("hub.lease_seconds", "junk")
    )
    assert request == UnsubscribeRequest(TOPIC, CALLBACK, Dialect.WEBSUB, None, synchronous=False)


def test_fragment_is_refused_only_by_0_3() -> None:
    assert subscribe(("hub.topic", TOPIC + "#x")).topic == TOPIC + "#x"
    with pytest.raises(RequestError, match="fragment"):
        subscribe(("hub.topic", TOPIC + "#x"), ("hub.verify", "sync"))


def test_repeated_parameter_is_refused() -> None:
    with pytest.raises(RequestError, match="more than once"):
        parse(("hub.mode", "subscribe"), ("hub.topic", TOPIC), ("hub.topic", TOPIC), ("hub.callback", CALLBACK))


def test_publish_takes_both_names_and_removes_doubles() -> None:
    request = parse(("hub.mode", "publish"), ("hub.topic", TOPIC), ("hub.url", "http://a.example/"), ("hub.url", TOPIC))
    assert request == PublishRequest(("http://a.example/", TOPIC))


def test_publish_bounds() -> None:
    with pytest.raises(RequestError, match=r"hub\.url"):
        parse(("hub.mode", "publish"))
    with pytest.raises(RequestError, match="at most 100") as caught:
        parse(("hub.mode", "publish"), *[("hub.url", f"http://a.example/{n}") for n in range(101)])
    assert caught.value.status == 413


def test_other_content_types() -> None:
    for content_type in ("", "application/json", f"{FORM_TYPE}; charset=latin-1"):
        with pytest.raises(RequestError) as caught:
            parse_request(content_type, b"hub.mode=publish")
        assert caught.value.status == 415
    request = parse_request(f"{FORM_TYPE.upper()} ; charset=UTF-8", b"hub.mode=publish&hub.url=http://a.example/")
    assert request == PublishRequest(("http://a.example/",))


NAMES = st.sampled_from(
    [
        "hub.mode",
        "hub.topic",
        "hub.callback",
        "hub.secret",
        "hub.lease_seconds",
        "hub.verify",
        "hub.verify_token",
        "hub.url",
        "x",
    ]
)
VALUES = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
    st.sampled_from(["subscribe", "unsubscribe", "publish", "sync", "async", "60", TOPIC, CALLBACK, "http://[::1"]),
)


@given(st.binary(max_size=300))
def test_any_bytes_give_a_request_or_a_request_error(body: bytes) -> None:
    _only_refuses(body)


@given(st.lists(st.tuples(NAMES, VALUES), max_size=12))
def test_any_form_gives_a_request_or_a_request_error(pairs: list[tuple[str, str]]) -> None:
    _only_refuses(urlencode(pairs).encode())


def _only_refuses(body: bytes) -> None:
    try:
        request = parse_request(FORM_TYPE, body)
    except RequestError as error:
        assert 400 <= error.status < 500
        assert error.text.isprintable()
        assert len(error.text) < 200
        return
    if isinstance(request, PublishRequest):
        assert 1 <= len(request.topics) <= 100
        return
    assert request.topic.startswith("http")
    assert request.callback.startswith("http")
    if isinstance(request, SubscribeRequest):
        assert request.secret is None or 0 < len(request.secret) < SECRET_LIMIT
        assert request.lease_asked is None or request.lease_asked > 0


@given(
    secret=st.none()
    | st.text(min_size=1, max_size=60).filter(lambda text: 0 < len(text.encode(errors="replace")) < 200),
    lease=st.none() | st.integers(1, 10**9),
    noise=st.lists(st.tuples(st.sampled_from(["x", "hub.unknown", "y"]), st.sampled_from(["", "1"])), max_size=5),
)
def test_what_was_sent_is_what_is_read(secret: str | None, lease: int | None, noise: list[tuple[str, str]]) -> None:
    pairs = [*noise]
    if secret is not None:
        pairs.append(("hub.secret", secret))
    if lease is not None:
        pairs.append(("hub.lease_seconds", str(lease)))
    request = subscribe(*pairs)
    assert request.secret == (None if secret is None else secret.encode())
    assert request.lease_asked == lease
    assert (request.topic, request.callback) == (TOPIC, CALLBACK)
