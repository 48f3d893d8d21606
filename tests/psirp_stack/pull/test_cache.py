"""Memory for versions: bounded, checked, forgetting what nobody asked for longest; strategies by name."""

import contextlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psirp_stack.pull.cache import Everywhere, Sometimes, StrategyError, VersionCache, VersionKey, strategy_named
from psirp_stack.pull.messages import PullMessageError, decode
from psirp_stack.transport.versions import Version, content_ids


def version(number: int, size: int, epoch: int = 1) -> Version:
    content = number.to_bytes(4, "big") + bytes(size)
    return Version(epoch, number, *content_ids(content), number, b"", content)


def key(of: Version, item: bytes = b"i", publisher: str = "p") -> VersionKey:
    return VersionKey(item, publisher, of.epoch, of.number)


steps = st.lists(
    st.tuples(st.sampled_from(["add", "get"]), st.integers(1, 12), st.integers(0, 3000), st.sampled_from([b"a", b"b"])),
    max_size=60,
)


@settings(max_examples=30)
@given(steps)
def test_it_holds_what_was_used_last_and_never_more_than_it_may(made: list[tuple[str, int, int, bytes]]) -> None:
    cache = VersionCache(12_000)
    model: dict[VersionKey, Version] = {}  # in the order in which they were used
    for what, number, size, item in made:
        one = version(number, size)
        place = key(one, item)
        if what == "get":
            assert cache.get(place) == model.get(place)
            if place in model:
                model[place] = model.pop(place)
            continue
        added = cache.add(place, one)
        assert added is (place not in model and 4 * one.cost <= 12_000)
        if added:
            model[place] = one
            while sum(kept.cost for kept in model.values()) > 12_000:
                del model[next(iter(model))]
        assert cache.used == sum(kept.cost for kept in model.values()) <= 12_000
        assert len(cache) == len(model)
        numbers = {kept.number for kept in model if kept.item == item}
        assert cache.numbers(item, "p", 1) == numbers
        newest = cache.newest(item)
        assert newest == (None if not numbers else ("p", 1, max(numbers)))


def test_content_that_is_not_what_its_id_says_is_not_kept() -> None:
    cache = VersionCache(100_000)
    good = version(1, 100)
    forged = Version(1, 1, good.version_id, good.sha256, 0, b"", b"forged")
    assert not cache.add(key(good), forged)
    assert cache.counters.refused == 1
    assert cache.add(key(good), good)
    assert not VersionCache(0).add(key(good), good)


def nothing_at_all() -> Sometimes:
    """A strategy of somebody's own."""
    return Sometimes(1e-9)


def test_strategies_have_names() -> None:
    assert isinstance(strategy_named("everywhere"), Everywhere)
    assert strategy_named("sometimes 0.25") == Sometimes(0.25)
    assert strategy_named(f"{__name__}:nothing_at_all") == Sometimes(1e-9)
    kept = VersionCache(10_000_000, Sometimes(0.25), random.Random(1))
    share = sum(kept.wants(key(version(number, 10)), 14) for number in range(1, 1001)) / 1000
    assert 0.2 < share < 0.3


@pytest.mark.parametrize("name", ["", "never", "sometimes 2", "sometimes x", "no.such:thing", "json:nothing"])
def test_what_is_no_strategy_is_said(name: str) -> None:
    with pytest.raises(StrategyError, match=r"expected|No module|no attribute"):
        strategy_named(name)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    with contextlib.suppress(PullMessageError):
        decode(data)
