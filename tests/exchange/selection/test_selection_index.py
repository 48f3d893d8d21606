"""The index against asking each selector: whatever was added and removed, both must say the same."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from exchange.selection import ANYTHING, Operator, Predicate, Selector, SelectorIndex
from exchange.selection.index import FEW
from exchange.selection.thresholds import SortedLimits

NAMES = st.sampled_from(["a", "b", "c"])
TEXTS = st.sampled_from(["", "1", "1.0", "2", "-3", "x", "xy", "yx", "é", "1e400", "nan"])
NUMBERS = st.sampled_from([-3.0, 0.0, 1.0, 1.5, 2.0])
LISTS = (Operator.IN, Operator.NOT_IN)
TEXT_ONLY = (Operator.PREFIX, Operator.SUFFIX, Operator.CONTAINS)


@st.composite
def predicates(draw: st.DrawFn) -> Predicate:
    operator = draw(st.sampled_from(list(Operator)))
    value = TEXTS if operator in TEXT_ONLY else TEXTS | NUMBERS
    if operator is Operator.EXISTS:
        values: tuple[str | float, ...] = ()
    elif operator in LISTS:
        values = tuple(draw(st.lists(value, min_size=1, max_size=3)))
    else:
        values = (draw(value),)
    return Predicate(draw(NAMES), operator, values)


SELECTORS = st.lists(predicates(), max_size=4).map(lambda found: Selector(tuple(found)))
PUBLICATIONS = st.dictionaries(NAMES, st.lists(TEXTS, max_size=3).map(tuple))


@settings(max_examples=300)
@given(st.lists(SELECTORS, max_size=12), st.sets(st.integers(0, 11)), st.lists(PUBLICATIONS, min_size=1, max_size=6))
def test_it_finds_what_asking_each_finds(
    selectors: list[Selector], removed: set[int], publications: list[dict[str, tuple[str, ...]]]
) -> None:
    index = SelectorIndex()
    for number, selector in enumerate(selectors):
        index.add(number, selector)
    left = dict(enumerate(selectors))
    for step in (set[int](), removed & set(left)):
        for number in step:
            index.remove(number)
            del left[number]
        assert len(index) == len(left)
        for attributes in publications:
            expected = {number for number, selector in left.items() if selector.matches(attributes)}
            assert set(index.match(attributes)) == expected
    for number in list(left):
        index.remove(number)
    assert not index.match({"a": ("1",)})


@pytest.mark.parametrize("count", [FEW - 1, FEW, FEW + 1, 5 * FEW])
def test_many_selectors_under_one_value_are_one_by_one_taken_away_again(count: int) -> None:
    index = SelectorIndex()
    for number in range(count):
        limit = Predicate("price", Operator.AT_LEAST, (float(number),))
        index.add(number, Selector((Predicate("symbol", Operator.EQUAL, ("psph",)), limit)))
    for price in (0.0, count / 2, float(count)):
        expected = set(range(min(count, int(price) + 1)))
        assert set(index.match({"symbol": ("psph",), "price": (str(price),)})) == expected
    assert not index.match({"symbol": ("other",), "price": ("9",)})
    for number in range(count):
        index.remove(number)
        found = index.match({"symbol": ("psph",), "price": (str(count),)})
        assert found == BitMap(range(number + 1, count))


def test_numbers_are_given_once() -> None:
    index = SelectorIndex()
    index.add(1, ANYTHING)
    with pytest.raises(ValueError, match="already"):
        index.add(1, ANYTHING)
    with pytest.raises(KeyError):
        index.remove(2)
    assert 1 in index
    assert set(index.match({})) == {1}


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(0, 400)), max_size=600), st.integers(-1, 31))
def test_limits_stay_in_order_whatever_comes_and_goes(steps: list[tuple[bool, int, int]], asked: int) -> None:
    limits, known = SortedLimits(), dict[int, int]()
    for adds, limit, number in steps:
        if adds and number not in known:
            limits.add(float(limit), number)
            known[number] = limit
        elif not adds and number in known:
            limits.remove(float(known.pop(number)), number)
        if number % 40 == 0:
            assert set(limits.below(float(limit), equal=True)) == {one for one, at in known.items() if at <= limit}
    assert len(limits) == len(known)
    assert set(limits.below(float(asked), equal=False)) == {one for one, at in known.items() if at < asked}
    assert set(limits.above(float(asked), equal=True)) == {one for one, at in known.items() if at >= asked}
    assert set(limits.above(float(asked), equal=False)) == {one for one, at in known.items() if at > asked}
    with pytest.raises(KeyError):
        limits.remove(99.0, 1)


def test_limits_in_many_blocks() -> None:
    limits = SortedLimits()
    for number in range(2_000):
        limits.add(float(number * 7919 % 2_000), number)
    for asked in (0, 1, 63, 64, 65, 999, 1_999, 2_000):
        assert len(limits.below(float(asked), equal=False)) == asked
        assert len(limits.above(float(asked), equal=True)) == 2_000 - asked
    for number in range(0, 2_000, 2):
        limits.remove(float(number * 7919 % 2_000), number)
    assert len(limits.below(2_000.0, equal=True)) == len(limits) == 1_000
