"""The order in which gateways are tried, the memory of failures and the cache: no network, no clock."""

import math
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.discovery import (
    CacheConfig,
    DiscoveryError,
    Failover,
    FailoverConfig,
    GatewayRecord,
    LookupFailedError,
    order_to_try,
)
from gateway.discovery.cache import AnswerCache
from gateway.discovery.model import Availability, DomainError, Found, canonical_domain
from storage.backoff import BackOff

HERE = ("192.0.2.1",)
MEMBERS = (("a", 0, 10), ("b", 0, 0), ("c", 1, 5), ("d", 1, 5), ("e", 2, 0))
DRAWS = 20_000


def gateway(name: str, priority: int = 0, weight: int = 0, addresses: tuple[str, ...] = HERE) -> GatewayRecord:
    return GatewayRecord(f"{name}.test", 4000, priority, weight, addresses)


gateways = st.lists(
    st.builds(
        GatewayRecord,
        target=st.sampled_from(["a.test", "b.test", "c.test", "d.test"]),
        port=st.integers(1, 65_535),
        priority=st.integers(0, 3),
        weight=st.integers(0, 65_535) | st.just(0),
        addresses=st.sampled_from([(), HERE]),
    ),
    max_size=12,
    unique_by=lambda each: each.endpoint,
)


def first_picks(choices: list[GatewayRecord], seed: int = 1) -> Counter[str]:
    rng = random.Random(seed)
    return Counter(order_to_try(choices, rng)[0].target.partition(".")[0] for _ in range(DRAWS))


@given(gateways, st.integers())
def test_nobody_is_lost_and_priorities_rise(choices: list[GatewayRecord], seed: int) -> None:
    order = order_to_try(choices, random.Random(seed))
    assert sorted(each.endpoint for each in order) == sorted(each.endpoint for each in choices)
    assert [each.priority for each in order] == sorted(each.priority for each in choices)


@given(gateways, st.integers(), st.randoms())
def test_one_seed_gives_one_order_however_the_answer_was_shuffled(
    choices: list[GatewayRecord], seed: int, shuffler: random.Random
) -> None:
    shuffled = list(choices)
    shuffler.shuffle(shuffled)
    assert order_to_try(choices, random.Random(seed)) == order_to_try(shuffled, random.Random(seed))


def test_weights_are_honoured() -> None:
    picks = first_picks([gateway("a", weight=60), gateway("b", weight=30), gateway("c", weight=10)])
    for name, share in (("a", 0.6), ("b", 0.3), ("c", 0.1)):
        # The draw is of 0 to the sum inclusive, so each share is off by at most 1 in 101; the rest is chance.
        assert picks[name] / DRAWS == pytest.approx(share, abs=0.02)


def test_the_second_place_is_drawn_by_weight_as_well() -> None:
    rng = random.Random(2)
    choices = [gateway("a", weight=1000), gateway("b", weight=300), gateway("c", weight=100)]
    orders = [order_to_try(choices, rng) for _ in range(DRAWS)]
    after_a = Counter(order[1].target for order in orders if order[0].target == "a.test")
    assert after_a["b.test"] / after_a.total() == pytest.approx(0.75, abs=0.02)


def test_weight_zero_is_drawn_rarely_but_drawn() -> None:
    """RFC 2782: zero stands at the head, so only the mark 0 of 0..weight finds it: once in weight + 1."""
    picks = first_picks([gateway("a", weight=9), gateway("zero", weight=0)])
    assert picks["zero"] / DRAWS == pytest.approx(0.1, abs=0.01)
    assert first_picks([gateway("a", weight=65_535), gateway("zero", weight=0)])["zero"] < 10


def test_all_of_weight_zero_share_evenly() -> None:
    picks = first_picks([gateway(name) for name in "abcd"])
    assert all(picks[name] / DRAWS == pytest.approx(0.25, abs=0.02) for name in "abcd")


def test_a_stand_by_waits_for_the_failure_of_the_first() -> None:
    first, second, stand_by = gateway("a", 0, 1), gateway("b", 0, 1), gateway("c", 9, 65_535)
    failover = Failover(FailoverConfig(BackOff(10, 2, 100)), random.Random(1))
    everyone = [stand_by, second, first]
    assert failover.order(everyone, 0)[-1] == stand_by
    until = failover.mark_failed(first, 0)
    assert 5 <= until <= 10
    assert failover.order(everyone, 0) == [second, stand_by, first]
    later = failover.mark_failed(second, 1)
    waiting = [first, second] if until <= later else [second, first]
    assert failover.order(everyone, 1) == [stand_by, *waiting]
    assert failover.order(everyone, 11)[-1] == stand_by, "both are back when their waits are over"


def test_each_failure_in_a_row_doubles_the_wait_and_a_success_forgets_them() -> None:
    failover = Failover(FailoverConfig(BackOff(10, 2, 100)), random.Random(1))
    now, waits = 0.0, []
    for _ in range(8):
        until = failover.mark_failed(gateway("a"), now)
        waits.append(until - now)
        now = until
    for wait, whole in zip(waits, (10, 20, 40, 80, 100, 100, 100, 100), strict=True):
        assert whole / 2 <= wait <= whole
    assert failover.mark_good(gateway("a"))
    assert not failover.mark_good(gateway("a"))
    assert failover.mark_failed(gateway("a"), now) <= now + 10


def test_one_more_failure_never_shortens_a_wait() -> None:
    failover = Failover(FailoverConfig(BackOff(10, 1, 10)), random.Random(1))
    untils = [failover.mark_failed(gateway("a"), 0) for _ in range(50)]
    assert untils == sorted(untils)


def test_time_forgets_failures() -> None:
    failover = Failover(FailoverConfig(BackOff(10, 2, 100), forget_after=1000), random.Random(1))
    for _ in range(5):
        failover.mark_failed(gateway("a"), 0)
    assert failover.mark_failed(gateway("a"), 2000) <= 2010


def test_a_gateway_without_address_is_not_tried() -> None:
    failover = Failover(FailoverConfig(), random.Random(1))
    assert failover.order([gateway("a", addresses=()), gateway("b", 5)], 0) == [gateway("b", 5)]


def test_the_memory_of_failures_is_bounded() -> None:
    failover = Failover(FailoverConfig(max_failed=3), random.Random(1))
    for name in "abcde":
        failover.mark_failed(gateway(name), 0)
    assert failover.counts.forgotten_for_room == 2
    assert [failover.waits_until(gateway(name), 0) is None for name in "abcde"] == [True, True, False, False, False]


class FailoverMachine(RuleBasedStateMachine):
    """Whatever fails and recovers: nobody who has an address is left out, and those that wait come after the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.everyone = [gateway(name, priority, weight) for name, priority, weight in MEMBERS]
        self.failover = Failover(FailoverConfig(BackOff(1, 2, 60), forget_after=30), random.Random(3))

    @rule(number=st.integers(0, 4))
    def fail(self, number: int) -> None:
        before = self.failover.waits_until(self.everyone[number], self.now)
        until = self.failover.mark_failed(self.everyone[number], self.now)
        assert self.now < until <= self.now + 60
        assert before is None or until >= before, "one more failure never shortens a wait"

    @rule(number=st.integers(0, 4))
    def recover(self, number: int) -> None:
        self.failover.mark_good(self.everyone[number])
        assert self.failover.waits_until(self.everyone[number], self.now) is None

    @precondition(lambda self: self.now < 10_000)
    @rule(seconds=st.floats(0, 120))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def order_holds(self) -> None:
        order = self.failover.order(self.everyone, self.now)
        assert sorted(each.endpoint for each in order) == sorted(each.endpoint for each in self.everyone)
        waits = [self.failover.waits_until(each, self.now) for each in order]
        ready = [each for each, wait in zip(order, waits, strict=True) if wait is None]
        late = [wait for wait in waits if wait is not None]
        assert waits == [None] * len(ready) + sorted(late)
        assert [each.priority for each in ready] == sorted(each.priority for each in ready)


TestFailoverMachine = FailoverMachine.TestCase
TestFailoverMachine.settings = settings(max_examples=40, stateful_step_count=30)


@given(st.integers(0, 10**9), st.integers())
def test_back_off_stays_within_its_bounds(failures: int, seed: int) -> None:
    assert 0.5 <= BackOff(1, 2, 300).wait(failures, random.Random(seed)) <= 300


@pytest.mark.parametrize(
    "arguments", [(0, 2, 10), (5, 2, 1), (1, 0.5, 10), (1, 1e9, 10), (math.nan, 2, 10), (1, 2, math.inf)]
)
def test_a_back_off_that_makes_no_sense_is_refused(arguments: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="back-off"):
        BackOff(*arguments)


@pytest.mark.parametrize(
    "wrong", [{"stale": math.nan}, {"failure": -1}, {"longest": math.inf}, {"shortest": 400}, {"domains": 0}]
)
def test_a_cache_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(DiscoveryError):
        CacheConfig(**wrong)  # type: ignore[arg-type]


def found(ttl: float, *members: GatewayRecord, domain: str = "a.test") -> Found:
    return Found(domain, Availability.AVAILABLE if members else Availability.NO_RECORD, members, ttl)


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        (found(0, gateway("a")), 5),
        (found(60, gateway("a")), 60),
        (found(2**31 - 1, gateway("a")), 3600),
        (found(0), 5),
        (found(2**31 - 1), 300),
    ],
)
def test_times_to_live_are_kept_within_bounds(answer: Found, kept: float) -> None:
    cache = AnswerCache(CacheConfig())
    assert cache.put(answer, 100).ttl == kept
    known = cache.get("a.test", 101)
    assert known is not None
    assert known.ttl == kept - 1
    assert cache.get("a.test", 100 + kept) is None


def test_an_answer_with_a_part_missing_is_asked_again_soon() -> None:
    cache = AnswerCache(CacheConfig(failure=7))
    assert cache.put(found(600, gateway("a")), 0, hasty=True).ttl == 7


def test_a_failure_is_remembered_briefly_and_the_last_answer_for_longer() -> None:
    cache = AnswerCache(CacheConfig(failure=5, stale=100))
    with pytest.raises(LookupFailedError, match="no luck"):
        cache.put_failure("a.test", "no luck", 0)
    with pytest.raises(LookupFailedError, match="no luck"):
        cache.get("a.test", 4)
    assert cache.get("a.test", 5) is None
    cache.put(found(10, gateway("a")), 10)
    assert cache.put_failure("a.test", "no luck", 30).stale
    again = cache.get("a.test", 34)
    assert again is not None
    assert again.stale
    with pytest.raises(LookupFailedError):
        cache.put_failure("a.test", "no luck", 120)


def test_that_a_domain_had_none_is_no_answer_for_bad_times() -> None:
    cache = AnswerCache(CacheConfig())
    cache.put(found(10), 0)
    with pytest.raises(LookupFailedError):
        cache.put_failure("a.test", "no luck", 20)


def test_the_cache_is_bounded() -> None:
    cache = AnswerCache(CacheConfig(domains=2))
    for name in ("a.test", "b.test", "c.test"):
        cache.put(found(60, gateway("x"), domain=name), 0)
    assert cache.get("a.test", 1) is None
    assert cache.get("c.test", 1) is not None
    assert cache.counts.forgotten_for_room == 1


@pytest.mark.parametrize("text", ["", ".", "a..b", "a b", "127.0.0.1", "[::1]", "::1", "x" * 64 + ".test", "a\x00b"])
def test_what_is_no_domain_is_refused(text: str) -> None:
    with pytest.raises(DomainError):
        canonical_domain(text)


def test_a_domain_needs_room_for_the_service_labels() -> None:
    label = "x" * 61
    assert canonical_domain(f"{label}.{label}.{label}.test")
    with pytest.raises(DomainError, match="too long"):
        canonical_domain(f"{label}.{label}.{label}.{'y' * 55}.test")


def test_domains_have_one_spelling() -> None:
    assert canonical_domain("BÜCHER.Example.") == "xn--bcher-kva.example"


@given(st.text(max_size=300))
def test_any_text_is_a_domain_or_refused(text: str) -> None:
    try:
        name = canonical_domain(text)
    except DomainError as error:
        assert len(str(error)) < 1000
    else:
        assert canonical_domain(name) == name
