"""What selectors mean, and how they are written."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exchange.selection import Operator, Predicate, Selector, SelectorError, parse_selector
from exchange.selection.grammar import MAX_LENGTH
from exchange.selection.selector import MAX_PREDICATES, MAX_TEXT, MAX_VALUES
from tests.exchange.selection.test_selection_index import LISTS, TEXT_ONLY

PUBLICATION = {"symbol": ("psph",), "price": ("3.50",), "tag": ("a", "b"), "empty": (), "odd name": ("x",)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        ("symbol = 'psph'", True),
        ("symbol = 'other'", False),
        ("symbol != 'psph'", False),
        ("symbol != 'other'", True),
        ("price = 3.5", True),
        ("price = '3.5'", False),
        ("price = '3.50'", True),
        ("price > 3.5", False),
        ("price >= 3.5 and price <= 3.5", True),
        ("price < 4", True),
        ("price < 'a'", True),
        ("symbol > 1", False),
        ("tag = 'b'", True),
        ("tag != 'b'", False),
        ("tag in ('c', 'b')", True),
        ("tag not in ('c', 'd')", True),
        ("tag not in ('c', 'a')", False),
        ("price in (1, 3.5)", True),
        ("symbol prefix 'ps'", True),
        ("symbol suffix 'ps'", False),
        ("symbol contains 'sp'", True),
        ("symbol exists", True),
        ("empty exists", False),
        ("absent exists", False),
        ("absent != 'x'", False),
        ("absent not in ('x')", False),
        ("'odd name' = 'x'", True),
        ("symbol = 'psph' and tag = 'c'", False),
    ],
)
def test_what_a_selector_means(text: str, expected: bool) -> None:
    selector = parse_selector(text)
    assert selector.matches(PUBLICATION) is expected
    assert (selector.failed(PUBLICATION) is None) is expected


def test_it_says_which_predicate_failed() -> None:
    failed = parse_selector("symbol = 'psph' and price > 4 and tag = 'z'").failed(PUBLICATION)
    assert str(failed) == "price > 4"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("symbol", "expected one of ="),
        ("= 3", "expected the name"),
        ("symbol = psph", "expected a text in quotes or a number"),
        ("symbol = 'psph' or tag = 'a'", "expected and, or the end"),
        ("symbol = 'psph' and", "found the end"),
        ("symbol in 'a'", r"expected \("),
        ("symbol in ()", "expected a text"),
        ("symbol in ('a' 'b')", r"expected \)"),
        ("symbol not 'a'", "expected in, after not"),
        ("symbol prefix 3", "takes a text, in quotes"),
        ("symbol = 1e999", "expected a text in quotes or a number"),
        ("symbol = 3x", "nothing that stands in a selector"),
        ("symbol ; drop", "nothing that stands in a selector"),
        ("symbol = 'open", "nothing that stands in a selector"),
        ("a exists" + " and a exists" * MAX_PREDICATES, f"at most {MAX_PREDICATES} predicates"),
        ("a in (" + "1, " * MAX_VALUES + "1)", f"1 to {MAX_VALUES} values"),
        (f"a = '{'x' * (MAX_TEXT + 1)}'", f"at most {MAX_TEXT} characters"),
        ("a = 'x'" + " " * MAX_LENGTH, f"at most {MAX_LENGTH} characters"),
    ],
)
def test_what_is_no_selector_is_told_where_and_what_was_expected(text: str, words: str) -> None:
    with pytest.raises(SelectorError, match=words):
        parse_selector(text)


@st.composite
def any_predicates(draw: st.DrawFn) -> Predicate:
    operator = draw(st.sampled_from(list(Operator)))
    texts = st.text(max_size=8)
    value = texts if operator in TEXT_ONLY else texts | st.floats(allow_nan=False, allow_infinity=False)
    if operator is Operator.EXISTS:
        values: tuple[str | float, ...] = ()
    else:
        values = tuple(draw(st.lists(value, min_size=1, max_size=3 if operator in LISTS else 1)))
    name = st.text(min_size=1, max_size=8) | st.sampled_from(
        ["and", "In", "not", "exists", "a.b", "dc:date", "@id", "x y"]
    )
    return Predicate(draw(name), operator, values)


@settings(max_examples=300)
@given(st.lists(any_predicates(), max_size=MAX_PREDICATES))
def test_what_is_shown_is_read_again_as_it_was(predicates: list[Predicate]) -> None:
    selector = Selector(tuple(predicates))
    assert parse_selector(str(selector)) == selector


@given(st.text(alphabet="ab='\"() ,<>!1.inotexisprefandcs", max_size=40))
def test_whatever_is_written_is_a_selector_or_an_error_in_words(text: str) -> None:
    try:
        selector = parse_selector(text)
    except SelectorError as error:
        assert str(error)
    else:
        assert parse_selector(str(selector)) == selector
