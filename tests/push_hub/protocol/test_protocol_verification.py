"""Intent checks: what is asked, what an answer means, when it is asked again; and leases."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from push_hub.model import Dialect, SignatureMethod
from push_hub.protocol.leases import LeasePolicy, is_live, lease_until, refresh_at
from push_hub.protocol.numbers import CHALLENGE_ALPHABET, VERIFY_WINDOW, Mode
from push_hub.protocol.verification import (
    CallbackAnswer,
    CheckFailed,
    CheckSchedule,
    Confirmed,
    Intent,
    TryAgain,
    Verdict,
    challenge_from,
    check_url,
    denial_url,
    intent_from_text,
    intent_to_text,
    judge,
    judge_denial,
)

CALLBACK = "http://s.example/cb?keep"


def intent(dialect: Dialect = Dialect.WEBSUB, mode: Mode = Mode.SUBSCRIBE, token: str | None = None) -> Intent:
    return Intent(mode, "http://p.example/feed", CALLBACK, dialect, 1000.0, "n", verify_token=token, reason="not you")


def verdict(
    answer: CallbackAnswer, dialect: Dialect = Dialect.WEBSUB, *, attempts: int = 1, synchronous: bool = False
) -> Verdict:
    return judge(
        intent(dialect),
        answer,
        "abc",
        attempts=attempts,
        synchronous=synchronous,
        now=1001.0,
        schedule=CheckSchedule(),
    )


def test_check_url() -> None:
    expected = f"{CALLBACK}&hub.mode=subscribe&hub.topic=http%3A%2F%2Fp.example%2Ffeed&hub.challenge=abc"
    assert check_url(intent(), "abc", 60) == f"{expected}&hub.lease_seconds=60"
    with_token = check_url(intent(token="t k"), "abc", 60)
    assert with_token == f"{expected}&hub.lease_seconds=60&hub.verify_token=t%20k"
    assert "lease" not in check_url(intent(mode=Mode.UNSUBSCRIBE), "abc", 60)


def test_denial_url() -> None:
    url = denial_url(intent(mode=Mode.DENIED))
    assert url == f"{CALLBACK}&hub.mode=denied&hub.topic=http%3A%2F%2Fp.example%2Ffeed&hub.reason=not%20you"


@given(st.binary(min_size=1, max_size=64))
def test_challenge_characters(entropy: bytes) -> None:
    assert set(challenge_from(entropy)) <= CHALLENGE_ALPHABET


@pytest.mark.parametrize("status", [200, 201, 204, 299])
def test_any_2xx_with_the_challenge_confirms(status: int) -> None:
    assert verdict(CallbackAnswer(status, b"abc")) == Confirmed()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (CallbackAnswer(200, b"abc\n"), "extra white space"),
        (CallbackAnswer(204, b""), "empty body"),
        (CallbackAnswer(200, b"other"), "another body"),
        (CallbackAnswer(302, b"abc"), "answered 302"),
        (CallbackAnswer(404, b"abc"), "answered 404"),
    ],
)
def test_every_other_answer_is_a_failure(answer: CallbackAnswer, words: str) -> None:
    final = verdict(answer)
    assert isinstance(final, CheckFailed)
    assert words in final.reason
    again = verdict(answer, Dialect.PUSH_03)
    assert isinstance(again, CheckFailed if answer.status == 404 else TryAgain)
    assert isinstance(verdict(answer, Dialect.PUSH_03, synchronous=True), CheckFailed)


@pytest.mark.parametrize(
    "answer", [CallbackAnswer(None, reason="refused"), CallbackAnswer(500), CallbackAnswer(503), CallbackAnswer(429)]
)
def test_a_callback_that_could_not_answer_is_asked_again(answer: CallbackAnswer) -> None:
    for dialect in Dialect:
        assert isinstance(verdict(answer, dialect), TryAgain)
        assert isinstance(verdict(answer, dialect, synchronous=True), CheckFailed)
    assert isinstance(verdict(answer, Dialect.WEBSUB, attempts=4), CheckFailed)


@given(
    st.floats(0.1, 600),
    st.floats(1.0, 10),
    st.floats(0, 30),
)
def test_the_schedule_ends_within_its_window(first: float, factor: float, spent: float) -> None:
    schedule = CheckSchedule(first=first, factor=factor)
    now = 1000.0
    attempts = 0
    previous = now
    while True:
        attempts += 1
        now += spent
        at = schedule.next_try(attempts, 1000.0, now)
        if at is None:
            break
        assert previous < at <= 1000.0 + VERIFY_WINDOW
        assert at >= now
        previous = now = at
    assert attempts <= schedule.attempts


def test_the_default_schedule_spreads_over_the_hours() -> None:
    schedule = CheckSchedule()
    now, attempts = 0.0, 1
    while (at := schedule.next_try(attempts, 0.0, now)) is not None:
        now, attempts = at, attempts + 1
    assert now == VERIFY_WINDOW
    assert 5 <= attempts <= 12


def test_denials_are_repeated_only_when_they_did_not_arrive() -> None:
    schedule = CheckSchedule()
    denied = intent(mode=Mode.DENIED)
    assert judge_denial(denied, CallbackAnswer(404), attempts=1, now=1001, schedule=schedule) == Confirmed()
    lost = CallbackAnswer(None, reason="no route")
    assert isinstance(judge_denial(denied, lost, attempts=1, now=1001, schedule=schedule), TryAgain)
    assert isinstance(judge_denial(denied, lost, attempts=3, now=1001, schedule=schedule), CheckFailed)


@given(
    st.sampled_from(Mode),
    st.sampled_from(Dialect),
    st.none() | st.binary(max_size=199),
    st.none() | st.integers(1, 10**12),
    st.none() | st.text(st.characters(exclude_categories=["Cs"])),
    st.booleans(),
)
def test_an_intent_survives_as_text(
    mode: Mode, dialect: Dialect, secret: bytes | None, lease: int | None, token: str | None, refresh: bool
) -> None:
    one = Intent(
        mode, "http://p/", "http://c/", dialect, 12.5, "n", secret, SignatureMethod.SHA384, lease, token, refresh, "r"
    )
    assert intent_from_text(intent_to_text(one)) == one


@given(st.none() | st.integers(1, 10**12), st.floats(0, 4e9), st.integers(1, 10**6), st.integers(0, 10**6))
def test_no_lease_is_perpetual_or_below_the_minimum(asked: int | None, sent_at: float, low: int, more: int) -> None:
    policy = LeasePolicy(minimum=low, default=low + more // 2, maximum=low + more)
    granted = policy.grant(asked)
    assert low <= granted <= low + more
    if asked is not None and low <= asked <= low + more:
        assert granted == asked
    until = lease_until(sent_at, granted)
    assert sent_at < until <= sent_at + low + more
    assert not is_live(until, until)
    assert sent_at <= refresh_at(sent_at, granted) <= until


def test_lease_policy_refuses_nonsense() -> None:
    with pytest.raises(ValueError, match="minimum"):
        LeasePolicy(minimum=0)
    with pytest.raises(ValueError, match="minimum"):
        LeasePolicy(minimum=10, default=5, maximum=20)
